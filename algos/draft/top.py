"""The likeliest tokens of each row, exactly and cheaply."""

from typing import NamedTuple

import numpy as np

from algos.arrays import FloatArray, IntArray

_FEWEST_GROUPS = 4
_LARGEST_GROUP = 32


class Top(NamedTuple):
    """Per row, falling probability; ties stand by rising token. Places past a row's support hold 0 and 0.0."""

    tokens: IntArray
    """[F, k] int64."""
    probs: FloatArray
    """[F, k] float64, at most 1."""


def top(laws: FloatArray, count: int) -> Top:
    """The `count` likeliest tokens of each law [F, V] that have probability; k = min(count, V).

    The k-th largest of the maxima of disjoint groups is at most the k-th largest of all, so everything below it
    can be dropped before sorting: one pass over the row instead of a partition.
    """
    rows, vocab_size = laws.shape
    count = min(count, vocab_size)
    if count == 1:
        best = laws.argmax(axis=1)
        peaks = laws[np.arange(rows), best].astype(np.float64)
        return Top(best[:, None].astype(np.int64), np.minimum(peaks, 1.0)[:, None])
    flat = laws.reshape(-1)
    survivors = np.flatnonzero(laws >= _floors(laws, count)[:, None])
    values = flat[survivors]
    order = survivors[np.lexsort((-values, survivors // vocab_size))]  # stable: equal values keep their rising tokens
    edges = np.arange(rows + 1) * vocab_size
    starts = survivors.searchsorted(edges)
    places = starts[:-1, None] + np.arange(count)
    short = int((starts[1:] - starts[:-1]).min()) < count
    if short:
        missing = places >= starts[1:, None]
        places[missing] = 0
    found = order[places]
    probs = np.minimum(flat[found], 1.0, dtype=np.float64)
    tokens = found % vocab_size
    if short:
        tokens[missing], probs[missing] = 0, 0.0
    return Top(tokens, probs)


def _floors(laws: FloatArray, count: int) -> FloatArray:
    """[F]: values that `count` entries of the row reach, or the least normal number where too few do."""
    rows, vocab_size = laws.shape
    depth = min(_LARGEST_GROUP, vocab_size // (_FEWEST_GROUPS * count))
    if depth > 1:
        width = vocab_size // depth
        maxima = laws[:, : depth * width].reshape(rows, depth, width).max(axis=1)
    else:
        maxima = laws
    place = maxima.shape[1] - count
    floors: FloatArray = np.maximum(np.partition(maxima, place, axis=1)[:, place], np.finfo(laws.dtype).tiny)
    return floors
