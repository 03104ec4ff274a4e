"""Bounds of settings, declared where a setting is: `depth: Nodes = 5`, or `Annotated[float, Bounds(0.0, 2.0)]`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import is_dataclass
from functools import cache
from math import isnan
from types import UnionType
from typing import Annotated, Any, Final, Literal, NamedTuple, TypeAlias, Union, get_args, get_origin, get_type_hints

from underpaint.algos.numbers import MOST_FACTOR

MOST_NODES: Final = 4096
"""The most drafted nodes of a tree, and so the most levels and children; models score fewer, see `draft.settings`."""
MOST_CELLS: Final = 65_536
"""The most cells of a picture, 256 x 256, and so the most cycles, and the most cells of a window."""
MOST_CODES: Final = 1_048_576
"""The most codes of a codebook."""
MOST_WEIGHT: Final = 1e6
"""The most tokens that a belief may weigh before a picture is looked at: as good as never to be moved."""
MOST_MS: Final = 1e9
"""The most milliseconds that a pass may take, 11 days; cost curves are read up to as much."""


class Bounds(NamedTuple):
    """The values that a setting may have: from `least` to `most`.

    above: `least` itself is left out.
    """

    least: float
    most: float
    above: bool = False

    def check(self, what: str, value: object) -> None:
        """Raise ValueError, naming `what` and the bound, where `value` is a number beyond it.

        Of a tuple every entry is checked, and of pairs `(number, value)` the value.
        """
        if isinstance(value, tuple | list):
            for place, entry in enumerate(value):
                pair = isinstance(entry, tuple | list)
                self.check(f"{what} at {entry[0]}" if pair else f"{what}[{place}]", entry[1] if pair else entry)
            return
        if value is None or isinstance(value, bool) or not isinstance(value, int | float):
            return
        if isnan(value) or value < self.least or (self.above and value == self.least):
            least = "above" if self.above else "at least"
            raise ValueError(f"{what} must be {least} {self.least:,g}, got {value!r}")
        if value > self.most:
            most = f"{self.most:,}" if isinstance(self.most, int) else f"{self.most:g}"
            raise ValueError(f"{what} must be at most {most}, got {value!r}")


class Tune(NamedTuple):
    """The values of a setting that `underpaint tune` tries; none stands for all options of a choice, or true and false.

    A setting that declares none stays as its preset has it: it makes the method what it is, or was measured apart.
    """

    values: tuple[object, ...] = ()


Share: TypeAlias = Annotated[float, Bounds(0.0, 1.0)]
PositiveShare: TypeAlias = Annotated[float, Bounds(0.0, 1.0, above=True)]
Weight: TypeAlias = Annotated[float, Bounds(0.0, MOST_WEIGHT, above=True)]
"""In expected tokens, of a belief held before a picture is looked at."""
Milliseconds: TypeAlias = Annotated[float, Bounds(0.0, MOST_MS)]
Nodes: TypeAlias = Annotated[int, Bounds(1, MOST_NODES)]
"""Drafted nodes of a tree, its levels, or the children of a node."""
NodesOrNone: TypeAlias = Annotated[int, Bounds(0, MOST_NODES)]
Cells: TypeAlias = Annotated[int, Bounds(1, MOST_CELLS)]
"""Cells of a window or a lead, or cycles of a picture."""
CellsOrNone: TypeAlias = Annotated[int, Bounds(0, MOST_CELLS)]
Factor: TypeAlias = Annotated[float, Bounds(1.0, MOST_FACTOR)]
"""By how much a pool may outweigh its token."""
Codes: TypeAlias = Annotated[int, Bounds(0, MOST_CODES)]
"""Near codes of a code; the table at hand bounds them closer."""


@cache
def declared(make: Callable[..., Any]) -> dict[str, tuple[Bounds | None, tuple[object, ...]]]:
    """What the fields of the dataclass `make` declare: bounds, and the options of a choice; neither where none is."""
    hints = get_type_hints(make, include_extras=True)
    return {name: (next(_bounds(kind), None), tuple(_options(kind))) for name, kind in hints.items()}


@cache
def values_to_tune(make: Callable[..., Any]) -> dict[str, tuple[object, ...]]:
    """By name, the values that the fields of the dataclass `make` declare by `Tune`."""
    found = {}
    for name, kind in get_type_hints(make, include_extras=True).items():
        extras = get_args(kind)[1:] if get_origin(kind) is Annotated else ()
        for grid in (extra for extra in extras if isinstance(extra, Tune)):
            bare = get_args(kind)[0]
            found[name] = grid.values or ((True, False) if bare is bool else tuple(_options(bare)))
    return found


def check_bounds(what: str, settings: Any) -> None:
    """Raise ValueError, naming `what` and the setting, unless every field of a dataclass is within what it declares.

    Args:
        what: Whose settings they are, such as "policy 'eagle2'".
        settings: An instance of a dataclass. Fields that declare nothing, and those not set yet, are not looked at.
    """
    make: Callable[..., Any] = type(settings)
    for name, (bounds, options) in declared(make).items():
        if not hasattr(settings, name):
            continue
        value = getattr(settings, name)
        if bounds is not None:
            bounds.check(f"{what}: {name}", value)
        if is_dataclass(value):
            check_bounds(f"{what}: {name}", value)
        if options and value not in options:
            raise ValueError(f"{what}: {name} must be one of {', '.join(map(str, options))}, got {value!r}")


def _bounds(kind: Any) -> Iterator[Bounds]:
    if get_origin(kind) is Annotated:
        yield from (extra for extra in get_args(kind)[1:] if isinstance(extra, Bounds))
        yield from _bounds(get_args(kind)[0])
    elif get_origin(kind) in (Union, UnionType, tuple):
        for part in get_args(kind):
            yield from _bounds(part)


def _options(kind: Any) -> Iterator[object]:
    """The options of a plain choice; a choice that may also be something else is not read."""
    if get_origin(kind) is Annotated:
        yield from _options(get_args(kind)[0])
    elif get_origin(kind) is Literal:
        yield from get_args(kind)
