"""Which plug-in an error or an answer is of: errors name it, its file and its line, and wrong answers are errors."""

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
"""The plug-in that a file belongs to."""
_CHECKED: Final[WeakSet[Callable[..., Any]]] = WeakSet()
"""Methods of plug-ins whose answers are checked already."""


class PluginError(ValueError):
    """A plug-in that is not there or that fails, while it is loaded or used; the message names it, file and line."""


@contextmanager
def answers_within(seconds: float) -> Iterator[None]:
    """Inside, each answer of a plug-in that `check_answers` watches takes so long at most, or is a PluginError.

    The limit holds in the main thread, and for what Python can interrupt: not for a loop in a C library.
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
    left, _ = signal.setitimer(signal.ITIMER_REAL, _limit[-1])
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
        if left:  # a call around this one has what it had left, or a moment
            signal.setitimer(signal.ITIMER_REAL, max(1e-3, left - (perf_counter() - started)))


@contextmanager
def descriptor_to_error() -> Iterator[None]:
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
        FILES[file] = plugin


def plugin_line(trace: TracebackType | None) -> tuple[str, str, int] | None:
    """The plug-in, file and line that a traceback leads through, the innermost one; None where it meets no plug-in."""
    innermost = None
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        innermost = (FILES[file], file, trace.tb_lineno) if file in FILES else innermost
        trace = trace.tb_next
    return innermost


def plugin_error(error: BaseException) -> PluginError | None:
    """`error` with the plug-in, file and line that its traceback leads through; None where it meets no plug-in."""
    if isinstance(error, PluginError):
        return error
    cause: BaseException | None = error
    while cause is not None:  # Python hides StopIteration behind an error of its own
        place = plugin_line(cause.__traceback__)
        if place is not None:
            plugin, file, line = place
            return PluginError(
                f"plug-in {plugin}: {type(cause).__name__}: {cause} ({file}, line {line}); mend it there"
            )
        cause = cause.__cause__
    return None


def is_of_plugin(frame: FrameType | None) -> bool:
    """Whether a plug-in's code is running in a frame, or called it."""
    while frame is not None:
        if frame.f_code.co_filename in FILES:
            return True
        frame = frame.f_back
    return False


def check_answers(what: str, make: type[Any], method: str, wrong: Callable[..., str | None]) -> None:
    """Let `method` of a class from outside raise PluginError where it fails, or its answer is wrong.

    A second call does nothing.

    What it writes to file descriptor 1 goes to standard error.

    Args:
        what: The part that the class makes, as `rule 'mine'`.
        make: The class; one of this project is left as it is.
        method: The name of the method.
        wrong: (answer, the method's arguments) -> what was expected, or None where the answer is right.
    """
    asked = getattr(make, method, None)
    if make.__module__.startswith(_HOUSE) or asked is None or asked in _CHECKED:
        return

    @wraps(asked)
    def checked(self: Any, *given: Any, **named: Any) -> Any:
        with descriptor_to_error(), _limited(what, method):
            try:
                answer = asked(self, *given, **named)
            except PluginError:
                raise
            except Exception as error:  # of this project too, as the plug-in called it: `chance.draw` of no weights
                named_error = plugin_error(error)
                if named_error is None:
                    raise
                raise named_error from error
        expected = wrong(answer, *given, *named.values())
        if expected is not None:
            code = getattr(asked, "__code__", None)
            place = f"{code.co_filename}, line {code.co_firstlineno}" if code is not None else make.__module__
            plugin = FILES.get(code.co_filename, make.__module__) if code is not None else make.__module__
            raise PluginError(
                f"plug-in {plugin}: {what}: {method} must return {expected}, got {str(answer)[:80]} "
                f"({place}); mend it there"
            )
        return answer

    _CHECKED.add(checked)
    setattr(make, method, checked)
