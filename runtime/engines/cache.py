"""The key-value cache: what of it is committed, row by row, whatever memory it lies in."""

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
"""Slots by which the part of a host cache that passes read grows."""


class CacheMemory(Protocol):
    """Where keys [L, B, H, hd, S] and values [L, B, H, S, hd] lie, and those of the pass that ran last."""

    @property
    def capacity(self) -> int:
        """The most slots."""
        ...

    @property
    def slots(self) -> int:
        """S, the slots that passes read."""
        ...

    @property
    def new_positions(self) -> int:
        """T, the new positions of the last pass."""
        ...

    def reset(self) -> None:
        """Let passes read as few slots as they can; what lies in them means nothing."""
        ...

    def grow(self, count: int) -> None:
        """Let passes read at least `count` slots, at most `capacity`; what lies in the others stays."""
        ...

    def write(self, rows: slice, positions: IntArray | slice, start: int, count: int) -> None:
        """Copy `count` positions of the last pass to the slots of these rows from `start` on."""
        ...

    def write_at(self, positions: IntArray, slots: IntArray) -> None:
        """Copy positions [n] of the last pass to slots [n] of every row."""
        ...


class KeyValueCache:
    """Lengths, and what is visible, of a cache that is written only where positions are committed.

    The first `lengths[b]` slots of row b hold its committed positions, in the order they were committed; passes see no
    others but the scratch slots behind them that a caller shows on purpose.
    """

    def __init__(self, memory: CacheMemory, rows: int) -> None:
        self.rows = rows
        self._memory = memory
        self._bias = np.empty((rows, 1, memory.capacity), dtype=np.float32)
        self.clear()

    @property
    def slots(self) -> int:
        """S, the slots that the next pass reads; grows as positions are written."""
        return self._memory.slots

    @property
    def length(self) -> int:
        """Committed positions of every row; EngineError where rows have different ones."""
        if self._length is None:
            raise EngineError(f"cache: expected rows of one length, got {self._lengths}; ask for `lengths`")
        return self._length

    @property
    def is_empty(self) -> bool:
        """Whether no row holds a position."""
        return self._length == 0

    @property
    def lengths(self) -> IntArray:
        """[B]: committed positions of each row."""
        return np.array(self._each(), dtype=np.int64)

    def clear(self, hidden: Sequence[int] = ()) -> None:
        """Forget every position. hidden: [B], how many of the first slots each row never sees."""
        if hidden and len(hidden) != self.rows:
            raise EngineError(f"cache: expected hidden slots of {self.rows} rows, got {tuple(hidden)}")
        self._length: int | None = 0
        self._lengths: list[int] = []
        """Of each row, where `_length` is None."""
        self._hidden = tuple(hidden) or (0,) * self.rows
        self._most_hidden = max(self._hidden)
        self._bias[:] = MASKED_SCORE
        self._memory.reset()
        self._look()

    def commit(self, positions: IntArray | slice, counts: Sequence[int] | None = None) -> None:
        """Append positions of the last pass; they are visible from now on. Raises EngineError where the memory ends.

        positions: [n], the same in every row, or [B, n]. counts: [B], how many of them each row takes; None takes all.
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
        """Write the last pass to the slots from `behind` after the committed ones on, hidden; return its T."""
        everything = slice(0, self._memory.new_positions)
        if self._length is not None:
            return self._append(slice(None), everything, self._length + behind)
        for row, length in enumerate(self._lengths):
            self._append(slice(row, row + 1), everything, length + behind)
        return self._memory.new_positions

    def write_at(self, positions: IntArray, slots: IntArray) -> None:
        """Write `positions` [n] of the last pass to `slots` [n] of every row, over what was there.

        Lengths and what is visible stay. Raises EngineError where the memory ends.
        """
        if positions.size:
            self._reserve(int(slots.max()) + 1)
            self._memory.write_at(positions, slots)

    def _each(self) -> list[int]:
        return self._lengths if self._length is None else [self._length] * self.rows

    def _look(self) -> None:
        self.past_bias: NDArray[np.float32] = self._bias[:, :, : self._memory.slots]
        """[B, 1, S]: 0 on committed slots, `MASKED_SCORE` on all others; a view."""

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
    """A cache in NumPy arrays that graphs read in place; the memory is never moved or reallocated.

    S starts small and grows a block at a time: attention over empty slots costs as much as over full ones. Only where
    it grows, a few times an image, are the used slots laid out anew.
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
        """[L, B, H, T, hd], of the last pass."""
        self.reset()

    @property
    def new_positions(self) -> int:
        """T."""
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
        # Run by run: what lies side by side is copied as a slice, with nothing gathered first.
        # Differences are taken by hand: np.diff takes as long as copying a position.
        ends = ((positions[1:] - positions[:-1] != 1) | (slots[1:] - slots[:-1] != 1)).nonzero()[0] + 1
        for first, end in pairwise((0, *ends.tolist(), positions.size)):
            start, count = int(positions[first]), end - first
            self.write(slice(None), slice(start, start + count), int(slots[first]), count)
