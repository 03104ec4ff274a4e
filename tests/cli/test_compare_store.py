import dataclasses

import pytest

from underpaint.artifacts.run_log import RunLogInUse
from underpaint.runtime.drawing import Drawing
from underpaint.runtime.evaluation.drawing_log import DrawingLog, DrawnJob

SETTINGS = {"models": [{"methods": ["ar"]}]}
DRAWING = Drawing("ar", "a fox", 0, (1, 2), (0,), (0,), 2, 0, 1.0, 0.5, 0.0)


def stored(folder):
    store = DrawingLog(folder, SETTINGS)
    store.keep(DrawnJob(DRAWING))
    return store


@pytest.mark.parametrize("line", [b"\xff\xfe", b"[]", b"3", b"{}", b'{"hash": 1}', b"\x00\x00"])
def test_a_first_line_that_is_none_of_a_comparison_is_refused(tmp_path, line):
    (tmp_path / "drawings.jsonl").write_bytes(line + b"\n")
    with pytest.raises(ValueError, match="no record of a comparison"):
        DrawingLog(tmp_path, SETTINGS)


@pytest.mark.parametrize("line", [b"\xff", b"[1]", b"null", b'{"method": "ar"}', b""])
def test_a_damaged_drawing_is_refused(tmp_path, line):
    path = stored(tmp_path).path
    path.write_bytes(path.read_bytes() + line + b"\n")
    with pytest.raises(ValueError, match="no record of a comparison"):
        DrawingLog(tmp_path, SETTINGS)


@pytest.mark.parametrize("cut", [1, 40])
def test_a_line_that_was_cut_short_is_dropped(tmp_path, cut):
    store = stored(tmp_path)
    whole = store.path.read_bytes()
    store.keep(DrawnJob(dataclasses.replace(DRAWING, seed=1)))
    store.path.write_bytes(store.path.read_bytes()[:-cut])
    again = DrawingLog(tmp_path, SETTINGS)
    assert [one.drawing.seed for one in again] == [0]
    again.keep(DrawnJob(dataclasses.replace(DRAWING, seed=2)))
    assert again.path.read_bytes().startswith(whole)
    assert [one.drawing.seed for one in DrawingLog(tmp_path, SETTINGS)] == [0, 2]


def test_repeats_of_a_drawing_are_kept_and_its_times_are_their_means(tmp_path):
    store = stored(tmp_path)
    slower = dataclasses.replace(DRAWING, seconds=4.0, target_seconds=2.0, drafter_seconds=0.5)
    store.keep(DrawnJob(slower, repeat=1))
    store.keep(DrawnJob(dataclasses.replace(DRAWING, seed=1)))
    again = DrawingLog(tmp_path, SETTINGS)
    key = DrawnJob(DRAWING).key
    assert again.drawing(key) == DRAWING
    assert again.drawing(key._replace(repeat=1)) == slower
    assert key._replace(repeat=2) not in again
    mean = dataclasses.replace(DRAWING, seconds=2.5, target_seconds=1.25, drafter_seconds=0.25)
    assert again.timed(key) == mean
    assert again.timed(key._replace(seed=1)) == dataclasses.replace(DRAWING, seed=1)


def test_a_head_that_was_cut_short_is_written_anew(tmp_path):
    (tmp_path / "drawings.jsonl").write_bytes(b'{"hash": "12')
    stored(tmp_path)
    assert len(DrawingLog(tmp_path, SETTINGS)) == 1


@pytest.mark.parametrize("fresh", [False, True])
def test_two_processes_do_not_write_over_each_other(tmp_path, fresh):
    stored(tmp_path)
    one, other = (DrawingLog(tmp_path, SETTINGS, fresh=fresh) for _ in range(2))
    one.keep(DrawnJob(dataclasses.replace(DRAWING, seed=10)))
    before = one.path.read_bytes()
    with pytest.raises(RunLogInUse, match="written by another process"):
        other.keep(DrawnJob(dataclasses.replace(DRAWING, seed=20)))
    assert one.path.read_bytes() == before
    one.keep(DrawnJob(dataclasses.replace(DRAWING, seed=3)))
