"""Build TensorRT engines of an export folder, with `tensorrt` or with `tensorrt_rtx`: one build code, two packages.

Precision is the graph's own: networks are strongly typed. Every optimisation profile of a decoder has fixed shapes
(rows, new positions, all cache slots), so that one captured CUDA graph serves every cycle.
"""

from collections.abc import Callable, Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import onnx

from underpaint.artifacts import decoder_graph as graph_names
from underpaint.artifacts.decoder_graph import POSITION_BUCKETS
from underpaint.artifacts.manifest import Manifest, write_beside
from underpaint.runtime.engines.context import EngineError
from underpaint.runtime.engines.shape import DecoderShape, read_shape
from underpaint.runtime.engines.tensorrt_files import (
    ANY_GPU,
    EngineRecord,
    Profile,
    backend_module,
    paths,
    write_engine,
)
from underpaint.zoo.load import locate, names
from underpaint.zoo.load import manifest as read_manifest

ROWS: Final = (1, 2)
GRAPHS: Final = (
    *("target", "drafter", "condition", "image_decoder", "image_encoder", "sampler"),
    *("upsampler", "downsampler", "superres"),
)
_LARGEST_TREE: Final = 64
_WORKSPACE_BYTES: Final = 4 << 30
_DEFAULT_GRID: Final = 16

Shape = tuple[int, ...]


def build_folder(
    folder: Path,
    backend: str,
    gpu: str = ANY_GPU,
    only: tuple[str, ...] = (),
    buckets: tuple[int, ...] = POSITION_BUCKETS,
) -> Iterator[tuple[Path, EngineRecord]]:
    """Build the engine of every graph in `folder` (or of those in `only`), one after the other.

    gpu: the name of this machine's GPU, which the engine is then tied to.
    Raises EngineError where the package is missing or refuses a graph, naming its reason; ManifestError on damage.
    """
    module = backend_module(backend)
    known = [name for name in names(folder) if read_manifest(name, folder).kind in GRAPHS]
    unknown = sorted(set(only) - set(known))
    if unknown or not known:
        raise EngineError(f"{folder}: expected models among {', '.join(known) or 'none'}, got {', '.join(unknown)}")
    for name in known:
        if not only or name in only:
            yield _build_one(folder, name, module, backend, gpu, buckets)


def _build_one(
    folder: Path, name: str, module: ModuleType, backend: str, gpu: str, buckets: tuple[int, ...]
) -> tuple[Path, EngineRecord]:
    found = read_manifest(name, folder)
    located = locate(name, found.kind, folder)
    counts: tuple[tuple[int, int], ...] = ()
    if found.kind in ("target", "drafter"):
        shape = read_shape(found.settings, name)
        counts = batch_counts(shape, buckets)
        profiles = [decoder_profile(shape, found.shapes, rows, count) for rows, count in counts]
    else:
        profiles = [_other_profile(found, folder)]
    timing = paths(folder, name, backend).timing
    content = build_engine(located.path, profiles, module, timing)
    record = EngineRecord(
        model=name,
        backend=backend,
        version=module.__version__,
        gpu=gpu,
        onnx_sha256=found.sha256,
        weights_sha256=None if found.weights is None else found.weights.sha256,
        engine_sha256=sha256(content).hexdigest(),
        engine_bytes=len(content),
        precision=str(found.settings.get("precision", "fp32")),
        batch_counts=counts,
    )
    return write_engine(folder, content, record), record


