"""Run logs: every line has a checksum, so what was edited, removed or moved is named; a line cut at the end is not."""

import json
from pathlib import Path

import pytest

from tests.run_logs import log_bytes
from underpaint.artifacts.run_log import CHECKSUM, RunLog, RunLogError

VALUES = [{"format": 1}, {"text": "a\u2028b\u0085c", "number": 0.1}, {"number": 2}, {"number": 3}]


def written(tmp_path: Path) -> Path:
    log = RunLog(tmp_path / "log.jsonl")
    for value in VALUES:
        log.append(value)
    return log.path


def test_what_was_appended_comes_back_and_is_json_lines(tmp_path: Path) -> None:
    path = written(tmp_path)
    assert RunLog(path).read() == VALUES
    assert path.read_bytes() == log_bytes(VALUES)
    lines = [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]]
    assert [{name: value for name, value in line.items() if name != CHECKSUM} for line in lines] == VALUES


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (lambda lines: [lines[0], lines[1].replace(b"0.1", b"0.2"), *lines[2:]], 2),
        (lambda lines: [lines[0], lines[1] + b" ", *lines[2:]], 2),
        (lambda lines: [lines[0], *lines[2:]], 2),
        (lambda lines: [lines[0], lines[2], lines[1], lines[3]], 2),
        (lambda lines: [*lines, lines[3]], 5),
        (lambda lines: [*lines[:2], lines[2][:9], lines[3]], 3),
        (lambda lines: [*lines[:2], b'{"number": 2}', lines[3]], 3),
        (lambda lines: [*lines[:2], b"", *lines[2:]], 3),
        (lambda lines: [*lines[:2], lines[2].replace(b"2,", b"2, \xff"), lines[3]], 3),
    ],
)
def test_a_line_that_was_edited_is_named(tmp_path: Path, change, line: int) -> None:
    path = written(tmp_path)
    path.write_bytes(b"".join(one + b"\n" for one in change(path.read_bytes().split(b"\n")[:-1])))
    with pytest.raises(RunLogError, match=f"^line {line}: "):
        RunLog(path).read()


def test_every_cut_of_the_last_line_is_gone_on_from(tmp_path: Path) -> None:
    whole = written(tmp_path).read_bytes()
    last = whole[:-1].rfind(b"\n") + 1
    for cut in range(last, len(whole)):
        path = tmp_path / "cut.jsonl"
        path.write_bytes(whole[:cut])
        log = RunLog(path)
        assert log.read() == VALUES[:3]
        assert log.unfinished == (cut > last)
        log.append(VALUES[3])
        assert path.read_bytes() == whole


def test_a_log_without_checksums_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "old.jsonl"
    path.write_text('{"format": 2}\n{"number": 1}\n')
    with pytest.raises(RunLogError, match="line 1: it has no checksum: it was edited, or another version wrote it"):
        RunLog(path).read()


def test_numbers_that_no_reader_takes_are_not_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        RunLog(tmp_path / "log.jsonl").append({"number": float("nan")})
    assert not (tmp_path / "log.jsonl").exists()
