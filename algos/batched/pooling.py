"""LANTERN's pooled neighbours over many nodes at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from underpaint.algos.arrays import BoolArray, FloatArray, IntArray
from underpaint.algos.batched.sparse_table import Table
from underpaint.algos.batched.spec import BatchTables, ImageBatch
from underpaint.algos.batched.walk import BatchedSiblingOutcome, draw_dense

if TYPE_CHECKING:  # the rules import their batched forms
    from underpaint.algos.accept.spec import Residual


_FIRST_COLUMNS = 8


class NeighbourPool(NamedTuple):
    """How neighbours are pooled: the table [V, columns], the columns used, and the limit of (own, total) [M]."""

    neighbours: IntArray
    columns: int
    limit: Callable[[FloatArray, FloatArray], FloatArray]

    def __call__(
        self, left: Table, places: IntArray, tokens: IntArray, total: FloatArray
    ) -> tuple[FloatArray, FloatArray, IntArray]:
        """Own mass, pooled mass and pooled codes [M] of `tokens` [M] under rows `places` [M] of `left`."""
        own: FloatArray = left[places, tokens]
        limit = self.limit(own, total)
        mass, count = np.zeros(places.size), np.zeros(places.size, dtype=np.int64)
        on, start = np.arange(places.size), 0
        while start < self.columns and on.size:
            # Most pools are small, so columns are read a few at a time, by those that still have room.
            end = min(2 * start + _FIRST_COLUMNS, self.columns)
            steps = np.empty((on.size, end - start + 1))
            steps[:, 0] = mass[on]
            steps[:, 1:] = left[places[on, None], self.neighbours[tokens[on], start:end]]
            steps = steps.cumsum(axis=1)
            inside = (steps[:, 1:] <= limit[on, None]).sum(axis=1)
            mass[on] = steps[np.arange(on.size), inside]
            count[on] += inside
            on, start = on[inside == end - start], end
        return own, mass, count

    def of_tables(
        self, tables: BatchTables, rows: IntArray, tokens: IntArray, total: FloatArray
    ) -> tuple[FloatArray, FloatArray, IntArray]:
        """As the pool itself, under the target's distributions `rows` [M]; looked up where the tables prepare it."""
        prepared = tables.pools(self)
        if prepared is None:
            return self(tables.target, rows, tokens, total)
        at = rows * tables.target.shape[1] + tokens
        return tables.target[rows, tokens], prepared.masses.take(at), prepared.codes.take(at)

    def empty(self, left: FloatArray, places: IntArray, tokens: IntArray, count: IntArray) -> None:
        """Set the `count` [M] pooled codes of `tokens` [M] to 0 in the rows `places` [M] of `left`."""
        near = self.neighbours[tokens, : int(count.max(initial=0))]
        inside = np.arange(near.shape[1]) < count[:, None]
        left[places.repeat(count), near[inside]] = 0.0


def additive_limit(delta: float) -> Callable[[FloatArray, FloatArray], FloatArray]:
    """LANTERN's: `delta` of the whole mass."""
    return lambda own, total: delta * total


def relative_limit(factor: float) -> Callable[[FloatArray, FloatArray], FloatArray]:
    """LANTERN++'s: a token and its pool weigh at most `factor` times the token."""
    return lambda own, total: (factor - 1.0) * own


@dataclass(frozen=True, slots=True)
class PooledPoints:
    """LANTERN on point proposals, as `algos.accept.lantern.Pooling.try_points`."""

    pool: NeighbourPool
    residual: Residual

    def __call__(
        self, batch: ImageBatch, level: int, rows: IntArray, tokens: IntArray, there: BoolArray
    ) -> BatchedSiblingOutcome:
        """See `BatchedSiblingRule`. The first sibling is tested on the tables; only what it loses is copied."""
        left: FloatArray = np.empty((0, batch.tables.target.shape[1]))
        at = rows
        total = summed = batch.tables.masses[rows]
        accepted, extra = np.full(rows.size, -1), np.full(rows.size, -1)
        on = np.arange(rows.size)  # the nodes that go on, whose residuals are the rows `at` of `left`
        for turn in range(tokens.shape[1]):
            if turn and not there[on, turn].all():
                out, stay = (~there[on, turn]).nonzero()[0], there[on, turn].nonzero()[0]
                extra[on[out]] = draw_dense(batch, left[at[out]])
                on, at, total, summed = on[stay], at[stay], total[stay], summed[stay]
            gone = tokens[on, turn]
            pooled = self.pool(left, at, gone, total) if turn else self.pool.of_tables(batch.tables, rows, gone, total)
            own, mass, count = pooled
            won = batch.draws.random(on.size) * total < own + mass
            accepted[on[won]] = turn
            lost = (~won).nonzero()[0]
            if not lost.size:
                return BatchedSiblingOutcome(accepted, extra)
            on, at, total, summed = on[lost], at[lost], total[lost], summed[lost]
            gone, own, mass, count = gone[lost], own[lost], mass[lost], count[lost]
            if not turn:
                left, at = batch.tables.target[at].astype(np.float64, copy=False), np.arange(on.size)
            self.take(left, at, gone, count)
            left[at, gone] = 0.0
            total = total - own - mass if self.residual == "paper" else total - own
            again = (total < 0.5 * summed).nonzero()[0] if self.residual != "released" else np.arange(on.size)
            total[again] = left[at[again]].sum(axis=1)
            summed[again] = total[again]  # above half of the last sum, the running total is exact to an ulp
            empty = (total <= 0.0).nonzero()[0]
            if self.residual == "released":
                left[at[empty]], total[empty], summed[empty] = 1.0, left.shape[1], left.shape[1]
            elif empty.size:
                accepted[on[empty]] = turn  # certain to be accepted, and only rounding said otherwise
                stay = (total > 0.0).nonzero()[0]
                on, at, total, summed = on[stay], at[stay], total[stay], summed[stay]
        extra[on] = draw_dense(batch, left[at])
        return BatchedSiblingOutcome(accepted, extra)

    def take(self, left: FloatArray, at: IntArray, gone: IntArray, count: IntArray) -> None:
        """Take out of the rows `at` [M] of `left` what a rejection of `gone` [M] takes beside the token itself."""
        if self.residual == "paper":
            self.pool.empty(left, at, gone, count)
        elif self.residual == "released":
            pooled = (count > 0).nonzero()[0]
            left[at[pooled, None], self.pool.neighbours[gone[pooled], : self.pool.columns + 1]] = 0.0
