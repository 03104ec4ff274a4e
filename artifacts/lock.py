"""A lock that lets one process at a time work in a folder; it is released when the process ends in any way."""

import errno
import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from underpaint.artifacts.files import same_file

FILE: Final = ".in-use"
_NO_LOCKS: Final = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)
"""Errors of file systems without locks."""


class FolderInUse(OSError):
    """Another process works in the folder."""


def check_free(folder: Path) -> None:
    """Raise FolderInUse if another process holds `folder`; leaves nothing behind."""
    path = folder / FILE
    if not path.is_file():
        return
    with path.open("r+b") as file:  # network file systems lock no file that is only read
        _take(file.fileno(), folder)


@contextmanager
def folder_lock(folder: Path) -> Iterator[None]:
    """Hold `folder` against other processes, and create it if missing; raises FolderInUse if another process has it."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / FILE
    while True:
        with path.open("ab") as file:
            _take(file.fileno(), folder)
            if not same_file(path, file.fileno()):  # its holder ended and removed the file while it was being opened
                continue
            try:
                yield
            finally:
                path.unlink(missing_ok=True)
            return


def _take(descriptor: int, folder: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise FolderInUse(
            f"{folder}: another process works in this folder; wait until it ends, stop it, or choose another --out"
        ) from error
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
