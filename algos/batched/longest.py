"""Deterministic rules for many draft trees at once: test each node separately, and keep the longest passing path."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from underpaint.algos.arrays import BoolArray, IntArray
from underpaint.algos.batched.pooling import NeighbourPool
from underpaint.algos.batched.spec import BatchedVerdicts, ImageBatch, TreeBatch, TreeLevel


class NodeTest(Protocol):
    """The test that a deterministic rule applies to a node."""

    def __call__(self, batch: ImageBatch, rows: IntArray, tokens: IntArray) -> BoolArray:
        """Return whether each of `tokens` [M] passes under the distributions of the table rows `rows` [M]."""
        ...


@dataclass(frozen=True, slots=True)
class LongestPath:
    """Tests each node separately and keeps the longest path that passes, like `algos.accept.walk`."""

    passes: NodeTest
    first: bool
    """Choose the first child that passes, instead of the one on the longest path."""
    draw: bool
    """Draw the extra token; if False, use the likeliest token."""

    def __call__(self, batch: ImageBatch, trees: TreeBatch) -> BatchedVerdicts:
        active, count = trees.images, trees.images.size
        accepted, end = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64)
        flat: BoolArray = np.ones((count, 1), dtype=np.bool_)
        for level, block in enumerate(trees.levels):
            size = block.rows.shape[0]
            passing = block.in_tree & np.take_along_axis(flat[:size], block.above, 1)[..., None]
            images, parents, columns = np.nonzero(passing)
            tested = self.passes(batch, block.rows[images, parents], block.tokens[images, parents, columns])
            passing[images, parents, columns] = tested
            if self.first:
                passing &= passing.cumsum(axis=2) == 1
            flat = passing.reshape(size, -1)
            on = np.flatnonzero(flat.any(axis=1))
            if not on.size:
                break
            accepted[on] = level + 1
            end[on] = flat[on].argmax(axis=1)
        path = _trace_back(trees.levels, accepted, end)
        last = np.where(accepted > 0, path[np.arange(count), np.maximum(accepted - 1, 0)], batch.roots(active))
        rows = batch.rows_after(active, accepted, last)
        extra = batch.tables.draw(rows, batch.draws.random(count)) if self.draw else batch.tables.best[rows]
        return BatchedVerdicts(path, accepted, extra)


def _trace_back(blocks: list[TreeLevel], accepted: IntArray, end: IntArray) -> IntArray:
    """Return [A, L], the tokens on the path to the flat index `end` [A] at level accepted - 1."""
    path = np.zeros((accepted.size, max(1, len(blocks))), dtype=np.int64)
    place = end.copy()
    for level in range(int(accepted.max(initial=0)) - 1, -1, -1):
        here = np.flatnonzero(accepted > level)
        block = blocks[level]
        width = block.tokens.shape[2]
        path[here, level] = block.tokens[here, place[here] // width, place[here] % width]
        place[here] = block.above[here, place[here] // width]
    return path


def is_best(batch: ImageBatch, rows: IntArray, tokens: IntArray) -> BoolArray:
    """Return whether each token is the target's likeliest (greedy match)."""
    matches: BoolArray = tokens == batch.tables.best[rows]
    return matches


@dataclass(frozen=True, slots=True)
class Outweighs:
    """Greedy LANTERN: compares a token and its pool with the likeliest token, like `algos.accept.lantern_greedy`."""

    pool: NeighbourPool

    def __call__(self, batch: ImageBatch, rows: IntArray, tokens: IntArray) -> BoolArray:
        target, best = batch.tables.target, batch.tables.best[rows]
        token_mass, mass, _ = self.pool(target, rows, tokens, np.ones(rows.size))
        boosted, most = token_mass + mass, target[rows, best]
        passed: BoolArray = (tokens == best) | (boosted > most) | ((boosted == most) & (tokens < best))
        return passed


@dataclass(frozen=True, slots=True)
class HoldsMass:
    """MuLo-SD's pooled threshold, like `algos.accept.mulo`."""

    neighbours: IntArray
    tau: float

    def __call__(self, batch: ImageBatch, rows: IntArray, tokens: IntArray) -> BoolArray:
        target = batch.tables.target
        mass = target[rows[:, None], self.neighbours[tokens]].sum(axis=1) + target[rows, tokens]
        passed: BoolArray = mass >= self.tau
        return passed
