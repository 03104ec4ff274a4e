"""A cache in a GPU's memory."""

import math
from typing import Final

import numpy as np
import torch

from underpaint.algos.arrays import IntArray
from underpaint.artifacts.decoder_config import DecoderConfig

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


class DeviceMemory:
    """Implements `engines.cache.CacheMemory` in CUDA memory. S is fixed: captured graphs read it at one address."""

    def __init__(self, config: DecoderConfig, rows: int, device: str = "cuda") -> None:
        kind, slots = TYPES[config.precision], config.capacity
        self.keys = layered(config.layers, (rows, config.kv_heads, config.head_dim, slots), kind, device)
        self.values = layered(config.layers, (rows, config.kv_heads, slots, config.head_dim), kind, device)
        self.capacity = self.slots = slots
        self.new_keys = self.new_values = self.values[:, :, :, :0]
        """[L, B, H, T, hd], of the last pass."""

    @property
    def new_positions(self) -> int:
        """T."""
        return int(self.new_keys.shape[3])

    def reset(self) -> None:
        """See `CacheMemory`."""

    def grow(self, count: int) -> None:
        """See `CacheMemory`."""

    def write(self, rows: slice, positions: IntArray | slice, start: int, count: int) -> None:
        at = positions if isinstance(positions, slice) else self._index(positions)
        end = start + count
        self.keys[:, rows, :, :, start:end] = self.new_keys[:, rows, :, at].transpose(3, 4)
        self.values[:, rows, :, start:end] = self.new_values[:, rows, :, at]

    def write_at(self, positions: IntArray, slots: IntArray) -> None:
        at, to = self._index(positions), self._index(slots)
        self.keys[..., to] = self.new_keys[:, :, :, at].transpose(3, 4)
        self.values[:, :, :, to] = self.new_values[:, :, :, at]

    def _index(self, places: IntArray) -> torch.Tensor:
        return torch.tensor(np.asarray(places), device=self.keys.device)
