"""Build TensorRT plans of an export folder, with `tensorrt` or with `tensorrt_rtx`: one build code, two packages.

Precision is the graph's own: networks are strongly typed. A plan holds no weights; it takes any number of rows in its
range. Each of its optimisation profiles has a fixed number of new positions, so that one captured CUDA graph serves
every cycle.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from types import ModuleType
from typing import Any, Final, NamedTuple, TypeAlias

from underpaint.artifacts.decoder_config import DecoderConfig
from underpaint.artifacts.device_graph import READ_PLACES
from underpaint.artifacts.files import user_cache_folder
from underpaint.artifacts.manifest import write_beside
from underpaint.runtime.engines.context import EngineError
from underpaint.runtime.engines.tensorrt_files import RTX, EngineRecord, write_engine
from underpaint.zoo.load import Located, locate, names
from underpaint.zoo.load import manifest as read_manifest

KINDS: Final = ("target", "drafter")
"""What the runtime opens on TensorRT. Conditions and pictures run on ONNX Runtime, whatever runs the decoders."""
_WORKSPACE_BYTES: Final = 4 << 30

Profile: TypeAlias = Mapping[str, tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]]
"""Input shapes of one optimisation profile: least, best and most, by input."""


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
    """A TensorRT package, the backend's name for it, and what it builds for.

    gpu: the name of this machine's GPU, which plans are then tied to. version_compatible: whether later versions of
    the package run the plans.
    """

    module: ModuleType
    backend: str
    gpu: str
    version_compatible: bool = False

    def write(
        self, folder: Path, graph: bytes, profiles: list[Profile], record: EngineRecord
    ) -> tuple[Path, EngineRecord]:
        """Build a graph's plan and write it into `folder` with its record, whose bytes and hash are filled in.

        Raises EngineError with what the parser or the builder said.
        """
        timing = timing_file(self.backend, self.module, self.gpu)
        content = self.build(graph, profiles, record.model, record.precision, timing)
        record = replace(record, engine_sha256=sha256(content).hexdigest(), engine_bytes=len(content))
        return write_engine(folder, content, record), record

    def build(self, graph: bytes, profiles: list[Profile], name: str, precision: str, timing: Path) -> bytes:
        """Return the serialised plan of a graph.

        Args:
            graph: An ONNX model whose weights are inputs.
            profiles: Shapes of the inputs that have none.
            name: What messages call it.
            precision: Of the graph's weights.
            timing: The cache of measured kernels, read and written where the package has one.

        Raises:
            EngineError: What the parser or the builder said.
        """
        module, said = self.module, list[str]()
        logger = _logger(module, said.append)
        builder = module.Builder(logger)
        flag = module.NetworkDefinitionCreationFlag
        # TensorRT 11 knows strong typing only; before it, and in RTX, it is a flag.
        network = builder.create_network(1 << int(flag.STRONGLY_TYPED) if hasattr(flag, "STRONGLY_TYPED") else 0)
        parser = module.OnnxParser(network, logger)
        if not parser.parse(graph):
            reasons = [parser.get_error(index).desc() for index in range(parser.num_errors)]
            raise EngineError(f"{name}: {module.__name__} cannot read it: {'; '.join(reasons[:3] or said[-3:])}")
        _set_attention(network, module)
        config = builder.create_builder_config()
        config.set_memory_pool_limit(module.MemoryPoolType.WORKSPACE, _WORKSPACE_BYTES)
        if precision == "fp32":
            # On by default: products would keep 10 bits of each factor. In half precision no factor has more.
            config.clear_flag(module.BuilderFlag.TF32)
        if self.version_compatible:
            config.set_flag(module.BuilderFlag.VERSION_COMPATIBLE)
            if self.backend == RTX:  # its package has no lean runtime to put into the plan
                config.set_flag(module.BuilderFlag.EXCLUDE_LEAN_RUNTIME)
        for profile in profiles:
            made = builder.create_optimization_profile()
            for each, shapes in profile.items():
                made.set_shape(each, *shapes)
            config.add_optimization_profile(made)
        measured = self.backend != RTX  # RTX measures when it first runs, and has no cache here
        if measured:
            _take_measured(config, timing)
        built = builder.build_serialized_network(network, config)
        if built is None:
            raise EngineError(f"{name}: {module.__name__} could not build it: {'; '.join(said[-3:])}")
        if measured:
            with suppress(OSError):  # the plan is built; the next build measures again
                timing.parent.mkdir(parents=True, exist_ok=True)
                write_beside(timing, bytes(config.get_timing_cache().serialize()))
        return bytes(built)


def _set_attention(network: Any, module: ModuleType) -> None:
    """Say of every attention what the parser leaves out: how many places are read, and that float32 may decompose.

    Fused kernels are for half precision alone; where one fits, it is taken all the same.
    """
    inputs = {network.get_input(index).name: network.get_input(index) for index in range(network.num_inputs)}
    if READ_PLACES not in inputs:
        return
    lengths = network.add_cast(inputs[READ_PLACES], module.int32).get_output(0)
    for index in range(network.num_layers):
        layer = network.get_layer(index)
        if layer.type == module.LayerType.ATTENTION_INPUT:
            layer.__class__ = module.IAttentionInputLayer
            layer.attention.key_value_lengths, layer.attention.decomposable = lengths, True


def position_counts(config: DecoderConfig, buckets: tuple[int, ...]) -> tuple[int, ...]:
    """New positions of the profiles: every bucket, at most a whole image, and the prefill.

    Where lines end in tokens of their own, which a pass over as many nodes may all bring, also twice the largest.
    """
    lines = 0 if config.eol_id is None else config.eol_tokens
    most = (2 * max(buckets),) if lines else ()
    counts = {min(count, config.cells + lines) for count in (*buckets, *most)}
    return tuple(sorted(counts | {max(config.condition_positions, 1)}))


def timing_file(backend: str, module: ModuleType, gpu: str) -> Path:
    """Where measured kernels are kept: in the user's cache folder, by package, version and GPU."""
    named = sha256(json.dumps([backend, module.__version__, gpu]).encode()).hexdigest()[:16]
    return user_cache_folder() / "timing" / f"{backend}-{named}.cache"


def _take_measured(config: Any, timing: Path) -> None:
    """Let the builder take kernels from the file where they were measured on this GPU, else begin anew."""
    for content in (timing.read_bytes() if timing.is_file() else b"", b""):
        cache = config.create_timing_cache(content)
        if cache is not None and config.set_timing_cache(cache, False):  # False: another device's is refused
            return


def _logger(module: ModuleType, keep: Callable[[str], None]) -> Any:
    """A logger that keeps warnings and errors, to be told only where something fails."""
    base = module.ILogger

    def start(self: Any) -> None:
        base.__init__(self)

    def log(self: Any, severity: Any, message: str) -> None:
        if int(severity) <= int(base.WARNING):
            keep(message)

    return type("WarningLogger", (base,), {"__init__": start, "log": log})()
