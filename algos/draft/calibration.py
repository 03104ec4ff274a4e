"""Calibration of a drafter's probabilities at a cell, learned from the cells decided earlier."""

from collections.abc import Callable
from typing import Final, TypeAlias

import numpy as np

from underpaint.algos.arrays import FloatArray
from underpaint.algos.protocols import Grid

Adjust: TypeAlias = Callable[[FloatArray], FloatArray]
"""Maps draft probabilities of siblings, rows [F, k], to the probabilities of acceptance; no row's sum exceeds 1."""

BANDS: Final = (0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.92)
"""The boundaries between bands of draft probabilities."""
_ENDS: Final = np.array(BANDS)


class Calibration:
    """Corrects draft probabilities by the observed acceptance of draft tokens in the cells decided so far.

    If a node's children were drafted and the next token is known, the sum of the children's draft probabilities is the
    expected acceptance. The observed acceptance is 1 if the token was one of them, else 0. Under a lossless rule the
    next token follows the target's distribution, so observed / expected estimates target over draft probability.
    The correction has two parts: one for each band of draft probabilities over the whole image, because drafters are
    overconfident at high confidence; and one for the neighbourhood of a cell.
    """

    __slots__ = (
        *("_above", "_band_observed", "_band_expected", "_decay", "_grid", "_observed", "_last_row", "_left_observed"),
        *("_left_expected", "_prior", "_expected", "_rows", "_band_factors"),
    )

    def __init__(self, grid: Grid, prior: float, decay: float, above: float, band_prior: float) -> None:
        """Begin an image, without any observations.

        Args:
            grid: The size of the image in cells.
            prior: Weight, in expected tokens, of the prior that a neighbourhood is like the image (factor 1).
            decay: Weight of a cell to the left, per cell of distance.
            above: Weight of the three cells above.
            band_prior: Weight, in expected tokens, of the prior that a band of probabilities is correct.
        """
        self._grid = grid
        self._prior, self._decay, self._above = prior, decay, above
        self._expected, self._observed = [0.0] * grid.cells, [0.0] * grid.cells
        self._left_expected, self._left_observed = 0.0, 0.0
        self._band_expected = np.full(len(BANDS) + 1, band_prior)
        self._band_observed = self._band_expected.copy()
        self._band_factors: FloatArray = np.ones(len(BANDS) + 1)
        self._rows: list[FloatArray | None] = [None] * grid.cells
        self._last_row: FloatArray | None = None

    def learn(self, cell: int, probs: FloatArray, committed: int | None) -> None:
        """Learn from `cell`, in raster order: the draft probabilities [k] of its siblings, and the index of the
        committed one (None: another token was committed)."""
        bands = _ENDS.searchsorted(probs)
        expected = min(float(np.add.reduce(probs * self._band_factors[bands])), 1.0)
        observed = float(committed is not None)
        self._expected[cell], self._observed[cell] = expected, observed
        self._left_expected = self._left_expected * self._decay + expected
        self._left_observed = self._left_observed * self._decay + observed
        self._band_expected += np.bincount(bands, probs, self._band_factors.size)
        if committed is not None:
            self._band_observed[bands[committed]] += 1.0
        self._band_factors = self._band_observed / self._band_expected
        self._rows[cell] = self._last_row = probs

    def factor(self, cell: int) -> float:
        """Return (prior + observed) / (prior + expected) over the weighted cells to the left of and above `cell`."""
        observed, expected = self._prior + self._left_observed, self._prior + self._left_expected
        row, column = divmod(cell, self._grid.width)
        if row:
            near = self._near_above(cell, column)
            observed += self._above * sum(self._observed[near])
            expected += self._above * sum(self._expected[near])
        return observed / expected

    def at(self, cell: int) -> Adjust:
        """Return the function that corrects draft probabilities at `cell`."""
        factor = self.factor(cell)

        def adjust(probs: FloatArray) -> FloatArray:
            return within_one(probs * (factor * self._band_factors)[_ENDS.searchsorted(probs)])

        return adjust

    @property
    def knows_any(self) -> bool:
        """Whether the calibration has learned from any cell of this image."""
        return self._last_row is not None

    def neighbour_probs(self, cell: int) -> FloatArray | None:
        """Return [k], the draft probabilities by rank to expect at `cell`: the mean of its decided neighbours'.

        If no neighbour has draft probabilities, return those of the last cell that has; None if no cell has.
        """
        row, column = divmod(cell, self._grid.width)
        near = self._rows[cell - 1 : cell] if column else []
        if row:
            near = near + self._rows[self._near_above(cell, column)]
        rows = [probs for probs in near if probs is not None]
        if not rows:
            return self._last_row
        total = rows[0]
        for probs in rows[1:]:
            total = total + probs
        return total / len(rows)

    def _near_above(self, cell: int, column: int) -> slice:
        first = cell - self._grid.width
        return slice(first - (column > 0), first + 1 + (column < self._grid.width - 1))


def within_one(chances: FloatArray) -> FloatArray:
    """Return rows [F, k], each scaled down so that its sum is at most 1."""
    totals = np.add.reduce(chances, axis=1)
    if max(totals.tolist()) <= 1.0:
        return chances
    scaled: FloatArray = np.minimum(chances / np.maximum(totals, 1.0)[:, None], 1.0)
    return scaled
