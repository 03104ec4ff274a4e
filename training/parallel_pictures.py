"""Scenes drawn by several processes: where a GPU learns from them, one process draws too slowly for it."""

import multiprocessing
import os
import signal
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from itertools import repeat
from multiprocessing import resource_tracker
from threading import Thread
from typing import Final

import numpy as np
from numpy.typing import NDArray

from underpaint.training.data.textured_render import TexturedSheet, render_textured
from underpaint.training.data.textured_scenes import Split, textured_scene

_SHEETS: Final[list[TexturedSheet]] = []
"""The one sheet of a drawing process."""


def draw_scenes(sheet: TexturedSheet, indices: Sequence[int], size: int, split: Split, seed: int) -> NDArray[np.uint8]:
    """Scenes `indices` of `split` at `size` px: uint8 [N, size, size, 3]."""
    return np.stack([render_textured(textured_scene(seed, index, split), sheet, size) for index in indices])


class DrawingPool:
    """`workers` processes that draw scenes, started when they are first needed; they end with this one, even if it is
    killed."""

    def __init__(self, sheet: TexturedSheet, workers: int) -> None:
        if workers < 1:
            raise ValueError(f"workers: expected at least 1, got {workers}")
        self._sheet, self.workers = sheet, workers
        self._pool: ProcessPoolExecutor | None = None

    def draw(self, indices: Sequence[int], size: int, split: Split, seed: int) -> NDArray[np.uint8]:
        """`draw_scenes`, a share of the scenes a process; ChildProcessError where one of them died."""
        if self.workers == 1 or len(indices) < self.workers:
            return draw_scenes(self._sheet, indices, size, split, seed)
        if self._pool is None:
            context = multiprocessing.get_context("spawn")  # a fork would copy PyTorch's threads as locks alone
            self._pool = ProcessPoolExecutor(self.workers, context, _begin, (self._sheet,))
        shares = [part.tolist() for part in np.array_split(np.asarray(indices), self.workers)]
        try:
            with _interrupts_held():
                drawn = self._pool.map(_draw, shares, repeat(size), repeat(split), repeat(seed))
            return np.concatenate(list(drawn))
        except BrokenProcessPool as error:
            self.close()
            raise ChildProcessError(
                f"--workers {self.workers}: one of the processes that draw scenes died, for lack of memory as a rule; "
                "run the same command again with fewer --workers, and it goes on from what is kept"
            ) from error

    def close(self) -> None:
        """End the processes; another `draw` starts them anew."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            self._pool = None


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Processes that start meanwhile never see Ctrl-C, which is for the one that asked; it hears of it afterwards."""
    resource_tracker.ensure_running()  # starting it would let signals through again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _begin(sheet: TexturedSheet) -> None:
    _SHEETS[:] = [sheet]
    Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _draw(indices: Sequence[int], size: int, split: Split, seed: int) -> NDArray[np.uint8]:
    return draw_scenes(_SHEETS[0], indices, size, split, seed)
