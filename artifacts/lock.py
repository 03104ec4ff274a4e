"""A lock that lets one process at a time work in a folder; it is released when the process ends in any way."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

FILE: Final = ".in-use"


class FolderInUse(OSError):
    """Another process works in the folder."""


def check_free(folder: Path) -> None:
    """Raise FolderInUse if another process holds `folder`; leaves nothing behind."""
    path = folder / FILE
    if not path.is_file():
        return
    with path.open("rb") as file:
        _take(file.fileno(), folder)


@contextmanager
def folder_lock(folder: Path) -> Iterator[None]:
    """Hold `folder` against other processes, and create it if missing; raises FolderInUse if another process has it."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / FILE
    while True:
        with path.open("ab") as file:
            _take(file.fileno(), folder)
            if not _names(path, file.fileno()):  # its holder ended and removed the file while it was being opened
                continue
            try:
                yield
            finally:
                path.unlink(missing_ok=True)
            return


def _names(path: Path, descriptor: int) -> bool:
    """Whether `path` still names the open file."""
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _take(descriptor: int, folder: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise FolderInUse(
            f"{folder}: another process works in this folder; wait until it ends, stop it, or choose another --out"
        ) from error
