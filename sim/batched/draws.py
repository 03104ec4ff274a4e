"""Draw from many distributions at once, by a lookup table and a search only near steps of cumulated distributions."""

import numpy as np
from numpy.typing import NDArray

from underpaint.algos.arrays import FloatArray, IntArray
from underpaint.algos.batched.sparse_table import MOST_AT_ONCE, SparseTable, Table

_BELOW_ONE = 1.0 - 1e-9
_CELLS_PER_TOKEN = 4
MOST_LOOKED_UP = 2**19
"""Most entries of distributions with a lookup table; for more, building the table takes longer than it saves."""


class Draws:
    """[R, V] distributions prepared for draws.

    The cumulated distributions are concatenated, row r from r to r + 1, and cut into equal cells. All uniforms in a
    cell without a step give the same token, so they need no search. A sparse table's rows are cumulated for each draw.
    """

    def __init__(self, distributions: Table) -> None:
        rows, self._vocab_size = distributions.shape
        self._sparse = distributions if isinstance(distributions, SparseTable) else None
        self._token: NDArray[np.int32] | None = None
        if isinstance(distributions, SparseTable):
            return
        self._steps = _steps(distributions, np.arange(rows)).reshape(-1)
        # The number of cells per row is a power of two, so that the cell of a uniform is exact.
        self._cells = 1 << (_CELLS_PER_TOKEN * self._vocab_size).bit_length() - 1
        self._token = self._tokens_of_cells(rows) if distributions.size <= MOST_LOOKED_UP else None

    def _tokens_of_cells(self, rows: int) -> NDArray[np.int32]:
        """[R * cells + 1] the token of each cell, or -1 if it contains a step; int32, to fit into the cache."""
        within = (self._steps * self._cells).astype(np.int64)
        gaps = np.diff(within, prepend=0, append=rows * self._cells + 1)
        next_token = np.append(np.tile(np.arange(self._vocab_size, dtype=np.int32), rows), np.int32(-1))
        tokens = next_token.repeat(gaps)
        tokens[within] = -1
        return tokens

    def __call__(self, rows: IntArray, uniforms: FloatArray) -> IntArray:
        """Draw tokens of positive probability from `rows` with `uniforms` in [0, 1); both broadcast."""
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
        """Like `_searched`, but in `rows` [M] of a sparse table, one for each of the M elements of `at`."""
        flat, tokens = at.reshape(-1), np.empty(rows.size, dtype=np.int64)
        step = max(1, MOST_AT_ONCE // self._vocab_size)
        for start in range(0, rows.size, step):
            some = slice(start, start + step)
            steps = _steps(table.take(rows[some]), rows[some])
            tokens[some] = (steps <= flat[some, None]).sum(axis=1)
        return tokens.reshape(at.shape)


def _steps(distributions: FloatArray, rows: IntArray) -> FloatArray:
    """[R, V] float64 cumulated, normalised distributions, each plus the number of its row."""
    totals = distributions.sum(axis=1, dtype=np.float64, keepdims=True)
    steps: FloatArray = rows[:, None] + distributions.cumsum(axis=1, dtype=np.float64) / totals
    return steps
