"""How much memory this process may use, before any of it is taken."""

from pathlib import Path
from typing import Final

_GIB: Final = 2**30
_UNKNOWN: Final = 8 * _GIB
"""Taken where the system does not tell."""


def free_bytes() -> int:
    """Memory that can still be taken: what the system says is available, or less where a control group allows less."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        told = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, ValueError, StopIteration):
        return _UNKNOWN
    try:
        most = Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii").strip()
        used = int(Path("/sys/fs/cgroup/memory.current").read_text(encoding="ascii"))
        return told if most == "max" else min(told, max(0, int(most) - used))
    except (OSError, ValueError):
        return told


def check_memory(what: str, setting: str, asked: int, bytes_each: int, remedy: str = "") -> None:
    """ValueError, with the largest that would do, where `asked` things of `bytes_each` bytes take more than is free.

    what: is being made; setting: by which so many are asked for; remedy: what else to do, "; ..." or nothing.
    """
    free = free_bytes()
    if asked * bytes_each > free:
        raise ValueError(
            f"{setting}: {what} would take {asked * bytes_each / _GIB:,.1f} GiB at {asked:,}, this machine has "
            f"{free / _GIB:,.1f} GiB free; expected at most {free // max(bytes_each, 1):,}{remedy}"
        )


_NO_MEMORY: Final = (
    "can't allocate memory",
    "cannot allocate memory",
    "out of memory",
    "bad_alloc",
    "failed to allocate",
)
"""How PyTorch and ONNX Runtime say in a RuntimeError that memory ran out."""


def lacks_memory(error: BaseException) -> bool:
    """Whether an error says that memory ran out, whichever library raised it."""
    said = str(error).lower()
    return isinstance(error, MemoryError) or any(words in said for words in _NO_MEMORY)
