"""Scenes drawn by several processes are those that one draws, and no process outlives the one that asked."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.training.sprites import made_up_sprites
from underpaint.training.data.textured_render import TexturedSheet
from underpaint.training.parallel_pictures import DrawingPool, draw_scenes

ROOT = Path(__file__).parents[2]
KILLED = """
import multiprocessing, time
from tests.training.sprites import made_up_sprites
from underpaint.training.data.textured_render import TexturedSheet
from underpaint.training.parallel_pictures import DrawingPool

if __name__ == "__main__":
    pool = DrawingPool(TexturedSheet(made_up_sprites()), 4)  # held: its processes end with it
    pool.draw(range(4), 64, "train", 1)
    pool.draw(range(4), 64, "train", 1)
    print(*(child.pid for child in multiprocessing.active_children()), flush=True)
    time.sleep(600)
"""


by_proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="tells by /proc what processes do")


@pytest.fixture(scope="module")
def pool() -> Iterator[DrawingPool]:
    made = DrawingPool(TexturedSheet(made_up_sprites()), 2)
    yield made
    made.close()


def processes_of(pool: DrawingPool) -> list[int]:
    """Of one that has drawn; not those of other tests of this run."""
    assert pool._pool is not None
    return sorted(pool._pool._processes)


@pytest.mark.parametrize("indices", [[7], [3, 0], [5, 1, 9, 2, 4]])
def test_the_scenes_are_those_of_one_process_in_the_order_asked_for(pool: DrawingPool, indices: list[int]) -> None:
    wanted = draw_scenes(TexturedSheet(made_up_sprites()), indices, 64, "seen", 3)
    np.testing.assert_array_equal(pool.draw(indices, 64, "seen", 3), wanted)
    pool.close()
    np.testing.assert_array_equal(pool.draw(indices, 64, "seen", 3), wanted)


def test_no_processes_are_refused() -> None:
    with pytest.raises(ValueError, match="workers: expected at least 1, got 0"):
        DrawingPool(TexturedSheet(made_up_sprites()), 0)


def test_a_scene_that_cannot_be_drawn_says_why(pool: DrawingPool) -> None:
    with pytest.raises(ValueError, match="index >= 0"):
        pool.draw([1, -1], 64, "train", 3)


def test_a_process_that_dies_is_told_with_a_remedy_and_the_next_pictures_are_drawn_by_others(pool: DrawingPool) -> None:
    wanted = pool.draw([0, 1, 2], 64, "train", 3)
    for process in processes_of(pool):
        os.kill(process, signal.SIGKILL)
    with pytest.raises(ChildProcessError, match=r"--workers 2: one of the processes .* died.* fewer --workers"):
        pool.draw([0, 1, 2], 64, "train", 3)
    np.testing.assert_array_equal(pool.draw([0, 1, 2], 64, "train", 3), wanted)


@by_proc
def test_an_interrupt_is_for_the_process_that_asked(pool: DrawingPool) -> None:
    wanted = pool.draw([0, 1, 2], 64, "train", 3)
    drawing = processes_of(pool)
    for process in drawing:
        os.kill(process, signal.SIGINT)
    np.testing.assert_array_equal(pool.draw([0, 1, 2], 64, "train", 3), wanted)
    assert set(drawing) <= set(processes_of(pool))  # a further one may have started, none has ended
    for process in drawing:  # from their first instruction on, not only once they draw
        (blocked,) = re.findall(r"SigBlk:\s*(\w+)", Path(f"/proc/{process}/status").read_text(encoding="utf-8"))
        assert int(blocked, 16) >> (signal.SIGINT - 1) & 1
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


@by_proc
def test_killing_the_process_that_asked_ends_the_others(tmp_path: Path) -> None:
    script = tmp_path / "asks.py"
    script.write_text(KILLED)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True, env=environment) as asked:
        assert asked.stdout is not None
        drawing = [int(pid) for pid in asked.stdout.readline().split()]
        asked.send_signal(signal.SIGKILL)
    assert 1 <= len(drawing) <= 4  # a process that is free takes a further share, so that fewer may have started
    waited = time.monotonic() + 300
    while (left := [pid for pid in drawing if _runs(pid)]) and time.monotonic() < waited:
        time.sleep(0.05)
    assert not left


def _runs(pid: int) -> bool:
    """Whether a process is there and has not ended: one that nobody asks how it ended stays in the list."""
    try:
        told = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except (FileNotFoundError, ProcessLookupError):
        return False
    return told.rpartition(")")[2].split()[0] not in ("Z", "X")
