"""Finding out, before any work, whether files can be written."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

_PROBED: Final = bytes(1 << 16)
"""What a probe writes: a disk that has no room for this has none for any output."""


def user_cache_folder() -> Path:
    """What holds for this machine alone is kept in `underpaint` in XDG_CACHE_HOME, or else in the home's `.cache`."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if Path(base).is_absolute() else Path.home() / ".cache") / "underpaint"


def check_folder_writable(folder: Path) -> None:
    """Raise OSError unless files can be made and filled in `folder`, which need not exist yet; leaves nothing behind.

    A disk without room is found here too. The message names the place and what to do.
    """
    there = folder.absolute()
    while not os.path.lexists(there) and there != there.parent:
        there = there.parent
    if not there.is_dir():
        leads = "a symbolic link that leads nowhere" if there.is_symlink() and not there.exists() else "not a folder"
        raise NotADirectoryError(f"cannot write into {folder}: {there} is {leads}; choose another place")
    try:
        with tempfile.TemporaryFile(dir=there) as probe:
            probe.write(_PROBED)
            probe.flush()
    except OSError as error:
        raise OSError(
            f"cannot write into {folder}: {error.strerror}; make room there, or choose another place"
        ) from error


def check_file_writable(path: Path) -> None:
    """Raise OSError unless `path` can be written as a file, over what is there; leaves nothing behind."""
    if path.is_dir():
        raise IsADirectoryError(f"cannot write {path}: it is a folder; name a file in it")
    if path.is_symlink() and not path.exists():
        raise FileNotFoundError(
            f"cannot write {path}: it is a symbolic link that leads nowhere; remove it, or name another"
        )
    if path.exists():
        if not path.is_file():
            raise OSError(f"cannot write {path}: it is no regular file; name another")
        try:
            with path.open("r+b"):
                pass
        except OSError as error:
            raise OSError(f"cannot write {path}: {error.strerror}; make it writable, or name another") from error
    check_folder_writable(path.parent)


def check_apart(outputs: Mapping[str, Path | None]) -> None:
    """Raise ValueError where two outputs, by what they are called, are one file."""
    seen: dict[Path, str] = {}
    for called, path in outputs.items():
        if path is None:
            continue
        place = path.resolve()
        if place in seen:
            raise ValueError(
                f"{called} and {seen[place]} are both {path}: one would overwrite the other; name two files"
            )
        seen[place] = called
