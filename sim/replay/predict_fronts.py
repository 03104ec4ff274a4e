"""What ZipAR should cost: its steps follow from the grid and the window alone, whatever the distributions are."""

import numpy as np

from underpaint.algos.chance import sampling
from underpaint.algos.protocols import Grid
from underpaint.algos.spatial.zipar import zipar
from underpaint.sim.latency.grid_costs import GridCounts
from underpaint.sim.synthetic.grid_model import GridWeights, SyntheticGridTarget


def row_fronts(grid: Grid, window: int) -> GridCounts:
    """One image by row fronts of a fixed window, drawn by ZipAR's own loop; ValueError on a window beyond the grid."""
    done = zipar(SyntheticGridTarget(GridWeights.random(grid, 2, seed=0)), window, sampling(0))
    fed = np.bincount(done.passes[1:], minlength=grid.cells + 1)[None]
    return GridCounts(np.ones(1, dtype=np.int64), fed, np.array([grid.cells]), np.zeros(1, dtype=np.int64))
