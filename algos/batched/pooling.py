"""LANTERN's pooled neighbours over many nodes at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from underpaint.algos.arrays import BoolArray, FloatArray, IntArray
from underpaint.algos.batched.spec import ImageBatch
from underpaint.algos.batched.walk import BatchedSiblingOutcome, draw_dense

if TYPE_CHECKING:  # the rules import their batched forms
    from underpaint.algos.accept.spec import Residual


class NeighbourPool(NamedTuple):
    """How neighbours are pooled: the table [V, columns], the columns used, and the limit of (own, total) [M]."""

    neighbours: IntArray
    columns: int
    limit: Callable[[FloatArray, FloatArray], FloatArray]

    def __call__(
        self, left: FloatArray, places: IntArray, tokens: IntArray, total: FloatArray
    ) -> tuple[FloatArray, FloatArray, IntArray]:
        """Own mass, pooled mass and pooled codes [M] of `tokens` [M] under rows `places` [M] of `left`."""
        own: FloatArray = left[places, tokens]
        running = left[places[:, None], self.neighbours[tokens, : self.columns]].cumsum(axis=1, dtype=np.float64)
        count: IntArray = (running <= self.limit(own, total)[:, None]).sum(axis=1)
        mass = np.where(count > 0, running[np.arange(places.size), np.maximum(count - 1, 0)], 0.0)
        return own, mass, count


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
        left, at = batch.tables.target, rows
        total = summed = batch.tables.masses[rows]
        accepted, extra = np.full(rows.size, -1), np.full(rows.size, -1)
        on = np.arange(rows.size)
        for turn in range(tokens.shape[1]):
            if turn and not there[on, turn].all():
                out = np.flatnonzero(~there[on, turn])
                extra[on[out]] = draw_dense(batch, left[out])
                stay = np.flatnonzero(there[on, turn])
                on, left, total, summed = on[stay], left[stay], total[stay], summed[stay]
                at = np.arange(on.size)
            gone = tokens[on, turn]
            own, mass, count = self.pool(left, at, gone, total)
            won = batch.draws.random(on.size) * total < own + mass
            accepted[on[won]] = turn
            lost = np.flatnonzero(~won)
            if not lost.size:
                return BatchedSiblingOutcome(accepted, extra)
            left = left[at[lost]].astype(np.float64, copy=False)
            on, total, summed, gone, count = on[lost], total[lost], summed[lost], gone[lost], count[lost]
            at = np.arange(on.size)
            self.take(left, gone, count)
            left[at, gone] = 0.0
            total = total - own[lost] - mass[lost] if self.residual == "paper" else total - own[lost]
            again = np.flatnonzero(total < 0.5 * summed) if self.residual != "released" else at
            total[again] = left[again].sum(axis=1)
            summed[again] = total[again]  # above half of the last sum, the running total is exact to an ulp
            empty = np.flatnonzero(total <= 0.0)
            if self.residual == "released":
                left[empty], total[empty], summed[empty] = 1.0, left.shape[1], left.shape[1]
            elif empty.size:
                accepted[on[empty]] = turn  # certain to be accepted, and only rounding said otherwise
                stay = np.flatnonzero(total > 0.0)
                on, left, total, summed = on[stay], left[stay], total[stay], summed[stay]
                at = np.arange(on.size)
        extra[on] = draw_dense(batch, left)
        return BatchedSiblingOutcome(accepted, extra)

    def take(self, left: FloatArray, gone: IntArray, count: IntArray) -> None:
        """Take out of the rows `left` [M, V] what a rejection of `gone` [M] takes beside the token itself."""
        if self.residual == "paper":
            near = self.pool.neighbours[gone, : self.pool.columns]
            inside = np.arange(near.shape[1]) < count[:, None]
            left[np.arange(gone.size).repeat(count), near[inside]] = 0.0
        elif self.residual == "released":
            pooled = np.flatnonzero(count > 0)
            left[pooled[:, None], self.pool.neighbours[gone[pooled], : self.pool.columns + 1]] = 0.0
