"""Attention biases: 0 where a position sees another, `MASKED_SCORE` where it does not."""

from functools import cache, lru_cache

import numpy as np
from numpy.typing import NDArray

from underpaint.algos.arrays import BoolArray
from underpaint.artifacts.decoder_graph import MASKED_SCORE


@cache
def causal(count: int) -> NDArray[np.float32]:
    """A bias [count, count] under which each position sees itself and those before it; shared, so read-only."""
    bias = np.triu(np.full((count, count), MASKED_SCORE, dtype=np.float32), k=1)
    bias.flags.writeable = False
    return bias


@cache
def alone(count: int) -> NDArray[np.float32]:
    """A bias [count, count] under which each position sees none but itself; shared, so read-only."""
    bias = hide(np.eye(count, dtype=np.bool_))
    bias.flags.writeable = False
    return bias


def hide(visible: BoolArray) -> NDArray[np.float32]:
    """The bias that shows what is True in `visible`."""
    return np.where(visible, np.float32(0), MASKED_SCORE)


def tree_bias(visible: BoolArray) -> NDArray[np.float32]:
    """`hide` among the nodes of a tree [T, T]; read-only, and cached, as the same trees come again and again."""
    return _tree_bias(visible.shape, visible.tobytes())


@lru_cache(maxsize=256)
def _tree_bias(shape: tuple[int, ...], visible: bytes) -> NDArray[np.float32]:
    bias = hide(np.frombuffer(visible, dtype=np.bool_).reshape(shape))
    bias.flags.writeable = False
    return bias
