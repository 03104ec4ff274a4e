"""Finding out, before any work, whether files can be written."""

from __future__ import annotations

import tempfile
from pathlib import Path


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
