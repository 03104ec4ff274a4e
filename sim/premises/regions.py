"""Classify the cells of an image as calm, busy or part of an object, from the image alone."""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from underpaint.algos.arrays import FloatArray, IntArray
from underpaint.algos.protocols import Grid

REGIONS: Final = ("calm", "busy", "object")
BUSY_SPREAD: Final = 0.03
"""Smallest standard deviation of brightness (0 to 1) within a busy cell."""
APART: Final = 0.12
"""Smallest colour distance (channels from 0 to 1) between an object's cell and every cell of the border."""


def cell_regions(picture: NDArray[np.uint8], grid: Grid) -> IntArray:
    """[cells] index in `REGIONS` of each cell of an image [H, W, 3], whose sides are multiples of the grid's.

    A cell shows an object if its mean colour differs by at least `APART` from that of every cell of the border. Of the
    other cells, those with a brightness deviation of at least `BUSY_SPREAD` are busy. This rule of thumb works for any
    model without masks, but an object that touches the border may count as background.
    Raises ValueError if the image does not fit the grid.
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
    regions = np.where(distance >= APART, 2, np.where(spread >= BUSY_SPREAD, 1, 0))
    return regions.reshape(-1).astype(np.int64)
