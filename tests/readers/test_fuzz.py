"""Every reader of files, on files that something happened to: refused with a message, or read as values in range."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.readers.checkpoints import CHECKPOINTS, mutated_checkpoint
from tests.readers.mutations import encode, mutated_arrays, mutated_bytes, mutated_value
from tests.readers.registry import READERS, REFUSED, FileReader
from tests.run_logs import log_values
from underpaint.artifacts.run_log import CHECKSUM
from underpaint.artifacts.strict_json import JsonError

EVERY = [*READERS, *CHECKPOINTS]
MUTATIONS = 10_000 if settings.default.max_examples > 60 else 500
"""Of all readers together: many in the profile "nightly", few in "ci"."""


@st.composite
def mutated(draw: st.DrawFn, reader: FileReader, path: Path) -> bytes:
    if reader.form in ("torch", "safetensors"):
        return draw(mutated_checkpoint(path, reader.form == "safetensors"))
    content = path.read_bytes()
    if reader.form == "npz":
        return draw(mutated_arrays(content))
    if reader.form == "npy" or draw(st.integers(0, 4)) == 0:
        return draw(mutated_bytes(content))
    if reader.form == "json":
        return encode(draw(mutated_value(json.loads(content)))).encode()
    lines = content.split(b"\n")[:-1]
    turn = draw(st.integers(0, len(lines) - 1))
    if reader.form == "lines":
        what = draw(st.sampled_from(["value", "gone", "moved", "twice"]))
        others = [line for place, line in enumerate(lines) if place != turn]
        if what == "value":
            lines[turn] = encode(draw(mutated_value(json.loads(lines[turn])))).encode()
        elif what != "twice":
            lines = others if what == "gone" else [*others, lines[turn]]
        else:
            lines.insert(turn, lines[turn])
        return b"".join(line + b"\n" for line in lines)
    values: list[Any] = log_values(path)
    values[turn] = draw(mutated_value(values[turn]))
    return sealed(values)


def sealed(values: list[Any]) -> bytes:
    """JSON lines with checksums that fit, whatever they hold."""
    import zlib

    content, checksum = b"", 0
    for value in values:
        text = encode(value).encode()
        body = text[:-1] if text.endswith(b"}") and len(text) > 2 else b'{"x": ' + text
        checksum = zlib.crc32(body, checksum)
        content += body + f', "{CHECKSUM}": "{checksum:08x}"}}\n'.encode()
    return content


@pytest.mark.parametrize("reader", EVERY, ids=lambda reader: reader.name)
def test_a_mutated_file_is_refused_or_in_range(reader: FileReader, tmp_path: Path) -> None:
    (tmp_path / "good").mkdir()
    good = reader.make(tmp_path / "good")
    reader.check(reader.read(good))
    shutil.copytree(tmp_path / "good", tmp_path / "bad")
    path = tmp_path / "bad" / good.relative_to(tmp_path / "good")

    @settings(max_examples=-(-MUTATIONS // len(EVERY)))
    @given(st.data())
    def holds(data: st.DataObject) -> None:
        path.write_bytes(data.draw(mutated(reader, good)))
        try:
            value = reader.read(path)
        except REFUSED:
            return
        reader.check(value)

    holds()


@pytest.mark.parametrize("reader", [one for one in READERS if one.form == "json"], ids=lambda reader: reader.name)
def test_json_that_is_nested_too_deeply_is_refused(reader: FileReader, tmp_path: Path) -> None:
    path = reader.make(tmp_path)
    for content in (b"[" * 100_000, b'{"a":' * 100_000, b'{"rows": ' + b"[" * 50_000 + b"]" * 50_000 + b"}"):
        path.write_bytes(content)
        with pytest.raises(REFUSED, match="inside each other"):
            reader.read(path)


def test_no_error_of_a_reader_is_a_programming_error() -> None:
    assert issubclass(JsonError, ValueError)
    assert not any(issubclass(kind, (TypeError, KeyError, AttributeError, RecursionError)) for kind in REFUSED)


def test_a_warning_of_numpy_fails_these_tests() -> None:
    """So no reader lets one be printed before its error."""
    with pytest.raises(RuntimeWarning, match="divide by zero"):
        np.ones(1) / np.zeros(1)
    assert not issubclass(RuntimeWarning, REFUSED)
