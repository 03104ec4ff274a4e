"""What a table on the pages of docs/results/ is made of, and how a cell is written from a row of figures."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

Row = Mapping[str, Any]
Column = tuple[str, Callable[[Row], str]]

ELSEWHERE = "Where samplers that other losses trained are: docs/how-to/train.md."


class Section(NamedTuple):
    """A table of one result file on one page."""

    page: str
    heading: str
    file: str
    columns: tuple[Column, ...]
    words: str = ""
    rows: Callable[[Row], Iterable[Row]] = lambda result: result["rows"]


def number(value: float | None, form: str = ".2f") -> str:
    """A figure, or nothing where there is none."""
    return "" if value is None else format(value, form)


def percent(value: float | None, digits: int = 0) -> str:
    """A share in percent."""
    return "" if value is None else f"{100 * value:.{digits}f} %"


def interval(row: Row, name: str, form: str = ".2f") -> str:
    """A figure with its 95 % interval."""
    if row.get(f"{name}_low") is None:
        return number(row.get(name), form)
    return f"{row[name]:{form}} ({row[f'{name}_low']:{form}} to {row[f'{name}_high']:{form}})"


def plain(name: str, form: str = ".2f") -> Callable[[Row], str]:
    """The column of one figure."""
    return lambda row: number(row.get(name), form)


def word(name: str) -> Callable[[Row], str]:
    """The column of one word."""
    return lambda row: str(row[name])


def with_half(name: str) -> Callable[[Row], str]:
    """A mean and half its 95 % interval."""

    def cell(row: Row) -> str:
        found = row.get(name)
        return "" if found is None else f"{found['mean']:.2f} ± {found['half']:.2f}"

    return cell
