"""Rules, policies and methods from outside: modules that register themselves, named by the user or by entry points.

While they are loaded and used they may not print into the program's results, nor end the program.
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
"""Names the plug-ins of every command and of the tests: modules or paths of .py files, with commas between."""


_LOADED: list[str] = []


def loaded_plugins() -> tuple[str, ...]:
    """The names that `load_plugins` was given so far, in order; files by their whole paths."""
    return tuple(_LOADED)


def load_plugins(names: Iterable[str]) -> None:
    """Import each of `names`: a module on the path, or the path of a .py file. A second import does nothing.

    Files of one name in different folders are different plug-ins. Raises PluginError.
    """
    for name in names:
        kept = str(Path(name).resolve()) if name.endswith(".py") else name
        if kept not in _LOADED:
            _LOADED.append(kept)
        if name.endswith(".py"):
            load_file(name)
        elif name not in sys.modules:
            _check_there(name)
            with named(name):
                _own(importlib.import_module(name), name)


def named_by_environment() -> tuple[str, ...]:
    """The plug-ins that the environment names."""
    return tuple(name.strip() for name in os.environ.get(VARIABLE, "").split(",") if name.strip())


def load_entry_points(group: str) -> Iterator[tuple[str, object]]:
    """What the installed packages name in the entry points of `group`, loaded one by one: (the plug-in, the object).

    Raises PluginError.
    """
    from importlib.metadata import entry_points  # takes longer to import than everything else here

    for point in sorted(entry_points(group=group)):
        owner = f" of package {point.dist.name}" if point.dist is not None else ""
        plugin = f"{point.value}{owner} (entry point '{point.name}' of {group})"
        with named(plugin):
            found = point.load()
            _own(sys.modules.get(point.module), plugin)
        yield plugin, found


@contextmanager
def named(plugin: str) -> Iterator[None]:
    """Errors inside become a PluginError that names the plug-in, the file and the line."""
    try:
        with loading():
            yield
    except PluginError:
        raise
    except (Exception, SystemExit) as error:
        raise PluginError(f"plug-in {plugin}: {type(error).__name__}: {error} ({_place(error)})") from error


def load_file(name: str) -> ModuleType:
    """The module in the .py file `name`; a second call gives the same module.

    Raises PluginError.
    """
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
    """Remember the files of a plug-in: its module's, and of a package those of its modules that are loaded."""
    if module is None or module.__name__.partition(".")[0] == __name__.partition(".")[0]:
        return
    for name, one in list(sys.modules.items()):
        if name == module.__name__ or name.startswith(f"{module.__name__}."):
            own_file(getattr(one, "__file__", None), plugin)


def _check_there(name: str) -> None:
    with named(name):
        try:
            found = importlib.util.find_spec(name)
        except ModuleNotFoundError as error:
            if error.name is None or not name.startswith(f"{error.name}."):
                raise
            found = None
    if found is None:
        raise PluginError(f"plug-in: there is no module '{name}'; install it, or give the path of a .py file")


def _place(error: BaseException) -> str:
    """Where `error` was raised: the last line outside of this project and of Python itself, or the last line."""
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
    """While a plug-in is loaded, what it prints goes to standard error, and `os._exit` is an error of the plug-in."""
    with descriptor_to_error(), redirect_stdout(sys.stderr), _no_ending(lambda caller: True):
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
    if caller is None:  # registered as it is
        plugin, place = ", ".join(dict.fromkeys(FILES.values())), ""
    else:
        plugin, place = FILES[caller.f_code.co_filename], f" ({caller.f_code.co_filename}, line {caller.f_lineno})"
    sys.stdout.flush()
    print(f"error: plug-in {plugin}: it ended the program by os._exit({code}) at its end{place}", file=sys.stderr)
    sys.stderr.flush()
    _at_exit[0](_BAD_INPUT)


@contextmanager
def named_in_use() -> Iterator[None]:
    """A plug-in that raises or ends the program while it is used is a PluginError; other errors stay as they are."""
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
        return (sys.stderr if FILES and is_of_plugin(sys._getframe(1)) else self._output).write(text)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._output, name)
