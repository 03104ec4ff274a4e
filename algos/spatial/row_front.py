"""Row fronts: several rows are decoded at once, each a window behind the row above (ZipAR, arXiv 2412.04062).

Cell (i, j) may be decided once cells (i - 1, <= j + window - 1) are. A cell right of that in the row above is simply
not there yet. Window = width is raster order.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from underpaint.algos.arrays import BoolArray, IntArray
from underpaint.algos.protocols import Grid
from underpaint.algos.spatial.neighbourhood import check_mask

_NEVER = 1 << 40


def check_window(window: int, grid: Grid, name: str = "window") -> None:
    """Raise ValueError, about the setting `name`, unless 1 <= `window` <= the width of `grid`."""
    if not 1 <= window <= grid.width:
        raise ValueError(
            f"{name}: expected 1..{grid.width} on a grid of {grid.height} x {grid.width}, got {window}; "
            f"{grid.width} decodes in raster order"
        )


def front_steps(grid: Grid, window: int) -> int:
    """Steps to decode the grid with a fixed window: W + (H - 1) * window."""
    check_window(window, grid)
    return grid.width + (grid.height - 1) * window


@dataclass(frozen=True, slots=True, eq=False)
class RowFront:
    """How far a region of the grid is decoded: a value; `after` returns the next one.

    region: bool [H, W], the cells to decode. undecided: bool [H, W], those of them that are left.
    Within a region with gaps, cell (i, j) waits for the region's cells (i - k, <= j + k (window - 1)), k >= 1: what
    the rule on neighbouring rows comes to where no row is missing.
    """

    region: BoolArray
    undecided: BoolArray
    window: int

    @classmethod
    def over(cls, region: BoolArray, window: int) -> "RowFront":
        """Nothing of `region` [H, W] is decided; ValueError on a window below 1 or beyond the width."""
        check_window(window, check_mask(region, "region"))
        return cls(region, region, window)

    @property
    def done(self) -> bool:
        """Whether every cell of the region is decided."""
        return not self.undecided.any()

    def ready(self) -> IntArray:
        """The cells [F] int64 that may be decided now, ascending; at most one a row, at least one until done."""
        columns = _first_columns(self.undecided)
        rows = np.flatnonzero(_may_be_decided(columns, _slant(self.undecided.shape[0], self.window)))
        cells: IntArray = rows * self.undecided.shape[1] + columns[rows]
        return cells

    def after(self, cells: Sequence[int] | IntArray) -> "RowFront":
        """The front once `cells` are decided; ValueError if one of them was not ready."""
        early = set(map(int, cells)) - set(self.ready().tolist())
        if early:
            raise ValueError(f"row front: cells {sorted(early)} are not ready; decide those that ready() returns")
        undecided = self.undecided.copy()
        undecided.reshape(-1)[np.asarray(cells, dtype=np.int64)] = False
        return replace(self, undecided=undecided)

    def opens_row(self, cell: int) -> bool:
        """Whether no cell of `cell`'s row in the region is decided yet."""
        row = cell // self.region.shape[1]
        return bool(np.array_equal(self.region[row], self.undecided[row]))

    def missing_before(self, cell: int) -> int:
        """How many cells of the region before `cell`, in raster order, are undecided."""
        return int(np.count_nonzero(self.undecided.reshape(-1)[:cell]))


class Ready(NamedTuple):
    """Cells that may be decided now. cells: [n] int64, ascending; fronts: [n] int64, whose they are."""

    cells: IntArray
    fronts: IntArray


class Fronts:
    """Fronts of disjoint regions on their way, reckoned all at once: what `RowFront.ready` and `after` come to."""

    def __init__(self, fronts: Sequence[RowFront]) -> None:
        region = np.stack([front.region for front in fronts])
        self._undecided = np.stack([front.undecided for front in fronts])
        self.fronts = [replace(front, undecided=mask) for front, mask in zip(fronts, self._undecided, strict=True)]
        """Each front as it stands, until the next `decide`."""
        columns = np.where(region, np.arange(region.shape[2]), _NEVER)
        self._next = np.full(region.shape, _NEVER)
        """Behind each cell, the next column of its front in its row."""
        self._next[:, :, :-1] = np.minimum.accumulate(columns[:, :, ::-1], axis=2)[:, :, -2::-1]
        self._columns = _first_columns(self._undecided)
        self._slants = np.stack([_slant(region.shape[1], front.window) for front in fronts])

    def ready(self) -> Ready:
        """The cells that may be decided now; none once every front is done."""
        fronts, rows = np.nonzero(_may_be_decided(self._columns, self._slants))
        cells = rows * self._undecided.shape[2] + self._columns[fronts, rows]
        order = cells.argsort()
        return Ready(cells[order], fronts[order])

    def decide(self, done: Ready) -> None:
        """Go on with these cells, all of them ready, decided."""
        rows, columns = np.divmod(done.cells, self._undecided.shape[2])
        self._undecided[done.fronts, rows, columns] = False
        self._columns[done.fronts, rows] = self._next[done.fronts, rows, columns]


def _first_columns(undecided: BoolArray) -> IntArray:
    """[..., H]: the first undecided column of each row of [..., H, W]; `_NEVER` where there is none."""
    return np.where(undecided.any(axis=-1), undecided.argmax(axis=-1), _NEVER)


def _slant(height: int, window: int) -> IntArray:
    """[H]: how far a row lies behind the row above, added up."""
    return np.arange(height) * (window - 1)


def _may_be_decided(columns: IntArray, slant: IntArray) -> BoolArray:
    """[..., H]: whether a row's first undecided cell waits for none above."""
    reach = columns + slant
    above = np.full_like(reach, _NEVER)
    above[..., 1:] = np.minimum.accumulate(reach, axis=-1)[..., :-1]
    free: BoolArray = (columns < _NEVER) & (reach < above)
    return free


def schedule(fronts: Sequence[RowFront]) -> tuple[IntArray, ...]:
    """The cells decided in each step, ascending, when every front decides all that is ready at each step."""
    left = list(fronts)
    steps: list[IntArray] = []
    while any(not front.done for front in left):
        ready = [front.ready() for front in left]
        steps.append(np.sort(np.concatenate(ready)))
        left = [front.after(cells) for front, cells in zip(left, ready, strict=True)]
    return tuple(steps)
