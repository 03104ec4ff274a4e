"""Writing files whole, and finding out beforehand whether they can be written."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def write_whole(path: Path, content: bytes) -> None:
    """Write beside `path`, then put it in place: a reader sees the old file or the new one, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, beside = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.chmod(beside, 0o666 & ~_umask())
        os.replace(beside, path)
    except BaseException:
        os.unlink(beside)
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def check_folder_writable(folder: Path) -> None:
    """Raise OSError unless files can be made in `folder`, which need not exist yet; leaves nothing behind."""
    there = folder.absolute()
    while not there.exists() and there != there.parent:
        there = there.parent
    if not there.is_dir():
        raise NotADirectoryError(f"cannot write into {folder}: {there} is not a folder; choose another place")
    try:
        with tempfile.TemporaryFile(dir=there):
            pass
    except OSError as error:
        raise OSError(f"cannot write into {folder}: {error.strerror}; choose another place") from error


def check_file_writable(path: Path) -> None:
    """Raise OSError unless `path` can be written as a file; leaves nothing behind."""
    if path.is_dir():
        raise IsADirectoryError(f"cannot write {path}: it is a folder; name a file in it")
    check_folder_writable(path.parent)
