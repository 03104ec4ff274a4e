"""The KV cache: which slots of each row are committed, independent of the memory that stores them."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from underpaint.algos.arrays import IntArray
from underpaint.artifacts.decoder_config import DecoderConfig
from underpaint.artifacts.decoder_graph import MASKED_SCORE
from underpaint.runtime.engines.context import EngineError

BLOCK = 64
"""Number of slots by which the visible part of a host cache grows."""


class CacheMemory(Protocol):
    """The memory of keys [L, B, H, hd, S] and values [L, B, H, S, hd], and of the last pass's keys and values."""

    @property
    def capacity(self) -> int:
        """The largest number of slots."""
        ...

    @property
    def slots(self) -> int:
        """The number of slots that passes read, S."""
        ...

    @property
    def new_positions(self) -> int:
        """The number of new positions in the last pass, T."""
        ...

    def reset(self) -> None:
        """Reduce the slots that passes read to the minimum; their contents become undefined."""
        ...

    def grow(self, count: int) -> None:
        """Let passes read at least `count` slots, at most `capacity`; keep the contents of the existing slots."""
        ...

    def write(self, rows: slice, positions: IntArray | slice, start: int, count: int) -> None:
        """Copy `count` positions of the last pass to the slots of `rows`, beginning at slot `start`."""
        ...

    def write_at(self, positions: IntArray, slots: IntArray) -> None:
        """Copy positions [n] of the last pass to slots [n] of every row."""
        ...


class KeyValueCache:
    """The lengths and the visibility mask of a KV cache, to which only commits add positions.

    The first `lengths[b]` slots of row b hold its committed positions in commit order. Passes see no other slots,
    except scratch slots after them that a caller unmasks explicitly.
    """

    def __init__(self, memory: CacheMemory, rows: int) -> None:
        self.rows = rows
        self._memory = memory
        self._bias = np.empty((rows, 1, memory.capacity), dtype=np.float32)
        self.clear()

    @property
    def slots(self) -> int:
        """The number of slots that the next pass reads, S; it grows as positions are written."""
        return self._memory.slots

    @property
    def length(self) -> int:
        """The number of committed positions in every row; EngineError if the rows differ."""
        if self._length is None:
            raise EngineError(f"cache: expected rows of one length, got {self._lengths}; ask for `lengths`")
        return self._length

    @property
    def is_empty(self) -> bool:
        """Whether all rows are empty."""
        return self._length == 0

    @property
    def lengths(self) -> IntArray:
        """The number of committed positions in each row, [B]."""
        return np.array(self._each(), dtype=np.int64)

    def clear(self, hidden: Sequence[int] = ()) -> None:
        """Remove all positions.

        Args:
            hidden: [B], for each row, the number of first slots that it never sees; empty hides none.

        Raises:
            EngineError: `hidden` has another number of rows.
        """
        if hidden and len(hidden) != self.rows:
            raise EngineError(f"cache: expected hidden slots of {self.rows} rows, got {tuple(hidden)}")
        self._length: int | None = 0
        self._lengths: list[int] = []
        """The length of each row if `_length` is None."""
        self._hidden = tuple(hidden) or (0,) * self.rows
        self._most_hidden = max(self._hidden)
        self._bias[:] = MASKED_SCORE
        self._memory.reset()
        self._look()

    def commit(self, positions: IntArray | slice, counts: Sequence[int] | None = None) -> None:
        """Append positions of the last pass and make them visible, except those that the cache hides.

        Args:
            positions: [n], the same for every row, or [B, n]; or a slice of the positions.
            counts: [B], how many of them each row takes; None takes all.

        Raises:
            EngineError: The cache is full.
        """
        start = self._length
        if start is None or counts is not None or (not isinstance(positions, slice) and positions.ndim == 2):
            self._commit_rows(positions, counts)
            return
        end = start + self._append(slice(None), positions, start)
        if start >= self._most_hidden:
            self._bias[:, :, start:end] = 0.0
        else:
            for row, hidden in enumerate(self._hidden):
                self._bias[row, 0, max(start, hidden) : end] = 0.0
        self._length = end

    def write_scratch(self, behind: int) -> int:
        """Write the last pass to hidden slots, starting `behind` slots after the committed ones; return its T."""
        everything = slice(0, self._memory.new_positions)
        if self._length is not None:
            return self._append(slice(None), everything, self._length + behind)
        for row, length in enumerate(self._lengths):
            self._append(slice(row, row + 1), everything, length + behind)
        return self._memory.new_positions

    def write_at(self, positions: IntArray, slots: IntArray) -> None:
        """Overwrite `slots` [n] of every row with `positions` [n] of the last pass.

        Lengths and visibility do not change. Raises EngineError if the cache is full.
        """
        if positions.size:
            self._reserve(int(slots.max()) + 1)
            self._memory.write_at(positions, slots)

    def _each(self) -> list[int]:
        return self._lengths if self._length is None else [self._length] * self.rows

    def _look(self) -> None:
        self.past_bias: NDArray[np.float32] = self._bias[:, :, : self._memory.slots]
        """A view [B, 1, S]: 0 for visible committed slots, `MASKED_SCORE` for all others."""

    def _commit_rows(self, positions: IntArray | slice, counts: Sequence[int] | None) -> None:
        lengths = list(self._each())
        every = np.arange(self._memory.new_positions)[positions] if isinstance(positions, slice) else positions
        for row, start in enumerate(lengths):
            chosen = every[row] if every.ndim == 2 else every
            chosen = chosen if counts is None else chosen[: counts[row]]
            lengths[row] = end = start + self._append(slice(row, row + 1), chosen, start)
            self._bias[row, 0, max(start, self._hidden[row]) : end] = 0.0
        one = lengths[0] if len(set(lengths)) == 1 else None
        self._length, self._lengths = one, lengths

    def _append(self, rows: slice, positions: IntArray | slice, start: int) -> int:
        if isinstance(positions, slice):
            first, last, _ = positions.indices(self._memory.new_positions)
            count = last - first
        else:
            count = int(positions.size)
        if count:
            self._reserve(start + count)
            self._memory.write(rows, positions, start, count)
        return count

    def _reserve(self, count: int) -> None:
        if count <= self._memory.slots:
            return
        if count > self._memory.capacity:
            raise EngineError(
                f"cache: expected at most {self._memory.capacity} positions, got {count}; draft fewer nodes a cycle, "
                "or export with more scratch slots"
            )
        self._memory.grow(count)
        self._look()


