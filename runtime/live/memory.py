"""The key-value cache of a live model: written in place, and read by attention layers without a copy."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from underpaint.algos.arrays import IntArray
from underpaint.artifacts.decoder_config import DecoderConfig

_FIRST_PASS = 64
"""Room for new positions behind the cache, at first; a larger pass makes more."""


class StaticCache:
    """Implements `engines.cache.CacheMemory`, and what attention layers of `transformers` call as `past_key_values`.

    Keys and values [rows, kv_heads, slots, head_dim] of each layer are allocated once. A pass writes its own behind the
    slots that it reads, so layers get one view of both. Committing the first positions of a pass then copies nothing.
    Heads that share keys and values stay shared.
    """

    is_compileable = False

    def __init__(self, config: DecoderConfig, rows: int, like: Tensor) -> None:
        self.capacity, self.slots = config.capacity, 0
        self._size = (rows, config.kv_heads, config.head_dim)
        self._keys = [self._empty(config.capacity + _FIRST_PASS, like) for _ in range(config.layers)]
        self._values = [self._empty(config.capacity + _FIRST_PASS, like) for _ in range(config.layers)]
        self._at, self.new_positions = 0, 0

    def _empty(self, slots: int, like: Tensor) -> Tensor:
        rows, heads, head_dim = self._size
        return torch.zeros(rows, heads, slots, head_dim, dtype=like.dtype, device=like.device)

    def update(self, key: Tensor, value: Tensor, layer: int, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Take a layer's new keys and values [B, H, T, hd]; return views of all that the pass reads."""
        count, start = key.shape[2], self.slots
        if start + count > self._keys[layer].shape[2]:
            self._keys[layer] = self._longer(self._keys[layer], start + count)
            self._values[layer] = self._longer(self._values[layer], start + count)
        keys, values = self._keys[layer], self._values[layer]
        if keys.device != key.device:  # layers of one model may lie on several devices (device_map)
            keys = self._keys[layer] = keys.to(key.device)
            values = self._values[layer] = values.to(key.device)
        keys[:, :, start : start + count], values[:, :, start : start + count] = key, value
        self._at, self.new_positions = start, count
        return keys[:, :, : start + count], values[:, :, : start + count]

    def read(self) -> tuple[list[Tensor], list[Tensor]]:
        """Views of the keys and of the values that the next pass reads, one a layer."""
        views = [[memory[:, :, : self.slots] for memory in kind] for kind in (self._keys, self._values)]
        return views[0], views[1]

    def _longer(self, memory: Tensor, slots: int) -> Tensor:
        longer = self._empty(slots + _FIRST_PASS, memory)
        longer[:, :, : memory.shape[2]] = memory
        return longer

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Slots that the next pass reads, as `transformers` asks for them."""
        return self.slots

    def reset(self) -> None:
        """See `CacheMemory`."""
        self.slots = 0

    def grow(self, count: int) -> None:
        """See `CacheMemory`."""
        self.slots = min(self.capacity, count)

    def write(self, rows: slice, positions: IntArray | slice, start: int, count: int) -> None:
        """See `CacheMemory`. Positions that lie where they are wanted are left there."""
        if isinstance(positions, slice):
            first = positions.indices(self.new_positions)[0]
            if self._at + first == start:
                return
            chosen = range(self._at + first, self._at + first + count)
        else:
            places = (positions + self._at).tolist()
            if places == list(range(start, start + count)):
                return
            chosen = places
        for memory in (*self._keys, *self._values):
            index = torch.tensor(list(chosen), device=memory.device)
            memory[rows, :, start : start + count] = memory[rows].index_select(2, index)

    def write_at(self, positions: IntArray, slots: IntArray) -> None:
        """See `CacheMemory`."""
        for memory in (*self._keys, *self._values):
            chosen = torch.as_tensor(positions + self._at, device=memory.device)
            memory[:, :, torch.as_tensor(slots, device=memory.device)] = memory.index_select(2, chosen)
