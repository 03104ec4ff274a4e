"""Errors as one message on standard error: bad input before any work, and limits of the machine during it."""

import errno
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import typer
from typer.core import TyperGroup

from underpaint.algos.memory import lacks_memory
from underpaint.algos.plugin_guard import plugin_error
from underpaint.artifacts.install import install_hint
from underpaint.cli import STOPPED as STOPPED
from underpaint.cli import STOPPED_LINE

BAD_INPUT = 2
_OURS: Final = "underpaint"
_FULL: Final = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EFBIG))
_STORAGE: Final = _FULL | {errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO, errno.ENAMETOOLONG}
"""Errors of a disk or its files, not of the program."""
_FILES: Final = frozenset((errno.EMFILE, errno.ENFILE))
_MACHINE: Final = _STORAGE | _FILES | {errno.ENOMEM}
_WITHOUT_REMEDY: Final = _FULL | _FILES | {errno.ENOMEM}
"""The errors among them whose own message does not say what to do."""


@contextmanager
def bad_input(*kinds: type[Exception]) -> Iterator[None]:
    """Turn validation errors into their message and exit code 2: `kinds`, or else ValueError and OSError.

    Only validation belongs inside: an error in the work itself is a bug, and keeps its traceback. If work can raise an
    error that is no bug, name its class in `kinds`.
    """
    caught = kinds or (ValueError, OSError)
    try:
        yield
    except caught as error:
        message = _os_error_message(error) if isinstance(error, OSError) and error.errno in _WITHOUT_REMEDY else error
        if not _refuses_settings(error):
            message = plugin_error(error) or message
        typer.echo(f"error: {message}", err=True)
        raise typer.Exit(BAD_INPUT) from error


def _refuses_settings(error: Exception) -> bool:
    """Return whether a settings dataclass, as of a plug-in, raised `error`: then the user's value is wrong."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_name != "__post_init__":
        trace = trace.tb_next
    return trace is not None


@contextmanager
def stopped_on_interrupt() -> Iterator[None]:
    """On Ctrl-C, print one line and exit with the shells' code. For work that keeps nothing unfinished."""
    try:
        yield
    except KeyboardInterrupt:
        typer.echo(STOPPED_LINE, err=True)
        raise SystemExit(STOPPED) from None


@contextmanager
def on_interrupt(message: Callable[[], str]) -> Iterator[None]:
    """On Ctrl-C, print the line that `message` returns and exit with the shells' code. For work that is partly kept."""
    try:
        yield
    except KeyboardInterrupt:
        typer.echo(message(), err=True)
        raise typer.Exit(STOPPED) from None


def continues(done: str, path: Path) -> str:
    """Return the Ctrl-C message of a run that the same command continues."""
    return f"stopped: {done}; the same command continues {path}"


@contextmanager
def machine_errors() -> Iterator[None]:
    """Turn errors of storage, memory or open files into a message and exit code 2."""
    try:
        yield
    except OSError as error:
        if error.errno not in _MACHINE:
            raise
        typer.echo(f"error: {_os_error_message(error)}", err=True)
        raise SystemExit(BAD_INPUT) from error
    except (MemoryError, RuntimeError) as error:
        if not lacks_memory(error):
            raise
        typer.echo(f"error: {_memory_message(str(error).strip().partition(chr(10))[0])}", err=True)
        raise SystemExit(BAD_INPUT) from error


class TorchGroup(TyperGroup):
    """A group of commands that import packages of the training extra when they run."""

    def invoke(self, ctx: Any) -> Any:
        """Run a command; if a package is missing, say how to install it."""
        with needed(f"`{ctx.command_path}`", "cpu", "train"):
            return super().invoke(ctx)


@contextmanager
def needed(what: str, *extras: str) -> Iterator[None]:
    """Turn a missing package of `extras` into a message that says how to install it, and exit code 2."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == _OURS:
            raise
        # ONNX Runtime's wheel for the CPU would overwrite the one for the GPU.
        missing = [extra for extra in extras if extra != "cpu" or find_spec("onnxruntime") is None]
        typer.echo(f"error: {what} needs {error.name}; install it with: {install_hint(*missing)}", err=True)
        raise typer.Exit(BAD_INPUT) from error


def _memory_message(what: str) -> str:
    detail = f" ({what[:200]})" if what else ""
    return f"out of memory{detail}; reduce the batch or the size, or close other programs"


def _os_error_message(error: OSError) -> str:
    """Return the machine's limit and a remedy, unless the message already has one."""
    reason = str(error.strerror or error)
    if error.errno == errno.ENOMEM:
        return _memory_message(reason)
    if error.errno in _FILES:
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return f"{reason}: this process may have {most} open at once and needs more; raise that with `ulimit -n 1024`"
    if "make room" in reason:
        return reason
    where = f"{error.filename}: " if error.filename else ""
    return f"{where}{reason}; make room there, or choose another place for the output. What was finished before is kept"
