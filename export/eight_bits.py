"""Matrices of 8 bits, as ONNX Runtime's MatMulNBits reads them."""

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

_BLOCK: Final = 64
"""Numbers of a column, and of the value it is multiplied with, that share a scale in a product of 8 bits."""
EIGHT_BIT_ZERO: Final = 128
"""What MatMulNBits takes for 0 in a matrix of 8 bits."""


class EightBitMatrix(NamedTuple):
    """A matrix [K, N] as MatMulNBits reads it: `values` uint8 [N, blocks, block] about `EIGHT_BIT_ZERO`, `scales`
    float32."""

    depth: int
    values: NDArray[np.uint8]
    scales: NDArray[np.float32]


def block_of(depth: int) -> int:
    """Numbers of a block of columns of `depth`: a power of two, and not longer than it must be."""
    return min(_BLOCK, max(16, 1 << (depth - 1).bit_length()))


def eight_bit(matrix: NDArray[np.float32]) -> EightBitMatrix:
    """`matrix` [K, N] in 8 bits, a block of a column at a time."""
    depth, width = matrix.shape
    block = block_of(depth)
    columns = np.zeros((width, -(-depth // block), block), dtype=np.float32)
    columns.reshape(width, -1)[:, :depth] = matrix.T
    scale = np.maximum(np.abs(columns).max(axis=2), np.float32(1e-12)) / np.float32(127)
    rounded = (np.rint(columns / scale[:, :, None]) + EIGHT_BIT_ZERO).astype(np.uint8)
    return EightBitMatrix(depth, rounded, scale.reshape(-1))
