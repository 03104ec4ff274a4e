"""Build TensorRT engines for the device runtime: of a decoder's layers and of its head, for the passes of a batch."""

from collections.abc import Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from types import ModuleType

from underpaint.artifacts.decoder_graph import DecoderSizes, TensorSpec
from underpaint.artifacts.device_graph import HEAD, LAYERS, DecoderPasses, PassSize, head_inputs, layers_inputs
from underpaint.export.device_graph import write_device_graphs
from underpaint.export.tensorrt_build import build_engine, timing_file
from underpaint.runtime.engines.elsewhere import ElsewhereDecoder
from underpaint.runtime.engines.tensorrt_files import EngineRecord, Profile, part_of, write_engine


def build_device_engines(
    decoder: ElsewhereDecoder, passes: DecoderPasses, module: ModuleType, backend: str, gpu: str, rows: int
) -> Iterator[tuple[Path, EngineRecord]]:
    """Write a decoder's graphs, and build engines of both for these passes of `rows` rows, guidance rows counted.

    Raises EngineError with what the parser or the builder said.
    """
    found, shape = decoder.located.manifest, decoder.shape
    sizes = DecoderSizes(
        layers=shape.layers,
        heads=shape.heads,
        head_dim=shape.head_dim,
        dim=shape.dim,
        vocab_size=shape.vocab_size,
        precision=shape.precision,
        drafter=found.kind == "drafter",
        external_cond_rows=False,
    )
    graphs = write_device_graphs(decoder.located, shape)
    read = layers_inputs(sizes), head_inputs(sizes)
    for part, graph, inputs, taken in zip((LAYERS, HEAD), graphs, read, passes, strict=True):
        profiles = [profile(inputs, rows, size) for size in taken]
        content = build_engine(graph, profiles, module, shape.precision, timing_file(backend, module, gpu))
        record = EngineRecord(
            model=part_of(found.name, part),
            backend=backend,
            version=module.__version__,
            gpu=gpu,
            onnx_sha256=found.sha256,
            weights_sha256=None if found.weights is None else found.weights.sha256,
            engine_sha256=sha256(content).hexdigest(),
            engine_bytes=len(content),
            precision=shape.precision,
            rows=rows,
            counts=(),
            passes=taken,
        )
        yield write_engine(graph.parent, content, record), record


def profile(inputs: Sequence[TensorSpec], rows: int, size: PassSize) -> Profile:
    """Shapes of a pass: fixed, but for the condition's, which may have fewer positions."""

    def shape(spec: TensorSpec, count: int) -> tuple[int, ...]:
        known = {"R": rows, "T": count, "S": size.committed, "M": size.slots, "N": size.committed + size.slots + count}
        return tuple(one if isinstance(one, int) else known[one] for one in spec.shape)

    least, most = ({spec.name: shape(spec, count) for spec in inputs} for count in (size.least, size.most))
    return Profile({name: (least[name], most[name], most[name]) for name in most})
