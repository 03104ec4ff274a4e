"""Checks how much memory this process may use, before allocating it."""

from pathlib import Path
from typing import Final

_GIB: Final = 2**30
_UNKNOWN: Final = 8 * _GIB
"""The value used if the system does not report its available memory."""
_MEMINFO: Final = Path("/proc/meminfo")
_GROUP: Final = Path("/sys/fs/cgroup")


def free_bytes() -> int:
    """Return the bytes that can still be allocated: the available memory, or the control group's limit if lower."""
    kibibytes = _amount(_MEMINFO, "MemAvailable:")
    if kibibytes is None:
        return _UNKNOWN
    available = 1024 * kibibytes
    try:
        most = (_GROUP / "memory.max").read_text(encoding="ascii").strip()
        used = int((_GROUP / "memory.current").read_text(encoding="ascii"))
        # Cached pages of files count as used, and are given back when memory is needed.
        used -= _amount(_GROUP / "memory.stat", "inactive_file") or 0
        return available if most == "max" else min(available, max(0, int(most) - used))
    except (OSError, ValueError):
        return available


def _amount(path: Path, name: str) -> int | None:
    """Return the number after `name` in a table with a name and a number on every line; None if there is none."""
    try:
        lines = [line.split() for line in path.read_text(encoding="ascii").splitlines()]
        return next((int(words[1]) for words in lines if words[:1] == [name]), None)
    except (OSError, ValueError):
        return None


def check_memory(what: str, setting: str, count: int, bytes_each: int, remedy: str = "") -> None:
    """Check that `count` items of `bytes_each` bytes fit in free memory.

    Args:
        what: The items to allocate.
        setting: The option that sets their number.
        count: The number of items.
        bytes_each: The bytes of one item.
        remedy: Further advice, "; ..." or empty.

    Raises:
        ValueError: The items exceed free memory; the message gives the largest possible count.
    """
    free = free_bytes()
    if count * bytes_each > free:
        raise ValueError(
            f"{setting}: {what} would take {count * bytes_each / _GIB:,.1f} GiB at {count:,}, this machine has "
            f"{free / _GIB:,.1f} GiB free; expected at most {free // max(bytes_each, 1):,}{remedy}"
        )


_NO_MEMORY: Final = (
    "can't allocate memory",
    "cannot allocate memory",
    "out of memory",
    "bad_alloc",
    "failed to allocate",
)
"""How PyTorch and ONNX Runtime report in a RuntimeError that memory ran out."""


def lacks_memory(error: BaseException) -> bool:
    """Return whether an error means that memory ran out, whichever library raised it."""
    message = str(error).lower()
    return isinstance(error, MemoryError) or any(words in message for words in _NO_MEMORY)
