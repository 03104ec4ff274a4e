"""How long a Jacobi window should be: what its passes should yield at every length, learned as an image is drawn."""

from typing import Final

import numpy as np

from underpaint.algos.arrays import FloatArray
from underpaint.algos.draft.acceptance_estimator import ChainForecast

REVISIONS: Final = 4
"""A draft that was revised so often is as good as it gets."""
FADING: Final = 0.99
"""What a trial counts for after one more pass over the window."""
_LEAST_CHANCE: Final = 1e-2
"""Of a place to be reached, below which the places behind it are left out."""


_FIRST: Final = np.array([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8])
"""The probability that a draft is rejected that no pass revised."""
_LEFT: Final = np.array([0.7, 0.85, 1.0])
"""The share of it that each revision leaves."""
_BELIEF: Final = np.array([0.0, -2.0, -4.0])
"""The logarithm of how likely each share is before any draft was tried. The belief that revisions help is
strong, as the drafts that are revised most often stand in hard places: they look as if revisions did not help."""
REJECTED: Final = (_FIRST[:, None, None] * _LEFT[:, None] ** np.arange(REVISIONS + 1)).reshape(-1, REVISIONS + 1)
"""[H, REVISIONS + 1] for each pair of both, by the passes that revised a draft: the probability of its rejection."""
_PRIOR: Final = np.tile(_BELIEF, _FIRST.size)
_LOG_REJECTED: Final = np.log(REJECTED)
_LOG_ACCEPTED: Final = np.log1p(-REJECTED)


class WindowLength:
    """Chooses the number of drafts in a Jacobi window that yields most expected tokens per millisecond.

    A pass over the window decides the drafts up to the first rejection, and revises those behind it. A draft that was
    revised `r` times is rejected with probability `q * k**r`. Both are learned: each pair
    (`REJECTED`) is weighed by its prior and by its likelihood of what was accepted, in which earlier passes fade.

    A longer window costs more, and its drafts are revised more often before their turn comes: where `L` drafts yield
    `m` tokens a pass, the draft at place `i` was revised `(L - i) / m` times. That gives the tokens of a pass, which
    are `m` again, so `m` is found step by step, one step a pass.
    """

    __slots__ = ("_floor", "_likelihood", "_ms", "_revisions", "_tokens")

    def __init__(self, cells: int, ms: FloatArray) -> None:
        """Begin an image: nothing was tried yet.

        Args:
            cells: Of the image.
            ms: Of a cycle by drafts, from 1 on; `[L]`, may be empty.
        """
        self._ms: list[float] = ms.tolist()
        self._floor: list[float] = np.minimum.accumulate(ms[::-1])[::-1].tolist()
        self._revisions = [0] * cells
        self.forget()
        self._tokens, chances = [1.0] * ms.size, self.acceptance()
        for length in range(1, ms.size + 1):
            self._tokens[length - 1] = self._tokens[max(0, length - 2)]
            for _ in range(3):
                self._tokens[length - 1] = self._tokens_of(length, chances)

    def forget(self) -> None:
        """Go back to what is believed before any draft was tried."""
        self._likelihood = np.zeros(len(REJECTED))

    def acceptance(self) -> list[float]:
        """The probability that a draft is accepted, by the passes that revised it, from 0 to `REVISIONS`."""
        belief = _PRIOR + self._likelihood
        weights = np.exp(belief - belief.max())
        chances: list[float] = (1.0 - weights @ REJECTED / weights.sum()).tolist()
        return chances

    def best(self, longest: int) -> ChainForecast:
        """The window of at most `longest` drafts with most expected tokens per ms; ties: the shorter."""
        chances = self.acceptance()
        most_tokens = 1.0 / (1.0 - chances[-1])
        best, rate = 0, 0.0
        for length in range(1, longest + 1):
            if most_tokens <= rate * self._floor[length - 1]:
                break
            tokens = self._tokens[length - 1] = self._tokens_of(length, chances)
            if tokens > rate * self._ms[length - 1]:
                best, rate = length, tokens / self._ms[length - 1]
        return ChainForecast(best, rate)

    def _tokens_of(self, length: int, chances: list[float]) -> float:
        """Of a pass over so many drafts: half a step from the last forecast to the one that follows from it."""
        last, reached, tokens = self._tokens[length - 1], 1.0, 1.0
        for behind in range(length - 1, -1, -1):
            revisions = behind / last
            whole = int(revisions)
            if whole >= REVISIONS:
                reached *= chances[REVISIONS]
            else:
                reached *= chances[whole] + (revisions - whole) * (chances[whole + 1] - chances[whole])
            tokens += reached
            if reached < _LEAST_CHANCE:
                break
        return 0.5 * (last + tokens)

    def learn(self, cell: int, drafts: int, accepted: int) -> None:
        """Take in a pass over drafts for the cells from `cell` on, of which the first `accepted` were accepted."""
        revisions = self._revisions
        likelihood = FADING * self._likelihood
        likelihood += _LOG_ACCEPTED[:, revisions[cell : cell + accepted]].sum(axis=1)
        if accepted < drafts:
            likelihood += _LOG_REJECTED[:, revisions[cell + accepted]]
        self._likelihood = likelihood
        for place in range(cell + accepted + 1, cell + drafts):
            revisions[place] = min(REVISIONS, revisions[place] + 1)