def batch_counts(shape: DecoderShape, buckets: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    """(rows, new positions) of the profiles: every bucket, at most a whole image, and the prefill.

    Where lines end in tokens of their own, which a pass over as many nodes may all bring, also twice the largest.
    """
    image = shape.grid.cells + shape.eol_tokens
    most = (2 * max(buckets),) if shape.eol_tokens else ()
    counts = {min(count, image) for count in (*buckets, *most)} | {max(shape.prefix, 1)}
    return tuple((rows, count) for rows in ROWS for count in sorted(counts))


def decoder_profile(shape: DecoderShape, inputs: Mapping[str, Any], rows: int, count: int) -> Profile:
    """Fixed shapes of a pass of `count` new positions in `rows` sequences."""
    heads, width, slots = shape.heads, shape.head_dim, shape.capacity
    known: dict[str, Shape] = {
        graph_names.TOKENS: (rows, count),
        graph_names.CELLS: (rows, count),
        graph_names.BIAS: (rows, count, slots + count),
        graph_names.FEATURES: (rows, count, shape.dim),
        graph_names.EXTERNAL_COND_ROWS: (shape.external_cond_rows, shape.dim),
    }
    for index in range(shape.layers):
        known[graph_names.past_key(index)] = (rows, heads, width, slots)
        known[graph_names.past_value(index)] = (rows, heads, slots, width)
    # A target's features are an output of the same name; `build_engine` leaves out what is no input.
    return Profile({name: (fixed, fixed, fixed) for name, fixed in known.items() if name in inputs})


def _other_profile(found: Manifest, folder: Path) -> Profile:
    height, width = _grid(folder)
    if found.kind == "image_decoder":
        fixed: Shape = (1, height, width)
        return Profile({"codes": (fixed, fixed, fixed)})
    if found.kind == "image_encoder":
        stride = int(found.settings["stride"])
        fixed = (1, 3, height * stride, width * stride)
        return Profile({"pixels": (fixed, fixed, fixed)})
    if found.kind in ("upsampler", "downsampler"):
        return _rows_profile(found)
    if found.kind == "superres":
        sizes = [_stride(folder) * int(cells) for cells in found.settings["low"]]
        fixed = (1, 3, *sizes)
        return Profile({"pixels": (fixed, fixed, fixed)})
    if found.kind == "sampler":
        vocab = int(found.settings["vocab_size"])
        one = ((1,), (1,), (1,))
        logits = ((1, 1, vocab), (2, 16, vocab), (2, _LARGEST_TREE, vocab))
        return Profile({"logits": logits, "guidance": one, "temperature": one})
    return Profile({})


def _rows_profile(found: Manifest) -> Profile:
    """Any number of drawn rows: they are resampled as they come."""
    low, high = ([int(side) for side in found.settings[which]] for which in ("low", "high"))
    height, width = low if found.kind == "upsampler" else high
    step = 1 if found.kind == "upsampler" else height // low[0]
    return Profile({"codes": ((1, step, width), (1, height, width), (1, height, width))})


def _stride(folder: Path) -> int:
    """Pixels a code along a side."""
    return int(read_manifest("vq_encoder", folder).settings["stride"])


def _grid(folder: Path) -> tuple[int, int]:
    """Rows and columns of codes."""
    if "target" in names(folder):
        settings = read_manifest("target", folder).settings
        return int(settings["height"]), int(settings["width"])
    return _DEFAULT_GRID, _DEFAULT_GRID


def build_engine(path: Path, profiles: list[Profile], module: ModuleType, timing: Path) -> bytes:
    """The serialised engine of a graph. `timing`: the cache of measured kernels, read and written where supported.

    Raises EngineError with what the parser or the builder said.
    """
    said: list[str] = []
    logger = _logger(module, said.append)
    builder = module.Builder(logger)
    flag = module.NetworkDefinitionCreationFlag
    # TensorRT 11 knows strong typing only; before it, and in RTX, it is a flag.
    flags = 1 << int(flag.STRONGLY_TYPED) if hasattr(flag, "STRONGLY_TYPED") else 0
    network = builder.create_network(flags)
    parser = module.OnnxParser(network, logger)
    if not parser.parse(plain_pass(path), str(path)):
        reasons = [parser.get_error(index).desc() for index in range(parser.num_errors)]
        raise EngineError(f"{path.name}: {module.__name__} cannot read it: {'; '.join(reasons[:3] or said[-3:])}")
    config = builder.create_builder_config()
    config.set_memory_pool_limit(module.MemoryPoolType.WORKSPACE, _WORKSPACE_BYTES)
    config.clear_flag(module.BuilderFlag.TF32)  # on by default: products of float32 would keep 10 bits of each factor
    inputs = {network.get_input(index).name for index in range(network.num_inputs)}
    for profile in profiles:
        _add_profile(builder, config, profile, inputs)
    measured = module.__name__ == "tensorrt"  # RTX measures when it first runs, and has no cache here
    if measured:
        config.set_timing_cache(config.create_timing_cache(timing.read_bytes() if timing.is_file() else b""), True)
    built = builder.build_serialized_network(network, config)
    if built is None:
        raise EngineError(f"{path.name}: {module.__name__} could not build it: {'; '.join(said[-3:])}")
    if measured:
        write_beside(timing, bytes(config.get_timing_cache().serialize()))
    return bytes(built)


def _add_profile(builder: Any, config: Any, profile: Profile, inputs: set[str]) -> None:
    if not profile.shapes:
        return
    made = builder.create_optimization_profile()
    for name, (least, best, most) in profile.shapes.items():
        if name in inputs:
            made.set_shape(name, least, best, most)
    config.add_optimization_profile(made)


def _logger(module: ModuleType, keep: Callable[[str], None]) -> Any:
    """A logger that keeps warnings and errors, to be told only where something fails."""
    base = module.ILogger

    def start(self: Any) -> None:
        base.__init__(self)

    def log(self: Any, severity: Any, message: str) -> None:
        if int(severity) <= int(base.WARNING):
            keep(message)

    return type("WarningLogger", (base,), {"__init__": start, "log": log})()


_BEYOND = frozenset({graph_names.PROBS, graph_names.CHAIN_TOKENS, *graph_names.TREE_OUTPUTS})


def plain_pass(path: Path) -> bytes:
    """The graph at `path` without probabilities, chains and trees, and without what only they need.

    A graph that has none is given back as it is. Weights stay where they are, in the file beside it.
    """
    model = onnx.load(path, load_external_data=False)
    graph = model.graph
    given_back = {output.name for output in graph.output}
    if graph_names.LOGITS not in given_back or not given_back & _BEYOND:
        return path.read_bytes()
    outputs = [output for output in graph.output if output.name not in _BEYOND]
    needed, nodes = {output.name for output in outputs}, []
    for node in reversed(graph.node):
        if needed & set(node.output):
            nodes.append(node)
            needed |= set(node.input)
    inputs = [given for given in graph.input if given.name in needed]
    tensors = [tensor for tensor in graph.initializer if tensor.name in needed]
    for field, left in (("node", nodes[::-1]), ("input", inputs), ("output", outputs), ("initializer", tensors)):
        graph.ClearField(field)
        getattr(graph, field).extend(left)
    content: bytes = model.SerializeToString(deterministic=True)
    return content
