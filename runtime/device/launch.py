"""Triton, compiled if there is a CUDA device and interpreted if not, and the one function that launches kernels.

Triton decides on its interpreter while it is imported. This module makes that choice for this process only: it sets the
environment variable for the import and restores it afterwards, so no other program inherits it.
"""

import importlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final, NamedTuple

import torch
from torch._subclasses.fake_tensor import FakeTensor

from underpaint.artifacts.install import install_hint
from underpaint.runtime.device import interpreter

_VARIABLE: Final = "TRITON_INTERPRET"
MODE: Final = "UNDERPAINT_TRITON"
"""Environment variable: "compile" or "interpret". If it is unset, the presence of a CUDA device decides."""
OVERLAP: Final = "UNDERPAINT_PDL"
"""Environment variable: "0" turns programmatic dependent launch off, "1" (the default) uses it where the GPU has it."""
OVERLAPS_FROM: Final = 90
"""Lowest compute capability with programmatic dependent launch, as major * 10 + minor."""
OVERLAP_DRIVER: Final = 12_030
"""First driver, by its CUDA version, whose graphs keep dependent launches."""


def _interpreted() -> bool:
    mode = os.environ.get(MODE)
    if mode not in (None, "compile", "interpret"):
        raise ValueError(f"{MODE}: expected 'compile' or 'interpret', got {mode!r}; unset it to let the device decide")
    return os.environ.get(_VARIABLE) == "1" or (not torch.cuda.is_available() if mode is None else mode[0] == "i")


def _overlap_allowed() -> bool:
    value = os.environ.get(OVERLAP, "1")
    if value not in ("0", "1"):
        raise ValueError(f"{OVERLAP}: expected '0' or '1', got {value!r}; unset it to use dependent launches")
    return value == "1"


SECTOR: Final = 32
"""Bytes of a sector of the L2 cache, the least that one prefetch loads."""
AHEAD: Final = 8 << 20
"""Most bytes that a kernel prefetches: about what an H200 loads while a kernel starts, a sixth of its L2 cache."""
PROCESSORS: Final = 132
"""Multiprocessors of an H100 or an H200."""
INTERPRETED: Final = _interpreted()
"""Whether kernels run in Triton's interpreter, on the CPU."""
_OVERLAP_ALLOWED: Final = _overlap_allowed()


@contextmanager
def _asking_for_the_interpreter() -> Iterator[None]:
    before = os.environ.get(_VARIABLE)
    os.environ[_VARIABLE] = "1" if INTERPRETED else "0"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_VARIABLE]
        else:
            os.environ[_VARIABLE] = before


if INTERPRETED and "triton.language" in sys.modules and not os.environ.get(_VARIABLE):
    from triton.runtime.interpreter import InterpretedFunction as _Interpreted

    if not isinstance(sys.modules["triton.language"].sum, _Interpreted):
        raise ImportError(
            "triton was imported before underpaint.runtime.device, for compiling, but there is no CUDA device; import "
            "underpaint.runtime.device first"
        )
with _asking_for_the_interpreter():
    try:
        import triton
        import triton.language as tl

        if INTERPRETED:
            # Otherwise the first launch imports it, and it would make its own choice.
            importlib.import_module("triton.experimental.gluon")
    except ImportError as error:
        raise ImportError(
            f"the device runtime needs Triton, which is not installed; install it with: {install_hint('device')}"
        ) from error

TRITON: Final[str] = triton.__version__
if INTERPRETED and TRITON.startswith(interpreter.VERSION):
    interpreter.remember()

__all__ = [
    "AHEAD",
    "INTERPRETED",
    "MODE",
    "OVERLAP",
    "PROCESSORS",
    "SECTOR",
    "TRITON",
    "Launch",
    "Recording",
    "kernel",
    "launch",
    "next_power_of_2",
    "overlap_capability",
    "overlaps",
    "prefetch",
    "processors",
    "recording",
    "tl",
    "wait_for_earlier_kernels",
]


def kernel(function: Callable[..., Any]) -> Any:
    """Make `function` a Triton kernel, or a function that kernels call, in this process's mode."""
    with _asking_for_the_interpreter():
        return triton.jit(function)


if INTERPRETED:

    def wait_for_earlier_kernels() -> None:
        """Do nothing: interpreted kernels run one after the other."""

    def prefetch(pointers: Any, mask: Any) -> None:
        """Do nothing: there is no cache to fill."""

else:

    @tl.core.builtin  # type: ignore[untyped-decorator]
    def _launched_early(_semantic: Any = None) -> Any:
        return tl.constexpr(_semantic.builder.options.launch_pdl)

    @kernel
    def wait_for_earlier_kernels():  # type: ignore[no-untyped-def]
        """Let the next kernel start, then wait until all earlier kernels have finished and their writes are visible.

        A kernel with this call starts as soon as all programs of the kernel before it have started, if the GPU has
        programmatic dependent launch. Every program must then call it before it accesses memory. Without the call a
        kernel starts when the earlier ones have finished.
        """
        if _launched_early():
            tl.extra.cuda.gdc_launch_dependents()
            tl.extra.cuda.gdc_wait()

    @kernel
    def prefetch(pointers, mask):  # type: ignore[no-untyped-def]
        """Load the sectors of these addresses into the L2 cache, if the kernel may have started early.

        No value is read, so it may stand before `wait_for_earlier_kernels`.
        """
        if _launched_early():
            tl.inline_asm_elementwise(
                "{.reg .pred p; setp.ne.u32 p, $2, 0; @p prefetch.global.L2 [$1]; mov.u32 $0, 0;}",
                "=r,l,r",
                [pointers, mask.to(tl.int32)],
                dtype=tl.int32,
                is_pure=False,
                pack=1,
            )


