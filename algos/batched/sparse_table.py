"""Tables of distributions that store few tokens per row, and one shared probability for all other tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from underpaint.algos.arrays import FloatArray, IntArray

MOST_AT_ONCE: Final = 1 << 22
"""The largest number of entries in a block of dense rows."""


class SparseTable:
    """A table [R, V] of float32 distributions, indexed like an array; its rows equal the dense rows bit by bit."""

    ndim: Final = 2

    def __init__(self, tokens: IntArray, probs: FloatArray, vocab_size: int) -> None:
        """Make a table whose rows sum to 1.

        Args:
            tokens: `[R, K]` int64, the likeliest tokens of each row, the likeliest first. Places after the end of a
                row's support hold any token with probability 0.
            probs: `[R, K]` float64, their probabilities. The remaining mass is shared equally by the other tokens;
                there is none if the last probability is 0.
            vocab_size: V, at least K.
        """
        rows, count = tokens.shape
        self.shape: tuple[int, int] = (rows, vocab_size)
        rest = np.maximum(1.0 - probs.sum(axis=1), 0.0) / max(vocab_size - count, 1)
        rest[probs[:, -1] == 0.0] = 0.0  # the support has fewer than K tokens: only rounding errors remain
        self._tokens = tokens.astype(np.int32)
        self._probs, self._rest = probs.astype(np.float32), rest.astype(np.float32)
        sums = over_rows(self, lambda dense: dense.sum(axis=1))
        self._probs /= sums[:, None]
        self._rest /= sums

    @property
    def size(self) -> int:
        """The number of entries of the dense table."""
        return self.shape[0] * self.shape[1]

    @property
    def nbytes(self) -> int:
        """The memory used by the table, in bytes."""
        return int(self._tokens.nbytes + self._probs.nbytes + self._rest.nbytes)

    def __getitem__(self, at: Any) -> FloatArray:
        """Return the rows `at`, or the entries at (rows, tokens), which broadcast against each other."""
        return self._numbers(*at) if isinstance(at, tuple) else self.take(at)

    def take(self, rows: IntArray | int, axis: int = 0) -> FloatArray:
        """Return the distributions [..., V] of `rows`."""
        flat_rows = np.asarray(rows).reshape(-1)
        dense = np.repeat(self._rest[flat_rows, None], self.shape[1], axis=1)
        # Places after the support may repeat the likeliest token, so that token is written last.
        np.put_along_axis(dense, self._tokens[flat_rows, ::-1].astype(np.int64), self._probs[flat_rows, ::-1], 1)
        return dense.reshape(*np.shape(rows), self.shape[1])

    def _numbers(self, rows: IntArray, tokens: IntArray) -> FloatArray:
        rows, tokens = np.broadcast_arrays(rows, tokens)
        flat_rows, flat_tokens = rows.reshape(-1), tokens.reshape(-1)
        probs = np.empty(flat_rows.size, dtype=np.float32)
        step = max(1, MOST_AT_ONCE // self._tokens.shape[1])
        for start in range(0, probs.size, step):
            part = slice(start, start + step)
            named = self._tokens[flat_rows[part]] == flat_tokens[part, None]
            place = named.argmax(axis=1)
            is_named = named[np.arange(place.size), place]
            probs[part] = np.where(is_named, self._probs[flat_rows[part], place], self._rest[flat_rows[part]])
        return probs.reshape(rows.shape)


Table: TypeAlias = FloatArray | SparseTable
"""A table of distributions [R, V], dense or sparse."""
Tables: TypeAlias = FloatArray | tuple[SparseTable, ...]
"""Distributions [D, R, V]; each of the D entries is a `Table`."""


def over_rows(table: Table, figure: Callable[[FloatArray], NDArray[Any]]) -> NDArray[Any]:
    """Return [R, ...], `figure` of every row, computed in blocks; it maps dense rows [n, V] to [n, ...]."""
    if not isinstance(table, SparseTable):
        return figure(table)
    rows, vocab_size = table.shape
    step = max(1, MOST_AT_ONCE // vocab_size)
    return np.concatenate([figure(table.take(np.arange(at, min(at + step, rows)))) for at in range(0, rows, step)])
