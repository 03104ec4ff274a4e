"""What ZipAR should cost: its steps follow from the grid and the window alone, whatever the laws are."""

from dataclasses import dataclass, field
from time import perf_counter
from typing import Final, NamedTuple

import numpy as np

from algos.arrays import FloatArray, IntArray
from algos.chance import sampling
from algos.draft.spec import Grid
from algos.spatial.target import Feed, GridTarget
from algos.spatial.zipar import zipar
from sim.grid_world import GridWeights, GridWorld

_TIMED: Final = 4
"""Images that the host's share is timed on, after one that is not."""


class Fronts(NamedTuple):
    """One image by row fronts of a fixed window."""

    passes: IntArray
    """[NFE] tokens fed by each target pass, 1 in the first, which takes in the condition."""
    overhead_ms: float
    """What a pass takes beside the model, on this machine."""


@dataclass(slots=True)
class _Watched:
    """A grid target that counts the seconds within it."""

    inner: GridTarget
    vocab_size: int = field(init=False)
    grid: Grid = field(init=False)
    seconds: float = 0.0

    def __post_init__(self) -> None:
        self.vocab_size, self.grid = self.inner.vocab_size, self.inner.grid

    def begin(self) -> FloatArray:
        started = perf_counter()
        law = self.inner.begin()
        self.seconds += perf_counter() - started
        return law

    def score(self, feed: Feed) -> FloatArray:
        started = perf_counter()
        laws = self.inner.score(feed)
        self.seconds += perf_counter() - started
        return laws

    def commit(self, rows: IntArray) -> None:
        started = perf_counter()
        self.inner.commit(rows)
        self.seconds += perf_counter() - started


def row_fronts(grid: Grid, vocab_size: int, window: int) -> Fronts:
    """ZipAR by its own loop over a synthetic target; ValueError on a window beyond the grid."""
    target = _Watched(GridWorld(GridWeights.random(grid, vocab_size, seed=0)))
    zipar(target, window, sampling(0))
    target.seconds, started = 0.0, perf_counter()
    for image in range(_TIMED):
        done = zipar(target, window, sampling(0, image))
    spent = perf_counter() - started - target.seconds
    return Fronts(np.maximum(np.array(done.passes), 1), 1e3 * spent / _TIMED / len(done.passes))
