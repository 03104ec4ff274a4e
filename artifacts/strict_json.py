"""Reads JSON and JSON lines that other people wrote or that somebody edited.

It accepts RFC 8259 in UTF-8 and nothing more: unique keys in objects, no NaN or Infinity, only numbers that fit into 64
bits, and a limited depth and size.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from math import isfinite, isinf
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from underpaint.algos.registry import build
from underpaint.artifacts.files import check_regular

MOST_DEPTH: Final = 32
"""Largest depth of nested lists and objects; no file of this program has more than a dozen."""
MOST_BYTES: Final = 1 << 28
"""Largest size of one JSON text; the captions of COCO's training pictures need a quarter of it."""
_LARGEST: Final = 2**63
_HALVES: Final = re.compile(r"\\u[dD][89a-fA-F]")
"""Escapes of surrogates, the halves of characters beyond U+FFFF, which mean nothing alone."""
_MANY_DIGITS: Final = re.compile(r"[0-9]{19}")
_NESTING: Final = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"?|[\[{\]}]', re.DOTALL)
"""Quoted texts, whose brackets do not count, and brackets."""


class JsonError(ValueError):
    """The input is not JSON, or is ambiguous JSON."""


def parse_json(content: bytes | str, where: str = "") -> Any:
    """Parse one JSON text.

    Args:
        content: The text, or its bytes in UTF-8.
        where: The file, and the line if it has several; the message begins with it.

    Raises:
        JsonError: The text is not JSON, is too deep or too large, repeats a key, or has a number out of range.
    """
    try:
        return _parsed(content)
    except json.JSONDecodeError as error:
        raise JsonError(f"{_prefix(where)}expected JSON, got {error}") from error
    except ValueError as error:
        raise JsonError(f"{_prefix(where)}{error}") from error


def read_json(path: Path) -> Any:
    """Parse a JSON file.

    Raises:
        JsonError: As `parse_json`; the message does not name the file.
        OSError: The file is missing, is no regular file, or cannot be read.
    """
    check_regular(path)
    if path.stat().st_size > MOST_BYTES:
        raise JsonError(f"expected at most {MOST_BYTES >> 20} MiB of JSON, got {path.stat().st_size >> 20} MiB")
    return parse_json(path.read_bytes())


def read_object(path: Path) -> dict[str, Any]:
    """Parse a JSON file that holds one object; raises as `read_json`."""
    value = read_json(path)
    if not isinstance(value, dict):
        raise JsonError(f"expected a JSON object, got {type(value).__name__}")
    return value


def split_lines(content: bytes) -> list[bytes]:
    r"""The lines of JSON lines. Only \n ends one: U+2028 and U+0085 may occur in a text. The last may lack its end."""
    lines = content.split(b"\n")
    return lines[:-1] if not lines[-1] else lines


def is_version(value: object, version: int) -> bool:
    """Whether a parsed value is that version: an integer, and not 1.0, true or "1"."""
    return type(value) is int and value == version


def _prefix(where: str) -> str:
    return f"{where}: " if where else ""


def _parsed(content: bytes | str) -> Any:
    if len(content) > MOST_BYTES:
        raise ValueError(f"expected at most {MOST_BYTES >> 20} MiB of JSON, got {len(content) >> 20} MiB")
    try:
        text = content.decode() if isinstance(content, bytes) else content
    except UnicodeDecodeError as error:
        raise ValueError(f"expected UTF-8, byte {error.start} is none") from error
    _check_depth(text)
    value = json.loads(
        text,
        object_pairs_hook=_unique,
        parse_constant=_refuse_constant,
        parse_float=_number,
        parse_int=_whole if _MANY_DIGITS.search(text) else None,
    )
    if _HALVES.search(text):
        _check_characters(value)
    return value


