"""The key-value cache: buffers that graphs read in place, written only where positions are committed."""

import numpy as np
from numpy.typing import NDArray

from algos.arrays import BoolArray, FloatArray, IntArray
from runtime.session import EngineError

HIDDEN = np.float32(-1e9)
"""Added to the score of what must not be seen. Finite: a row with nothing to see must not turn into NaN."""


class KeyValueCache:
    """One buffer of keys [L, B, H, hd, S] and one of values [L, B, H, S, hd], never moved or reallocated.

    The first `length` slots hold committed positions, in the order they were committed; graphs see no others but
    the scratch slots behind them that a caller shows on purpose.
    """

    def __init__(self, layers: int, rows: int, heads: int, head_dim: int, capacity: int) -> None:
        self.keys = np.zeros((layers, rows, heads, head_dim, capacity), dtype=np.float32)
        self.values = np.zeros((layers, rows, heads, capacity, head_dim), dtype=np.float32)
        self.capacity = capacity
        self.length = 0
        self._unseen = np.full(capacity, HIDDEN, dtype=np.float32)

    @property
    def bias(self) -> NDArray[np.float32]:
        """[S]: 0 on committed slots, HIDDEN on all others."""
        return self._unseen

    def clear(self) -> None:
        """Forget every position."""
        self.length = 0
        self._unseen[:] = HIDDEN

    def commit(self, keys: FloatArray, values: FloatArray, chosen: IntArray | slice) -> None:
        """Append the `chosen` positions of new keys and values [L, B, H, T, hd]; they are visible from now on."""
        count = self.place(keys, values, chosen, 0)
        self._unseen[self.length : self.length + count] = 0.0
        self.length += count

    def place(self, keys: FloatArray, values: FloatArray, chosen: IntArray | slice, behind: int) -> int:
        """Write to scratch slots, `behind` slots after the committed ones, which stay as they are; return the count.

        Raises EngineError where the buffer ends.
        """
        picked = keys[:, :, :, chosen]
        count = int(picked.shape[3])
        start = self.length + behind
        if start + count > self.capacity:
            raise EngineError(
                f"cache: expected at most {self.capacity} positions, got {start + count}; draft fewer nodes a cycle, "
                "or export with more scratch slots"
            )
        self.keys[..., start : start + count] = picked.swapaxes(3, 4)
        self.values[:, :, :, start : start + count] = values[:, :, :, chosen]
        return count

    def write(self, keys: FloatArray, values: FloatArray, chosen: IntArray, slots: IntArray) -> None:
        """Write the `chosen` positions to these slots, over what was there; `length` and `bias` stay as they are."""
        self.keys[..., slots] = keys[:, :, :, chosen].swapaxes(3, 4)
        self.values[:, :, :, slots] = values[:, :, :, chosen]


def causal(count: int) -> NDArray[np.float32]:
    """A bias [count, count] under which each position sees itself and those before it."""
    return np.triu(np.full((count, count), HIDDEN, dtype=np.float32), k=1)


def hide(visible: BoolArray) -> NDArray[np.float32]:
    """The bias that shows what is True in `visible`."""
    return np.where(visible, np.float32(0), HIDDEN)
