"""The key-value cache in a GPU's memory."""

import math
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from underpaint.algos.arrays import IntArray
from underpaint.runtime.engines.cache import HIDDEN
from underpaint.runtime.engines.context import EngineError
from underpaint.runtime.engines.shape import DecoderShape

TYPES: Final = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
_ALIGNED_BYTES: Final = 256
"""What every address that TensorRT is given has to be a multiple of; PyTorch's own allocations are."""


def layered(layers: int, shape: tuple[int, ...], kind: torch.dtype, device: str) -> torch.Tensor:
    """Zeros [layers, *shape] of which each layer is contiguous and begins where TensorRT takes an address."""
    count, unit = math.prod(shape), _ALIGNED_BYTES // kind.itemsize
    apart = -(-count // unit) * unit
    return torch.zeros((layers, apart), dtype=kind, device=device)[:, :count].view(layers, *shape)


class DeviceCache:
    """As `engines.cache.KeyValueCache`, in CUDA memory: keys [L, B, H, hd, S] and values [L, B, H, S, hd], S fixed."""

    def __init__(self, shape: DecoderShape, rows: int, device: str = "cuda") -> None:
        kind, slots = TYPES[shape.precision], shape.capacity
        self.keys = layered(shape.layers, (rows, shape.heads, shape.head_dim, slots), kind, device)
        self.values = layered(shape.layers, (rows, shape.heads, slots, shape.head_dim), kind, device)
        self.capacity = self.slots = slots
        self._bias = np.empty(slots, dtype=np.float32)
        self.clear()

    @property
    def bias(self) -> NDArray[np.float32]:
        """[S]: 0 on committed slots, HIDDEN on all others."""
        return self._bias

    def clear(self) -> None:
        """Forget every position."""
        self.length = 0
        self._bias[:] = HIDDEN

    def hide_first(self, count: int) -> None:
        """Let no position see the first `count` slots from now on."""
        self._bias[:count] = HIDDEN

    def commit(self, keys: Any, values: Any, chosen: IntArray | slice) -> None:
        """Append the `chosen` positions of new keys and values [L, B, H, T, hd] on the device."""
        count = self.place(keys, values, chosen, 0)
        self._bias[self.length : self.length + count] = 0.0
        self.length += count

    def place(self, keys: Any, values: Any, chosen: IntArray | slice, behind: int) -> int:
        """Write to scratch slots, `behind` slots after the committed ones; return the count."""
        at = chosen if isinstance(chosen, slice) else self._index(chosen)
        picked = keys[:, :, :, at]
        count, start = int(picked.shape[3]), self.length + behind
        self._check(start + count)
        self.keys[..., start : start + count] = picked.transpose(3, 4)
        self.values[:, :, :, start : start + count] = values[:, :, :, at]
        return count

    def write(self, keys: Any, values: Any, chosen: IntArray, slots: IntArray) -> None:
        """Write the `chosen` positions to these slots, over what was there."""
        self._check(int(slots.max(initial=-1)) + 1)
        at, to = self._index(chosen), self._index(slots)
        self.keys[..., to] = keys[:, :, :, at].transpose(3, 4)
        self.values[:, :, :, to] = values[:, :, :, at]

    def _index(self, places: IntArray) -> torch.Tensor:
        return torch.tensor(np.asarray(places), device=self.keys.device)

    def _check(self, count: int) -> None:
        if count > self.capacity:
            raise EngineError(
                f"cache: expected at most {self.capacity} positions, got {count}; draft fewer nodes a cycle"
            )
