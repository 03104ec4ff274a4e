"""How models are loaded: decoders of a backend, and sessions of ONNX Runtime, on which threads and in which memory."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, Literal

from underpaint.algos.memory import lacks_memory
from underpaint.artifacts.install import install_hint
from underpaint.zoo.load import FOLDER, locate

if TYPE_CHECKING:
    from underpaint.artifacts.decoder_config import DecoderConfig
    from underpaint.runtime.engines.engine import LoadedDecoder
    from underpaint.runtime.engines.providers import ProviderOptions

CPU: Final = "cpu"
"""ONNX Runtime on the CPU. Other backends are its providers for GPUs, TensorRT's packages, and the device."""
DEVICE: Final = "device"
"""The backend whose whole cycle runs in `runtime.device`."""
_ERROR: Final = 3
_CREATED_BEFORE: Final = "already been created"


class EngineError(ValueError):
    """A model cannot be loaded or run as asked."""


@dataclass(frozen=True, slots=True)
class EngineContext:
    """On which threads the engines opened in it run, and how they take memory.

    threads: of one operation, >= 1; None takes the cores this process may use. They wait for work by spinning,
        which is what makes passes of a millisecond fast; give busy machines fewer.
    pool: "own" gives every session threads of its own; "shared" runs them all on the process's one pool. Models that
        take turns should share: they find the threads awake, where pools of their own would fight for the cores.
        Once a process has that pool, ONNX Runtime lets no new session have threads of its own: it runs there too.
    lingering: whether threads of its own go on spinning after a pass, for tens of milliseconds, or sleep until the
        next one. Says nothing of a shared pool.
    backend: what ONNX Runtime runs on: "cpu", or one of `engines.providers.PROVIDERS`, such as "cuda" or "cuda:1".
    """

    threads: int | None = None
    pool: Literal["own", "shared"] = "own"
    lingering: bool = True
    backend: str = CPU

    def __post_init__(self) -> None:
        if self.threads is not None and self.threads < 1:
            raise EngineError(f"context: threads must be >= 1, got {self.threads}")
        if self.pool not in ("own", "shared"):
            raise EngineError(f"context: pool must be own or shared, got {self.pool!r}")


def usable_cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def onnx_runtime() -> ModuleType:
    """ONNX Runtime, loaded with the first session: a device without it draws by PyTorch alone."""
    try:
        return import_module("onnxruntime")
    except ImportError as error:
        raise EngineError(f"ONNX Runtime is not installed ({error}); install it with: {install_hint('cpu')}") from error


SHARED: Final = EngineContext(pool="shared")
"""For models that take turns in one process, as a target and its drafter do."""


class _ProcessPool:
    """ONNX Runtime has one pool a process for sessions that share; its size is settled when it is made."""

    threads: int | None = None


def _require_pool(threads: int | None) -> None:
    """Make the process's pool, or find it made with as many threads; None takes it as it is. EngineError otherwise."""
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
    """An `onnxruntime.InferenceSession` on the context's backend.

    content: a graph to run in place of the one at `path`, with the weights beside that.
    Raises EngineError: no such file, a file that is no model, a provider that cannot be had.
    """
    return open_capturing(path, context, content)[0]


def open_capturing(
    path: Path, context: EngineContext | None, content: bytes | None = None, plain: DecoderConfig | None = None
) -> tuple[Any, ProviderOptions]:
    """Open a session as `open_session` does, for passes of a decoder.

    Args:
        path: The graph's file.
        context: Threads, memory and backend; None takes the usual ones.
        content: A graph to run in place of the one at `path`, with the weights beside that.
        plain: The decoder whose plain passes the graph makes, of sizes that the caller holds fixed: they are captured
            where the provider can, and one that builds engines is told their shapes. None for any other graph.

    Returns:
        The session, and the GPU's providers in order with the options that it was opened with; none on the CPU.
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
    """Why a model was not loaded: the machine lacks memory or open files, or else the file is no model."""
    said = str(error)
    if lacks_memory(error):
        return MemoryError(f"{path} does not fit in it")
    if isinstance(error, OSError) or os.strerror(errno.EMFILE) in said:
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
    """The decoder `name` of a folder ("target", "drafter" or `DRAFT_TARGET` in `kind`), its files checked.

    backend: "cpu" for ONNX Runtime, or one of its providers for GPUs, as "cuda" or "cuda:1"; "tensorrt" or
    "tensorrt-rtx" for an engine built of the same graph, of whose threads and memory the context says nothing; "device"
    for what `runtime.device` runs by itself. Only the backend's own engine is imported.
    Raises ManifestError or EngineError, naming the file and what to do.
    """
    from underpaint.runtime.engines.providers import gpu_backend

    if backend == CPU or gpu_backend(backend) is not None:
        from underpaint.runtime.engines.onnx_engine import load_onnx

        return load_onnx(name, kind, folder, replace(context or EngineContext(), backend=backend))
    if backend == DEVICE:
        from underpaint.runtime.engines.elsewhere import load_elsewhere

        return load_elsewhere(name, locate(name, kind, folder))
    from underpaint.runtime.engines.tensorrt_files import backend_module

    backend_module(backend)
    from underpaint.runtime.engines.tensorrt_engine import load_tensorrt  # needs PyTorch for its memory

    return load_tensorrt(name, kind, folder, backend)