def overlaps(function: Any, capability: int) -> bool:
    """Return whether a kernel may start before the one before it has finished (programmatic dependent launch).

    Only kernels that call `wait_for_earlier_kernels` may.

    Args:
        function: The kernel.
        capability: Compute capability of the GPU, as major * 10 + minor; 0 if it has no dependent launch.
    """
    waits = "wait_for_earlier_kernels" in function.fn.__code__.co_names
    return waits and _OVERLAP_ALLOWED and capability >= OVERLAPS_FROM


@cache
def overlap_capability(device: int) -> int:
    """Return the compute capability of a GPU as major * 10 + minor; 0 if graphs cannot keep its dependent launches."""
    if torch.version.cuda is None:  # another maker's GPU
        return 0
    major, minor = torch.cuda.get_device_capability(device)
    driver: int = torch._C._cuda_getDriverVersion()  # type: ignore[attr-defined]
    return 10 * major + minor if driver >= OVERLAP_DRIVER else 0


class Launch(NamedTuple):
    """One node of a captured graph: a kernel with its arguments.

    Attributes:
        name: Name of the kernel.
        bytes: Least number of bytes that it reads and writes.
        part: Name of its part of the program, see `recording`.
        function: The kernel.
        arguments: Arguments by position.
        constants: Arguments by name.
        warps: Number of warps per program.
        stages: Number of loads that a loop keeps in flight.
        grid: Number of programs along each axis.
        trips: Trip counts of data-dependent loops, by name, for counting issued instructions.
        prefetched: Bytes of its own that it prefetches before it waits for earlier kernels.
        prefetched_next: Bytes of the next launch that it prefetches.
    """

    name: str
    bytes: int
    part: str
    function: Any
    arguments: tuple[Any, ...]
    constants: dict[str, Any]
    warps: int
    stages: int
    grid: tuple[int, ...]
    trips: Mapping[str, float]
    prefetched: int = 0
    prefetched_next: int = 0


@dataclass(slots=True)
class Recording:
    """The launches of a program, in order."""

    part_of: Callable[[], str]
    launches: list[Launch] = field(default_factory=list)


_RECORDING: ContextVar[Recording | None] = ContextVar("recording", default=None)


@contextmanager
def recording(part_of: Callable[[], str] = str) -> Iterator[Recording]:
    """Record every launch inside the block; with FakeTensor arguments nothing runs. `part_of` names a launch's part."""
    record = Recording(part_of)
    token = _RECORDING.set(record)
    try:
        yield record
    finally:
        _RECORDING.reset(token)


def launch(
    function: Any,
    grid: tuple[int, ...],
    moved_bytes: int,
    *arguments: Any,
    warps: int = 4,
    stages: int = 3,
    trips: Mapping[str, float] | None = None,
    prefetched: int = 0,
    prefetched_next: int = 0,
    **named: Any,
) -> None:
    """Launch a kernel over `grid`. Multiply-adds are not fused, as in the reference.

    Args:
        function: The kernel.
        grid: Number of programs along each axis.
        moved_bytes: Least number of bytes that the kernel reads and writes, for counting a cycle's costs.
        *arguments: Arguments by position; a named tuple is a named tuple in the kernel, with the same fields.
        warps: Number of warps per program.
        stages: Number of loads that a loop keeps in flight.
        trips: Trip counts of data-dependent loops, see `Launch`; None for none.
        prefetched: Bytes of its own that the kernel prefetches, see `Launch`.
        prefetched_next: Bytes of the next launch that it prefetches, see `Launch`.
        **named: Arguments by name.
    """
    record = _RECORDING.get()
    if record is not None:
        named_as = (function.fn.__name__, moved_bytes, record.part_of())
        counts = (trips or {}, prefetched, prefetched_next)
        record.launches.append(Launch(*named_as, function, arguments, named, warps, stages, grid, *counts))
    if any(isinstance(one, FakeTensor) for one in _leaves(arguments)):
        return
    options: dict[str, Any] = {"num_warps": warps, "num_stages": stages, "enable_fp_fusion": False}
    if not INTERPRETED and overlaps(function, overlap_capability(torch.cuda.current_device())):
        options["launch_pdl"] = True
    function[grid](*arguments, **named, **options)


def _leaves(arguments: tuple[Any, ...]) -> Iterator[Any]:
    """Yield the arguments, with named tuples replaced by their fields."""
    for argument in arguments:
        if isinstance(argument, tuple):
            yield from _leaves(argument)
        else:
            yield argument


def processors(device: torch.device) -> int:
    """Return the number of multiprocessors of a GPU, or that of an H100 if there is no GPU."""
    if device.type != "cuda" or not torch.cuda.is_available():
        return PROCESSORS
    return torch.cuda.get_device_properties(device).multi_processor_count


def next_power_of_2(count: int) -> int:
    """Return the least power of two that is at least `count` (>= 1)."""
    return 1 << (count - 1).bit_length()
