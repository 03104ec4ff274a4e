"""Build TensorRT engines of an export folder, with `tensorrt` or with `tensorrt_rtx`: one build code, two packages.

Precision is the graph's own: networks are strongly typed. An engine is for one number of rows. Each of its optimisation
profiles has fixed shapes (new positions, all cache slots), so that one captured CUDA graph serves every cycle.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from types import ModuleType
from typing import Any, Final, NamedTuple

from underpaint.artifacts.decoder_config import DecoderConfig, Precision
from underpaint.artifacts.decoder_graph import POSITION_BUCKETS, pass_inputs
from underpaint.artifacts.files import user_cache_folder
from underpaint.artifacts.manifest import Manifest, write_beside
from underpaint.artifacts.model_index import read_index
from underpaint.export.graph_rewrites import plain_pass
from underpaint.runtime.engines.context import EngineError
from underpaint.runtime.engines.engine import manifest_config, rows_of
from underpaint.runtime.engines.tensorrt_files import (
    ANY_GPU,
    EngineRecord,
    Profile,
    backend_module,
    write_engine,
)
from underpaint.zoo.load import Located, locate, names
from underpaint.zoo.load import manifest as read_manifest

KINDS: Final = ("target", "drafter")
"""What the runtime opens on TensorRT. Conditions and pictures run on ONNX Runtime, whatever runs the decoders."""
_WORKSPACE_BYTES: Final = 4 << 30


def build_folder(
    folder: Path,
    backend: str,
    gpu: str = ANY_GPU,
    only: tuple[str, ...] = (),
    buckets: tuple[int, ...] = POSITION_BUCKETS,
    rows: tuple[int, ...] = (),
) -> Iterator[tuple[Path, EngineRecord]]:
    """Build engines of every decoder in `folder` (or of those in `only`), one after the other.

    gpu: the name of this machine's GPU, which the engine is then tied to. rows: of passes, an engine for each number;
    empty for what the folder's models are meant to be sampled with: 1, or 2 where guidance is not 1.
    Raises EngineError where the package is missing or refuses a graph, naming its reason; ManifestError on damage.
    """
    module, found = backend_module(backend), decoders_of(folder, only)
    batches = rows or (rows_of(read_index(folder).sampling()),)
    for located in found:
        for count in batches:
            yield _build_one(located, EngineBuilder(module, backend, gpu), buckets, count)


def decoders_of(folder: Path, only: tuple[str, ...] = ()) -> Iterator[Located]:
    """The targets and drafters of `folder`, or those of them in `only`, each read and hashed once, as it is asked for.

    Raises EngineError where there is none, or not one that is named; ManifestError on damage.
    """
    known = [name for name in names(folder) if read_manifest(name, folder).kind in KINDS]
    unknown = sorted(set(only) - set(known))
    if unknown or not known:
        raise EngineError(
            f"{folder}: expected models among {', '.join(known) or 'none'}, the targets and drafters, got "
            f"{', '.join(unknown)}; what else is in the folder runs on ONNX Runtime"
        )
    return (locate(name, read_manifest(name, folder).kind, folder) for name in known if not only or name in only)


class EngineBuilder(NamedTuple):
    """A TensorRT package, the backend's name for it, and the GPU that it builds for."""

    module: ModuleType
    backend: str
    gpu: str

    def write(
        self,
        graph: Path,
        model: str,
        found: Manifest,
        precision: Precision,
        profiles: list[Profile],
        rows: int,
        *,
        counts: tuple[int, ...] = (),
        passes: tuple[tuple[int, int, int, int], ...] = (),
    ) -> tuple[Path, EngineRecord]:
        """Build a graph's engine and write it beside the graph, with its record.

        model: its name in the record; found: the manifest of the exported model; counts, passes: see `EngineRecord`.
        Raises EngineError with what the parser or the builder said.
        """
        timing = timing_file(self.backend, self.module, self.gpu)
        content = build_engine(graph, profiles, self.module, precision, timing)
        record = EngineRecord(
            model=model,
            backend=self.backend,
            version=self.module.__version__,
            gpu=self.gpu,
            onnx_sha256=found.sha256,
            weights_sha256=None if found.weights is None else found.weights.sha256,
            engine_sha256=sha256(content).hexdigest(),
            engine_bytes=len(content),
            precision=precision,
            rows=rows,
            counts=counts,
            passes=passes,
        )
        return write_engine(graph.parent, content, record), record


def _build_one(
    located: Located, builder: EngineBuilder, buckets: tuple[int, ...], rows: int
) -> tuple[Path, EngineRecord]:
    found = located.manifest
    config = manifest_config(found.settings, found.name)
    counts = position_counts(config, buckets)
    profiles = [decoder_profile(config, rows, count) for count in counts]
    return builder.write(located.path, found.name, found, config.precision, profiles, rows, counts=counts)


def position_counts(config: DecoderConfig, buckets: tuple[int, ...]) -> tuple[int, ...]:
    """New positions of the profiles: every bucket, at most a whole image, and the prefill.

    Where lines end in tokens of their own, which a pass over as many nodes may all bring, also twice the largest.
    """
    lines = 0 if config.eol_id is None else config.eol_tokens
    most = (2 * max(buckets),) if lines else ()
    counts = {min(count, config.cells + lines) for count in (*buckets, *most)}
    return tuple(sorted(counts | {max(config.condition_positions, 1)}))


def decoder_profile(config: DecoderConfig, rows: int, count: int) -> Profile:
    """Fixed shapes of a pass of `count` new positions in `rows` sequences."""
    slots = config.capacity
    known = {"B": rows, "T": count, "S": slots, "S+T": slots + count, "C": config.external_cond_rows}
    fixed = {
        spec.name: tuple(known[size] if isinstance(size, str) else size for size in spec.shape)
        for spec in pass_inputs(config)
    }
    return Profile({name: (shape, shape, shape) for name, shape in fixed.items()})


def timing_file(backend: str, module: ModuleType, gpu: str) -> Path:
    """Where measured kernels are kept: in the user's cache folder, by package, version and GPU."""
    named = sha256(json.dumps([backend, module.__version__, gpu]).encode()).hexdigest()[:16]
    return user_cache_folder() / "timing" / f"{backend}-{named}.cache"


def build_engine(path: Path, profiles: list[Profile], module: ModuleType, precision: str, timing: Path) -> bytes:
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
    if precision == "fp32":
        # On by default: products would keep 10 bits of each factor. In half precision no factor has more.
        config.clear_flag(module.BuilderFlag.TF32)
    inputs = {network.get_input(index).name for index in range(network.num_inputs)}
    for profile in profiles:
        _add_profile(builder, config, profile, inputs)
    measured = module.__name__ == "tensorrt"  # RTX measures when it first runs, and has no cache here
    if measured:
        _take_measured(config, timing)
    built = builder.build_serialized_network(network, config)
    if built is None:
        raise EngineError(f"{path.name}: {module.__name__} could not build it: {'; '.join(said[-3:])}")
    if measured:
        with suppress(OSError):  # the engine is built; the next build measures again
            timing.parent.mkdir(parents=True, exist_ok=True)
            write_beside(timing, bytes(config.get_timing_cache().serialize()))
    return bytes(built)


def _take_measured(config: Any, timing: Path) -> None:
    """Let the builder take kernels from the file where they were measured on this GPU, else begin anew."""
    for content in (timing.read_bytes() if timing.is_file() else b"", b""):
        cache = config.create_timing_cache(content)
        if cache is not None and config.set_timing_cache(cache, False):  # False: another device's is refused
            return


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
