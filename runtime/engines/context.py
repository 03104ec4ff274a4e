"""Loading of models: decoders on each backend, and ONNX Runtime sessions with their threads and memory."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, get_args

from underpaint.algos.memory import lacks_memory
from underpaint.artifacts.install import install_hint
from underpaint.zoo.load import FOLDER, locate

if TYPE_CHECKING:
    from underpaint.artifacts.decoder_config import DecoderConfig
    from underpaint.runtime.engines.engine import LoadedDecoder
    from underpaint.runtime.engines.providers import ProviderOptions

CPU: Final = "cpu"
"""ONNX Runtime on the CPU. The other backends are its GPU providers, TensorRT's packages, and the device."""
DEVICE: Final = "device"
"""The backend that runs whole cycles in `runtime.device`."""
Quantization: TypeAlias = Literal["int8", "fp8"]
"""Type of quantised weights: int8, or fp8 (e4m3), with one scale per output channel."""
_ERROR: Final = 3
_CREATED_BEFORE: Final = "already been created"


class EngineError(ValueError):
    """A model cannot be loaded or run as requested."""


@dataclass(frozen=True, slots=True)
class EngineContext:
    """The threads and the backend of the engines that are opened with this context.

    Attributes:
        threads: Threads of one operation, >= 1; None takes all cores that this process may use. Idle threads spin,
            which makes passes of a millisecond fast; use fewer threads on a busy machine.
        pool: "own" gives every session its own threads; "shared" runs all sessions on one pool of the process. Models
            that take turns should share a pool: its threads are awake, whereas separate pools would compete for the
            cores. Once a process has a shared pool, ONNX Runtime runs every new session on it.
        lingering: Whether a session's own threads keep spinning after a pass, for tens of milliseconds, or sleep until
            the next pass. It has no effect on a shared pool.
        backend: "cpu", or a GPU provider of ONNX Runtime in `engines.providers.PROVIDERS`, such as "cuda" or "cuda:1".
        quantization: Type to which the device rounds the matrices of every decoder's layers; None for none. Only
            decoders of the backend "device" can be quantised.
    """

    threads: int | None = None
    pool: Literal["own", "shared"] = "own"
    lingering: bool = True
    backend: str = CPU
    quantization: Quantization | None = None

    def __post_init__(self) -> None:
        if self.threads is not None and self.threads < 1:
            raise EngineError(f"context: threads must be >= 1, got {self.threads}")
        if self.pool not in ("own", "shared"):
            raise EngineError(f"context: pool must be own or shared, got {self.pool!r}")
        if self.quantization not in (None, *get_args(Quantization)):
            raise EngineError(f"context: quantization must be int8, fp8 or None, got {self.quantization!r}")


def usable_cores() -> int:
    """Return the number of cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def onnx_runtime() -> ModuleType:
    """Import ONNX Runtime on first use, because the device backend also works without it, on PyTorch."""
    try:
        return import_module("onnxruntime")
    except ImportError as error:
        raise EngineError(f"ONNX Runtime is not installed ({error}); install it with: {install_hint('cpu')}") from error


SHARED: Final = EngineContext(pool="shared")
"""The context for models that take turns in one process, such as a target and its drafter."""


class _ProcessPool:
    """ONNX Runtime's shared thread pool, one per process; its size is fixed when it is created."""

    threads: int | None = None


def _require_pool(threads: int | None) -> None:
    """Create the shared pool, or raise EngineError if it exists with another size; None accepts any size."""
    if _ProcessPool.threads is None:
        size = threads or usable_cores()
        runtime = onnx_runtime()
        try:
            runtime.set_global_thread_pool_sizes(size, 1)
        except Exception as error:  # onnxruntime's own exceptions share no base but Exception
            if _CREATED_BEFORE not in str(error):
                raise EngineError(f"context: onnxruntime makes no shared pool ({error}); use pool='own'") from error
        _ProcessPool.threads = size
    elif threads not in (None, _ProcessPool.threads):
        raise EngineError(
            f"context: this process shares a pool of {_ProcessPool.threads} threads, which cannot become {threads}; "
            "leave threads out, or choose it in a process of its own"
        )


def open_session(path: Path, context: EngineContext | None = None, content: bytes | None = None) -> Any:
    """Open an `onnxruntime.InferenceSession` on the context's backend.

    Args:
        path: The graph's file.
        context: Threads and backend; None takes the defaults.
        content: A graph to run instead of the one at `path`; its weights are in the folder of `path`.

    Raises:
        EngineError: The file is missing or is not a model, or the provider is not available.
    """
    return open_capturing(path, context, content)[0]


