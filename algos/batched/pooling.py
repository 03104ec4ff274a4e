"""LANTERN's pooled neighbours for many nodes at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from underpaint.algos.arrays import BoolArray, FloatArray, IntArray
from underpaint.algos.batched.sparse_table import Table
from underpaint.algos.batched.spec import BatchTables, ImageBatch
from underpaint.algos.batched.walk import BatchedSiblingOutcome, draw_dense

if TYPE_CHECKING:  # avoids a circular import: the rules import their batched forms
    from underpaint.algos.accept.spec import Residual


_FIRST_COLUMNS = 8


class NeighbourPool(NamedTuple):
    """The settings of pooling: the table [V, columns], the columns used, and the limit, a function of (own, total)."""

    neighbours: IntArray
    columns: int
    limit: Callable[[FloatArray, FloatArray], FloatArray]

    def __call__(
        self, left: Table, places: IntArray, tokens: IntArray, total: FloatArray
    ) -> tuple[FloatArray, FloatArray, IntArray]:
        """Return own mass, pooled mass and pooled codes [M] of `tokens` [M] in rows `places` [M] of `left`."""
        token_mass: FloatArray = left[places, tokens]
        limit = self.limit(token_mass, total)
        mass, count = np.zeros(places.size), np.zeros(places.size, dtype=np.int64)
        on, start = np.arange(places.size), 0
        while start < self.columns and on.size:
            # Most pools are small, so read a few columns at a time, only for the pools that still have room.
            end = min(2 * start + _FIRST_COLUMNS, self.columns)
            steps = np.empty((on.size, end - start + 1))
            steps[:, 0] = mass[on]
            steps[:, 1:] = left[places[on, None], self.neighbours[tokens[on], start:end]]
            steps = steps.cumsum(axis=1)
            inside = (steps[:, 1:] <= limit[on, None]).sum(axis=1)
            mass[on] = steps[np.arange(on.size), inside]
            count[on] += inside
            on, start = on[inside == end - start], end
        return token_mass, mass, count

    def of_tables(
        self, tables: BatchTables, rows: IntArray, tokens: IntArray, total: FloatArray
    ) -> tuple[FloatArray, FloatArray, IntArray]:
        """Return the same under the target's `rows` [M]; uses the prepared pools of the tables, if there are any."""
        prepared = tables.pools(self)
        if prepared is None:
            return self(tables.target, rows, tokens, total)
        at = rows * tables.target.shape[1] + tokens
        return tables.target[rows, tokens], prepared.masses.take(at), prepared.codes.take(at)

    def empty(self, left: FloatArray, places: IntArray, tokens: IntArray, count: IntArray) -> None:
        """Set the `count` [M] pooled codes of `tokens` [M] to 0 in rows `places` [M] of `left`."""
        near = self.neighbours[tokens, : int(count.max(initial=0))]
        inside = np.arange(near.shape[1]) < count[:, None]
        left[places.repeat(count), near[inside]] = 0.0


def additive_limit(delta: float) -> Callable[[FloatArray, FloatArray], FloatArray]:
    """Return LANTERN's limit: the share `delta` of the total mass."""
    return lambda token_mass, total: delta * total


def relative_limit(factor: float) -> Callable[[FloatArray, FloatArray], FloatArray]:
    """Return LANTERN++'s limit: a token and its pool have at most `factor` times the token's mass."""
    return lambda token_mass, total: (factor - 1.0) * token_mass


@dataclass(frozen=True, slots=True)
class PooledPoints:
    """LANTERN on point proposals, like `algos.accept.lantern.Pooling.try_points`."""

    pool: NeighbourPool
    residual: Residual

    def __call__(
        self, batch: ImageBatch, level: int, rows: IntArray, tokens: IntArray, there: BoolArray
    ) -> BatchedSiblingOutcome:
        """See `BatchedSiblingRule`. Tests the first sibling on the tables, and copies only rows of rejected ones."""
        residuals: FloatArray = np.empty((0, batch.tables.target.shape[1]))
        at = rows
        total = summed = batch.tables.masses[rows]
        accepted, extra = np.full(rows.size, -1), np.full(rows.size, -1)
        on = np.arange(rows.size)  # the nodes still being tried; their residuals are the rows `at` of `residuals`
        for turn in range(tokens.shape[1]):
            if turn and not there[on, turn].all():
                out, stay = (~there[on, turn]).nonzero()[0], there[on, turn].nonzero()[0]
                extra[on[out]] = draw_dense(batch, residuals[at[out]])
                on, at, total, summed = on[stay], at[stay], total[stay], summed[stay]
            gone = tokens[on, turn]
            pooled = (
                self.pool(residuals, at, gone, total) if turn else self.pool.of_tables(batch.tables, rows, gone, total)
            )
            token_mass, mass, count = pooled
            won = batch.draws.random(on.size) * total < token_mass + mass
            accepted[on[won]] = turn
            lost = (~won).nonzero()[0]
            if not lost.size:
                return BatchedSiblingOutcome(accepted, extra)
            on, at, total, summed = on[lost], at[lost], total[lost], summed[lost]
            gone, token_mass, mass, count = gone[lost], token_mass[lost], mass[lost], count[lost]
            if not turn:
                residuals, at = batch.tables.target[at].astype(np.float64, copy=False), np.arange(on.size)
            self.take(residuals, at, gone, count)
            residuals[at, gone] = 0.0
            total = total - token_mass - mass if self.residual == "paper" else total - token_mass
            again = (total < 0.5 * summed).nonzero()[0] if self.residual != "released" else np.arange(on.size)
            total[again] = residuals[at[again]].sum(axis=1)
            summed[again] = total[again]  # above half of the last sum, the running total is exact to 1 ulp
            empty = (total <= 0.0).nonzero()[0]
            if self.residual == "released":
                residuals[at[empty]], total[empty], summed[empty] = 1.0, residuals.shape[1], residuals.shape[1]
            elif empty.size:
                accepted[on[empty]] = turn  # the token was certain to be accepted; only rounding rejected it
                stay = (total > 0.0).nonzero()[0]
                on, at, total, summed = on[stay], at[stay], total[stay], summed[stay]
        extra[on] = draw_dense(batch, residuals[at])
        return BatchedSiblingOutcome(accepted, extra)

    def take(self, left: FloatArray, at: IntArray, gone: IntArray, count: IntArray) -> None:
        """Remove from rows `at` [M] of `left` the mass that a rejection of `gone` [M] removes besides the token."""
        if self.residual == "paper":
            self.pool.empty(left, at, gone, count)
        elif self.residual == "released":
            pooled = (count > 0).nonzero()[0]
            left[at[pooled, None], self.pool.neighbours[gone[pooled], : self.pool.columns + 1]] = 0.0
