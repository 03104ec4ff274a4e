"""What a plug-in may not do to the program: print into its results, end it, or answer with something else."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from functools import wraps
from threading import Lock
from types import FrameType, TracebackType
from typing import Any, Final, NoReturn

_HOUSE: Final = "underpaint."
_FILES: Final[dict[str, str]] = {}
"""The plug-in that a file belongs to."""


class PluginError(ValueError):
    """A plug-in that is not there or that fails, while it is loaded or used; the message names it, file and line."""


@contextmanager
def loading() -> Iterator[None]:
    """While a plug-in is loaded, what it prints goes to standard error, and `os._exit` is an error of the plug-in."""
    with _descriptor_to_error(), redirect_stdout(sys.stderr), _no_ending(lambda caller: True):
        yield


@contextmanager
def _no_ending(refuses: Callable[[FrameType], bool]) -> Iterator[None]:
    """`os._exit` raises SystemExit in this process where `refuses(caller's frame)`."""
    ending: Callable[[int], NoReturn] = os._exit
    owner = os.getpid()

    def refused(code: int = 0) -> NoReturn:
        if os.getpid() != owner or not refuses(sys._getframe(1)):
            ending(code)
        raise SystemExit(f"it ended the program by os._exit({code})")

    places = [one for one in (os, sys.modules.get("posix")) if one is not None]
    try:
        for place in places:
            place.__dict__["_exit"] = refused
        yield
    finally:
        for place in places:
            place.__dict__["_exit"] = ending


@contextmanager
def _descriptor_to_error() -> Iterator[None]:
    """What programs and libraries write to file descriptor 1 goes to standard error; it may be entered again."""
    with _DESCRIPTOR.lock:
        if _DESCRIPTOR.users == 0:
            _DESCRIPTOR.turn()
        _DESCRIPTOR.users += 1
    try:
        yield
    finally:
        with _DESCRIPTOR.lock:
            _DESCRIPTOR.users -= 1
            if _DESCRIPTOR.users == 0:
                _DESCRIPTOR.turn_back()


class _Descriptor:
    """File descriptor 1, which threads turn to standard error together: the last one turns it back."""

    def __init__(self) -> None:
        self.lock, self.users, self._kept = Lock(), 0, -1

    def turn(self) -> None:
        with suppress(OSError, ValueError):
            sys.stdout.flush()
        with suppress(OSError):  # closed
            self._kept = os.dup(1)
            os.dup2(2, 1)

    def turn_back(self) -> None:
        if self._kept >= 0:
            os.dup2(self._kept, 1)
            os.close(self._kept)
            self._kept = -1


_DESCRIPTOR: Final = _Descriptor()


def own_file(file: str | None, plugin: str) -> None:
    """Remember that `file` is of `plugin`, for messages."""
    if file is not None:
        _FILES[file] = plugin


def plugin_line(trace: TracebackType | None) -> tuple[str, str, int] | None:
    """The plug-in, file and line that a traceback leads through, the innermost one; None where it meets no plug-in."""
    found = None
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        found = (_FILES[file], file, trace.tb_lineno) if file in _FILES else found
        trace = trace.tb_next
    return found


@contextmanager
def named_in_use() -> Iterator[None]:
    """A plug-in that raises or ends the program while it is used is a PluginError; other errors stay as they are."""
    try:
        with _no_ending(_is_of_plugin):
            yield
    except PluginError:
        raise
    except (Exception, SystemExit) as error:
        cause: BaseException | None = error
        while cause is not None:  # Python hides StopIteration behind an error of its own
            place = plugin_line(cause.__traceback__)
            if place is not None:
                plugin, file, line = place
                raise PluginError(
                    f"plug-in {plugin}: {type(cause).__name__}: {cause} ({file}, line {line}); mend it there"
                ) from error
            cause = cause.__cause__
        raise


@contextmanager
def clean_output() -> Iterator[None]:
    """Standard output for the program alone: what a plug-in prints goes to standard error."""
    before = sys.stdout
    sys.stdout = _Routed(before)
    try:
        yield
    finally:
        sys.stdout = before


class _Routed:
    """A stream that looks, for each text, whether a plug-in writes it."""

    def __init__(self, output: Any) -> None:
        self._output = output

    def write(self, text: str) -> Any:
        return (sys.stderr if _FILES and _is_of_plugin(sys._getframe(1)) else self._output).write(text)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._output, name)


def _is_of_plugin(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename in _FILES:
            return True
        frame = frame.f_back
    return False


def check_answers(what: str, make: type[Any], method: str, wrong: Callable[..., str | None]) -> None:
    """Let `method` of a class from outside raise PluginError where its answer is wrong; a second call does nothing.

    What it writes to file descriptor 1 goes to standard error.

    Args:
        what: The part that the class makes, as `rule 'mine'`.
        make: The class; one of this project is left as it is.
        method: The name of the method.
        wrong: (answer, the method's arguments) -> what was expected, or None where the answer is right.
    """
    asked = getattr(make, method, None)
    if make.__module__.startswith(_HOUSE) or asked is None or hasattr(asked, "__wrapped__"):
        return

    @wraps(asked)
    def checked(self: Any, *given: Any, **named: Any) -> Any:
        with _descriptor_to_error():
            answer = asked(self, *given, **named)
        expected = wrong(answer, *given, *named.values())
        if expected is not None:
            code = getattr(asked, "__code__", None)
            place = f"{code.co_filename}, line {code.co_firstlineno}" if code is not None else make.__module__
            plugin = _FILES.get(code.co_filename, make.__module__) if code is not None else make.__module__
            raise PluginError(
                f"plug-in {plugin}: {what}: {method} must return {expected}, got {str(answer)[:80]} "
                f"({place}); mend it there"
            )
        return answer

    setattr(make, method, checked)
