"""Splits a picture with a preview into two targets: each of its two grids is one target, and both share one cache."""

from __future__ import annotations

import numpy as np

from underpaint.algos.arrays import FloatArray, IntArray
from underpaint.algos.protocols import Grid
from underpaint.algos.spatial.target import Feed, GridTarget
from underpaint.algos.spatial.zipar import likeliest
from underpaint.algos.tree import NO_TOKEN


class PartTarget:
    """Implements `algos.spatial.target.GridTarget` for one of two grids whose cells follow each other in a target."""

    def __init__(self, whole: GridTarget, grid: Grid, before: IntArray | None = None, greedy: bool = False) -> None:
        """Take one part of a target.

        Args:
            whole: The target with all cells.
            grid: The grid of this part.
            before: [n], the tokens of the cells before this part; None for the first part.
            greedy: Whether to return distributions of temperature 0.
        """
        self._whole, self.grid, self._greedy = whole, grid, greedy
        self._before = np.empty(0, dtype=np.int64) if before is None else before
        self._first = self._before.size

    @property
    def vocab_size(self) -> int:
        """The number of codes, V."""
        return self._whole.vocab_size

    def begin(self) -> FloatArray:
        probs = self._whole.begin()
        if self._first:
            cells, seen = np.arange(self._first), np.tri(self._first, dtype=np.bool_)
            nothing = np.zeros((self._first, self._whole.grid.cells), dtype=np.bool_)
            probs = self._whole.score(Feed(cells, self._before, seen, nothing))[-1]
            self._whole.commit(cells)
        return likeliest(probs) if self._greedy else probs

    def score(self, feed: Feed) -> FloatArray:
        cached = np.zeros((feed.cells.size, self._whole.grid.cells), dtype=np.bool_)
        cached[:, : self._first] = True
        cached[:, self._first : self._first + self.grid.cells] = feed.cached
        probs = self._whole.score(Feed(feed.cells + self._first, feed.tokens, feed.visible, cached))
        return np.stack([likeliest(each) for each in probs]) if self._greedy else probs

    def commit(self, rows: IntArray) -> None:
        self._whole.commit(rows)


def enlarged(tokens: IntArray, small: Grid, large: Grid) -> IntArray:
    """Return the preview's token that covers each cell of the picture, [large.cells]."""
    rows = (2 * np.arange(large.height) + 1) * small.height // (2 * large.height)
    columns = (2 * np.arange(large.width) + 1) * small.width // (2 * large.width)
    if (tokens == NO_TOKEN).any():
        raise ValueError("preview: expected a drawn preview, got cells without a token; draw it first")
    picture: IntArray = tokens.reshape(small)[np.ix_(rows, columns)].reshape(-1)
    return picture
