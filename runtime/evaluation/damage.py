"""Known damage: tokens replaced by codes that lie near them, to learn which measure of quality sees how little."""

from __future__ import annotations

import numpy as np

from underpaint.algos.accept.neighbours import check_neighbours
from underpaint.algos.arrays import IntArray


def replaced_by_neighbours(
    codes: IntArray, neighbours: IntArray, share: float, rank: int, rng: np.random.Generator
) -> IntArray:
    """Codes with a share of them replaced by their `rank`-th nearest code.

    Args:
        codes: [..., cells] integers.
        neighbours: [V, k], of `algos.accept.neighbours.nearest_codes`.
        share: of the cells of each row, rounded to whole cells; which ones is drawn without replacement.
        rank: 1 for the nearest, at most k.
        rng: draws the cells.

    Raises ValueError on a share outside 0..1, a rank that the table lacks, or a code that it does not know.
    """
    check_neighbours(neighbours, "damage")
    vocab, columns = neighbours.shape
    if not 0 <= share <= 1 or not 1 <= rank <= columns:
        raise ValueError(f"damage: expected a share in 0..1 and a rank in 1..{columns}, got {share} and {rank}")
    if codes.ndim < 1 or not codes.size or int(codes.min()) < 0 or int(codes.max()) >= vocab:
        raise ValueError(f"damage: expected codes [..., cells] with 0 <= code < {vocab}, got shape {codes.shape}")
    rows = codes.reshape(-1, codes.shape[-1]).copy()
    count = round(share * rows.shape[1])
    for row in rows:
        cells = rng.choice(rows.shape[1], count, replace=False)
        row[cells] = neighbours[row[cells], rank - 1]
    return rows.reshape(codes.shape)
