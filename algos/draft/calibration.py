"""What a drafter's probabilities are worth at a cell, learned from the cells decided before it."""

from collections.abc import Callable
from typing import Final, TypeAlias

import numpy as np

from underpaint.algos.arrays import FloatArray
from underpaint.algos.draft.spec import Grid

Adjust: TypeAlias = Callable[[FloatArray], FloatArray]
"""From rows of draft probabilities of siblings, [F, k], to the chances that they are kept; no row's sum exceeds 1."""

BANDS: Final = (0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.92)
"""Where one band of draft probabilities ends and the next begins."""
_ENDS: Final = np.array(BANDS)


class Calibration:
    """A map of the image: what the drafter promised at each cell, and whether it kept its word.

    Where a node's children were drafted and the next token is known, the word is kept if that token was among them.
    Under a lossless rule it follows the target's distribution, so kept / promised estimates the target's probability
    over the drafter's. It is learned twice: for each band of draft probabilities over the whole image, as drafters are
    too sure of what they are sure of; and, on top, for the neighbourhood of a cell.
    """

    __slots__ = (
        *("_above", "_band_kept", "_band_promised", "_decay", "_grid", "_kept", "_last_row", "_left_kept"),
        *("_left_promised", "_prior", "_promised", "_rows", "_worth"),
    )

    def __init__(self, grid: Grid, prior: float, decay: float, above: float, band_prior: float) -> None:
        """No cell is known yet.

        prior: weight, in tokens promised, of the belief that a neighbourhood is as the image (trust 1).
        decay: weight of a cell on the left, per cell of distance; above: weight of the three cells above.
        band_prior: weight, in tokens promised, of the belief that a band of probabilities is worth what it says.
        """
        self._grid = grid
        self._prior, self._decay, self._above = prior, decay, above
        self._promised, self._kept = [0.0] * grid.cells, [0.0] * grid.cells
        self._left_promised, self._left_kept = 0.0, 0.0
        self._band_promised = np.full(len(BANDS) + 1, band_prior)
        self._band_kept = self._band_promised.copy()
        self._worth: FloatArray = np.ones(len(BANDS) + 1)
        self._rows: list[FloatArray | None] = [None] * grid.cells
        self._last_row: FloatArray | None = None

    def learn(self, cell: int, probs: FloatArray, kept: int | None) -> None:
        """Take in `cell`, in raster order: the draft probabilities [k] of its siblings, and which was committed."""
        bands = _ENDS.searchsorted(probs)
        promised = min(float(np.add.reduce(probs * self._worth[bands])), 1.0)
        word = float(kept is not None)
        self._promised[cell], self._kept[cell] = promised, word
        self._left_promised = self._left_promised * self._decay + promised
        self._left_kept = self._left_kept * self._decay + word
        self._band_promised += np.bincount(bands, probs, self._worth.size)
        if kept is not None:
            self._band_kept[bands[kept]] += 1.0
        self._worth = self._band_kept / self._band_promised
        self._rows[cell] = self._last_row = probs

    def trust(self, cell: int) -> float:
        """(prior + kept) / (prior + promised) over the weighted cells on the left of and above `cell`."""
        kept, promised = self._prior + self._left_kept, self._prior + self._left_promised
        row, column = divmod(cell, self._grid.width)
        if row:
            near = self._near_above(cell, column)
            kept += self._above * sum(self._kept[near])
            promised += self._above * sum(self._promised[near])
        return kept / promised

    def at(self, cell: int) -> Adjust:
        """What draft probabilities are worth at `cell`."""
        trust = self.trust(cell)

        def adjust(probs: FloatArray) -> FloatArray:
            return within_one(probs * (trust * self._worth)[_ENDS.searchsorted(probs)])

        return adjust

    def expected(self, cell: int) -> FloatArray | None:
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
