"""Dataclasses out of files that people may have edited: every value is of its field's declared type, or is refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from math import isfinite
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from underpaint.algos.registry import build

Made = TypeVar("Made")


@dataclass(frozen=True, slots=True)
class Within:
    """The range of a field's numbers, both ends in it: `Annotated[int, Within(0, 9)]`."""

    low: float
    high: float


def build_typed(kind: type[Made], values: object, what: str) -> Made:
    """The dataclass `kind` of a JSON object, nested dataclasses and tuples made of objects and lists on the way.

    Raises ValueError, naming `what` and the field: no object, unknown or missing fields, a value of another type, one
    outside its field's `Within`, a number that is not finite.
    """
    if not isinstance(values, Mapping):
        raise ValueError(f"{what}: expected an object, got {_told(values)}")
    hints = get_type_hints(kind, include_extras=True)
    known = {
        name: _read(hints[name], value, f"{what}: {name}") if name in hints else value for name, value in values.items()
    }
    return build(kind, known, what)


def _read(kind: Any, value: Any, what: str) -> Any:
    """`value` as the type `kind`; ValueError where it is another."""
    origin, parts = get_origin(kind), get_args(kind)
    if kind is Any:
        return value
    if origin is Annotated:
        found = _read(parts[0], value, what)
        for rule in parts[1:]:
            if isinstance(rule, Within) and found is not None and not rule.low <= found <= rule.high:
                raise ValueError(f"{what}: expected {rule.low:g} to {rule.high:g}, got {_told(value)}")
        return found
    if is_dataclass(kind) and isinstance(kind, type):
        return build_typed(kind, value, what)
    if origin in (Union, UnionType):
        if value is None and NoneType in parts:
            return None
        first: ValueError | None = None
        for part in parts:
            try:
                return _read(part, value, what)
            except ValueError as error:
                first = first or error
        raise first or ValueError(f"{what}: no type fits")
    if origin is Literal and any(type(value) is type(part) and value == part for part in parts):
        return value
    if origin is tuple and isinstance(value, list | tuple):
        kinds = [parts[0]] * len(value) if parts[-1] is Ellipsis else list(parts)
        if parts[-1] is Ellipsis and _all_whole(parts[0], value):
            return tuple(value)
        if len(kinds) == len(value):
            return tuple(_read(part, one, what) for part, one in zip(kinds, value, strict=True))
    elif origin is list and isinstance(value, list):
        return [_read(parts[0], one, what) for one in value]
    elif isinstance(origin, type) and issubclass(origin, Mapping) and isinstance(value, Mapping):
        return {name: _read(parts[1], one, f"{what}: {name}") for name, one in value.items()}
    elif kind is float and isinstance(value, int | float) and not isinstance(value, bool):
        if isinstance(value, float) and not isfinite(value):
            raise ValueError(f"{what}: expected a finite number, got {value}")
        return value
    elif kind in (str, int, bool, NoneType) and type(value) is kind:
        return value
    raise ValueError(f"{what}: expected {_named(kind)}, got {_told(value)}")


def _all_whole(kind: Any, values: Sequence[Any]) -> bool:
    """Whether `kind` is whole numbers, and all values are some in its range: token lists are long."""
    base, *rules = get_args(kind) if get_origin(kind) is Annotated else (kind,)
    if base is not int or not all(type(one) is int for one in values):
        return False
    ranges = [rule for rule in rules if isinstance(rule, Within)]
    return not values or all(rule.low <= min(values) and max(values) <= rule.high for rule in ranges)


def _named(kind: Any) -> str:
    words = {str: "a text", int: "a whole number", float: "a number", bool: "true or false", NoneType: "null"}
    origin = get_origin(kind)
    if origin is Literal:
        return "one of " + ", ".join(map(repr, get_args(kind)))
    if origin in (tuple, list):
        held = get_args(kind)
        return f"a list of {len(held)}" if origin is tuple and held[-1] is not Ellipsis else "a list"
    return words.get(kind, "an object")


def _told(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
