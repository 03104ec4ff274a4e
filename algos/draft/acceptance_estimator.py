"""Estimates how often the drafter's likeliest token is accepted, to forecast chains of unknown draft probabilities."""

from collections.abc import Sequence
from typing import Final, NamedTuple

from underpaint.algos.draft.costs import SizeCosts
from underpaint.algos.protocols import Grid

FIRST_ACCEPTANCE: Final = 0.5
"""The prior probability that the likeliest token is accepted, before any was tried."""

_ONE_LEVEL: Final = SizeCosts([1.0], [float("inf")])


class ChainForecast(NamedTuple):
    """The best chain to draft in one call and verify, and its expected rate."""

    levels: int
    rate: float
    """Expected tokens per ms; 0 if there is no chain."""


class AcceptanceEstimator:
    """Estimates, for each cell, the probability that the drafter's likeliest token is accepted.

    A token counts as tried if all tokens before it in its draft were accepted. Tokens after a draft's first rejection,
    and cells without drafts, do not count. The estimate has two parts. The first is the acceptance at each level over
    the whole image, because drafters get worse with each token past the root. The second is the acceptance around the
    cell, with a Beta prior whose mean is the level's estimate.
    """

    __slots__ = (
        *("_above", "_above_accepted", "_above_tried", "_decay", "_last", "_left_accepted", "_left_tried"),
        *("_level_accepted", "_level_prior", "_level_tried", "_prior", "_width"),
    )

    def __init__(self, grid: Grid, prior: float, decay: float, above: float, level_prior: float) -> None:
        """Begin an image, without any observations.

        Args:
            grid: The size of the image in cells.
            prior: Weight, in tried tokens, of the prior that a neighbourhood is like the image.
            decay: Weight of a cell to the left, per cell of distance.
            above: Weight of the three cells above.
            level_prior: Weight, in tried tokens, of the prior that a level is like the one before it.
        """
        self._width = grid.width
        self._prior, self._decay, self._above, self._level_prior = prior, decay, above, level_prior
        self._left_tried, self._left_accepted, self._last = 0.0, 0.0, 0
        self._level_tried: list[int] = []
        self._level_accepted: list[int] = []
        # For the three cells above each cell: how many were tried and accepted. Each row has one place more than cells,
        # so that its first and last cell have neighbours on both sides, and there is a row after the last one.
        self._above_tried = [0] * ((grid.height + 1) * (grid.width + 1))
        self._above_accepted = self._above_tried.copy()

    def learn(self, cell: int, accepted: Sequence[bool]) -> None:
        """Learn from a draft for the cells from `cell` on, in raster order: whether each likeliest token was accepted.

        Args:
            cell: The cell of the draft's first token.
            accepted: Whether each likeliest token was accepted, by level, only for the tokens that were tried.
        """
        if not accepted:
            return
        self._extend(len(accepted))
        width, faded = self._width, self._decay ** (cell - self._last)
        left_tried, left_accepted = self._left_tried, self._left_accepted
        above_tried, above_accepted = self._above_tried, self._above_accepted
        for level, one in enumerate(accepted):
            left_tried = left_tried * faded + 1.0
            left_accepted = left_accepted * faded + one
            faded = self._decay
            self._level_tried[level] += 1
            self._level_accepted[level] += one
            below = cell + cell // width + width + 1
            above_tried[below - 1] += 1
            above_tried[below] += 1
            above_tried[below + 1] += 1
            if one:
                above_accepted[below - 1] += 1
                above_accepted[below] += 1
                above_accepted[below + 1] += 1
            cell += 1
        self._left_tried, self._left_accepted, self._last = left_tried, left_accepted, cell - 1

    def best_chain(self, cell: int, longest: int, costs: SizeCosts) -> ChainForecast:
        """Return the chain with the most expected tokens per ms, its first token drafted for `cell`; ties: the shorter.

        Args:
            cell: The cell of the chain's first token.
            longest: The most levels of the chain, >= 0.
            costs: Costs of cycles by levels, at least from 1 to `longest`.
        """
        self._extend(longest)
        ms, slopes = costs
        width, prior, above, level_prior, decay = self._width, self._prior, self._above, self._level_prior, self._decay
        left_tried, left_accepted = self._left_tried, self._left_accepted
        above_tried, above_accepted = self._above_tried, self._above_accepted
        level_tried, level_accepted = self._level_tried, self._level_accepted
        image, faded = FIRST_ACCEPTANCE, decay ** (cell - self._last - 1)
        best, rate, chance, tokens = 0, 0.0, 1.0, 0.0
        for level in range(longest):
            image = (level_prior * image + level_accepted[level]) / (level_prior + level_tried[level])
            place = cell + cell // width
            accepted = faded * left_accepted + above * above_accepted[place]
            tried = faded * left_tried + above * above_tried[place]
            chance *= (prior * image + accepted) / (prior + tried)
            tokens += chance
            chain_rate = (1.0 + tokens) / ms[level]
            if chain_rate > rate:
                best, rate = level + 1, chain_rate
            if chance <= rate * slopes[level]:
                break
            faded *= decay
            cell += 1
        return ChainForecast(best, rate)

    def first_chance(self, cell: int) -> float:
        """Return the probability that the first token of a draft for `cell` is accepted."""
        return self.best_chain(cell, 1, _ONE_LEVEL).rate - 1.0

    def _extend(self, levels: int) -> None:
        while len(self._level_tried) < levels:
            self._level_tried.append(0)
            self._level_accepted.append(0)
