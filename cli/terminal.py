"""Printing: tables in four formats on standard output, progress and notes on standard error."""

import csv
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final, Protocol

import typer
from rich import box
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

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
_LEAST_PROSE: Final = 24
"""The least width of a prose column."""
_GAP: Final = 2


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


def plain(value: Any) -> str:
    """Format a value for a cell; None becomes an empty string."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (list, tuple)):
        return ", ".join(plain(one) for one in value)
    return str(value)


def number(form: str, unit: str = "", absent: str = "-") -> Callable[[Any], str]:
    """Return a formatter of numbers that shows None as `absent`."""
    return lambda value: absent if value is None else format(value, form) + unit


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table.

    Attributes:
        name: Its key in JSON and CSV.
        head: Its heading in tables; if empty, made from `name`.
        show: Formats its values for tables.
        right: Whether it is right-aligned, as numbers are.
        prose: Whether its cells may wrap.
        parts: Keys of several values in one cell, which `show` gets as a tuple; JSON and CSV give each its own column.
    """

    name: str
    head: str = ""
    show: Callable[[Any], str] = plain
    right: bool = False
    prose: bool = False
    parts: tuple[str, ...] = ()

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys of its values in JSON and CSV."""
        return self.parts or (self.name,)

    @property
    def heading(self) -> str:
        """Its heading in tables."""
        return self.head or self.name.replace("_", " ")


def figure(name: str, head: str, form: str, unit: str = "") -> Column:
    """Return a column of numbers."""
    return Column(name, head, number(form, unit), right=True)


def interval(name: str, head: str, form: str) -> Column:
    """Return a column with the ends of the interval of figure `name`, as "1.19-1.35"."""

    def text(ends: tuple[float | None, ...]) -> str:
        low, high = ends
        return "-" if low is None or high is None else f"{low:{form}}-{high:{form}}"

    return Column(f"{name}_interval", head, text, right=True, parts=(f"{name}_low", f"{name}_high"))


def with_interval(name: str, head: str, form: str) -> Column:
    """Return a column of figure `name` with its interval, as "0.610 (0.580 to 0.640)"."""

    def text(values: tuple[float | None, ...]) -> str:
        value, low, high = values
        if value is None:
            return "-"
        return f"{value:{form}}" if low is None or high is None else f"{value:{form}} ({low:{form}} to {high:{form}})"

    return Column(f"{name}_interval", head, text, right=True, parts=(name, f"{name}_low", f"{name}_high"))


@dataclass(frozen=True, slots=True)
class ResultTable:
    """A table with a title. Rows map column names to values. The first column identifies a row."""

    title: str
    columns: Sequence[Column]
    rows: Sequence[Mapping[str, Any]] = field(default_factory=tuple)


def show(tables: Sequence[ResultTable], form: Format = Format.table) -> None:
    """Print tables on standard output.

    table: as wide as the terminal, or COLUMNS, or else 120 columns; columns that do not fit go below, after the first
    column again. json: the rows of one table, or a mapping from titles to rows for several. csv: unformatted values,
    with a blank line between tables. markdown: formatted values.
    """
    if form is Format.json:
        by_title = {one.title: _rows(one) for one in tables}
        typer.echo(json.dumps(by_title if len(tables) > 1 else next(iter(by_title.values())), indent=1))
    elif form is Format.csv:
        for place, one in enumerate(tables):
            if place:
                typer.echo()
            writer = csv.writer(sys.stdout, lineterminator="\n")
            keys = [key for column in one.columns for key in column.keys]
            writer.writerow(keys)
            writer.writerows([[_plain_csv(row[key]) for key in keys] for row in _rows(one)])
    elif form is Format.markdown:
        typer.echo("\n\n".join(_markdown(one) for one in tables))
    else:
        output = console()
        for one in tables:
            for part in _parts(one, output.width):
                output.print(part)


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


def _rows(one: ResultTable) -> list[dict[str, Any]]:
    return [{key: row.get(key) for column in one.columns for key in column.keys} for row in one.rows]


def _plain_csv(value: Any) -> Any:
    return plain(value) if value is None or isinstance(value, (bool, list, tuple)) else value


def _markdown(one: ResultTable) -> str:
    lines = [" | ".join(_on_a_line(column.heading) for column in one.columns)]
    lines.append(" | ".join("---:" if column.right else "---" for column in one.columns))
    lines += [" | ".join(_on_a_line(cell) for cell in _cells(one, row)).replace("\n", " ") for row in one.rows]
    body = "\n".join(f"| {line} |" for line in lines)
    return f"**{one.title}**\n\n{body}" if one.title else body


def _on_a_line(text: str) -> str:
    """Join the lines of a heading, and escape bars, which would end a Markdown cell."""
    return text.replace("-\n", "").replace("\n", " ").replace("|", "\\|").strip()


def _cells(one: ResultTable, row: Mapping[str, Any]) -> list[str]:
    return [
        column.show(tuple(row.get(key) for key in column.parts) if column.parts else row.get(column.name))
        for column in one.columns
    ]


def _parts(one: ResultTable, width: int) -> Iterator[Table]:
    """Yield the table, or several below one another if its columns do not fit side by side."""
    cells = [_cells(one, row) for row in one.rows]
    natural = [
        max(len(line) for text in (column.heading, *(row[at] for row in cells)) for line in text.split("\n"))
        for at, column in enumerate(one.columns)
    ]
    least = [
        min(size, _LEAST_PROSE) if column.prose else size for size, column in zip(natural, one.columns, strict=True)
    ]
    groups: list[list[int]] = [[]]
    for at in range(1, len(one.columns)):
        if groups[-1] and sum(least[place] + _GAP for place in (0, *groups[-1], at)) > width:
            groups.append([])
        groups[-1].append(at)
    for turn, group in enumerate(groups):
        table = Table(
            title=one.title if turn == 0 else None,
            title_justify="left",
            title_style="bold",
            box=box.SIMPLE_HEAD,
            padding=(0, 1, 0, 0),
        )
        for at in (0, *group):
            column = one.columns[at]
            width_of: dict[str, Any] = {"min_width": least[at]} if column.prose else {"no_wrap": True}
            table.add_column(column.heading, justify="right" if column.right else "left", overflow="fold", **width_of)
        for row in cells:
            table.add_row(*(row[at] for at in (0, *group)))
        yield table