class HostMemory:
    """A KV cache in NumPy arrays that graphs read in place; its memory is never reallocated.

    S starts small and grows by blocks, because attention costs the same for empty and full slots. When it grows, a few
    times per image, the used slots are copied to their new layout.
    """

    def __init__(self, config: DecoderConfig, rows: int) -> None:
        self._outer = (config.layers, rows, config.kv_heads)
        self._head_dim = config.head_dim
        most = config.layers * rows * config.kv_heads * config.head_dim * config.capacity
        kind = np.float16 if config.precision == "fp16" else np.float32
        self.key_memory, self.value_memory = (np.zeros(most, dtype=kind) for _ in range(2))
        self.capacity = config.capacity
        self._first = (config.capacity - 1) % BLOCK + 1
        self.new_keys = self.new_values = np.zeros((*self._outer, 0, config.head_dim), dtype=kind)
        """The keys and values of the last pass, [L, B, H, T, hd]."""
        self.reset()

    @property
    def new_positions(self) -> int:
        """The number of new positions in the last pass, T."""
        return int(self.new_keys.shape[3])

    def reset(self) -> None:
        self._lay_out(self._first)

    def grow(self, count: int) -> None:
        used = self.slots
        keys, values = self.keys.copy(), self.values.copy()
        self._lay_out(used + -(-(count - used) // BLOCK) * BLOCK)
        self.keys[..., :used], self.keys[..., used:] = keys, 0.0
        self.values[:, :, :, :used], self.values[:, :, :, used:] = values, 0.0

    def _lay_out(self, slots: int) -> None:
        self.slots = slots
        size = self.key_memory.size // self.capacity * slots
        self.keys = self.key_memory[:size].reshape(*self._outer, self._head_dim, slots)
        self.values = self.value_memory[:size].reshape(*self._outer, slots, self._head_dim)

    def write(self, rows: slice, positions: IntArray | slice, start: int, count: int) -> None:
        end = start + count
        self.keys[:, rows, :, :, start:end] = self.new_keys[:, rows, :, positions].swapaxes(3, 4)
        self.values[:, rows, :, start:end] = self.new_values[:, rows, :, positions]

    def write_at(self, positions: IntArray, slots: IntArray) -> None:
        # Copy each contiguous run as a slice, without a gather.
        # Subtract directly, because np.diff takes as long as copying a position.
        ends = ((positions[1:] - positions[:-1] != 1) | (slots[1:] - slots[:-1] != 1)).nonzero()[0] + 1
        for first, end in pairwise((0, *ends.tolist(), positions.size)):
            start, count = int(positions[first]), end - first
            self.write(slice(None), slice(start, start + count), int(slots[first]), count)
