"""The console: formats of output, JSON files, and notes and progress on standard error."""

import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final, Protocol

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from underpaint.cli.outputs import json_output

PIPED_WIDTH: Final = 120
"""Width of tables, in columns, without a terminal and without COLUMNS."""
STANDARD_OUTPUT: Final = Path("-")
"""A file of this name is standard output."""
_EVERY: Final = 10.0
"""Seconds between progress lines without a terminal."""
_LEAST_WIDTH: Final = 20
_MOST_WIDTH: Final = 10_000
"""Range of widths that COLUMNS may set: narrower tables cannot be read, and no screen is wider."""


class Format(StrEnum):
    """How tables are printed."""

    table = "table"
    json = "json"
    csv = "csv"
    markdown = "markdown"


FormatOption = Annotated[
    Format,
    typer.Option("--format", help="Format of tables on standard output; everything else goes to standard error."),
]
JsonFile = Annotated[
    Path | None,
    typer.Option("--json", parser=json_output, help="Write everything as JSON to this file; - is standard output."),
]


@dataclass(slots=True)
class _Verbosity:
    quiet: bool = False


_verbosity: Final = _Verbosity()


def be_quiet(quiet: bool) -> None:
    """Set whether progress and notes are left out, so that only results and errors are printed."""
    _verbosity.quiet = quiet


def is_quiet() -> bool:
    """Return whether progress and notes are left out."""
    return _verbosity.quiet


def note(text: str, form: Format = Format.table) -> None:
    """Print a note unless notes are left out. It goes to standard error if a program reads the output."""
    if not _verbosity.quiet:
        typer.echo(text, err=form is not Format.table)


def note_files(paths: Iterable[Path], then: str, form: Format = Format.table) -> None:
    """Print which files a command wrote, and the next step: a command to type, or a file to open."""
    for path in paths:
        note(str(path), form)
    note(f"next: {then}", form)


def write_json(path: Path, values: Any) -> None:
    """Write JSON to a file, completely or not at all; the name - is standard output."""
    from underpaint.artifacts.manifest import write_beside
    from underpaint.artifacts.results import results_text

    text = results_text(values)
    if path == STANDARD_OUTPUT:
        typer.echo(text, nl=False)
    else:
        write_beside(path, text.encode())


def emit_json(path: Path | None, values: Any) -> bool:
    """Write JSON if `--json` is given; return whether it went to standard output, which then holds nothing else."""
    if path is not None:
        write_json(path, values)
    return path == STANDARD_OUTPUT


def check_json(path: Path | None) -> None:
    """Raise OSError unless the file of `--json` can be written."""
    from underpaint.artifacts.files import check_file_writable

    if path is not None and path != STANDARD_OUTPUT:
        check_file_writable(path)


def forget_odd_columns() -> None:
    """Remove COLUMNS from this process's environment unless it is a usable width, as Rich prints nothing in 0."""
    text = os.environ.get("COLUMNS")
    if text is not None and not (text.isascii() and text.isdecimal() and _LEAST_WIDTH <= int(text[:9]) <= _MOST_WIDTH):
        del os.environ["COLUMNS"]


def console() -> Console:
    """Return a console for standard output."""
    forget_odd_columns()
    terminal = Console()
    return terminal if terminal.is_terminal or "COLUMNS" in terminal._environ else Console(width=PIPED_WIDTH)


class Advance(Protocol):
    """Callback that reports progress."""

    def __call__(self, done: int, what: str = "", *, total: int | None = None) -> None:
        """Report that `done` of `total` steps are done, and that `what` is the current one."""
        ...


@contextmanager
def progress(what: str, total: int | None = None, done: int = 0, unit: str = "") -> Iterator[Advance]:
    """Show progress on standard error: a bar on a terminal, else a line at first and every ten seconds; or nothing.

    Args:
        what: Description of the work.
        total: Number of steps; None if it is not known.
        done: Number of steps that are done already.
        unit: "bytes" if steps are bytes, which are shown as MiB.

    Yields:
        The callback that reports progress.
    """
    screen = Console(stderr=True)
    if _verbosity.quiet:
        yield lambda done, what="", *, total=None: None
    elif screen.is_terminal:
        counted = DownloadColumn(binary_units=True) if unit == "bytes" else MofNCompleteColumn()
        columns = (TextColumn("{task.description}"), BarColumn(), counted, TimeRemainingColumn())
        with Progress(*columns, console=screen) as bar:
            task = bar.add_task(what, total=total, completed=done)

            def advance(done: int, what: str = "", *, total: int | None = None) -> None:
                changed: dict[str, Any] = {"description": what} if what else {}
                bar.update(task, completed=done, **(changed if total is None else {**changed, "total": total}))

            yield advance
    else:
        yield _Lines(what, total, done, unit)


class _Lines:
    """Progress as plain lines, without a terminal."""

    def __init__(self, what: str, total: int | None, done: int, unit: str) -> None:
        self._what, self._total, self._first, self._unit = what, total, done, unit
        self._started = self._last = time.monotonic()
        if total != 1:
            self._say(done)

    def __call__(self, done: int, what: str = "", *, total: int | None = None) -> None:
        self._total = self._total if total is None else total
        if time.monotonic() - self._last >= _EVERY:
            self._say(done, what)

    def _say(self, done: int, what: str = "") -> None:
        self._last = time.monotonic()
        took, steps = self._last - self._started, done - self._first
        estimate = f", about {took / steps * (self._total - done):.0f} s left" if self._total and steps > 0 else ""
        counted = f": {self._count_text(done, self._total)}{estimate}" if self._total else ""
        now = f" ({' '.join(what.split())})" if what else ""
        typer.echo(f"{self._what}{counted}{now}", err=True)

    def _count_text(self, done: int, total: int) -> str:
        return f"{done / 2**20:.1f} of {total / 2**20:.1f} MiB" if self._unit == "bytes" else f"{done} of {total}"
