"""Tables on standard output in four formats: for a terminal, JSON, CSV and Markdown."""

import csv
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import typer
from rich import box
from rich.table import Table

from underpaint.cli.terminal import Format, console

_LEAST_PROSE: Final = 24
"""The least width of a prose column."""
_GAP: Final = 2


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
