"""What commands print: tables in four formats on standard output, progress and notes on standard error."""

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
"""Columns of tables where there is no terminal to ask, and COLUMNS does not say."""
STANDARD_OUTPUT: Final = Path("-")
"""A file of this name is standard output."""
_EVERY: Final = 10.0
"""Seconds between lines of progress where there is no terminal."""
_LEAST_WIDTH: Final = 20
_MOST_WIDTH: Final = 10_000
"""Columns that COLUMNS may name: in fewer no table can be read, and more are no screen's."""
_LEAST_PROSE: Final = 24
"""Columns that prose gets at least."""
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
    """Whether progress and notes are left out: results and errors alone are printed."""
    _verbosity.quiet = quiet


def is_quiet() -> bool:
    """Whether they are left out."""
    return _verbosity.quiet


def plain(value: Any) -> str:
    """A cell as it is read: nothing for None."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (list, tuple)):
        return ", ".join(plain(one) for one in value)
    return str(value)


def number(form: str, unit: str = "", absent: str = "-") -> Callable[[Any], str]:
    """Shows a number by a format; None as `absent`."""
    return lambda value: absent if value is None else format(value, form) + unit


@dataclass(frozen=True, slots=True)
class Column:
    """A column. name: its key in JSON and CSV. head: what stands above it in tables. show: a value as read there.

    right: whether it is set to the right, as numbers are. prose: whether its cells may be broken into lines.
    parts: keys of several values that stand in one cell, of which `show` gets a tuple; JSON and CSV give each its own.
    """

    name: str
    head: str = ""
    show: Callable[[Any], str] = plain
    right: bool = False
    prose: bool = False
    parts: tuple[str, ...] = ()

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys of its values."""
        return self.parts or (self.name,)

    @property
    def heading(self) -> str:
        """What stands above it."""
        return self.head or self.name.replace("_", " ")


def figure(name: str, head: str, form: str, unit: str = "") -> Column:
    """A column of numbers."""
    return Column(name, head, number(form, unit), right=True)


def interval(name: str, head: str, form: str) -> Column:
    """A column of the interval of figure `name`: its ends, as "1.19-1.35"."""

    def shown(ends: tuple[float | None, ...]) -> str:
        low, high = ends
        return "-" if low is None or high is None else f"{low:{form}}-{high:{form}}"

    return Column(f"{name}_interval", head, shown, right=True, parts=(f"{name}_low", f"{name}_high"))


def with_interval(name: str, head: str, form: str) -> Column:
    """A column of figure `name` with its interval: "0.610 (0.580 to 0.640)"."""

    def shown(values: tuple[float | None, ...]) -> str:
        value, low, high = values
        if value is None:
            return "-"
        return f"{value:{form}}" if low is None or high is None else f"{value:{form}} ({low:{form}} to {high:{form}})"

    return Column(f"{name}_interval", head, shown, right=True, parts=(name, f"{name}_low", f"{name}_high"))


@dataclass(frozen=True, slots=True)
class ResultTable:
    """A table with a title: rows by the names of its columns. The first column tells the rows apart."""

    title: str
    columns: Sequence[Column]
    rows: Sequence[Mapping[str, Any]] = field(default_factory=tuple)


def show(tables: Sequence[ResultTable], form: Format = Format.table) -> None:
    """Print tables on standard output.

    table: as wide as the terminal, or COLUMNS, or else 120 columns; what does not fit stands below, with the first
    column again. json: the rows of one table, or rows by title of several. csv: values, not as shown; a blank line
    between tables. markdown: as shown.
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
    """Say something beside a table, unless notes are left out: on standard error where a program reads the output."""
    if not _verbosity.quiet:
        typer.echo(text, err=form is not Format.table)


def note_files(paths: Iterable[Path], then: str, form: Format = Format.table) -> None:
    """Say which files a command wrote, and what to do with them next: a command to type, or what to open."""
    for path in paths:
        note(str(path), form)
    note(f"next: {then}", form)


def write_json(path: Path, values: Any) -> None:
    """Write JSON to a file, whole or not at all; the name - is standard output."""
    from underpaint.artifacts.manifest import write_beside
    from underpaint.artifacts.results import results_text

    text = results_text(values)
    if path == STANDARD_OUTPUT:
        typer.echo(text, nl=False)
    else:
        write_beside(path, text.encode())


def told_as_json(path: Path | None, values: Any) -> bool:
    """Write JSON where `--json` asks for it; whether that was standard output, which then holds nothing else."""
    if path is not None:
        write_json(path, values)
    return path == STANDARD_OUTPUT


def check_json(path: Path | None) -> None:
    """OSError unless `--json` can be written there."""
    from underpaint.artifacts.files import check_file_writable

    if path is not None and path != STANDARD_OUTPUT:
        check_file_writable(path)


def forget_odd_columns() -> None:
    """Leave COLUMNS out of this process's environment where it is no width to print in: Rich prints nothing in 0."""
    text = os.environ.get("COLUMNS")
    if text is not None and not (text.isascii() and text.isdecimal() and _LEAST_WIDTH <= int(text[:9]) <= _MOST_WIDTH):
        del os.environ["COLUMNS"]


def console() -> Console:
    """Standard output."""
    forget_odd_columns()
    terminal = Console()
    return terminal if terminal.is_terminal or "COLUMNS" in terminal._environ else Console(width=PIPED_WIDTH)


class Advance(Protocol):
    """Tells how far work is."""

    def __call__(self, done: int, what: str = "", *, total: int | None = None) -> None:
        """`done` of `total` steps are done; `what` is being done."""
        ...


@contextmanager
def progress(what: str, total: int | None = None, done: int = 0, unit: str = "") -> Iterator[Advance]:
    """Progress on standard error: a bar on a terminal, else a line at the start and every ten seconds; or nothing.

    unit: "bytes" where steps are bytes, which are shown as MiB.
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
    """Progress as plain lines."""

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
        left = f", about {took / steps * (self._total - done):.0f} s left" if self._total and steps > 0 else ""
        counted = f": {self._told(done, self._total)}{left}" if self._total else ""
        now = f" ({' '.join(what.split())})" if what else ""
        typer.echo(f"{self._what}{counted}{now}", err=True)

    def _told(self, done: int, total: int) -> str:
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
    """A heading that is broken into lines, in one; a bar inside a cell would end it."""
    return text.replace("-\n", "").replace("\n", " ").replace("|", "\\|").strip()


def _cells(one: ResultTable, row: Mapping[str, Any]) -> list[str]:
    return [
        column.show(tuple(row.get(key) for key in column.parts) if column.parts else row.get(column.name))
        for column in one.columns
    ]


def _parts(one: ResultTable, width: int) -> Iterator[Table]:
    """The table, or several below one another where its columns do not fit side by side."""
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
        shown = Table(
            title=one.title if turn == 0 else None,
            title_justify="left",
            title_style="bold",
            box=box.SIMPLE_HEAD,
            padding=(0, 1, 0, 0),
        )
        for at in (0, *group):
            column = one.columns[at]
            width_of: dict[str, Any] = {"min_width": least[at]} if column.prose else {"no_wrap": True}
            shown.add_column(column.heading, justify="right" if column.right else "left", overflow="fold", **width_of)
        for row in cells:
            shown.add_row(*(row[at] for at in (0, *group)))
        yield shown
