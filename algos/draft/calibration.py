"""Calibration of a drafter's probabilities at a cell, learned from the cells decided before it."""

from collections.abc import Callable
from typing import Final, TypeAlias

import numpy as np

from underpaint.algos.arrays import FloatArray
from underpaint.algos.protocols import Grid

Adjust: TypeAlias = Callable[[FloatArray], FloatArray]
"""From rows of draft probabilities of siblings, [F, k], to the probabilities that they are accepted; no row's sum
exceeds 1."""

BANDS: Final = (0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.92)
"""Where one band of draft probabilities ends and the next begins."""
_ENDS: Final = np.array(BANDS)


class Calibration:
    """Corrects draft probabilities by how often drafted tokens were accepted in the cells decided so far.

    Where a node's children were drafted and the next token is known, the children's draft probabilities add up to the
    expected acceptance; the observed acceptance is 1 where the token was one of them, else 0. Under a lossless rule the
    next token follows the target's distribution, so observed / expected estimates the target's probability over the
    drafter's. The correction has two parts: one for each band of draft probabilities over the whole image, as drafters
    are overconfident where they are confident; and one for the neighbourhood of a cell.
    """

    __slots__ = (
        *("_above", "_band_observed", "_band_expected", "_decay", "_grid", "_observed", "_last_row", "_left_observed"),
        *("_left_expected", "_prior", "_expected", "_rows", "_band_factors"),
    )

    def __init__(self, grid: Grid, prior: float, decay: float, above: float, band_prior: float) -> None:
        """Begin an image: nothing is known.

        prior: weight, in expected tokens, of the belief that a neighbourhood is as the image (factor 1).
        decay: weight of a cell on the left, per cell of distance; above: weight of the three cells above.
        band_prior: weight, in expected tokens, of the belief that a band of probabilities is right.
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
        """Take in `cell`, in raster order: the draft probabilities [k] of its siblings, and which was committed
        (None: another token)."""
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
        """(prior + observed) / (prior + expected) over the weighted cells on the left of and above `cell`."""
        observed, expected = self._prior + self._left_observed, self._prior + self._left_expected
        row, column = divmod(cell, self._grid.width)
        if row:
            near = self._near_above(cell, column)
            observed += self._above * sum(self._observed[near])
            expected += self._above * sum(self._expected[near])
        return observed / expected

    def at(self, cell: int) -> Adjust:
        """The correction of draft probabilities at `cell`."""
        factor = self.factor(cell)

        def adjust(probs: FloatArray) -> FloatArray:
            return within_one(probs * (factor * self._band_factors)[_ENDS.searchsorted(probs)])

        return adjust

    @property
    def knows_any(self) -> bool:
        """Whether anything was learned of this image."""
        return self._last_row is not None

    def neighbour_probs(self, cell: int) -> FloatArray | None:
        """[k] the draft probabilities, by rank, that `cell` should have: the mean of its decided neighbours'.

        Where none of them was drafted for, those of the last cell that was; None where no cell was.
        """
        row, column = divmod(cell, self._grid.width)
        near = self._rows[cell - 1 : cell] if column else []
        if row:
            near = near + self._rows[self._near_above(cell, column)]
        known = [probs for probs in near if probs is not None]
        if not known:
            return self._last_row
        total = known[0]
        for probs in known[1:]:
            total = total + probs
        return total / len(known)

    def _near_above(self, cell: int, column: int) -> slice:
        first = cell - self._grid.width
        return slice(first - (column > 0), first + 1 + (column < self._grid.width - 1))


def within_one(chances: FloatArray) -> FloatArray:
    """Rows [F, k] as they are where their sum is at most 1, else scaled down to it."""
    totals = np.add.reduce(chances, axis=1)
    if max(totals.tolist()) <= 1.0:
        return chances
    scaled: FloatArray = np.minimum(chances / np.maximum(totals, 1.0)[:, None], 1.0)
    return scaled
