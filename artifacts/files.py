"""File access: checks for writable places before any work, reads that never wait for a pipe, and atomic writes.

A file is written next to its place and then renamed. Leftovers of a killed process are overwritten.
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
    """Path where `path` is written first: one hidden name per machine, so that leftovers do not pile up."""
    return path.with_name(f".{path.name}.{socket.gethostname()}.part")


@contextmanager
def written_beside(path: Path) -> Iterator[BinaryIO]:
    """Open a new empty file at `part_of(path)`, which is deleted afterwards unless it was renamed.

    Another process of this machine that also writes `path` waits until then. Creates the folder. Raises OSError with
    the name `path` if a write fails, as on a full disk.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = part_of(path)
    with _new_and_locked(beside) as file:
        try:
            with named(path):
                yield file
        finally:
            if same_file(beside, file.fileno()):
                beside.unlink()


@contextmanager
def named(path: Path) -> Iterator[None]:
    """Add `path` to an OSError of a write, as on a full disk; an error that names a file stays as it is."""
    try:
        yield
    except OSError as error:
        if error.errno is None or error.filename is not None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Open a file that replaces `path` at the end of the block; if the block raises, `path` stays as it was."""
    with written_beside(path) as file:
        yield file
        file.flush()
        os.replace(part_of(path), path)


def _new_and_locked(beside: Path) -> BinaryIO:
    """A new file at `beside`, locked if the file system has locks; an old file there is removed, not truncated."""
    while True:
        try:
            file = beside.open("xb")
        except FileExistsError:
            with suppress(FileNotFoundError), beside.open("rb") as old_file:
                _lock(old_file)  # waits for its writer, if that is still running
                if same_file(beside, old_file.fileno()):
                    beside.unlink()
            continue
        _lock(file)
        if same_file(beside, file.fileno()):
            return file
        file.close()


def _lock(file: BinaryIO) -> None:
    with suppress(OSError):
        fcntl.flock(file.fileno(), fcntl.LOCK_EX)


def same_file(path: Path, descriptor: int) -> bool:
    """Whether `path` still names the open file."""
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


MOST_PIPED: Final = 1 << 28
"""Largest number of bytes read from a pipe or device; COCO's 83,000 training captions need a quarter of it."""


def other_kind(path: Path) -> str | None:
    """What `path` is if neither a regular file nor missing: "a folder", "a named pipe"; else None."""
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
    """Raise OSError if `path` is a folder, a pipe or a device: opening a pipe would wait for its writer.

    A missing path passes: opening it reports what is missing.
    """
    kind = other_kind(path)
    if kind is not None:
        raise OSError(f"{path}: expected a regular file, got {kind}; name a file, or copy the content into one")


def read_regular(path: Path) -> bytes:
    """The content of a regular file; raises OSError, with `path`, for anything else."""
    check_regular(path)
    return path.read_bytes()


def read_once(path: Path) -> bytes:
    """The content of a file, or of a pipe or device up to its end, which can be read only once.

    Raises:
        OSError: There is no such file, it is a folder, or it cannot be read.
        ValueError: A pipe or device gives more than `MOST_PIPED` bytes.
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
"""Content of a probe: a disk without room for it has no room for any output."""


def user_cache_folder() -> Path:
    """Folder for data of this machine: `underpaint` in XDG_CACHE_HOME, or else in the home folder's `.cache`."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if Path(base).is_absolute() else Path.home() / ".cache") / "underpaint"


def check_folder_writable(folder: Path) -> None:
    """Raise OSError unless files can be created and filled in `folder`, which need not exist; leaves nothing behind.

    Also detects a full disk. The message names the place and what to do.
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
    """Raise OSError unless `path` can be written or overwritten as a file; leaves nothing behind."""
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
    """Raise ValueError if two of the outputs, given by their names for users, are the same file."""
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
