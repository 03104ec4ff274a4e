"""How far a drafter can be trusted at a cell, learned from the cells decided before it."""

from algos.draft.spec import Grid


class Calibration:
    """A map of the image: what the drafter promised at each cell, and whether it kept its word.

    At a cell where a node's children were drafted, the promise is the draft probability of those children in sum, and
    the word is kept if the committed token was among them. Under a lossless rule that token follows the target's law,
    so kept / promised estimates the target's probability of the children over the drafter's: the trust.
    """

    __slots__ = ("_above", "_decay", "_grid", "_kept", "_left_kept", "_left_promised", "_prior", "_promised")

    def __init__(self, grid: Grid, prior: float, decay: float, above: float) -> None:
        """No cell is known yet.

        prior: weight, in cells promised in full, of the belief that the drafter is right (trust 1).
        decay: weight of a cell on the left, per cell of distance; above: weight of the three cells above.
        """
        self._grid = grid
        self._prior = prior
        self._decay = decay
        self._above = above
        self._promised = [0.0] * grid.cells
        self._kept = [0.0] * grid.cells
        self._left_promised = 0.0
        self._left_kept = 0.0

    def learn(self, cell: int, promised: float, kept: bool) -> None:
        """Take in `cell`; cells come in raster order."""
        self._promised[cell] = promised
        self._kept[cell] = float(kept)
        self._left_promised = self._left_promised * self._decay + promised
        self._left_kept = self._left_kept * self._decay + kept

    def trust(self, cell: int) -> float:
        """(prior + kept) / (prior + promised) over the weighted cells on the left of and above `cell`."""
        kept, promised = self._prior + self._left_kept, self._prior + self._left_promised
        row, column = divmod(cell, self._grid.width)
        if row:
            first = cell - self._grid.width
            near = slice(first - (column > 0), first + 1 + (column < self._grid.width - 1))
            kept += self._above * sum(self._kept[near])
            promised += self._above * sum(self._promised[near])
        return kept / promised
