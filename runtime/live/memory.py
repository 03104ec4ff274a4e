"""Key-value cache of a live model: passes write in place, and attention layers read it without a copy."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from underpaint.algos.arrays import IntArray
from underpaint.artifacts.decoder_config import DecoderConfig

_FIRST_PASS = 64
"""Initial number of slots for new positions after the cache; a larger pass allocates more."""


class KeyValueTensors:
    """Keys and values [rows, kv_heads, slots, head_dim] of each layer, allocated once; longer passes grow them."""

    def __init__(self, config: DecoderConfig, rows: int, like: Tensor) -> None:
        """Allocate the tensors; `like` is a tensor of their dtype and device."""
        self.slots = config.capacity + _FIRST_PASS
        size = (rows, config.kv_heads, self.slots, config.head_dim)
        self.keys = [like.new_zeros(size) for _ in range(config.layers)]
        self.values = [like.new_zeros(size) for _ in range(config.layers)]

    def reserve(self, slots: int) -> None:
        """Make sure that there are this many slots."""
        if slots <= self.slots:
            return
        for kind in (self.keys, self.values):
            for layer, memory in enumerate(kind):
                rows, heads, used, head_dim = memory.shape
                kind[layer] = memory.new_zeros(rows, heads, slots + _FIRST_PASS, head_dim)
                kind[layer][:, :, :used] = memory
        self.slots = slots + _FIRST_PASS


class StaticCache:
    """Implements `engines.cache.CacheMemory`, and serves as `past_key_values` of `transformers` attention layers.

    A pass writes its keys and values after the slots that it reads, so layers get one view of both. Committing the
    first positions of a pass then copies nothing. Grouped-query heads share keys and values without copies.
    """

    is_compileable = False

    def __init__(
        self, config: DecoderConfig, rows: int, like: Tensor, tensors: KeyValueTensors | None = None, first: int = 0
    ) -> None:
        """Make a cache.

        Args:
            config: The decoder's sizes.
            rows: B, the batch size.
            like: A tensor of the cache's dtype and device.
            tensors: Tensors that hold the cache, from row `first` on; None allocates its own.
            first: The cache's first row in `tensors`.
        """
        self.capacity, self.slots = config.capacity, 0
        self._tensors = KeyValueTensors(config, rows, like) if tensors is None else tensors
        self._rows = slice(first, first + rows)
        self._at, self.new_positions = 0, 0

    def update(self, key: Tensor, value: Tensor, layer: int, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Store a layer's new keys and values [B, H, T, hd]; return views of all that the pass reads."""
        count, start = key.shape[2], self.slots
        tensors = self._tensors
        tensors.reserve(start + count)
        if tensors.keys[layer].device != key.device:  # layers of a model may lie on several devices (device_map)
            tensors.keys[layer] = tensors.keys[layer].to(key.device)
            tensors.values[layer] = tensors.values[layer].to(key.device)
        keys, values = tensors.keys[layer][self._rows], tensors.values[layer][self._rows]
        keys[:, :, start : start + count], values[:, :, start : start + count] = key, value
        self.wrote(count)
        return keys[:, :, : start + count], values[:, :, : start + count]

    def wrote(self, count: int) -> None:
        """Record that a pass wrote `count` positions after the slots that it read."""
        self._at, self.new_positions = self.slots, count

    @property
    def end(self) -> int:
        """The first slot after all committed positions and after the last pass."""
        return max(self.slots, self._at + self.new_positions)

    def read(self) -> tuple[list[Tensor], list[Tensor]]:
        """Views of the keys and of the values that the next pass reads, one per layer."""
        kinds = self._tensors.keys, self._tensors.values
        views = [[memory[self._rows, :, : self.slots] for memory in kind] for kind in kinds]
        return views[0], views[1]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Number of slots that the next pass reads, for `transformers`."""
        return self.slots

    def reset(self) -> None:
        """See `CacheMemory`."""
        self.slots = self._at = self.new_positions = 0

    def grow(self, count: int) -> None:
        """See `CacheMemory`."""
        self.slots = min(self.capacity, count)

    def write(self, rows: slice, positions: IntArray | slice, start: int, count: int) -> None:
        """See `CacheMemory`. Positions that are already in the right slots are not copied."""
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
        for memory in self._views():
            index = torch.tensor(list(chosen), device=memory.device)
            memory[rows, :, start : start + count] = memory[rows].index_select(2, index)

    def write_at(self, positions: IntArray, slots: IntArray) -> None:
        """See `CacheMemory`."""
        for memory in self._views():
            chosen = torch.as_tensor(positions + self._at, device=memory.device)
            memory[:, :, torch.as_tensor(slots, device=memory.device)] = memory.index_select(2, chosen)

    def _views(self) -> list[Tensor]:
        return [memory[self._rows] for memory in (*self._tensors.keys, *self._tensors.values)]


class PlacedCache:
    """The `past_key_values` of attention layers in a pass whose rows write at slots of their own."""

    is_compileable = False

    def __init__(self, tensors: KeyValueTensors, rows: slice, places: Tensor, slots: int) -> None:
        """Take views of the tensors for one pass.

        Args:
            tensors: The keys and values.
            rows: The rows of the tensors that the pass uses.
            places: [R, T] int64, the slots that each row's new positions are written to.
            slots: Number of slots that the pass reads, from the first on.
        """
        self._keys = [memory[rows, :, :slots] for memory in tensors.keys]
        self._values = [memory[rows, :, :slots] for memory in tensors.values]
        self._rows, self._places = torch.arange(len(places), device=places.device)[:, None], places

    def update(self, key: Tensor, value: Tensor, layer: int, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """See `StaticCache.update`."""
        keys, values = self._keys[layer], self._values[layer]
        keys[self._rows, :, self._places] = key.transpose(1, 2)
        values[self._rows, :, self._places] = value.transpose(1, 2)
        return keys, values

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return 0; no layer needs it, because passes provide their own position ids."""
        return 0
