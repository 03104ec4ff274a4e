"""8-bit matrices with one scale per row: the stored form of weights, for writers and readers.

A row belongs to one output channel or one table entry. A file contains the rounded model exactly: rounding it again
changes nothing, and every reader gets the same float32 numbers.
"""

from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

SCALE: Final = ".scale"
"""Suffix of the name of a matrix's scales in a file of weights."""
_MOST: Final = 127
_LEAST_SCALE: Final = 2.0**-17


class ScaledRows(NamedTuple):
    """An 8-bit matrix with one scale per row.

    Attributes:
        steps: int8 [...].
        scale: float16, one number per row, in a shape that broadcasts to `steps`.
    """

    steps: NDArray[np.int8]
    scale: NDArray[np.float16]

    def widened(self) -> NDArray[np.float32]:
        """The represented numbers, float32 in the shape of `steps`."""
        wide: NDArray[np.float32] = self.steps.astype(np.float32) * self.scale.astype(np.float32)
        return wide


def group_size_of(width: int, groups: int) -> int:
    """Return how many numbers of a row of `width` share one of the scales of its groups; a power of two."""
    return 1 << (-(-width // groups) - 1).bit_length()


def scaled_rows(values: NDArray[Any], axis: int = 0) -> ScaledRows:
    """Round float32 `values` to 8 bits; rows are indexed by `axis`, and the largest number of each gives its scale."""
    others = tuple(place for place in range(values.ndim) if place != axis % values.ndim)
    top = np.abs(values).max(axis=others, keepdims=True)
    # Smaller scales have too few digits in float16: rounding the rounded row would give another scale.
    scale = np.where(top > 0, np.maximum(top / _MOST, _LEAST_SCALE), 0.0).astype(np.float16)
    wide = scale.astype(np.float32)
    steps = np.divide(values, wide, out=np.zeros_like(values, np.float32), where=wide > 0)
    return ScaledRows(np.clip(np.rint(steps), -_MOST, _MOST).astype(np.int8), scale)
