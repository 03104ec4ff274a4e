"""EAGLE-2's trees over many images at once, each of a depth, a width and a size of its own."""

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from algos.arrays import BoolArray, FloatArray, IntArray
from sim.fast_batch import Batch, Block, Grown, closed

Number = TypeVar("Number", bound=np.generic)


def grow_dynamic(batch: Batch, active: IntArray, depth: IntArray, width: IntArray, total: IntArray) -> Grown:
    """EAGLE-2's trees (arXiv 2406.16858) of `depth` [A] levels, top-`width` [A] and `total` [A] nodes."""
    tables, count = batch.tables, active.size
    levels = np.minimum(np.minimum(depth, batch.budget_depth(active)), total)
    widest = min(int(width.max()), tables.top_tokens.shape[2])
    columns = None if int(width.min()) >= widest else np.arange(widest) < width[:, None]
    blocks: list[Block] = []
    passes: list[IntArray] = []
    scores: list[FloatArray] = []
    tokens = batch.roots(active)[:, None]
    above = np.zeros((count, 1), dtype=np.int64)
    best: FloatArray = (levels > 0).astype(np.float64)[:, None]
    for level in range(int(levels.max(initial=0))):
        on = np.flatnonzero(levels > level)  # the others have no such level: their part stays zero
        if level:
            flat = scores[-1].reshape(count, -1)[_rows(on, count)]
            order = (-flat).argsort(axis=1, kind="stable")[:, :widest]
            reached = np.take_along_axis(flat, order, 1)
            if columns is not None:
                reached *= columns[on, : order.shape[1]]
            drafted = np.take_along_axis(blocks[-1].tokens.reshape(count, -1)[_rows(on, count)], order, 1)
            above, tokens = _spread(order, on, count), _spread(drafted, on, count)
            best = _spread(reached, on, count)
            child = blocks[-1].child.reshape(count, -1)
            child[on[:, None], order] = np.where(reached > 0.0, np.arange(order.shape[1]), -1)
        if not best.any():
            break
        here = _rows(on, count)
        found_rows = batch.rows_after(active[here], level, tokens[here])
        at = tables.draft_depth(level)
        found = tables.top_tokens[at, found_rows][..., :widest]
        worth = best[here, :, None] * tables.top_probs[at, found_rows][..., :widest]
        if columns is not None:
            worth *= columns[on, None, :]
        rows, found = _spread(found_rows, on, count), _spread(found, on, count)
        scores.append(_spread(worth, on, count))
        passes.append(np.count_nonzero(best, axis=1))
        blocks.append(Block(found, np.empty(0, dtype=np.bool_), rows, above, np.full(found.shape, -1)))
    if blocks:
        kept = _best(np.concatenate([part.reshape(count, -1) for part in scores], axis=1), total)
        ends = np.cumsum([part[0].size for part in scores])[:-1]
        parts = np.split(kept, ends, axis=1)
        blocks = [
            block._replace(kept=part.reshape(block.tokens.shape)) for block, part in zip(blocks, parts, strict=True)
        ]
    return closed(blocks, passes, width == 1)


def _rows(on: IntArray, count: int) -> IntArray | slice:
    """The places `on` of `count`, as a slice where they are all of them: a view is cheaper than a copy."""
    return slice(None) if on.size == count else on


def _spread(part: NDArray[Number], on: IntArray, count: int) -> NDArray[Number]:
    """`part` [on, ...] at its places among `count`, zero elsewhere."""
    if on.size == count:
        return part
    whole = np.zeros((count, *part.shape[1:]), dtype=part.dtype)
    whole[on] = part
    return whole


def _best(scores: FloatArray, total: IntArray) -> BoolArray:
    """[A, C] the `total` [A] best positive scores of each row; of equal ones the first."""
    size = scores.shape[1]
    wanted = np.minimum(total, size)
    if int(wanted.min()) == int(wanted.max()):
        place = size - int(wanted[0])
        least = np.partition(scores, place, axis=1)[:, place, None]
    else:
        least = np.take_along_axis(np.sort(scores, axis=1), (size - wanted)[:, None], 1)
    above, level = scores > least, scores == least
    room = (wanted - above.sum(axis=1))[:, None]
    kept: BoolArray = (above | (level & (level.cumsum(axis=1) <= room))) & (scores > 0.0)
    return kept
