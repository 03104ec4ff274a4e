"""8-bit matrices in the format of ONNX Runtime's MatMulNBits."""

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

_BLOCK: Final = 64
"""Block size: numbers of a column, and of the vector multiplied with it, that share a scale in an 8-bit product."""
EIGHT_BIT_ZERO: Final = 128
"""The zero point of MatMulNBits in an 8-bit matrix."""


class EightBitMatrix(NamedTuple):
    """A matrix [K, N] in MatMulNBits format: `values` uint8 [N, blocks, block] with zero point `EIGHT_BIT_ZERO`,
    `scales` float32."""

    depth: int
    values: NDArray[np.uint8]
    scales: NDArray[np.float32]


def block_of(depth: int) -> int:
    """Return the block size for columns of `depth` numbers: a power of two, no longer than necessary."""
    return min(_BLOCK, max(16, 1 << (depth - 1).bit_length()))


def eight_bit(matrix: NDArray[np.float32]) -> EightBitMatrix:
    """Quantise `matrix` [K, N] to 8 bits, block by block of each column."""
    depth, width = matrix.shape
    block = block_of(depth)
    columns = np.zeros((width, -(-depth // block), block), dtype=np.float32)
    columns.reshape(width, -1)[:, :depth] = matrix.T
    scale = np.maximum(np.abs(columns).max(axis=2), np.float32(1e-12)) / np.float32(127)
    rounded = (np.rint(columns / scale[:, :, None]) + EIGHT_BIT_ZERO).astype(np.uint8)
    return EightBitMatrix(depth, rounded, scale.reshape(-1))
