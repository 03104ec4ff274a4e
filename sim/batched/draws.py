"""Draws from many distributions at once: the place in the cumulated distributions is looked up, and searched for only
near a step."""

import numpy as np
from numpy.typing import NDArray

from underpaint.algos.arrays import FloatArray, IntArray
from underpaint.algos.batched.sparse_table import MOST_AT_ONCE, SparseTable, Table

_BELOW_ONE = 1.0 - 1e-9
_CELLS_PER_TOKEN = 4
MOST_LOOKED_UP = 2**19
"""Entries of the distributions at most; with more, a table would take longer to make than it saves."""


class Draws:
    """[R, V] distributions made ready for draws.

    The cumulated distributions stand behind each other, row r from r to r + 1, and are cut into even cells. A uniform
    number in a cell where no step is needs no search: all such numbers give one token. Those of a sparse table are made
    when they are drawn from.
    """

    def __init__(self, distributions: Table) -> None:
        rows, self._vocab_size = distributions.shape
        self._sparse = distributions if isinstance(distributions, SparseTable) else None
        self._token: NDArray[np.int32] | None = None
        if isinstance(distributions, SparseTable):
            return
        self._steps = _steps(distributions, np.arange(rows)).reshape(-1)
        # Cells of a row: a power of two, so that a number's cell is exact.
        self._cells = 1 << (_CELLS_PER_TOKEN * self._vocab_size).bit_length() - 1
        self._token = self._tokens_of_cells(rows) if distributions.size <= MOST_LOOKED_UP else None

    def _tokens_of_cells(self, rows: int) -> NDArray[np.int32]:
        """[R * cells + 1] the token that each cell gives, -1 where a step is within; int32, to stay in the cache."""
        within = (self._steps * self._cells).astype(np.int64)
        gaps = np.diff(within, prepend=0, append=rows * self._cells + 1)
        next_token = np.append(np.tile(np.arange(self._vocab_size, dtype=np.int32), rows), np.int32(-1))
        tokens = next_token.repeat(gaps)
        tokens[within] = -1
        return tokens

    def __call__(self, rows: IntArray, uniforms: FloatArray) -> IntArray:
        """One token from the distribution of each of `rows`, for each of `uniforms` in [0, 1); its probability is never
        0.

        Both broadcast against each other.
        """
        at: FloatArray = np.minimum(uniforms, _BELOW_ONE) + rows
        if self._sparse is not None:
            return self._searched_rows(self._sparse, np.broadcast_to(rows, at.shape).reshape(-1), at)
        if self._token is None:
            return self._searched(at)
        tokens: IntArray = self._token.take((at * self._cells).astype(np.int64)).astype(np.int64)
        near = (tokens < 0).nonzero()
        tokens[near] = self._searched(at[near])
        return tokens

    def _searched(self, at: FloatArray) -> IntArray:
        tokens: IntArray = self._steps.searchsorted(at, side="right") - at.astype(np.int64) * self._vocab_size
        return tokens

    def _searched_rows(self, table: SparseTable, rows: IntArray, at: FloatArray) -> IntArray:
        """As `_searched`, in the `rows` [M] of a table, of as many places as `at` has."""
        flat, tokens = at.reshape(-1), np.empty(rows.size, dtype=np.int64)
        step = max(1, MOST_AT_ONCE // self._vocab_size)
        for start in range(0, rows.size, step):
            some = slice(start, start + step)
            steps = _steps(table.take(rows[some]), rows[some])
            tokens[some] = (steps <= flat[some, None]).sum(axis=1)
        return tokens.reshape(at.shape)


def _steps(distributions: FloatArray, rows: IntArray) -> FloatArray:
    """[R, V] float64 cumulated distributions of sum 1, each behind the number of its row."""
    totals = distributions.sum(axis=1, dtype=np.float64, keepdims=True)
    steps: FloatArray = rows[:, None] + distributions.cumsum(axis=1, dtype=np.float64) / totals
    return steps
