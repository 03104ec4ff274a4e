"""The strict reader of JSON: what has two meanings, or none, is refused; JSON as RFC 8259 has it is read."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from underpaint.artifacts.strict_json import MOST_DEPTH, JsonError, is_version, parse_json, read_json, split_lines

SCALARS = st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(st.characters(codec="utf-8"))
SCALARS |= st.floats(allow_nan=False, allow_infinity=False)
JSON = st.recursive(SCALARS, lambda one: st.lists(one, max_size=4) | st.dictionaries(st.text(), one, max_size=4))


@given(JSON)
def test_what_json_writes_is_read(value: Any) -> None:
    try:
        text = json.dumps(value)
        text.encode()
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return
    assert parse_json(text) == value
    assert parse_json(text.encode()) == value


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b'{"a": 1, "a": 2}', "the key 'a' stands twice"),
        (b'[{"b": {"a": 1, "a": 1}}]', "the key 'a' stands twice"),
        (b"NaN", "has no NaN"),
        (b"[-Infinity]", "has no -Infinity"),
        (b"1e400", "a number that 64 bits hold"),
        (b"-1e-400", "a number that 64 bits hold"),
        (b"9223372036854775808", "a whole number that 64 bits hold"),
        (b"1" * 5000, "a whole number that 64 bits hold"),
        (b'"\xff"', "expected UTF-8, byte 1 is none"),
        (b'"\\ud800"', "half of a character"),
        (b"[" * 100_000 + b"]" * 100_000, "inside each other"),
        (b'{"a":' * 100_000, "inside each other"),
        (b"[1, 2", "expected JSON, got"),
        (b"", "expected JSON, got"),
        (b"\xef\xbb\xbf1", "BOM"),
        ("٣".encode(), "expected JSON, got"),
        (b"01", "expected JSON, got"),
        (b"{} {}", "expected JSON, got"),
    ],
)
def test_what_is_no_json_of_one_meaning_is_refused(content: bytes, says: str) -> None:
    with pytest.raises(JsonError, match=says):
        parse_json(content)
    with pytest.raises(JsonError, match=r"^one\.json: "):
        parse_json(content, "one.json")


def test_the_depth_counts_brackets_outside_texts() -> None:
    assert parse_json(json.dumps("[" * 1000)) == "[" * 1000
    assert parse_json(json.dumps(["\\" * 3 + '"' + "[" * 1000] * 20)) is not None
    deep: Any = 1
    for _ in range(MOST_DEPTH):
        deep = [deep]
    assert parse_json(json.dumps(deep)) == deep
    with pytest.raises(JsonError, match="inside each other"):
        parse_json(json.dumps([deep]))
    assert len(parse_json(json.dumps([[1]] * 1000))) == 1000


def test_numbers_at_the_ends_of_64_bits_are_read() -> None:
    for number in (2**63 - 1, -(2**63), 1e308, 5e-324, 0.0, 123456789012345678):
        assert parse_json(json.dumps(number)) == number
    assert parse_json("0e-999") == 0.0


@pytest.mark.parametrize("other", [1.0, True, "1", None, 2])
def test_a_version_is_a_whole_number(other: object) -> None:
    assert is_version(1, 1)
    assert not is_version(other, 1)


def test_lines_end_at_line_feeds_only() -> None:
    texts = ["a\u2028b", "c\u0085d", "e\x0cf\x1cg"]
    content = "".join(json.dumps(text, ensure_ascii=False) + "\n" for text in (texts[0], texts[1])).encode()
    assert [parse_json(line) for line in split_lines(content)] == texts[:2]
    assert split_lines(b"a\r\nb") == [b"a\r", b"b"]
    assert split_lines(b"") == []


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="named pipes")
def test_a_named_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.json")
    with pytest.raises(OSError, match="got a named pipe"):
        read_json(tmp_path / "pipe.json")
    with pytest.raises(OSError, match="got a folder"):
        read_json(tmp_path)
