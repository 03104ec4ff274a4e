"""How often the drafter's likeliest token is kept: what a chain is worth of which no probabilities are known."""

from typing import Final, NamedTuple

import numpy as np

from algos.arrays import FloatArray
from algos.draft.spec import Grid

FIRST_CHANCE: Final = 0.5
"""Of the likeliest token to be kept, before any was tried."""


class Kept:
    """A map of the image: where the drafter's likeliest token was tried, and whether it was kept.

    A token is tried where all before it in its draft were kept: those past a draft's first rejection say nothing, nor
    do cells that nothing was drafted for. It is learned twice: by level over the whole image, as drafters drift off
    with each token past the root; and, with that as the mean of a Beta prior, for the neighbourhood of a cell.
    """

    __slots__ = (
        *("_above", "_decay", "_grid", "_kept", "_last", "_left_kept", "_left_tried"),
        *("_level_kept", "_level_prior", "_level_tried", "_prior", "_tried"),
    )

    def __init__(self, grid: Grid, prior: float, decay: float, above: float, level_prior: float) -> None:
        """No cell is known yet.

        prior: weight, in tokens tried, of the belief that a neighbourhood is as the image.
        decay: weight of a cell on the left, per cell of distance; above: weight of the three cells above.
        level_prior: weight, in tokens tried, of the belief that a level is as the one before it.
        """
        self._grid = grid
        self._prior, self._decay, self._above, self._level_prior = prior, decay, above, level_prior
        self._tried, self._kept = [0.0] * grid.cells, [0.0] * grid.cells
        self._left_tried, self._left_kept, self._last = 0.0, 0.0, 0
        self._level_tried: list[float] = []
        self._level_kept: list[float] = []

    def learn(self, cell: int, level: int, kept: bool) -> None:
        """Take in `cell`, in raster order: whether the likeliest token, drafted at `level` (0: the first), was kept."""
        self._tried[cell], self._kept[cell] = 1.0, float(kept)
        faded = self._decay ** (cell - self._last)
        self._left_tried = self._left_tried * faded + 1.0
        self._left_kept = self._left_kept * faded + kept
        self._last = cell
        self._know(level + 1)
        self._level_tried[level] += 1.0
        self._level_kept[level] += kept

    def chances(self, cell: int, count: int) -> list[float]:
        """[count] for a chain whose first token is drafted for `cell`: of each to be kept, given those before it."""
        found, width, image = [], self._grid.width, FIRST_CHANCE
        faded = self._decay ** (cell - self._last - 1)
        self._know(count)
        for level, place in enumerate(range(cell, cell + count)):
            image = (self._level_prior * image + self._level_kept[level]) / (
                self._level_prior + self._level_tried[level]
            )
            kept, tried = faded * self._left_kept, faded * self._left_tried
            row, column = divmod(place, width)
            if row:
                near = slice(place - width - (column > 0), place - width + 1 + (column < width - 1))
                kept += self._above * sum(self._kept[near])
                tried += self._above * sum(self._tried[near])
            found.append((self._prior * image + kept) / (self._prior + tried))
            faded *= self._decay
        return found

    def _know(self, levels: int) -> None:
        missing = [0.0] * (levels - len(self._level_tried))
        self._level_tried += missing
        self._level_kept += missing


class Chain(NamedTuple):
    """A chain that one call drafts, all of it verified, and what that should yield."""

    levels: int
    rate: float
    """Expected tokens per ms; 0 where there is no chain."""


def best_chain(chances: list[float], chain_ms: FloatArray, verify_ms: FloatArray) -> Chain:
    """The length of most expected tokens per ms, at most len(chances); ties: the shorter.

    chances: of each token to be kept, given those before it. chain_ms: [>= len(chances)] ms of a call by levels, from 1
    on; verify_ms: [> len(chances)] ms of a target pass by drafted nodes, from 0 on.
    """
    count = len(chances)
    if not count:
        return Chain(0, 0.0)
    tokens = 1.0 + np.add.accumulate(np.multiply.accumulate(chances))
    rates = tokens / (chain_ms[:count] + verify_ms[1 : count + 1])
    best = int(rates.argmax())
    return Chain(best + 1, float(rates[best]))
