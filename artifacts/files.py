"""Files: found writable before any work, read without waiting for a pipe, and written whole or not at all.

What is written lies beside its place first, and is then renamed. What a killed process left is written over.
"""

from __future__ import annotations

import fcntl
import os
import socket
import stat
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Final


def part_of(path: Path) -> Path:
    """Where the content of `path` is written first: one hidden name on this machine, so that litter never piles up."""
    return path.with_name(f".{path.name}.{socket.gethostname()}.part")


@contextmanager
def written_beside(path: Path) -> Iterator[BinaryIO]:
    """A new empty file at `part_of(path)`, which is gone afterwards unless it was renamed.

    Another process of this machine that writes `path` too waits until then. Makes the folder. Raises OSError, which
    names `path` where a write fails, as on a full disk.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = part_of(path)
    with _new_and_locked(beside) as file:
        try:
            with named(path):
                yield file
        finally:
            if _names(beside, file):
                beside.unlink()


@contextmanager
def named(path: Path) -> Iterator[None]:
    """An OSError of a write, as on a full disk, names `path`; one that names a file already stays as it is."""
    try:
        yield
    except OSError as error:
        if error.errno is None or error.filename is not None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file that takes the place of `path` at the end of the block; where the block raises, `path` stays as it was."""
    with written_beside(path) as file:
        yield file
        file.flush()
        os.replace(part_of(path), path)


def _new_and_locked(beside: Path) -> BinaryIO:
    """A new file at `beside`, locked where the file system has locks; what stood there is removed, not emptied."""
    while True:
        try:
            file = beside.open("xb")
        except FileExistsError:
            with suppress(FileNotFoundError), beside.open("rb") as left:
                _lock(left)  # waits for its writer, where that is alive
                if _names(beside, left):
                    beside.unlink()
            continue
        _lock(file)
        if _names(beside, file):
            return file
        file.close()


def _lock(file: BinaryIO) -> None:
    with suppress(OSError):
        fcntl.flock(file.fileno(), fcntl.LOCK_EX)


def _names(path: Path, file: BinaryIO) -> bool:
    """Whether `path` still names the open file."""
    try:
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False


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
