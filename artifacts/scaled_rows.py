"""Matrices in 8 bits with a scale a row: how weights are stored, for those who write and those who read them.

A row is what one output channel, or one entry of a table, is made of. What stands in a file is the rounded model to the
last bit: rounding it once more changes nothing, and every reader gets the same float32 numbers.
"""

from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

SCALE: Final = ".scale"
"""What the name of a matrix's scales ends in, in a file of weights."""
_MOST: Final = 127


class ScaledRows(NamedTuple):
    """steps: int8 [...]; scale: float16, of a shape that spreads over `steps`, one number a row."""

    steps: NDArray[np.int8]
    scale: NDArray[np.float16]

    def widened(self) -> NDArray[np.float32]:
        """The numbers that are stood for, float32 of the shape of `steps`."""
        wide: NDArray[np.float32] = self.steps.astype(np.float32) * self.scale.astype(np.float32)
        return wide


def scaled_rows(values: NDArray[Any], axis: int = 0) -> ScaledRows:
    """Round float32 `values` to 8 bits; rows are counted along `axis`, and each has the scale of its largest number."""
    others = tuple(place for place in range(values.ndim) if place != axis % values.ndim)
    scale = (np.abs(values).max(axis=others, keepdims=True) / _MOST).astype(np.float16)
    wide = scale.astype(np.float32)
    steps = np.divide(values, wide, out=np.zeros_like(values, np.float32), where=wide > 0)
    return ScaledRows(np.clip(np.rint(steps), -_MOST, _MOST).astype(np.int8), scale)
