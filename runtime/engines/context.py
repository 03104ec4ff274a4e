"""ONNX Runtime sessions that run where they were asked to, or not at all."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

import onnxruntime

Provider: TypeAlias = Literal["cpu", "cuda", "tensorrt"]
PROVIDERS: Final[Mapping[Provider, str]] = {
    "cpu": "CPUExecutionProvider",
    "cuda": "CUDAExecutionProvider",
    "tensorrt": "TensorrtExecutionProvider",
}
_ERROR = 3


class EngineError(ValueError):
    """A model cannot be loaded or run as asked."""


@dataclass(frozen=True, slots=True)
class EngineContext:
    """How a session runs.

    provider: where; there is no fallback to another.
    threads: of one operation, >= 1; None takes the cores this process may use. They wait for work by spinning,
        which is what makes passes of a millisecond fast; give busy machines fewer. After `share_threads` it says
        nothing, and neither does `lingering`.
    lingering: whether they go on spinning after a pass, for tens of milliseconds, or sleep until the next one. Models
        that take turns with others should not linger: their threads hold the cores that the others need.
    """

    provider: Provider = "cpu"
    threads: int | None = None
    lingering: bool = True

    def __post_init__(self) -> None:
        if self.provider not in PROVIDERS:
            raise EngineError(f"session: provider must be one of {', '.join(PROVIDERS)}, got {self.provider!r}")
        if self.threads is not None and self.threads < 1:
            raise EngineError(f"session: threads must be >= 1, got {self.threads}")


class _Process:
    """What the sessions of this process have in common."""

    opened = False
    shared = False


def share_threads(count: int | None = None) -> bool:
    """Let every session of this process run on one pool of `count` threads (None: the usable cores).

    Models that take turns then find the threads awake, where pools of their own would fight for the cores: a low
    target's pass costs half. Only a process that has opened no session can still choose; False where it is too late.
    """
    if _Process.shared or _Process.opened:
        return _Process.shared
    onnxruntime.set_global_thread_pool_sizes(count or usable_cores(), 1)
    _Process.shared = True
    return True


def usable_cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def open_session(path: Path, settings: EngineContext | None = None) -> Any:
    """An `onnxruntime.InferenceSession` on exactly the provider asked for.

    Raises EngineError: no such file, a file that is no model, a provider that this machine or wheel lacks.
    """
    settings = settings or EngineContext()
    wanted = PROVIDERS[settings.provider]
    if not path.is_file():
        raise EngineError(f"no model file at {path}; write it with `underpaint export`")
    available = onnxruntime.get_available_providers()
    if wanted not in available:
        raise EngineError(
            f"provider '{settings.provider}' ({wanted}) is not in this onnxruntime, which has {', '.join(available)}; "
            "install onnxruntime-gpu instead of onnxruntime (never both), or choose 'cpu'"
        )
    try:
        session = onnxruntime.InferenceSession(str(path), _options(settings), providers=[wanted])
    except Exception as error:  # onnxruntime's own exceptions share no base but Exception
        raise EngineError(f"{path}: onnxruntime could not load it ({error}); export the model again") from error
    running = session.get_providers()
    if running[0] != wanted:
        raise EngineError(
            f"{path}: asked for {wanted}, onnxruntime fell back to {running[0]}; check the driver and its libraries, "
            "or choose 'cpu'"
        )
    session.disable_fallback()
    _Process.opened = True
    return session


def _options(settings: EngineContext) -> Any:
    options = onnxruntime.SessionOptions()
    if _Process.shared:
        options.use_per_session_threads = False
    else:
        options.intra_op_num_threads = settings.threads or usable_cores()
        options.inter_op_num_threads = 1
    options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.log_severity_level = _ERROR
    if not (settings.lingering or _Process.shared):
        options.add_session_config_entry("session.force_spinning_stop", "1")
    return options


def bind(binding: Any, side: str, name: str, array: Any) -> None:
    """Bind a C-contiguous host array as input or output (`side`) `name`, by pointer; it must outlive the binding."""
    if not array.flags.c_contiguous:
        raise EngineError(f"{name}: expected a C-contiguous array, got strides {array.strides}")
    put = binding.bind_input if side == "input" else binding.bind_output
    put(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)
