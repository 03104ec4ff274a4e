"""How often the drafter's likeliest token is kept: what a chain is worth of which no probabilities are known."""

from collections.abc import Sequence
from typing import Final, NamedTuple

from underpaint.algos.draft.costs import Prices
from underpaint.algos.draft.spec import Grid

FIRST_CHANCE: Final = 0.5
"""Of the likeliest token to be kept, before any was tried."""


class Chain(NamedTuple):
    """A chain that one call drafts, all of it verified, and what that should yield."""

    levels: int
    rate: float
    """Expected tokens per ms; 0 where there is no chain."""


class Kept:
    """A map of the image: where the drafter's likeliest token was tried, and whether it was kept.

    A token is tried where all before it in its draft were kept: those past a draft's first rejection say nothing, nor
    do cells that nothing was drafted for. It is learned twice: by level over the whole image, as drafters drift off
    with each token past the root; and, with that as the mean of a Beta prior, for the neighbourhood of a cell.
    """

    __slots__ = (
        *("_above", "_above_kept", "_above_tried", "_decay", "_last", "_left_kept", "_left_tried"),
        *("_level_kept", "_level_prior", "_level_tried", "_prior", "_width"),
    )

    def __init__(self, grid: Grid, prior: float, decay: float, above: float, level_prior: float) -> None:
        """No cell is known yet.

        prior: weight, in tokens tried, of the belief that a neighbourhood is as the image.
        decay: weight of a cell on the left, per cell of distance; above: weight of the three cells above.
        level_prior: weight, in tokens tried, of the belief that a level is as the one before it.
        """
        self._width = grid.width
        self._prior, self._decay, self._above, self._level_prior = prior, decay, above, level_prior
        self._left_tried, self._left_kept, self._last = 0.0, 0.0, 0
        self._level_tried: list[int] = []
        self._level_kept: list[int] = []
        # Of the three cells above each cell, how many were tried and kept. Each row has one place more than cells, so
        # that the first and the last cell of a row have neighbours on both sides, and there is a row past the last.
        self._above_tried = [0] * ((grid.height + 1) * (grid.width + 1))
        self._above_kept = self._above_tried.copy()

    def learn(self, cell: int, kept: Sequence[bool]) -> None:
        """Take in a draft for the cells from `cell` on, in raster order: whether each likeliest token was kept.

        kept: by level, of those that were tried.
        """
        if not kept:
            return
        self._know(len(kept))
        width, faded = self._width, self._decay ** (cell - self._last)
        left_tried, left_kept = self._left_tried, self._left_kept
        above_tried, above_kept = self._above_tried, self._above_kept
        for level, one in enumerate(kept):
            left_tried = left_tried * faded + 1.0
            left_kept = left_kept * faded + one
            faded = self._decay
            self._level_tried[level] += 1
            self._level_kept[level] += one
            below = cell + cell // width + width + 1
            above_tried[below - 1] += 1
            above_tried[below] += 1
            above_tried[below + 1] += 1
            if one:
                above_kept[below - 1] += 1
                above_kept[below] += 1
                above_kept[below + 1] += 1
            cell += 1
        self._left_tried, self._left_kept, self._last = left_tried, left_kept, cell - 1

    def best_chain(self, cell: int, longest: int, prices: Prices) -> Chain:
        """The chain of most expected tokens per ms, its first token drafted for `cell`; ties: the shorter.

        longest: levels, >= 0; prices: of cycles by levels, from 1 to `longest` at least.
        """
        self._know(longest)
        ms, rises = prices
        width, prior, above, level_prior, decay = self._width, self._prior, self._above, self._level_prior, self._decay
        left_tried, left_kept = self._left_tried, self._left_kept
        above_tried, above_kept = self._above_tried, self._above_kept
        level_tried, level_kept = self._level_tried, self._level_kept
        image, faded = FIRST_CHANCE, decay ** (cell - self._last - 1)
        best, rate, chance, tokens = 0, 0.0, 1.0, 0.0
        for level in range(longest):
            image = (level_prior * image + level_kept[level]) / (level_prior + level_tried[level])
            place = cell + cell // width
            kept = faded * left_kept + above * above_kept[place]
            tried = faded * left_tried + above * above_tried[place]
            chance *= (prior * image + kept) / (prior + tried)
            tokens += chance
            found = (1.0 + tokens) / ms[level]
            if found > rate:
                best, rate = level + 1, found
            if chance <= rate * rises[level]:
                break
            faded *= decay
            cell += 1
        return Chain(best, rate)

    def _know(self, levels: int) -> None:
        while len(self._level_tried) < levels:
            self._level_tried.append(0)
            self._level_kept.append(0)
