"""The cells that a rejection makes invalid: neighbourhoods on the grid (MuLo-SD, arXiv 2601.05149, eq. 6 and 7).

Masks are bool [H, W] over the grid; "first" is t_0, the rejected cell with the smallest raster index. Cells before it
were accepted next to accepted cells only, so no mode ever redraws them.
"""

import numpy as np

from underpaint.algos.arrays import BoolArray, IntArray
from underpaint.algos.protocols import Grid


def check_radius(radius: int, grid: Grid) -> None:
    """Raise ValueError unless 0 <= `radius` < the longer side of `grid`."""
    if not 0 <= radius < max(grid):
        raise ValueError(
            f"radius: expected 0..{max(grid) - 1} on a grid of {grid.height} x {grid.width}, got {radius}; 0 redraws "
            "the rejected cells alone"
        )


def check_mask(mask: BoolArray, what: str) -> Grid:
    """Return the grid of `mask` [H, W]; raise ValueError unless it is a non-empty 2-D bool array."""
    if mask.ndim != 2 or mask.dtype != np.bool_ or mask.size == 0:
        raise ValueError(f"{what}: expected a bool grid [H, W], got {mask.dtype} {mask.shape}")
    return Grid(*mask.shape)


def expanded(rejected: BoolArray, radius: int) -> BoolArray:
    """Return R_X of eq. 7 [H, W], the union of N(t, radius) over the rejected cells; for radius 0, `rejected`."""
    grid = check_mask(rejected, "rejected")
    check_radius(radius, grid)
    return (_rejected_near(rejected, radius) > 0) & _from(grid, _first(rejected))


def after_first(rejected: BoolArray) -> BoolArray:
    """Return the cells of raster rejection [H, W]: the first rejected cell and all cells after it."""
    return _from(check_mask(rejected, "rejected"), _first(rejected))


def redrawn_anyway(rejected: BoolArray, radius: int) -> BoolArray:
    """Return the cells [H, W] of R_X that would also be in it if their own token had been accepted.

    They are near another rejected cell, so their own verdict decides nothing, and an unbiased redraw uses the whole
    distribution. The other cells of R_X are redrawn because of their own rejection, from the residual. The first
    rejected cell is always one of these others: accepted, it would be before t_0.
    """
    grid = check_mask(rejected, "rejected")
    check_radius(radius, grid)
    others = _rejected_near(rejected, radius) - rejected
    return (others > 0) & _from(grid, _first(rejected) + 1)


def _first(rejected: BoolArray) -> int:
    return int(np.argmax(rejected)) if rejected.any() else rejected.size


def _from(grid: Grid, first: int) -> BoolArray:
    return (np.arange(grid.cells) >= first).reshape(grid)


def _rejected_near(rejected: BoolArray, radius: int) -> IntArray:
    """Return the number of rejected cells within `radius` of each cell, including the cell itself."""
    counts = rejected.astype(np.int64)
    for axis in (0, 1):
        size = counts.shape[axis]
        before = np.concatenate([np.zeros_like(counts.take([0], axis)), counts.cumsum(axis)], axis)
        places = np.arange(size)
        upto = before.take(np.minimum(places + radius + 1, size), axis)
        counts = upto - before.take(np.maximum(places - radius, 0), axis)
    return counts
