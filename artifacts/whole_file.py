"""A file whole or not at all: written beside its place, then renamed. What a killed process left is written over."""

import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO


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
