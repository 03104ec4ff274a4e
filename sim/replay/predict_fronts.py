"""What ZipAR should cost: its steps follow from the grid and the window alone, whatever the distributions are."""

from time import perf_counter
from typing import Final, NamedTuple

import numpy as np

from underpaint.algos.arrays import IntArray
from underpaint.algos.chance import sampling
from underpaint.algos.protocols import Grid
from underpaint.algos.spatial.zipar import zipar
from underpaint.sim.latency.overhead import ModelTimer, TimedGridTarget
from underpaint.sim.synthetic.grid_model import GridWeights, SyntheticGridTarget

_TIMED: Final = 4
"""Images that the host's share is timed on, after one that is not."""


class RowFrontPasses(NamedTuple):
    """One image by row fronts of a fixed window."""

    passes: IntArray
    """[NFE] tokens fed by each target pass, 1 in the first, which takes in the condition."""
    overhead_ms: float
    """What a pass takes beside the model, on this machine."""


def row_fronts(grid: Grid, vocab_size: int, window: int) -> RowFrontPasses:
    """ZipAR by its own loop over a synthetic target; ValueError on a window beyond the grid."""
    timer = ModelTimer()
    target = TimedGridTarget(SyntheticGridTarget(GridWeights.random(grid, vocab_size, seed=0)), timer)
    zipar(target, window, sampling(0))
    timer.seconds, started = 0.0, perf_counter()
    for image in range(_TIMED):
        done = zipar(target, window, sampling(0, image))
    spent = perf_counter() - started - timer.seconds
    return RowFrontPasses(np.maximum(np.array(done.passes), 1), 1e3 * spent / _TIMED / len(done.passes))
