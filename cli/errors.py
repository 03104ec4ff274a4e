"""What went wrong, in one message on standard error: bad input before any work, and what the machine lacks in it."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import typer
from typer.core import TyperGroup

from underpaint.cli import STOPPED as STOPPED
from underpaint.cli import STOPPED_LINE

BAD_INPUT = 2
_OURS: Final = "underpaint"
_INSTALL: Final = "pip install -e '.[cpu,train]'"
_FULL: Final = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EFBIG))
_STORAGE: Final = _FULL | {errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO, errno.ENAMETOOLONG}
"""Errors of a disk, not of the program."""


@contextmanager
def bad_input(*kinds: type[Exception]) -> Iterator[None]:
    """Turn errors of validation into their message and exit code 2: `kinds`, or else ValueError and OSError.

    Nothing but validation belongs inside: an error in the work itself is a bug, and keeps its traceback. Where work can
    meet an error that is no bug, `kinds` names it.
    """
    caught = kinds or (ValueError, OSError)
    try:
        yield
    except caught as error:
        said = _told(error) if isinstance(error, OSError) and error.errno in _FULL else error
        typer.echo(f"error: {said}", err=True)
        raise typer.Exit(BAD_INPUT) from error


@contextmanager
def stopped_on_interrupt() -> Iterator[None]:
    """Ctrl-C in what keeps nothing that was not finished: one line, and the code of shells."""
    try:
        yield
    except KeyboardInterrupt:
        typer.echo(STOPPED_LINE, err=True)
        raise SystemExit(STOPPED) from None


@contextmanager
def machine_errors() -> Iterator[None]:
    """Turn a disk that is full or cannot be written, and memory that runs out, into a message and exit code 2."""
    try:
        yield
    except OSError as error:
        if error.errno not in _STORAGE:
            raise
        typer.echo(f"error: {_told(error)}", err=True)
        raise SystemExit(BAD_INPUT) from error
    except MemoryError as error:
        told = f" ({error})" if str(error) else ""
        typer.echo(f"error: the memory of this machine does not suffice{told}; ask for less at once", err=True)
        raise SystemExit(BAD_INPUT) from error


class TorchGroup(TyperGroup):
    """Commands of that kind."""

    def invoke(self, ctx: Any) -> Any:
        """Run one; tell what to install where a package is missing."""
        with needed(ctx.command_path):
            return super().invoke(ctx)


@contextmanager
def needed(command: str) -> Iterator[None]:
    """Turn a package that is not installed into a message that says how it is, and exit code 2."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == _OURS:
            raise
        typer.echo(f"error: `{command}` needs {error.name}; install it with: {_INSTALL}", err=True)
        raise typer.Exit(BAD_INPUT) from error


def _told(error: OSError) -> str:
    """What a disk lacks, and what to do, unless the message says that already."""
    said = str(error.strerror or error)
    if "make room" in said:
        return said
    where = f"{error.filename}: " if error.filename else ""
    return f"{where}{said}; make room there, or choose another place for the output. What was finished before is kept"
