"""Input files: what a path names is told before it is opened, so that no reader waits for a named pipe."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Final

MOST_PIPED: Final = 1 << 28
"""Bytes read from a pipe or a device at most: the captions of COCO's 83,000 training pictures are a quarter of it."""


def other_kind(path: Path) -> str | None:
    """What `path` names where that is neither a regular file nor missing: "a folder", "a named pipe"; else None."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return None
    kinds = {
        stat.S_ISDIR: "a folder",
        stat.S_ISFIFO: "a named pipe",
        stat.S_ISSOCK: "a socket",
        stat.S_ISCHR: "a device",
        stat.S_ISBLK: "a device",
    }
    return next((name for holds, name in kinds.items() if holds(mode)), None)


def check_regular(path: Path) -> None:
    """Raise OSError where `path` names a folder, a pipe or a device: opening a pipe would wait for its writer.

    A path that names nothing passes: opening it says what is missing.
    """
    found = other_kind(path)
    if found is not None:
        raise OSError(f"{path}: expected a regular file, got {found}; name a file, or copy the content into one")


def read_regular(path: Path) -> bytes:
    """The content of a regular file; OSError, naming `path`, for anything else."""
    check_regular(path)
    return path.read_bytes()


def read_once(path: Path) -> bytes:
    """The content of a file, or of a pipe or device up to its end, which may be read one time only.

    Raises:
        OSError: there is no such file, it is a folder, or it cannot be read.
        ValueError: a pipe or device that gives more than `MOST_PIPED` bytes.
    """
    if other_kind(path) is None:
        return path.read_bytes()
    with path.open("rb") as stream:
        content = stream.read(MOST_PIPED + 1)
    if len(content) > MOST_PIPED:
        raise ValueError(
            f"{path}: expected at most {MOST_PIPED >> 20} MiB from a pipe or device, got more; write it into a file"
        )
    return content
