"""Plug-ins: modules that register rules, policies and methods, named by the user or by package entry points.

While plug-ins are loaded and used, they cannot print to the program's standard output or end the program.
"""

from __future__ import annotations

import atexit
import hashlib
import importlib
import importlib.util
import os
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any, Final, NoReturn

from underpaint.algos.plugin_guard import FILES, descriptor_to_error, is_of_plugin, own_file, plugin_error
from underpaint.algos.plugin_guard import PluginError as PluginError

VARIABLE = "UNDERPAINT_PLUGINS"
"""Environment variable with the plug-ins of every command and of the tests: modules or .py paths, comma-separated."""


_LOADED: list[str] = []


def loaded_plugins() -> tuple[str, ...]:
    """Return the names passed to `load_plugins` so far, in order; files as absolute paths."""
    return tuple(_LOADED)


def load_plugins(names: Iterable[str]) -> None:
    """Import each of `names`: a module on the path, or the path of a .py file. Importing a plug-in again does nothing.

    Files with the same name in different folders are different plug-ins. Raises PluginError.
    """
    for name in names:
        key = str(Path(name).resolve()) if name.endswith(".py") else name
        if key not in _LOADED:
            _LOADED.append(key)
        if name.endswith(".py"):
            load_file(name)
        elif name not in sys.modules:
            _check_there(name)
            with named(name):
                _own(importlib.import_module(name), name)


def named_by_environment() -> tuple[str, ...]:
    """Return the plug-ins that the environment variable names."""
    return tuple(name.strip() for name in os.environ.get(VARIABLE, "").split(",") if name.strip())


def load_entry_points(group: str) -> Iterator[tuple[str, object]]:
    """Load all entry points of `group`, one by one, and yield (plug-in name, object). Raises PluginError."""
    from importlib.metadata import entry_points  # takes longer to import than everything else here

    for point in sorted(entry_points(group=group)):
        owner = f" of package {point.dist.name}" if point.dist is not None else ""
        plugin = f"{point.value}{owner} (entry point '{point.name}' of {group})"
        with named(plugin):
            entry = point.load()
            _own(sys.modules.get(point.module), plugin)
        yield plugin, entry


@contextmanager
def named(plugin: str) -> Iterator[None]:
    """Turn errors raised inside into a PluginError that names the plug-in, the file and the line."""
    try:
        with loading():
            yield
    except PluginError:
        raise
    except (Exception, SystemExit) as error:
        raise PluginError(f"plug-in {plugin}: {type(error).__name__}: {error} ({_place(error)})") from error


def load_file(name: str) -> ModuleType:
    """Load the .py file `name` as a module; a second call returns the same module. Raises PluginError."""
    path = Path(name).resolve()
    module = f"underpaint_plugin_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:12]}"
    if module in sys.modules:
        return sys.modules[module]
    if not path.is_file():
        raise PluginError(f"plug-in: there is no file {name}; give the path of a .py file or a module's name")
    spec = importlib.util.spec_from_file_location(module, path)
    if spec is None or spec.loader is None:
        raise PluginError(f"plug-in: {name} cannot be loaded as a Python module")
    loaded: ModuleType = importlib.util.module_from_spec(spec)
    sys.modules[module] = loaded
    own_file(str(path), name)
    try:
        with named(name):
            spec.loader.exec_module(loaded)
    except PluginError:
        del sys.modules[module]
        raise
    return loaded


def _own(module: ModuleType | None, plugin: str) -> None:
    """Record the files of a plug-in: its module's file, and for a package those of all loaded submodules."""
    if module is None or module.__name__.partition(".")[0] == __name__.partition(".")[0]:
        return
    for name, one in list(sys.modules.items()):
        if name == module.__name__ or name.startswith(f"{module.__name__}."):
            own_file(getattr(one, "__file__", None), plugin)


def _check_there(name: str) -> None:
    with named(name):
        try:
            module_spec = importlib.util.find_spec(name)
        except ModuleNotFoundError as error:
            if error.name is None or not name.startswith(f"{error.name}."):
                raise
            module_spec = None
    if module_spec is None:
        raise PluginError(f"plug-in: there is no module '{name}'; install it, or give the path of a .py file")


def _place(error: BaseException) -> str:
    """Return where `error` was raised: the last traceback line outside `algos` and importlib, or else the last one."""
    if isinstance(error, SyntaxError) and error.filename is not None:
        return f"{error.filename}, line {error.lineno}"
    house = Path(__file__).parent.parent
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith("<")]
    outside = [
        frame
        for frame in frames
        if not Path(frame.filename).is_relative_to(house / "algos") and "importlib" not in Path(frame.filename).parts
    ]
    last = (outside or frames)[-1]
    return f"{last.filename}, line {last.lineno}"


@contextmanager
def loading() -> Iterator[None]:
    """While a plug-in loads, send its standard output to standard error, and turn `os._exit` into a plug-in error."""
    with descriptor_to_error(), redirect_stdout(sys.stderr), _no_ending(lambda caller: True):
        yield


@contextmanager
def _no_ending(refuses: Callable[[FrameType], bool]) -> Iterator[None]:
    """Make `os._exit` raise SystemExit in this process if `refuses(caller's frame)` is true."""
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
"""The real `os._exit`, stored once Python runs its exit handlers."""
_BAD_INPUT: Final = 2


def guard_exit() -> None:
    """Prevent plug-ins from setting the exit code in an exit handler: there, `os._exit` exits with code 2.

    Call it when the work is done, because Python runs exit handlers in reverse order of registration.
    """
    if not FILES:
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
    if caller is not None and not is_of_plugin(caller):
        _at_exit[0](code)
    while caller is not None and caller.f_code.co_filename not in FILES:
        caller = caller.f_back
    if caller is None:  # `os._exit` itself was registered as the exit handler
        plugin, place = ", ".join(dict.fromkeys(FILES.values())), ""
    else:
        plugin, place = FILES[caller.f_code.co_filename], f" ({caller.f_code.co_filename}, line {caller.f_lineno})"
    sys.stdout.flush()
    print(f"error: plug-in {plugin}: it ended the program by os._exit({code}) at its end{place}", file=sys.stderr)
    sys.stderr.flush()
    _at_exit[0](_BAD_INPUT)


@contextmanager
def named_in_use() -> Iterator[None]:
    """Turn an error or program exit caused by a plug-in into a PluginError; other errors pass through unchanged."""
    try:
        with _no_ending(is_of_plugin):
            yield
    except PluginError:
        raise
    except (Exception, SystemExit) as error:
        named_error = plugin_error(error) if FILES else None
        if named_error is None:
            raise
        raise named_error from error


@contextmanager
def clean_output() -> Iterator[None]:
    """Keep standard output free of plug-in output: what a plug-in prints goes to standard error."""
    before = sys.stdout
    sys.stdout = _Routed(before)
    try:
        yield
    finally:
        sys.stdout = before


class _Routed:
    """A text stream that sends writes by plug-in code to standard error."""

    def __init__(self, output: Any) -> None:
        self._output = output

    def write(self, text: str) -> Any:
        return (sys.stderr if FILES and is_of_plugin(sys._getframe(1)) else self._output).write(text)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._output, name)
