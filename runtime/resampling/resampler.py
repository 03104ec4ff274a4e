"""Between the grids of two resolutions: tokens of a small picture to those of a large one, and back."""

from typing import Protocol

import numpy as np

from underpaint.algos.arrays import IntArray
from underpaint.algos.spatial.resolution import ResolutionMap
from underpaint.algos.tree import NO_TOKEN


class Resampler(Protocol):
    """An up- and a down-sampler of tokens between two grids that share one codebook.

    Both work on whole low rows and are row-causal: what they give for `rows` depends on no row from `rows.stop` on,
    drawn or not.
    """

    @property
    def map(self) -> ResolutionMap:
        """The two grids."""
        ...

    def enlarge(self, low: IntArray, rows: range) -> IntArray:
        """Propose the high tokens [cells of map.high_rows(rows)] int64, in raster order, under low `rows`.

        low: [low cells] int64; what it holds from row `rows.stop` on is not read (NO_TOKEN, say).
        Raises ValueError on rows outside the grid, a wrong shape, and rows before `rows.stop` that are not drawn.
        """
        ...

    def reduce(self, high: IntArray, rows: range) -> IntArray:
        """Read the low tokens [cells of rows] int64, in raster order, of low `rows` from the picture of `high`.

        high: [high cells] int64; what it holds after map.high_rows(rows) is not read. Raises as `enlarge` does.
        """
        ...


def check_low(map_: ResolutionMap, low: IntArray, rows: range, vocab_size: int) -> IntArray:
    """The low rows [rows.stop, width] that `enlarge` may read; ValueError where they are not all drawn."""
    map_.high_rows(rows)
    return _drawn("low", low, map_.low.cells, rows.stop, map_.low.width, vocab_size)


def check_high(map_: ResolutionMap, high: IntArray, rows: range, vocab_size: int) -> IntArray:
    """The high rows [ratio * rows.stop, width] that `reduce` may read; ValueError where they are not all drawn."""
    return _drawn("high", high, map_.high.cells, map_.high_rows(rows).stop, map_.high.width, vocab_size)


def _drawn(which: str, tokens: IntArray, cells: int, stop: int, width: int, vocab_size: int) -> IntArray:
    tokens = np.asarray(tokens)
    if tokens.shape != (cells,) or not np.issubdtype(tokens.dtype, np.integer):
        raise ValueError(f"resample: expected {which} tokens [{cells}] of integers, got {tokens.shape} {tokens.dtype}")
    read: IntArray = tokens[: stop * width].astype(np.int64)
    if read.size and (read.min() < 0 or read.max() >= vocab_size):
        missing = int(np.count_nonzero(read == NO_TOKEN))
        raise ValueError(
            f"resample: expected {which} tokens from 0 to {vocab_size - 1} in the first {stop} rows, got some from "
            f"{read.min()} to {read.max()}, {missing} of them not drawn; draw those rows first"
        )
    return read.reshape(stop, width)
