"""The key-value cache: buffers that graphs read in place, written only where positions are committed."""

from functools import cache, lru_cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from underpaint.algos.arrays import BoolArray, FloatArray, IntArray
from underpaint.runtime.engines.context import EngineError

HIDDEN = np.float32(-1e9)
"""Added to the score of what must not be seen. Finite: a row with nothing to see must not turn into NaN."""


BLOCK = 64
"""Slots by which the part of a cache that passes read grows."""


class KeyValueCache:
    """Keys [L, B, H, hd, S] and values [L, B, H, S, hd] in memory that is never moved or reallocated.

    The first `length` slots hold committed positions, in the order they were committed; graphs see no others but
    the scratch slots behind them that a caller shows on purpose. S, the slots that passes read, starts small and
    grows a block at a time: attention over empty slots costs as much as over full ones. Only where it grows, a few
    times an image, are the committed slots laid out anew.
    """

    def __init__(self, layers: int, rows: int, heads: int, head_dim: int, capacity: int) -> None:
        self._outer = (layers, rows, heads)
        self._head_dim = head_dim
        most = layers * rows * heads * head_dim * capacity
        self.key_memory = np.zeros(most, dtype=np.float32)
        self.value_memory = np.zeros(most, dtype=np.float32)
        self.capacity = capacity
        self._first = (capacity - 1) % BLOCK + 1
        self._bias = np.empty(capacity, dtype=np.float32)
        self.clear()

    @property
    def slots(self) -> int:
        """S."""
        return int(self.values.shape[3])

    @property
    def bias(self) -> NDArray[np.float32]:
        """[S]: 0 on committed slots, HIDDEN on all others."""
        return self._bias[: self.slots]

    def clear(self) -> None:
        """Forget every position."""
        self.length = 0
        self._bias[:] = HIDDEN
        self._lay_out(self._first)

    def reserve(self, count: int) -> None:
        """Let passes read at least `count` slots. Raises EngineError where the memory ends."""
        if count <= self.slots:
            return
        if count > self.capacity:
            raise EngineError(
                f"cache: expected at most {self.capacity} positions, got {count}; draft fewer nodes a cycle, or "
                "export with more scratch slots"
            )
        used = self.slots
        keys, values = self.keys.copy(), self.values.copy()
        self._lay_out(used + -(-(count - used) // BLOCK) * BLOCK)
        self.keys[..., :used], self.keys[..., used:] = keys, 0.0
        self.values[:, :, :, :used], self.values[:, :, :, used:] = values, 0.0

    def _lay_out(self, slots: int) -> None:
        size = self.key_memory.size // self.capacity * slots
        self.keys = self.key_memory[:size].reshape(*self._outer, self._head_dim, slots)
        self.values = self.value_memory[:size].reshape(*self._outer, slots, self._head_dim)

    def commit(self, keys: FloatArray, values: FloatArray, chosen: IntArray | slice) -> None:
        """Append the `chosen` positions of new keys and values [L, B, H, T, hd]; they are visible from now on."""
        count = self.place(keys, values, chosen, 0)
        self._bias[self.length : self.length + count] = 0.0
        self.length += count

    def hide_first(self, count: int) -> None:
        """Let no position see the first `count` slots from now on."""
        self._bias[:count] = HIDDEN

    def place(self, keys: FloatArray, values: FloatArray, chosen: IntArray | slice, behind: int) -> int:
        """Write to scratch slots, `behind` slots after the committed ones, which stay as they are; return the count.

        Raises EngineError where the memory ends.
        """
        picked = keys[:, :, :, chosen]
        count = int(picked.shape[3])
        start = self.length + behind
        self.reserve(start + count)
        self.keys[..., start : start + count] = picked.swapaxes(3, 4)
        self.values[:, :, :, start : start + count] = values[:, :, :, chosen]
        return count

    def write(self, keys: FloatArray, values: FloatArray, chosen: IntArray, slots: IntArray) -> None:
        """Write the `chosen` positions to these slots, over what was there; `length` and `bias` stay as they are."""
        if not chosen.size:
            return
        self.reserve(int(slots.max()) + 1)
        # Run by run: what lies side by side is copied as a slice, with nothing gathered first.
        ends = ((np.diff(chosen) != 1) | (np.diff(slots) != 1)).nonzero()[0] + 1
        for first, end in pairwise((0, *ends.tolist(), chosen.size)):
            row, slot, count = int(chosen[first]), int(slots[first]), end - first
            self.keys[..., slot : slot + count] = keys[:, :, :, row : row + count].swapaxes(3, 4)
            self.values[:, :, :, slot : slot + count] = values[:, :, :, row : row + count]


@cache
def causal(count: int) -> NDArray[np.float32]:
    """A bias [count, count] under which each position sees itself and those before it; shared, so read-only."""
    bias = np.triu(np.full((count, count), HIDDEN, dtype=np.float32), k=1)
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
    return np.where(visible, np.float32(0), HIDDEN)


def hide_in_pass(visible: BoolArray) -> NDArray[np.float32]:
    """`hide` among the positions of a pass [T, T]; read-only, and kept, as the same trees come again and again."""
    return _hidden(visible.shape, visible.tobytes())


@lru_cache(maxsize=256)
def _hidden(shape: tuple[int, ...], visible: bytes) -> NDArray[np.float32]:
    bias = hide(np.frombuffer(visible, dtype=np.bool_).reshape(shape))
    bias.flags.writeable = False
    return bias