def _check_depth(text: str) -> None:
    if text.count("[") + text.count("{") <= MOST_DEPTH:
        return
    depth = 0
    for match in _NESTING.finditer(text):
        if match[0] in ("[", "{"):
            depth += 1
            if depth > MOST_DEPTH:
                raise ValueError(
                    f"expected at most {MOST_DEPTH} lists and objects inside each other, got more; no file of this "
                    "program has so many: make the file again"
                )
        elif match[0] in ("]", "}"):
            depth -= 1


def _check_characters(value: Any) -> None:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise ValueError("a \\u escape is half of a character; write both halves, or the letter") from error


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"the key {twice!r} stands twice in one object; keep one of them")
    return members


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"expected JSON, which has no {name}")


def _number(text: str) -> float:
    value = float(text)
    if isinf(value) or (value == 0.0 and any(digit in "123456789" for digit in text.lower().partition("e")[0])):
        raise ValueError(f"{text[:40]}: expected a number that 64 bits hold")
    return value


def _whole(text: str) -> int:
    value = int(text) if len(text) <= 20 else _LARGEST
    if not -_LARGEST <= value < _LARGEST:
        raise ValueError(f"{text[:40]}: expected a whole number that 64 bits hold")
    return value


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Within:
    """The range of a field's numbers, both ends included: `Annotated[int, Within(0, 9)]`."""

    low: float
    high: float


def build_typed(kind: type[T], values: object, what: str) -> T:
    """Build the dataclass `kind` from a JSON object, including nested dataclasses and tuples.

    Raises ValueError, with `what` and the field, if `values` is no object, a field is unknown or missing, or a value
    has another type, is outside its field's `Within` or is not finite.
    """
    if not isinstance(values, Mapping):
        raise ValueError(f"{what}: expected an object, got {_short_repr(values)}")
    hints = get_type_hints(kind, include_extras=True)
    typed_values = {
        name: _read(hints[name], value, f"{what}: {name}") if name in hints else value for name, value in values.items()
    }
    return build(kind, typed_values, what)


def _read(kind: Any, value: Any, what: str) -> Any:
    """`value` as the type `kind`; raises ValueError if it has another type."""
    origin, parts = get_origin(kind), get_args(kind)
    if kind is Any:
        return value
    if origin is Annotated:
        number = _read(parts[0], value, what)
        for rule in parts[1:]:
            if isinstance(rule, Within) and number is not None and not rule.low <= number <= rule.high:
                raise ValueError(f"{what}: expected {rule.low:g} to {rule.high:g}, got {_short_repr(value)}")
        return number
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
        return {_read(parts[0], name, what): _read(parts[1], one, f"{what}: {name}") for name, one in value.items()}
    elif kind is float and isinstance(value, int | float) and not isinstance(value, bool):
        if isinstance(value, float) and not isfinite(value):
            raise ValueError(f"{what}: expected a finite number, got {value}")
        return value
    elif kind in (str, int, bool, NoneType) and type(value) is kind:
        return value
    raise ValueError(f"{what}: expected {_named(kind)}, got {_short_repr(value)}")


def _all_whole(kind: Any, values: Sequence[Any]) -> bool:
    """Whether `kind` is an integer type and all values are integers in its range: a fast path for long token lists."""
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
        item_types = get_args(kind)
        return f"a list of {len(item_types)}" if origin is tuple and item_types[-1] is not Ellipsis else "a list"
    return words.get(kind, "an object")


def _short_repr(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def check_format(file_format: object, newest: int, remedy: str) -> None:
    """Raise ValueError unless a file has the format that is read here.

    Args:
        file_format: The format named in the file; None if there is none.
        newest: The format that this version reads and writes.
        remedy: Advice for a file of an older format, or of none.
    """
    if is_version(file_format, newest):
        return
    expected = f"expected format {newest}"
    if type(file_format) is int and file_format > newest:
        raise ValueError(f"{expected}, got {file_format}: a newer version wrote it; install a newer underpaint")
    if type(file_format) is int and file_format >= 1:
        raise ValueError(f"{expected}, got {file_format}: an older version wrote it; {remedy}")
    raise ValueError(f"{expected}, got {'none' if file_format is None else repr(file_format)[:40]}; {remedy}")
