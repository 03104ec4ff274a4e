"""The walk down many draft trees at once that all token-wise rules share, and the simplest exact rules."""

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from underpaint.algos.arrays import BoolArray, FloatArray, IntArray
from underpaint.algos.batched.sparse_table import Table
from underpaint.algos.batched.spec import BatchedVerdicts, ImageBatch, TreeBatch


class BatchedSiblingOutcome(NamedTuple):
    """The results for the children of M nodes: the accepted child (-1: none), and the extra token if there is none."""

    accepted: IntArray
    extra: IntArray


class BatchedSiblingRule(Protocol):
    """A function that tries the children of M nodes, each in order."""

    def __call__(
        self, batch: ImageBatch, level: int, rows: IntArray, tokens: IntArray, there: BoolArray
    ) -> BatchedSiblingOutcome:
        """Try `tokens` [M, k] (proposed if `there` [M, k]) of the nodes with the table rows `rows` [M]."""
        ...


@dataclass(frozen=True, slots=True)
class BatchedWalk:
    """Walks down from the root while a child is accepted, like `algos.accept.walk`."""

    siblings: BatchedSiblingRule

    def __call__(self, batch: ImageBatch, trees: TreeBatch) -> BatchedVerdicts:
        active, count = trees.images, trees.images.size
        path = np.zeros((count, max(1, len(trees.levels))), dtype=np.int64)
        accepted, extra = np.zeros(count, dtype=np.int64), np.full(count, -1)
        last = batch.roots(active)
        here, chosen = np.arange(count), np.zeros(count, dtype=np.int64)
        for level, block in enumerate(trees.levels):
            size, _, width = block.tokens.shape
            # The position of the walk among the expanded nodes; it ends at a node that was not expanded.
            inside = here.searchsorted(size)
            on, at = (block.above[here[:inside]] == chosen[:inside, None]).nonzero()
            here = here[on]
            flat = here * block.rows.shape[1] + at
            there = block.in_tree.reshape(-1, width).take(flat, axis=0)
            if not there[:, 0].all():
                on = np.flatnonzero(there[:, 0])
                here, at, flat, there = here[on], at[on], flat[on], there[on]
            if not here.size:
                break
            tokens = block.tokens.reshape(-1, width).take(flat, axis=0)
            tried = self.siblings(batch, level, block.rows.take(flat), tokens, there)
            won, lost = np.flatnonzero(tried.accepted >= 0), np.flatnonzero(tried.accepted < 0)
            extra[here[lost]] = tried.extra[lost]
            here, child = here[won], tried.accepted[won]
            last[here] = path[here, level] = tokens[won, child]
            chosen = at[won] * width + child
            accepted[here] += 1
        leaves = np.flatnonzero(extra < 0)
        rows = batch.rows_after(active[leaves], accepted[leaves], last[leaves])
        extra[leaves] = batch.tables.draw(rows, batch.draws.random(leaves.size))
        return BatchedVerdicts(path, accepted, extra)


def try_points_at_once(
    batch: ImageBatch, level: int, rows: IntArray, tokens: IntArray, there: BoolArray
) -> BatchedSiblingOutcome:
    """Point proposals: trying them one by one equals a single draw and a test whether that token was proposed."""
    drawn = batch.tables.draw(rows, batch.draws.random(rows.size))
    accepted = np.full(rows.size, -1)
    on, child = ((tokens == drawn[:, None]) & there).nonzero()
    accepted[on] = child
    return BatchedSiblingOutcome(accepted, drawn)


def flips(uniforms: FloatArray, chance_of: FloatArray, out_of: FloatArray | float = 1.0) -> BoolArray:
    """Return whether each of `uniforms` accepts with probability min(1, chance_of / out_of), never at 0."""
    accepted: BoolArray = np.where(chance_of >= out_of, chance_of > 0.0, uniforms * out_of < chance_of)
    return accepted


def draw_dense(batch: ImageBatch, weights: FloatArray) -> IntArray:
    """Return [M], one token drawn from each row of weights [M, V]; its weight is never 0."""
    return draw_at(weights, batch.draws.random(weights.shape[0]))


def draw_at(weights: FloatArray, uniforms: FloatArray) -> IntArray:
    """Return [M], the token that each of `uniforms` [M] hits in the cumulated weights [M, V]; never one of weight 0."""
    steps = weights.cumsum(axis=1)
    reached = uniforms * (1.0 - 2.0**-52) * steps[:, -1]  # below the last step, however the products are rounded
    tokens: IntArray = (steps > reached[:, None]).argmax(axis=1)
    return tokens


def normalised_rows(table: Table, rows: IntArray) -> FloatArray:
    """Return [M, V] float64 rows of `table`, normalised to sum 1."""
    distributions: FloatArray = table.take(rows, axis=0).astype(np.float64)
    distributions /= distributions.sum(axis=1, keepdims=True)
    return distributions
