"""Builds TensorRT plans of an export folder, with the package `tensorrt` or `tensorrt_rtx` by the same code.

Networks are strongly typed, so they use the graph's own precision. A plan contains no weights and supports any number
of rows in its range. Each of its optimisation profiles has a fixed number of new positions, so that one captured CUDA
graph serves every cycle.
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
"""Kinds of models that run on TensorRT. Conditions and pictures always run on ONNX Runtime."""
_WORKSPACE_BYTES: Final = 4 << 30

Profile: TypeAlias = Mapping[str, tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]]
"""Input shapes of one optimisation profile: smallest, best and largest, by input."""


def decoders_of(folder: Path, only: tuple[str, ...] = ()) -> Iterator[Located]:
    """The targets and drafters of `folder`, or those in `only`; each is read and hashed once, when it is requested.

    Raises EngineError if there is none or a named one is missing; ManifestError if files are damaged.
    """
    decoder_names = [name for name in names(folder) if read_manifest(name, folder).kind in KINDS]
    unknown = sorted(set(only) - set(decoder_names))
    if unknown or not decoder_names:
        raise EngineError(
            f"{folder}: expected models among {', '.join(decoder_names) or 'none'}, the targets and drafters, got "
            f"{', '.join(unknown)}; what else is in the folder runs on ONNX Runtime"
        )
    return (
        locate(name, read_manifest(name, folder).kind, folder) for name in decoder_names if not only or name in only
    )


class EngineBuilder(NamedTuple):
    """A TensorRT package, the name of its backend, and the target of its plans.

    Attributes:
        module: The package.
        backend: Name of its backend.
        gpu: The name of this machine's GPU, which plans are then tied to.
        version_compatible: Whether later versions of the package can run the plans.
    """

    module: ModuleType
    backend: str
    gpu: str
    version_compatible: bool = False

    def write(
        self, folder: Path, graph: bytes, profiles: list[Profile], record: EngineRecord
    ) -> tuple[Path, EngineRecord]:
        """Build a graph's plan and write it into `folder` with its record; fills in the record's size and hash.

        Raises EngineError with the messages of the parser or the builder.
        """
        timing = timing_file(self.backend, self.module, self.gpu)
        content = self.build(graph, profiles, record.model, record.precision, timing)
        record = replace(record, engine_sha256=sha256(content).hexdigest(), engine_bytes=len(content))
        return write_engine(folder, content, record), record

    def build(self, graph: bytes, profiles: list[Profile], name: str, precision: str, timing: Path) -> bytes:
        """Return the serialised plan of a graph.

        Args:
            graph: An ONNX model whose weights are inputs.
            profiles: Input shapes of each optimisation profile.
            name: Name for messages.
            precision: Precision of the graph's weights.
            timing: Cache file of measured kernels; read and written if the package has such a cache.

        Raises:
            EngineError: An error of the parser or the builder.
        """
        module, messages = self.module, list[str]()
        logger = _logger(module, messages.append)
        builder = module.Builder(logger)
        flag = module.NetworkDefinitionCreationFlag
        # TensorRT 11 has only strong typing; earlier versions and RTX have a flag for it.
        network = builder.create_network(1 << int(flag.STRONGLY_TYPED) if hasattr(flag, "STRONGLY_TYPED") else 0)
        parser = module.OnnxParser(network, logger)
        if not parser.parse(graph):
            reasons = [parser.get_error(index).desc() for index in range(parser.num_errors)]
            raise EngineError(f"{name}: {module.__name__} cannot read it: {'; '.join(reasons[:3] or messages[-3:])}")
        _set_attention(network, module)
        config = builder.create_builder_config()
        config.set_memory_pool_limit(module.MemoryPoolType.WORKSPACE, _WORKSPACE_BYTES)
        if precision == "fp32":
            # TF32 is on by default and keeps 10 bits of each factor; half-precision factors have no more.
            config.clear_flag(module.BuilderFlag.TF32)
        if self.version_compatible:
            config.set_flag(module.BuilderFlag.VERSION_COMPATIBLE)
            if self.backend == RTX:  # its package has no lean runtime to include in the plan
                config.set_flag(module.BuilderFlag.EXCLUDE_LEAN_RUNTIME)
        for profile in profiles:
            optimization_profile = builder.create_optimization_profile()
            for each, shapes in profile.items():
                optimization_profile.set_shape(each, *shapes)
            config.add_optimization_profile(optimization_profile)
        measured = self.backend != RTX  # RTX measures at the first run, and has no cache here
        if measured:
            _take_measured(config, timing)
        built = builder.build_serialized_network(network, config)
        if built is None:
            raise EngineError(f"{name}: {module.__name__} could not build it: {'; '.join(messages[-3:])}")
        if measured:
            with suppress(OSError):  # the plan is built; without the cache, the next build measures again
                timing.parent.mkdir(parents=True, exist_ok=True)
                write_beside(timing, bytes(config.get_timing_cache().serialize()))
        return bytes(built)


def _set_attention(network: Any, module: ModuleType) -> None:
    """Set in every attention what the parser omits: the number of places to read, and that it may decompose.

    Fused kernels exist only for half precision; if one fits, it is used anyway.
    """
    inputs = {network.get_input(index).name: network.get_input(index) for index in range(network.num_inputs)}
    if READ_PLACES not in inputs:
        return
    lengths = network.add_cast(inputs[READ_PLACES], module.int32).get_output(0)
    for index in range(network.num_layers):
        layer = network.get_layer(index)
        if layer.type == module.LayerType.ATTENTION_INPUT:
            layer.__class__ = module.IAttentionInputLayer
            if not hasattr(layer.attention, "key_value_lengths"):
                raise EngineError(
                    f"{module.__name__} {module.__version__}: expected attention with key_value_lengths, which "
                    "TensorRT 11 and TensorRT for RTX have; install one of them"
                )
            layer.attention.key_value_lengths, layer.attention.decomposable = lengths, True


def position_counts(config: DecoderConfig, buckets: tuple[int, ...]) -> tuple[int, ...]:
    """Numbers of new positions of the profiles: every bucket (at most a whole image), and the prefill.

    If lines have end tokens, also twice the largest bucket, because each node of a pass may bring one.
    """
    lines = 0 if config.eol_id is None else config.eol_tokens
    most = (2 * max(buckets),) if lines else ()
    counts = {min(count, config.cells + lines) for count in (*buckets, *most)}
    return tuple(sorted(counts | {max(config.condition_positions, 1)}))


def timing_file(backend: str, module: ModuleType, gpu: str) -> Path:
    """Return the file of measured kernels in the user's cache folder, by package, version and GPU."""
    named = sha256(json.dumps([backend, module.__version__, gpu]).encode()).hexdigest()[:16]
    return user_cache_folder() / "timing" / f"{backend}-{named}.cache"


def _take_measured(config: Any, timing: Path) -> None:
    """Reuse the measured kernels of the file if they are for this GPU, else start an empty cache."""
    for content in (timing.read_bytes() if timing.is_file() else b"", b""):
        cache = config.create_timing_cache(content)
        if cache is not None and config.set_timing_cache(cache, False):  # False: refuse another device's cache
            return


def _logger(module: ModuleType, keep: Callable[[str], None]) -> Any:
    """Return a logger that passes warnings and errors to `keep`, to report them if something fails."""
    base = module.ILogger

    def start(self: Any) -> None:
        base.__init__(self)

    def log(self: Any, severity: Any, message: str) -> None:
        if int(severity) <= int(base.WARNING):
            keep(message)

    return type("WarningLogger", (base,), {"__init__": start, "log": log})()
