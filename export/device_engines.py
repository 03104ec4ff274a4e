"""Build TensorRT engines for the device runtime: of a decoder's layers and of its head, for the passes of a batch."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from underpaint.artifacts.decoder_graph import TensorSpec
from underpaint.artifacts.device_graph import HEAD, LAYERS, DecoderPasses, PassSize, head_inputs, layers_inputs
from underpaint.export.device_graph import write_device_graphs
from underpaint.export.tensorrt_build import EngineBuilder
from underpaint.runtime.engines.elsewhere import ElsewhereDecoder
from underpaint.runtime.engines.shape import graph_sizes
from underpaint.runtime.engines.tensorrt_files import EngineRecord, Profile, part_of


def build_device_engines(
    decoder: ElsewhereDecoder, passes: DecoderPasses, builder: EngineBuilder, rows: int
) -> Iterator[tuple[Path, EngineRecord]]:
    """Write a decoder's graphs, and build engines of both for these passes of `rows` rows, guidance rows counted.

    Raises EngineError with what the parser or the builder said.
    """
    found, shape = decoder.located.manifest, decoder.shape
    sizes = graph_sizes(shape, drafter=found.kind == "drafter")
    graphs = write_device_graphs(decoder.located, shape)
    read = layers_inputs(sizes), head_inputs(sizes)
    for part, graph, inputs, taken in zip((LAYERS, HEAD), graphs, read, passes, strict=True):
        profiles = [profile(inputs, rows, size) for size in taken]
        yield builder.write(graph, part_of(found.name, part), found, shape.precision, profiles, rows, passes=taken)


def profile(inputs: Sequence[TensorSpec], rows: int, size: PassSize) -> Profile:
    """Shapes of a pass: fixed, but for the condition's, which may have fewer positions."""

    def shape(spec: TensorSpec, count: int) -> tuple[int, ...]:
        known = {"R": rows, "T": count, "S": size.committed, "M": size.slots, "N": size.committed + size.slots + count}
        return tuple(one if isinstance(one, int) else known[one] for one in spec.shape)

    least, most = ({spec.name: shape(spec, count) for spec in inputs} for count in (size.least, size.most))
    return Profile({name: (least[name], most[name], most[name]) for name in most})
