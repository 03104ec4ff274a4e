"""Rejection islands: 8-connected parts of the region to redraw, decoded in parallel (MuLo-SD, arXiv 2601.05149)."""

import numpy as np

from underpaint.algos.arrays import BoolArray, IntArray
from underpaint.algos.spatial.neighbourhood import check_mask
from underpaint.algos.spatial.row_front import RowFront


def label_islands(region: BoolArray) -> IntArray:
    """Return the island [H, W] int64 of each cell of `region` bool [H, W], -1 outside it.

    Cells that share a side or corner are one island. Islands are numbered from 0 in raster order of their first cells.
    """
    height, width = check_mask(region, "region")
    labels = np.full((height, width), -1, dtype=np.int64)
    inside = set(np.flatnonzero(region).tolist())
    count = 0
    while inside:
        edge = [min(inside)]
        inside.remove(edge[0])
        while edge:
            row, column = divmod(edge.pop(), width)
            labels[row, column] = count
            for near_row in range(max(row - 1, 0), min(row + 2, height)):
                for near_column in range(max(column - 1, 0), min(column + 2, width)):
                    near = near_row * width + near_column
                    if near in inside:
                        inside.remove(near)
                        edge.append(near)
        count += 1
    return labels


def island_fronts(labels: IntArray, window: int) -> tuple[RowFront, ...]:
    """Return one row front per island; `row_front.schedule` gives the cells of each step.

    Args:
        labels: [H, W], the island of each cell from `label_islands`, -1 outside.
        window: The window of each front, 1..width; the width decodes each in raster order, a cell per step.

    Raises:
        ValueError: The window is below 1 or above the width.
    """
    return tuple(RowFront.over(labels == island, window) for island in range(int(labels.max()) + 1))
