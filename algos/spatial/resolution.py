"""Maps between two grids of one image: a low-resolution cell and its block of high-resolution cells."""

from dataclasses import dataclass

import numpy as np

from underpaint.algos.arrays import IntArray
from underpaint.algos.protocols import Grid


@dataclass(frozen=True, slots=True)
class ResolutionMap:
    """A low and a high grid, with `ratio` high cells per low cell along each side.

    Raises ValueError unless the high grid is an integer multiple of the low grid, with the same factor on both sides.
    """

    low: Grid
    high: Grid

    def __post_init__(self) -> None:
        ratio = self.high.height // max(self.low.height, 1)
        if min(self.low) < 1 or self.high != (self.low.height * ratio, self.low.width * ratio) or ratio < 1:
            raise ValueError(
                f"resolution: expected a high grid that is a whole multiple of the low one, got "
                f"{self.low.height} x {self.low.width} and {self.high.height} x {self.high.width}"
            )

    @property
    def ratio(self) -> int:
        """The number r = s_p / s_q of high cells per low cell along each side."""
        return self.high.height // self.low.height

    def blocks(self) -> IntArray:
        """Return the high cells [low cells, r * r] int64 of each low cell, in raster order."""
        cells = np.arange(self.high.cells).reshape(self.low.height, self.ratio, self.low.width, self.ratio)
        return cells.swapaxes(1, 2).reshape(self.low.cells, self.ratio**2)

    def high_rows(self, low_rows: range) -> range:
        """Return the high rows of consecutive low rows; raise ValueError for rows outside the grid."""
        _check_rows(low_rows, self.low, "low")
        return range(low_rows.start * self.ratio, low_rows.stop * self.ratio)

    def low_rows(self, high_rows: range) -> range:
        """Return the low rows of consecutive high rows; raise ValueError if the range splits a low row."""
        _check_rows(high_rows, self.high, "high")
        if high_rows.start % self.ratio or high_rows.stop % self.ratio:
            raise ValueError(
                f"resolution: high rows {high_rows.start}..{high_rows.stop} do not start and end with low rows; "
                f"expected multiples of {self.ratio}"
            )
        return range(high_rows.start // self.ratio, high_rows.stop // self.ratio)


def _check_rows(rows: range, grid: Grid, which: str) -> None:
    if rows.step != 1 or not 0 <= rows.start <= rows.stop <= grid.height:
        raise ValueError(f"resolution: expected consecutive {which} rows within 0..{grid.height}, got {rows}")
