"""Row fronts: decode several rows in parallel, each a window behind the row above (ZipAR, arXiv 2412.04062).

Cell (i, j) may be decided once cells (i - 1, <= j + window - 1) are decided. Cells further right in the row above are
missing from its context. Window = width is raster order.
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
    """Raise ValueError, naming the setting `name`, unless 1 <= `window` <= the width of `grid`."""
    if not 1 <= window <= grid.width:
        raise ValueError(
            f"{name}: expected 1..{grid.width} on a grid of {grid.height} x {grid.width}, got {window}; "
            f"{grid.width} decodes in raster order"
        )


def front_steps(grid: Grid, window: int) -> int:
    """Return the steps to decode the grid with a fixed window: W + (H - 1) * window."""
    check_window(window, grid)
    return grid.width + (grid.height - 1) * window


@dataclass(frozen=True, slots=True, eq=False)
class RowFront:
    """The state of decoding a region of the grid. Immutable; `after` returns the next state.

    In a region with gaps, cell (i, j) waits for the region's cells (i - k, <= j + k (window - 1)), k >= 1, which
    follows from the rule for adjacent rows if no row is missing.

    Attributes:
        region: [H, W] bool, the cells to decode.
        undecided: [H, W] bool, the cells of the region still to decide.
        window: How far each row is behind the row above, 1..width; the width is raster order.
    """

    region: BoolArray
    undecided: BoolArray
    window: int

    @classmethod
    def over(cls, region: BoolArray, window: int) -> "RowFront":
        """Return the front with nothing of `region` [H, W] decided; raise ValueError unless window is 1..width."""
        check_window(window, check_mask(region, "region"))
        return cls(region, region, window)

    @property
    def done(self) -> bool:
        """Whether all cells of the region are decided."""
        return not self.undecided.any()

    def ready(self) -> IntArray:
        """Return the cells [F] int64 that may be decided now, ascending; at most one per row, none only when done."""
        columns = _first_columns(self.undecided)
        rows = np.flatnonzero(_may_be_decided(columns, _slant(self.undecided.shape[0], self.window)))
        cells: IntArray = rows * self.undecided.shape[1] + columns[rows]
        return cells

    def after(self, cells: Sequence[int] | IntArray) -> "RowFront":
        """Return the front after `cells` are decided; raise ValueError if one of them was not ready."""
        early = set(map(int, cells)) - set(self.ready().tolist())
        if early:
            raise ValueError(f"row front: cells {sorted(early)} are not ready; decide those that ready() returns")
        undecided = self.undecided.copy()
        undecided.reshape(-1)[np.asarray(cells, dtype=np.int64)] = False
        return replace(self, undecided=undecided)

    def opens_row(self, cell: int) -> bool:
        """Return whether no cell of the region in `cell`'s row is decided yet."""
        row = cell // self.region.shape[1]
        return bool(np.array_equal(self.region[row], self.undecided[row]))

    def missing_before(self, cell: int) -> int:
        """Return the number of undecided cells of the region before `cell`, in raster order."""
        return int(np.count_nonzero(self.undecided.reshape(-1)[:cell]))


class Ready(NamedTuple):
    """Cells that may be decided now.

    Attributes:
        cells: [n] int64, ascending.
        fronts: [n] int64, the front of each cell.
    """

    cells: IntArray
    fronts: IntArray


class Fronts:
    """Several fronts of disjoint regions, advanced together; equals `RowFront.ready` and `after` of each."""

    def __init__(self, fronts: Sequence[RowFront]) -> None:
        region = np.stack([front.region for front in fronts])
        self._undecided = np.stack([front.undecided for front in fronts])
        self.fronts = [replace(front, undecided=mask) for front, mask in zip(fronts, self._undecided, strict=True)]
        """The current state of each front, valid until the next `decide`."""
        columns = np.where(region, np.arange(region.shape[2]), _NEVER)
        self._next = np.full(region.shape, _NEVER)
        """For each cell, the next column of its front in the same row."""
        self._next[:, :, :-1] = np.minimum.accumulate(columns[:, :, ::-1], axis=2)[:, :, -2::-1]
        self._columns = _first_columns(self._undecided)
        self._slants = np.stack([_slant(region.shape[1], front.window) for front in fronts])

    def ready(self) -> Ready:
        """Return the cells that may be decided now; none once all fronts are done."""
        fronts, rows = np.nonzero(_may_be_decided(self._columns, self._slants))
        cells = rows * self._undecided.shape[2] + self._columns[fronts, rows]
        order = cells.argsort()
        return Ready(cells[order], fronts[order])

    def decide(self, done: Ready) -> None:
        """Mark these cells, which must all be ready, as decided."""
        rows, columns = np.divmod(done.cells, self._undecided.shape[2])
        self._undecided[done.fronts, rows, columns] = False
        self._columns[done.fronts, rows] = self._next[done.fronts, rows, columns]


def _first_columns(undecided: BoolArray) -> IntArray:
    """Return [..., H], the first undecided column of each row of [..., H, W]; `_NEVER` if there is none."""
    return np.where(undecided.any(axis=-1), undecided.argmax(axis=-1), _NEVER)


def _slant(height: int, window: int) -> IntArray:
    """Return [H], the accumulated delay of each row behind the rows above."""
    return np.arange(height) * (window - 1)


def _may_be_decided(columns: IntArray, slant: IntArray) -> BoolArray:
    """Return [..., H], whether each row's first undecided cell does not wait for any row above."""
    reach = columns + slant
    above = np.full_like(reach, _NEVER)
    above[..., 1:] = np.minimum.accumulate(reach, axis=-1)[..., :-1]
    free: BoolArray = (columns < _NEVER) & (reach < above)
    return free


def schedule(fronts: Sequence[RowFront]) -> tuple[IntArray, ...]:
    """Return the cells decided in each step, ascending, if all fronts decide all ready cells in each step."""
    current_fronts = list(fronts)
    steps: list[IntArray] = []
    while any(not front.done for front in current_fronts):
        ready = [front.ready() for front in current_fronts]
        steps.append(np.sort(np.concatenate(ready)))
        current_fronts = [front.after(cells) for front, cells in zip(current_fronts, ready, strict=True)]
    return tuple(steps)
