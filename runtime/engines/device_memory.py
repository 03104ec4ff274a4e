"""A cache in a GPU's memory."""

import math
from collections.abc import Sequence
from typing import Final

import numpy as np
import torch

from underpaint.algos.arrays import IntArray
from underpaint.artifacts.decoder_config import DecoderConfig
from underpaint.artifacts.device_graph import cached_width
from underpaint.runtime.engines.context import EngineError

TYPES: Final = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
ALIGNED_BYTES: Final = 256
"""What every address that TensorRT is given has to be a multiple of; PyTorch's own allocations are."""


def layered(layers: int, shape: tuple[int, ...], kind: torch.dtype, device: str | torch.device) -> torch.Tensor:
    """Zeros [layers, *shape] of which each layer is contiguous and begins where TensorRT takes an address."""
    count, unit = math.prod(shape), ALIGNED_BYTES // kind.itemsize
    apart = -(-count // unit) * unit
    return torch.zeros((layers, apart), dtype=kind, device=device)[:, :count].view(layers, *shape)


def aligned(shape: tuple[int, ...], kind: torch.dtype, device: str | torch.device) -> torch.Tensor:
    """Contiguous zeros that begin where TensorRT takes an address."""
    return layered(1, shape, kind, device)[0]


def cache_places(config: DecoderConfig, count: int) -> int:
    """Places of a cache: `count`, and as few more as let every layer's begin where TensorRT takes an address."""
    size = config.kv_heads * cached_width(config) * TYPES[config.precision].itemsize
    unit = ALIGNED_BYTES // math.gcd(ALIGNED_BYTES, size)
    return -(-count // unit) * unit


def host_places(config: DecoderConfig, counts: Sequence[int]) -> int:
    """Places of the cache of an engine that the host drives: of the largest pass, and of all that is committed."""
    return cache_places(config, max(counts) + config.capacity)


def check_free(row_bytes: int, rows: int, what: str) -> None:
    """EngineError unless the GPU has `row_bytes` free for each of `rows` rows; it says how many rows fit."""
    free, _ = torch.cuda.mem_get_info()
    if rows * row_bytes > free:
        raise EngineError(
            f"{what} of {rows} rows need {rows * row_bytes:,} bytes beside the weights, the GPU has {free:,} free; the "
            f"largest that fits has {free // row_bytes} rows: lower the batch, or build with smaller --buckets"
        )


class DeviceMemory:
    """Implements `engines.cache.CacheMemory` in CUDA memory. S is fixed: captured graphs read it at one address.

    caches: keys [B, H, P, W] of each layer, then its values. A pass writes its T new positions to the first places;
    the slots lie behind those of the largest pass.
    """

    def __init__(self, config: DecoderConfig, rows: int, counts: Sequence[int], device: str = "cuda") -> None:
        """counts: the new positions that passes may have."""
        shape = rows, config.kv_heads, host_places(config, counts), cached_width(config)
        self.caches = layered(2 * config.layers, shape, TYPES[config.precision], device)
        self.first_slot, self.new_positions = max(counts), 0
        self.capacity = self.slots = config.capacity
        self._committed = self.caches[:, :, :, self.first_slot : self.first_slot + self.slots]
        self.keys, self.values = self._committed[::2].transpose(3, 4), self._committed[1::2]

    def reset(self) -> None:
        """See `CacheMemory`."""

    def grow(self, count: int) -> None:
        """See `CacheMemory`."""

    def write(self, rows: slice, positions: IntArray | slice, start: int, count: int) -> None:
        new = self.caches[:, rows, :, : self.new_positions]
        at = positions if isinstance(positions, slice) else self._index(positions)
        self._committed[:, rows, :, start : start + count] = new[:, :, :, at]

    def write_at(self, positions: IntArray, slots: IntArray) -> None:
        self._committed[:, :, :, self._index(slots)] = self.caches[:, :, :, self._index(positions)]

    def _index(self, places: IntArray) -> torch.Tensor:
        return torch.tensor(np.asarray(places), device=self.caches.device)
