"""Static trees for many images at once."""

from typing import NamedTuple

import numpy as np

from underpaint.algos.arrays import BoolArray, IntArray
from underpaint.algos.batched.spec import ImageBatch, TreeBatch, TreeLevel, assemble, by_levels
from underpaint.algos.tree import Shape

_REDRAWS = 6
"""The number of draws that may repeat a sibling, before the tried tokens are removed from the distribution instead."""


class _ShapeLevel(NamedTuple):
    above: IntArray
    """[F], flat indices of the expanded nodes among the candidates of the previous level."""
    in_tree: BoolArray
    """[F, k], whether each candidate is a node of the shape."""


def _shape_levels(shape: Shape) -> list[_ShapeLevel]:
    """Return the levels of a static shape."""
    below: list[list[int]] = [[] for _ in shape]
    for node, parent in enumerate(shape):
        if parent >= 0:
            below[parent].append(node)
    expanded, places, levels = [0], [0], []
    while expanded:
        width = max(len(below[node]) for node in expanded)
        in_tree = np.arange(width) < np.array([len(below[node]) for node in expanded])[:, None]
        levels.append(_ShapeLevel(np.array(places), in_tree))
        deeper = [
            (one, place * width + rank)
            for place, node in enumerate(expanded)
            for rank, one in enumerate(below[node])
            if below[one]
        ]
        expanded, places = [one for one, _ in deeper], [place for _, place in deeper]
    return levels


class BatchedStaticTree:
    """A static tree of sampled siblings or of likeliest tokens.

    repeats: Siblings are independent draws; otherwise they are drawn without replacement.
    """

    def __init__(self, shape: Shape, sampled: bool, one_call: bool = False, repeats: bool = False) -> None:
        self._levels = _shape_levels(shape)
        self._sampled = sampled
        self._repeats = repeats
        self._one_call = one_call
        self.most_nodes = len(shape)
        self.most_children = max(level.in_tree.shape[1] for level in self._levels)
        self.deepest = len(self._levels)

    def begin(self, images: int, cells: int) -> None: ...

    def observe(self, trees: TreeBatch, accepted: IntArray) -> None: ...

    def grow(self, batch: ImageBatch, active: IntArray) -> TreeBatch:
        order, sizes = by_levels(np.minimum(batch.budget_depth(active), self.deepest))
        active = active[order]
        grown: list[TreeLevel] = []
        passes: list[IntArray] = []
        tokens = batch.roots(active)[:, None]
        there: BoolArray = np.ones((active.size, 1), dtype=np.bool_)
        for depth, (level, size) in enumerate(zip(self._levels, sizes, strict=False)):
            if grown:
                last = grown[-1]
                tokens = last.tokens[:size].reshape(size, -1).take(level.above, axis=1)
                there = last.in_tree[:size].reshape(size, -1).take(level.above, axis=1)
            else:
                tokens, there = tokens[:size], there[:size]
            rows = batch.rows_after(active[:size], depth, tokens)
            children, sound = self._children(batch, rows, depth, level.in_tree.shape[1])
            above = np.broadcast_to(level.above, rows.shape)
            grown.append(TreeLevel(children, sound & level.in_tree & there[..., None], rows, above))
            passes.append(np.count_nonzero(there, axis=1))
        return assemble(active, grown, passes, np.full(active.size, self._one_call))

    def _children(self, batch: ImageBatch, rows: IntArray, level: int, count: int) -> tuple[IntArray, BoolArray]:
        tables = batch.tables
        depth = tables.draft_depth(level)
        if not self._sampled:
            probs = tables.top_probs[depth].take(rows, axis=0)[..., :count]
            return tables.top_tokens[depth].take(rows, axis=0)[..., :count], probs > 0.0
        flat = rows.reshape(-1)
        tokens = tables.draw_drafts(depth, flat[:, None], batch.draws.random((flat.size, count)))
        sound = np.ones(tokens.shape, dtype=np.bool_)
        for turn in range(1, 1 if self._repeats else count):
            again = (tokens[:, :turn] == tokens[:, turn, None]).any(axis=1).nonzero()[0]
            for _ in range(_REDRAWS):
                if not again.size:
                    break
                new = tables.draw_drafts(depth, flat[again], batch.draws.random(again.size))
                tokens[again, turn] = new
                again = again[(tokens[again, :turn] == new[:, None]).any(axis=1)]
            if again.size:
                tokens[again, turn], sound[again, turn] = _untried(batch, depth, flat[again], tokens[again, :turn])
        shape = (*rows.shape, count)
        return tokens.reshape(shape), sound.reshape(shape)


def _untried(batch: ImageBatch, depth: int, rows: IntArray, tried: IntArray) -> tuple[IntArray, BoolArray]:
    """Return [M], a token drawn from each distribution without the tokens `tried` [M, j], and whether there was one."""
    weights = batch.tables.draft[depth][rows].astype(np.float64)
    np.put_along_axis(weights, tried, 0.0, 1)
    with np.errstate(divide="ignore", over="ignore"):
        arrivals = batch.draws.standard_exponential(weights.shape) / weights
    tokens: IntArray = arrivals.argmin(axis=1)
    return tokens, np.isfinite(arrivals.min(axis=1))
