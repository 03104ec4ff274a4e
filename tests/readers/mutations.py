"""What may have happened to a file: values of another type or range, keys twice, lines cut, bytes turned."""

import io
import json
import zipfile
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from hypothesis import strategies as st

DEEP = 100_000


class Raw:
    """Text that stands in JSON as it is."""

    def __init__(self, text: str) -> None:
        self.text = text


VALUES: list[Any] = [
    *(Raw(text) for text in ("NaN", "Infinity", "-Infinity", "1e308", "-1e308", "1e400", "1e-400", "1.0", "-0.0", "٣")),
    *(Raw(text) for text in ("1" * 5000, "9223372036854775807", "18446744073709551616", "[" * DEEP + "]" * DEEP)),
    *(Raw(text) for text in ('{"a":' * DEEP + "1" + "}" * DEEP, '"\\ud800"', '"\u2028\u0085"', "01", "'x'", "")),
    *(None, True, False, 0, 1, -1, 2, -7, 10**9, -(10**9), 0.5, 1e-30, "", "1", "٣", "nan", "../../x", "\0", [], {}),
    *([None], [[]], [[1], [1, 2]], [1, "a"], {"a": 1}, {"": None}, [1] * 100, [-1], [1e308]),
]


def encode(value: Any) -> str:
    """JSON with the `Raw` parts as they are."""
    if isinstance(value, Raw):
        return value.text
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(name)}: {encode(item)}" for name, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(encode(item) for item in value) + "]"
    return json.dumps(value)


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Paths to every value, at most 12 of a list."""
    yield at
    if isinstance(value, dict):
        for name, item in value.items():
            yield from places(item, (*at, name))
    elif isinstance(value, list):
        for turn, item in enumerate(value[:12]):
            yield from places(item, (*at, turn))


def changed(value: Any, at: tuple[Any, ...], change: Callable[[Any], Any]) -> Any:
    """A copy of `value` with what `change` makes of the value at a path."""
    if not at:
        return change(value)
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[at[0]] = changed(value[at[0]], at[1:], change)
    return copy


def _retyped(value: Any) -> Any:
    """The same value as another type."""
    if isinstance(value, bool) or value is None:
        return int(bool(value))
    if isinstance(value, int):
        return float(value)
    if isinstance(value, float):
        return str(value)
    if isinstance(value, str):
        return [value]
    return list(value.items()) if isinstance(value, dict) else {"0": value}


def _twice(value: Any) -> Any:
    """A list with its first item twice; an object with a key twice."""
    if isinstance(value, dict) and value:
        name = next(iter(value))
        return Raw(encode(value)[:-1] + f", {json.dumps(name)}: {encode(value[name])}}}")
    return [value[0], *value] if isinstance(value, list) and value else [value, value]


def _more(value: Any) -> Any:
    return {**value, "unheard_of": 1} if isinstance(value, dict) else [*value, 3] if isinstance(value, list) else value


def _fewer(value: Any) -> Any:
    if isinstance(value, dict):
        return dict(list(value.items())[1:])
    return value[: len(value) // 2] if isinstance(value, list | str) else None


def _scaled(value: Any) -> Any:
    return value * 3 if isinstance(value, int | float) and not isinstance(value, bool) else value


def _negative(value: Any) -> Any:
    return -value - 1 if isinstance(value, int | float) and not isinstance(value, bool) else value


CHANGES = [_retyped, _twice, _more, _fewer, _scaled, _negative, lambda held: held[::-1] if type(held) is list else held]


@st.composite
def mutated_value(draw: st.DrawFn, value: Any) -> Any:
    """`value` with one place changed; `Raw` parts for `encode`."""
    at = draw(st.sampled_from(list(places(value))))
    if draw(st.booleans()):
        return changed(value, at, draw(st.sampled_from(CHANGES)))
    put = draw(st.sampled_from(VALUES))
    return changed(value, at, lambda _: put)


ODD = [b"\0", b"\xff", b"\n", b"\xef\xbb\xbf", "\u2028".encode(), b",", b"]", b'"', b"{", b"\xed\xa0\x80"]


@st.composite
def mutated_bytes(draw: st.DrawFn, content: bytes) -> bytes:
    """`content` cut, with bytes turned, repeated or put in."""
    at = draw(st.integers(0, max(0, len(content) - 1)))
    what = draw(st.sampled_from(["cut", "turn", "put", "twice", "empty"]))
    if what == "cut":
        return content[:at]
    if what == "turn":
        return content[:at] + bytes([content[at] ^ draw(st.integers(1, 255))]) + content[at + 1 :]
    if what == "put":
        odd = st.sampled_from(
            [b"\0", b"\xff", b"\n", b"\xef\xbb\xbf", "\u2028".encode(), b",", b"]", b'"', b"{", b"\xed\xa0\x80"]
        )
        return content[:at] + draw(odd) + content[at:]
    return content + content if what == "twice" else b""


def _as_reals(array: Any) -> Any:
    return array.astype(np.float64)


ARRAY_CHANGES: list[Callable[[Any], Any]] = [
    lambda a: a * 3,
    lambda a: a + 5,
    lambda a: -a - 1,
    lambda a: a.astype(np.complex128) + 1j,
    lambda a: a[..., :-1],
    lambda a: a[:0],
    lambda a: a[None],
    lambda a: a[::-1],
    lambda a: a > 0,
    lambda a: a.astype(str),
    lambda a: a.astype(object),
    _as_reals,
    lambda a: _as_reals(a) + np.nan,
    lambda a: _as_reals(a) * 1e308,
    lambda a: np.full_like(a, 1e30 if a.dtype.kind == "f" else 2**31 - 1),
    np.zeros_like,
]


@st.composite
def mutated_arrays(draw: st.DrawFn, content: bytes) -> bytes:
    """An .npz file with one array changed or missing; arrays of text hold JSON, one place of which is changed."""
    with np.load(io.BytesIO(content)) as npz_file:
        arrays: dict[str, Any] = {name: npz_file[name] for name in npz_file.files}
    name = draw(st.sampled_from(sorted(arrays)))
    how = draw(st.sampled_from(["change", "change", "change", "missing", "bytes", "twice"]))
    if how == "bytes":
        return draw(mutated_bytes(content))
    if how == "missing":
        del arrays[name]
    elif how == "change" and arrays[name].dtype.kind == "U":
        arrays[name] = np.array(encode(draw(mutated_value(json.loads(str(arrays[name]))))))
    elif how == "change":
        with np.errstate(all="ignore"):
            arrays[name] = draw(st.sampled_from(ARRAY_CHANGES))(arrays[name])
    written = io.BytesIO()
    np.savez(written, **arrays)
    if how == "twice":
        with zipfile.ZipFile(written, "a") as archive:
            archive.writestr("again.npy" if draw(st.booleans()) else f"{name}.npy ", b"no array")
    return written.getvalue()
