"""Rules and policies from outside: a module that registers itself in RULES or POLICIES when it is imported."""

import importlib
import importlib.util
import os
import sys
from collections.abc import Iterable
from pathlib import Path

VARIABLE = "UNDERPAINT_PLUGINS"
"""Names the plug-ins of every command and of the tests: modules or paths of .py files, with commas between."""


def load_plugins(names: Iterable[str]) -> None:
    """Import each of `names`: a module on the path, or the path of a .py file. A second import does nothing.

    Raises ValueError naming the plug-in that is not there.
    """
    for name in names:
        if not name.endswith(".py"):
            _import(name)
            continue
        path = Path(name).resolve()
        module = f"underpaint_plugin_{path.stem}"
        if module in sys.modules:
            continue
        if not path.is_file():
            raise ValueError(f"plug-in: there is no file {name}; give the path of a .py file or a module's name")
        spec = importlib.util.spec_from_file_location(module, path)
        if spec is None or spec.loader is None:
            raise ValueError(f"plug-in: {name} cannot be loaded as a Python module")
        loaded = importlib.util.module_from_spec(spec)
        sys.modules[module] = loaded
        spec.loader.exec_module(loaded)


def named_by_environment() -> tuple[str, ...]:
    """The plug-ins that the environment names."""
    return tuple(name.strip() for name in os.environ.get(VARIABLE, "").split(",") if name.strip())


def _import(name: str) -> None:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        raise ValueError(f"plug-in: there is no module '{name}'; install it, or give the path of a .py file") from error
