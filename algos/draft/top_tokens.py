"""Finds the likeliest tokens of each row, exactly and fast."""

from math import isqrt
from typing import NamedTuple

import numpy as np

from underpaint.algos.arrays import FloatArray, IntArray

_FEWEST_GROUPS = 4


class Top(NamedTuple):
    """Tokens in order of falling probability, ties by rising token id. Places past a row's support hold 0 and 0.0."""

    tokens: IntArray
    """[F, k] int64, the token ids."""
    probs: FloatArray
    """[F, k] float64, at most 1."""


def top(distributions: FloatArray, count: int) -> Top:
    """Return the `count` likeliest tokens with positive probability of each distribution [F, V]; k = min(count, V).

    The k-th largest of the maxima of disjoint groups is at most the k-th largest of all entries, so all smaller entries
    can be dropped before sorting: one pass over the row instead of a partition.
    """
    rows, vocab_size = distributions.shape
    count = min(count, vocab_size)
    if count == 1:
        best = distributions.argmax(axis=1)[:, None]
        return Top(best, np.minimum(np.take_along_axis(distributions, best, 1).astype(np.float64), 1.0))
    if rows == 1:
        return _top_of_one(distributions[0], _floors(distributions, count)[0, 0], count)
    flat = distributions.reshape(-1)
    survivors = (distributions >= _floors(distributions, count)).reshape(-1).nonzero()[0]
    order = np.lexsort((-flat[survivors], survivors // vocab_size))  # stable: equal values stay in order of token id
    starts = survivors.searchsorted(np.arange(0, (rows + 1) * vocab_size, vocab_size))
    places = starts[:-1, None] + np.arange(count)
    short = min((starts[1:] - starts[:-1]).tolist()) < count
    if short:
        missing = places >= starts[1:, None]
        places[missing] = 0
    indices = survivors[order[places]]
    tokens = indices % vocab_size
    probs = np.minimum(flat[indices].astype(np.float64), 1.0)
    if short:
        tokens[missing], probs[missing] = 0, 0.0
    return Top(tokens, probs)


def _top_of_one(distribution: FloatArray, floor: float, count: int) -> Top:
    """Like `top` for a single distribution [V], with half the NumPy calls, as most levels expand one node."""
    survivors = (distribution >= floor).nonzero()[0]
    best = survivors[(-distribution[survivors]).argsort(kind="stable")[:count]]
    tokens, probs = np.zeros((1, count), dtype=np.int64), np.zeros((1, count))
    tokens[0, : best.size] = best
    probs[0, : best.size] = np.minimum(distribution[best], 1.0)
    return Top(tokens, probs)


def _floors(distributions: FloatArray, count: int) -> FloatArray:
    """Return [F, 1], values that `count` entries of the row reach, or the least normal number if too few do."""
    rows, vocab_size = distributions.shape
    depth = min(isqrt(vocab_size) // 4, vocab_size // (_FEWEST_GROUPS * count))  # the fastest, as measured
    if depth > 1:
        width = vocab_size // depth
        maxima = np.maximum.reduce(distributions[:, : depth * width].reshape(rows, depth, width), axis=1)
    else:
        maxima = distributions.copy()
    place = maxima.shape[1] - count
    maxima.partition(place, axis=1)
    floors: FloatArray = np.maximum(maxima[:, place, None], np.finfo(distributions.dtype).tiny)
    return floors
