"""Which cells of a picture are calm, busy or of an object, told from the picture alone."""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from underpaint.algos.arrays import FloatArray, IntArray
from underpaint.algos.protocols import Grid

REGIONS: Final = ("calm", "busy", "object")
BUSY_SPREAD: Final = 0.03
"""Standard deviation of brightness (0 to 1) within a cell, of a cell that is busy."""
APART: Final = 0.12
"""Distance in colour (each channel 0 to 1) from every cell of the border, of a cell that shows an object."""


def cell_regions(picture: NDArray[np.uint8], grid: Grid) -> IntArray:
    """[cells] places in `REGIONS` of a picture [H, W, 3], whose sides are multiples of the grid's.

    An object is taken to differ in colour from all that lies at the border: its cells' mean colour is `APART` or more
    from that of every cell of the border. Of the other cells those are busy whose brightness spreads by `BUSY_SPREAD`
    or more. A rule of thumb for any model: no mask is needed, and a thing that touches the border counts as ground.
    Raises ValueError where the picture does not hold the grid.
    """
    if picture.ndim != 3 or picture.shape[2] != 3 or picture.shape[0] % grid.height or picture.shape[1] % grid.width:
        raise ValueError(
            f"regions: expected a picture [H, W, 3] of whole cells of {grid.height} x {grid.width}, got {picture.shape}"
        )
    tall, wide = picture.shape[0] // grid.height, picture.shape[1] // grid.width
    patches = picture.reshape(grid.height, tall, grid.width, wide, 3).astype(np.float64) / 255.0
    colours: FloatArray = patches.mean(axis=(1, 3))
    spread = patches.mean(axis=4).std(axis=(1, 3))
    border = np.concatenate([colours[0], colours[-1], colours[1:-1, 0], colours[1:-1, -1]])
    distance = np.linalg.norm(colours[:, :, None] - border, axis=-1).min(axis=-1)
    found = np.where(distance >= APART, 2, np.where(spread >= BUSY_SPREAD, 1, 0))
    return found.reshape(-1).astype(np.int64)
