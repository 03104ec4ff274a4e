"""What a plug-in may not do to the program: print into its results, end it, or answer with something else."""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
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
        if os.getpid() != owner:
            ending(code)
        if _at_exit:
            _end_at_exit(code, sys._getframe(0).f_back)
        if not refuses(sys._getframe(1)):
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


_at_exit: list[Callable[[int], NoReturn]] = []
"""What really ends the process, once Python runs what was left for its end."""
_BAD_INPUT: Final = 2


def guard_exit() -> None:
    """Let no plug-in choose the exit code by what it leaves for the end of the program: `os._exit` ends with 2 there.

    Call it when the work is done: Python runs last what was registered first.
    """
    if not _FILES:
        return

    def begin() -> None:
        _at_exit.append(os._exit)

        def refused(code: int = 0) -> NoReturn:
            _end_at_exit(code, sys._getframe(0).f_back)

        for place in (os, sys.modules.get("posix")):
            if place is not None:
                place.__dict__["_exit"] = refused

    atexit.register(begin)


def _end_at_exit(code: int, caller: FrameType | None) -> NoReturn:
    if caller is not None and not _is_of_plugin(caller):
        _at_exit[0](code)
    while caller is not None and caller.f_code.co_filename not in _FILES:
        caller = caller.f_back
    if caller is None:  # registered as it is
        plugin, place = ", ".join(dict.fromkeys(_FILES.values())), ""
    else:
        plugin, place = _FILES[caller.f_code.co_filename], f" ({caller.f_code.co_filename}, line {caller.f_lineno})"
    sys.stdout.flush()
    print(f"error: plug-in {plugin}: it ended the program by os._exit({code}) at its end{place}", file=sys.stderr)
    sys.stderr.flush()
    _at_exit[0](_BAD_INPUT)


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
        while frame is not None and frame.f_code.co_filename not in _FILES:
            frame = frame.f_back
        place = f" ({frame.f_code.co_filename}, line {frame.f_lineno})" if frame is not None else ""
        plugin = f"plug-in {_FILES[frame.f_code.co_filename]}: " if frame is not None else ""
        raise PluginError(
            f"{plugin}{what}: {method} gave no answer within {_limit[-1]:g} s{place}; mend it there, or pass a longer "
            "--timeout"
        )

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, _limit[-1])
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


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
        named_error = plugin_error(error)
        if named_error is None:
            raise
        raise named_error from error


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
    if make.__module__.startswith(_HOUSE) or asked is None or hasattr(asked, "__wrapped__"):
        return

    @wraps(asked)
    def checked(self: Any, *given: Any, **named: Any) -> Any:
        with _descriptor_to_error(), _limited(what, method):
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
            plugin = _FILES.get(code.co_filename, make.__module__) if code is not None else make.__module__
            raise PluginError(
                f"plug-in {plugin}: {what}: {method} must return {expected}, got {str(answer)[:80]} "
                f"({place}); mend it there"
            )
        return answer

    setattr(make, method, checked)
