"""The command line as a user's shell starts it, in this process: `underpaint.cli.app.main` with its error handling."""

import io
import os
import shlex
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from time import monotonic, process_time
from typing import Any, NamedTuple

import pytest
import typer

from underpaint.algos.accept import RULES
from underpaint.algos.draft import POLICIES
from underpaint.cli.app import app, main


class Ran(NamedTuple):
    """How a command ended. crash: the traceback that a user would see; empty where there is none. cpu_seconds: of this
    process, which a busy machine does not lengthen much."""

    code: int
    out: str
    err: str
    crash: str
    seconds: float
    cpu_seconds: float


def run_program(line: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Ran:
    """Run `underpaint LINE` in `folder`; plug-ins that it registers are forgotten again."""
    out, err, crash, code = io.StringIO(), io.StringIO(), "", 0
    started, worked = monotonic(), process_time()
    with monkeypatch.context() as patch, _forgetting():
        patch.chdir(folder)
        patch.setattr(sys, "argv", ["underpaint", *shlex.split(line)])
        with redirect_stdout(out), redirect_stderr(err):
            try:
                main()
            except SystemExit as ended:
                code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
            except BaseException:
                crash = traceback.format_exc()
    return Ran(code, out.getvalue(), err.getvalue(), crash, monotonic() - started, process_time() - worked)


@contextmanager
def _forgetting() -> Iterator[None]:
    """Leave registries and loaded plug-ins as they are."""
    snapshots = [(registry._specs, {spec.name for spec in registry}) for registry in (RULES, POLICIES)]
    try:
        yield
    finally:
        for specs, before in snapshots:
            for name in specs.keys() - before:
                del specs[name]
        for name in [name for name in sys.modules if name.startswith("underpaint_plugin_")]:
            del sys.modules[name]


def listing(folder: Path) -> dict[str, tuple[int, int]]:
    """Every file and folder below `folder`, with its size and the time of its last change."""
    states: dict[str, tuple[int, int]] = {}
    folders = [str(folder)]
    while folders:
        with os.scandir(folders.pop()) as entries:
            for entry in entries:
                state = entry.stat(follow_symlinks=False)
                states[entry.path] = state.st_size, state.st_mtime_ns
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
    start = len(str(folder)) + 1
    return {path[start:]: state for path, state in states.items()}


def subcommands(groups: bool = False) -> list[str]:
    """Every command of the program by its full name, as "train judge"; with `groups`, what holds commands too."""
    names: list[str] = []

    def visit(command: Any, name: str) -> None:
        for word in getattr(command, "commands", ()):
            below = command.get_command(None, word)
            full = f"{name} {word}".strip()
            if groups or not hasattr(below, "commands"):
                names.append(full)
            visit(below, full)

    visit(typer.main.get_command(app), "")
    return names