def open_capturing(
    path: Path, context: EngineContext | None, content: bytes | None = None, plain: DecoderConfig | None = None
) -> tuple[Any, ProviderOptions]:
    """Open a session as `open_session` does, and capture the passes of a decoder if possible.

    Args:
        path: The graph's file.
        context: Threads and backend; None takes the defaults.
        content: A graph to run instead of the one at `path`; its weights are in the folder of `path`.
        plain: The decoder, if the graph runs its plain passes at sizes that the caller fixes. The passes are then
            captured if the provider can, and a provider that builds engines gets their shapes. Else None.

    Returns:
        The session, and its GPU providers in order, each with its options; no providers on the CPU.
    """
    context = context or EngineContext()
    if not path.is_file():
        raise EngineError(f"no model file at {path}; write it with `underpaint export`")

    def options() -> Any:
        chosen = _options(context)
        if content is not None:
            chosen.add_session_config_entry("session.model_external_initializers_file_folder_path", str(path.parent))
        return chosen

    model = content or str(path)
    if context.backend != CPU:
        from underpaint.runtime.engines.providers import gpu_backend, open_on_gpu

        gpu = gpu_backend(context.backend)
        if gpu is None:
            raise EngineError(f"context: expected a backend of ONNX Runtime, got {context.backend!r}")
        return open_on_gpu(path, model, gpu, options, plain)
    session_options = options()
    try:
        session = onnx_runtime().InferenceSession(model, session_options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's own exceptions share no base but Exception
        raise _load_failure(path, error) from error
    session.disable_fallback()
    return session, ()


def _load_failure(path: Path, error: Exception) -> Exception:
    """Return the error for a model that was not loaded: out of memory, too many open files, or not a model."""
    message = str(error)
    if lacks_memory(error):
        return MemoryError(f"{path} does not fit in it")
    if isinstance(error, OSError) or os.strerror(errno.EMFILE) in message:
        return OSError(errno.EMFILE, os.strerror(errno.EMFILE), str(path))
    return EngineError(f"{path}: onnxruntime could not load it ({error}); export the model again")


def _options(context: EngineContext) -> Any:
    onnxruntime = onnx_runtime()
    options = onnxruntime.SessionOptions()
    if context.pool == "shared":
        _require_pool(context.threads)
    if _ProcessPool.threads is not None:
        options.use_per_session_threads = False
    else:
        options.intra_op_num_threads = context.threads or usable_cores()
        options.inter_op_num_threads = 1
        if not context.lingering:
            options.add_session_config_entry("session.force_spinning_stop", "1")
    options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.log_severity_level = _ERROR
    return options


def bind(binding: Any, side: Literal["input", "output"], name: str, array: Any) -> None:
    """Bind a C-contiguous host array as input or output (`side`) `name`, by pointer; it must outlive the binding."""
    if not array.flags.c_contiguous:
        raise EngineError(f"{name}: expected a C-contiguous array, got strides {array.strides}")
    put = binding.bind_input if side == "input" else binding.bind_output
    put(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)


def load_decoder(
    name: str, kind: str, folder: Path = FOLDER, context: EngineContext | None = None, backend: str = CPU
) -> LoadedDecoder:
    """Check the files of a decoder and load it; only the engine of its backend is imported.

    Args:
        name: The name of the decoder in the folder.
        kind: "target", "drafter" or `DRAFT_TARGET`.
        folder: Folder of the models; the shipped models by default.
        context: Threads of ONNX Runtime, or the device's quantisation; None takes the defaults.
        backend: "cpu" for ONNX Runtime, or one of its GPU providers, such as "cuda" or "cuda:1"; "tensorrt" or
            "tensorrt-rtx" for an engine built from the same graph, which ignores the context; "device" for a decoder
            that `runtime.device` runs. It replaces the context's backend.

    Raises:
        ValueError: A ManifestError or EngineError that names the file and what to do.
    """
    from underpaint.runtime.engines.providers import gpu_backend

    if backend == CPU or gpu_backend(backend) is not None:
        from underpaint.runtime.engines.onnx_engine import load_onnx

        return load_onnx(name, kind, folder, replace(context or EngineContext(), backend=backend))
    if backend == DEVICE:
        from underpaint.runtime.engines.config_only import load_config_only

        return load_config_only(name, locate(name, kind, folder), None if context is None else context.quantization)
    from underpaint.runtime.engines.tensorrt_files import backend_module

    backend_module(backend)
    from underpaint.runtime.engines.tensorrt_engine import load_tensorrt  # imports PyTorch

    return load_tensorrt(name, kind, folder, backend)
