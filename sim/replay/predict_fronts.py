"""What ZipAR should cost: its steps follow from the grid and the window alone, whatever the distributions are."""

from time import perf_counter
from typing import Final, NamedTuple

import numpy as np

from underpaint.algos.arrays import IntArray
from underpaint.algos.chance import sampling
from underpaint.algos.draft.spec import Grid
from underpaint.algos.spatial.zipar import zipar
from underpaint.sim.latency.overhead import Watch, WatchedGridTarget
from underpaint.sim.synthetic.grid_model import GridWeights, GridWorld

_TIMED: Final = 4
"""Images that the host's share is timed on, after one that is not."""


class Fronts(NamedTuple):
    """One image by row fronts of a fixed window."""

    passes: IntArray
    """[NFE] tokens fed by each target pass, 1 in the first, which takes in the condition."""
    overhead_ms: float
    """What a pass takes beside the model, on this machine."""


def row_fronts(grid: Grid, vocab_size: int, window: int) -> Fronts:
    """ZipAR by its own loop over a synthetic target; ValueError on a window beyond the grid."""
    watch = Watch()
    target = WatchedGridTarget(GridWorld(GridWeights.random(grid, vocab_size, seed=0)), watch)
    zipar(target, window, sampling(0))
    watch.seconds, started = 0.0, perf_counter()
    for image in range(_TIMED):
        done = zipar(target, window, sampling(0, image))
    spent = perf_counter() - started - watch.seconds
    return Fronts(np.maximum(np.array(done.passes), 1), 1e3 * spent / _TIMED / len(done.passes))
