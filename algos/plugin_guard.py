"""Attributes errors to plug-ins, with file and line, and turns their wrong answers into errors."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import wraps
from threading import Lock
from time import perf_counter
from types import FrameType, TracebackType
from typing import Any, Final, NoReturn
from weakref import WeakSet

_HOUSE: Final = "underpaint."
FILES: Final[dict[str, str]] = {}
"""Maps the path of a file to the plug-in that it belongs to."""
_CHECKED: Final[WeakSet[Callable[..., Any]]] = WeakSet()
"""Methods of plug-ins whose answers are checked already."""


class PluginError(ValueError):
    """A plug-in is missing, or failed while it was loaded or used; the message names the plug-in, file and line."""


@contextmanager
def answers_within(seconds: float) -> Iterator[None]:
    """Limit each plug-in call watched by `check_answers` to `seconds`; a slower answer raises PluginError.

    The limit works in the main thread only, and only where Python can interrupt: not inside a loop in a C library.
    """
    _limit.append(seconds)
    try:
        yield
    finally:
        _limit.pop()


_limit: list[float] = []


@contextmanager
def _limited(what: str, method: str) -> Iterator[None]:
    if not _limit or threading.current_thread() is not threading.main_thread():
        yield
        return

    def late(number: int, frame: FrameType | None) -> NoReturn:
        while frame is not None and frame.f_code.co_filename not in FILES:
            frame = frame.f_back
        place = f" ({frame.f_code.co_filename}, line {frame.f_lineno})" if frame is not None else ""
        plugin = f"plug-in {FILES[frame.f_code.co_filename]}: " if frame is not None else ""
        raise PluginError(
            f"{plugin}{what}: {method} gave no answer within {_limit[-1]:g} s{place}; mend it there, or pass a longer "
            "--timeout"
        )

    before, started = signal.signal(signal.SIGALRM, late), perf_counter()
    seconds_left, _ = signal.setitimer(signal.ITIMER_REAL, _limit[-1])
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
        if seconds_left:  # a call around this one has what it had left, or a moment
            signal.setitimer(signal.ITIMER_REAL, max(1e-3, seconds_left - (perf_counter() - started)))


@contextmanager
def descriptor_to_error() -> Iterator[None]:
    """Send what programs and libraries write to file descriptor 1 to standard error. Can be nested."""
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
    """A shared redirection of file descriptor 1 to standard error; the last thread that uses it restores it."""

    def __init__(self) -> None:
        self.lock, self.users, self._stdout_copy = Lock(), 0, -1

    def turn(self) -> None:
        with suppress(OSError, ValueError):
            sys.stdout.flush()
        with suppress(OSError):  # descriptor 1 is closed
            self._stdout_copy = os.dup(1)
            os.dup2(2, 1)

    def turn_back(self) -> None:
        if self._stdout_copy >= 0:
            os.dup2(self._stdout_copy, 1)
            os.close(self._stdout_copy)
            self._stdout_copy = -1


_DESCRIPTOR: Final = _Descriptor()


def own_file(file: str | None, plugin: str) -> None:
    """Record that `file` belongs to `plugin`, for error messages."""
    if file is not None:
        FILES[file] = plugin


def plugin_line(trace: TracebackType | None) -> tuple[str, str, int] | None:
    """Return the plug-in, file and line of the innermost plug-in frame in a traceback; None if there is none."""
    innermost = None
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        innermost = (FILES[file], file, trace.tb_lineno) if file in FILES else innermost
        trace = trace.tb_next
    return innermost


def plugin_error(error: BaseException) -> PluginError | None:
    """Return `error` as a PluginError with plug-in, file and line; None if no plug-in is in its traceback."""
    if isinstance(error, PluginError):
        return error
    cause: BaseException | None = error
    while cause is not None:  # Python wraps StopIteration in an error of its own
        place = plugin_line(cause.__traceback__)
        if place is not None:
            plugin, file, line = place
            return PluginError(
                f"plug-in {plugin}: {type(cause).__name__}: {cause} ({file}, line {line}); mend it there"
            )
        cause = cause.__cause__
    return None


def is_of_plugin(frame: FrameType | None) -> bool:
    """Return whether `frame` or one of its callers is plug-in code."""
    while frame is not None:
        if frame.f_code.co_filename in FILES:
            return True
        frame = frame.f_back
    return False


def check_answers(what: str, make: type[Any], method: str, wrong: Callable[..., str | None]) -> None:
    """Wrap `method` of a plug-in class so that a failure or a wrong answer raises PluginError.

    What the method writes to file descriptor 1 goes to standard error. A second call does nothing.

    Args:
        what: The part that the class implements, such as `rule 'mine'`.
        make: The class; classes of this project are not changed.
        method: The name of the method.
        wrong: A function (answer, *arguments of the method) that returns what was expected, or None if the answer is
            right.
    """
    original = getattr(make, method, None)
    if make.__module__.startswith(_HOUSE) or original is None or original in _CHECKED:
        return

    @wraps(original)
    def checked(self: Any, *args: Any, **named: Any) -> Any:
        with descriptor_to_error(), _limited(what, method):
            try:
                answer = original(self, *args, **named)
            except PluginError:
                raise
            except Exception as error:  # also an error in this project that the plug-in caused, as in `chance.draw`
                named_error = plugin_error(error)
                if named_error is None:
                    raise
                raise named_error from error
        expected = wrong(answer, *args, *named.values())
        if expected is not None:
            code = getattr(original, "__code__", None)
            place = f"{code.co_filename}, line {code.co_firstlineno}" if code is not None else make.__module__
            plugin = FILES.get(code.co_filename, make.__module__) if code is not None else make.__module__
            raise PluginError(
                f"plug-in {plugin}: {what}: {method} must return {expected}, got {str(answer)[:80]} "
                f"({place}); mend it there"
            )
        return answer

    _CHECKED.add(checked)
    setattr(make, method, checked)
