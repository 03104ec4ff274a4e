"""Tables of the nearest codes of each code, which the codebook rules pool."""

from typing import Final

import numpy as np

from underpaint.algos.arrays import FloatArray, IntArray

_BLOCK_CELLS = 1 << 22
LEAST_TABLE: Final = 100
"""The smallest number of columns of a table of nearest codes, if the codebook has that many other codes."""
MOST_SHARE: Final = 1000 / 16384
"""The largest share of a codebook that a paper pools: 1,000 codes of LlamaGen's (LANTERN, arXiv 2410.03355)."""


def table_columns(codes: int) -> int:
    """Return the number of columns of the table for a codebook of `codes`: the largest possible `k` of a rule."""
    return min(max(LEAST_TABLE, round(MOST_SHARE * codes)), codes - 1)


def nearest_codes(codebook: FloatArray, k: int) -> IntArray:
    """Return the `k` nearest other codes of each code, by Euclidean distance.

    Distances are float64, computed for a block of codes at a time (about 32 MiB).

    Args:
        codebook: [V, E] floating, finite.
        k: The number of nearest codes per code, from 1 to V - 1.

    Returns:
        [V, k] int64, nearest first; a code is not its own neighbour, and equal distances are in order of index.

    Raises:
        ValueError: A wrong shape, a `k` below 1, fewer than k + 1 codes, or non-finite numbers.
    """
    if codebook.ndim != 2:
        raise ValueError(f"codebook: expected a table of codes by numbers, got shape {codebook.shape}")
    count = codebook.shape[0]
    if not 1 <= k < count:
        raise ValueError(
            f"codebook: expected 1 to {count - 1:,} nearest codes of each of {count:,} codes, got {k:,}; a code is not "
            "its own neighbour"
        )
    if not np.all(np.isfinite(codebook)):
        raise ValueError("codebook: expected finite codes, got NaN or infinity; check the checkpoint")
    codes = codebook.astype(np.float64)
    squares = np.einsum("ve,ve->v", codes, codes)
    slack = 1e-9 * float(squares.max())  # the products below are rounded differently at each place in the block
    nearest = np.empty((count, k), dtype=np.int64)
    rows = max(1, _BLOCK_CELLS // count)
    for start in range(0, count, rows):
        stop = min(start + rows, count)
        rough = squares[None, :] - 2.0 * (codes[start:stop] @ codes.T)  # without a code's own square, constant per row
        rough[np.arange(stop - start), np.arange(start, stop)] = np.inf
        edges = np.partition(rough, k - 1, axis=1)[:, k - 1] + slack
        for code in range(start, stop):
            near = np.flatnonzero(rough[code - start] <= edges[code - start])
            apart = codes[near] - codes[code]
            order = np.argsort(np.einsum("ce,ce->c", apart, apart), kind="stable")
            nearest[code] = near[order[:k]]
    return nearest


def check_neighbours(neighbours: IntArray, what: str) -> None:
    """Raise ValueError unless `neighbours` is a table [V, k] of other codes, in the form of `nearest_codes`."""
    if neighbours.ndim != 2 or not np.issubdtype(neighbours.dtype, np.integer):
        raise ValueError(f"{what}: expected neighbours [V, k] of integers, got {neighbours.dtype} {neighbours.shape}")
    count, columns = neighbours.shape
    if columns < 1 or int(neighbours.min()) < 0 or int(neighbours.max()) >= count:
        raise ValueError(f"{what}: expected 0 <= neighbour < V = {count} in at least one column; make the table again")
    if bool(np.any(neighbours == np.arange(count)[:, None])):
        raise ValueError(f"{what}: a code is listed as its own neighbour, so its mass would count twice")
