"""EAGLE-2's tree for many images at once, with a separate depth, width and size per image."""

import numpy as np

from underpaint.algos.arrays import BoolArray, FloatArray, IntArray
from underpaint.algos.batched.spec import ImageBatch, TreeBatch, TreeLevel, assemble, by_levels

_LEAST = np.finfo(np.float64).smallest_subnormal
_FEW = 16
"""Up to this many best entries, repeated argmax is faster than sorting."""


def grow_dynamic(batch: ImageBatch, active: IntArray, depth: IntArray, width: IntArray, total: IntArray) -> TreeBatch:
    """Return EAGLE-2's trees (arXiv 2406.16858) with `depth` [A] levels, top-`width` [A] and `total` [A] nodes."""
    tables = batch.tables
    order, sizes = by_levels(np.minimum(np.minimum(depth, batch.budget_depth(active)), total))
    active, width, total = active[order], width[order], total[order]
    levels: list[TreeLevel] = []
    passes: list[IntArray] = []
    scores: list[FloatArray] = []
    tokens = batch.roots(active)[:, None]
    above: IntArray = np.zeros((active.size, 1), dtype=np.int64)
    best: FloatArray = np.ones((active.size, 1))
    for number, size in enumerate(sizes):
        widest = min(int(width[:size].max()), tables.top_tokens.shape[2])
        columns = None if int(width[:size].min()) >= widest else np.arange(widest) < width[:size, None]
        if number:
            above, tokens, best = _expanded(levels[-1], scores[-1], size, widest)
            if columns is not None:
                best = best * columns[:, : best.shape[1]]
        elif size < active.size:
            tokens, above, best = tokens[:size], above[:size], best[:size]
        expanded = np.count_nonzero(best, axis=1)
        if not expanded.any():
            break
        rows = batch.rows_after(active[:size], number, tokens)
        at = tables.draft_depth(number)
        products = best[..., None] * tables.top_probs[at].take(rows, axis=0)[..., :widest]
        if columns is not None:
            products *= columns[:, None]
        scores.append(products)
        passes.append(expanded)
        child_tokens = tables.top_tokens[at].take(rows, axis=0)[..., :widest]
        levels.append(TreeLevel(child_tokens, np.empty(0, dtype=np.bool_), rows, above))
    masks = _best(scores, total)
    levels = [level._replace(in_tree=part) for level, part in zip(levels, masks, strict=True)]
    return assemble(active, levels, passes, width == 1)


def _expanded(last: TreeLevel, scores: FloatArray, size: int, width: int) -> tuple[IntArray, IntArray, FloatArray]:
    """Return [size, F], the best `width` candidates of a level: their flat indices, tokens and scores."""
    flat_scores, tokens = scores[:size].reshape(size, -1), last.tokens[:size].reshape(size, -1)
    count = min(width, flat_scores.shape[1])
    if last.rows.shape[1] == 1:  # the children of one node are sorted already
        return np.broadcast_to(np.arange(count), (size, count)), tokens[:, :count], flat_scores[:, :count]
    order = _first_best(flat_scores, count)
    flat = order + np.arange(0, flat_scores.size, flat_scores.shape[1])[:, None]
    return order, tokens.take(flat), flat_scores.take(flat)


def _first_best(scores: FloatArray, count: int) -> IntArray:
    """Return [n, count], the indices of the best scores of each row of `scores` [n, C], falling; ties: the first."""
    if count > _FEW:
        return (-scores).argsort(axis=1, kind="stable")[:, :count]
    candidates, rows = scores.copy(), np.arange(scores.shape[0])
    order = np.empty((rows.size, count), dtype=np.int64)
    for turn in range(count):
        order[:, turn] = candidates.argmax(axis=1)
        candidates[rows, order[:, turn]] = -1.0
    return order


def _best(scores: list[FloatArray], total: IntArray) -> list[BoolArray]:
    """Return masks of the `total` [A] best positive scores of each image, by level as in `scores`; ties: the first."""
    least = np.full(total.size, _LEAST)
    tied: list[tuple[int, IntArray]] = []
    sizes = [part.shape[0] for part in scores]
    columns = np.cumsum([part[0].size for part in scores]).tolist()
    for level, (start, end) in enumerate(zip((*sizes, 0)[1:], sizes, strict=True)):
        if start == end or columns[level] <= int(total[start:end].min()):
            continue  # no tree ends here, or all candidates found are kept
        flat = _joined(scores[: level + 1], slice(start, end))
        below, threshold = _around(flat, np.maximum(columns[level] - total[start:end], 0))
        np.maximum(threshold, _LEAST, out=least[start:end])
        equal = np.flatnonzero((below == threshold) & (threshold > 0.0))
        if equal.size:
            tied.append((level, start + equal))
    masks: list[BoolArray] = [part >= least[: part.shape[0], None, None] for part in scores]
    for level, images in tied:
        flat = _joined(scores[: level + 1], images)
        room = total[images] - np.count_nonzero(flat > least[images, None], axis=1)
        over = flat == least[images, None]
        over &= over.cumsum(axis=1) > room[:, None]
        for part, out in zip(masks, np.split(over, columns[:level], axis=1), strict=False):
            part[images] &= ~out.reshape(images.size, *part.shape[1:])
    return masks


def _around(flat: FloatArray, place: IntArray) -> tuple[FloatArray, FloatArray]:
    """Return [n], the values before and at `place` [n] in each row of `flat` [n, C] if sorted; `flat` is overwritten.

    The value before place 0 is 0.
    """
    first = int(place[0])
    if bool((place == first).all()):
        flat.partition(first, axis=1)  # partitioning at one place is much faster than at two
        return flat[:, :first].max(axis=1), flat[:, first]
    flat.sort(axis=1)
    turn = np.arange(place.size)
    return np.where(place > 0, flat[turn, place - 1], 0.0), flat[turn, place]


def _joined(scores: list[FloatArray], images: slice | IntArray) -> FloatArray:
    """Return [n, C], a copy of all scores of `images`, level after level."""
    parts = [part[images] for part in scores]
    return np.concatenate([part.reshape(part.shape[0], -1) for part in parts], axis=1)


class BatchedEagle2:
    """EAGLE-2's tree (arXiv 2406.16858), with the same limits for every image."""

    def __init__(self, depth: int, top_k: int, total_tokens: int) -> None:
        self.deepest, self.most_children, self.most_nodes = depth, top_k, total_tokens + 1

    def begin(self, images: int, cells: int) -> None: ...

    def observe(self, trees: TreeBatch, accepted: IntArray) -> None: ...

    def grow(self, batch: ImageBatch, active: IntArray) -> TreeBatch:
        limits = (self.deepest, self.most_children, self.most_nodes - 1)
        return grow_dynamic(batch, active, *(np.full(active.size, limit) for limit in limits))
