"""Siblings drawn from the drafter's distribution, over many nodes at once: exact, or with LANTERN's pools."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from underpaint.algos.arrays import BoolArray, FloatArray, IntArray
from underpaint.algos.batched.pooling import NeighbourPool
from underpaint.algos.batched.spec import BatchedRule, ImageBatch
from underpaint.algos.batched.walk import BatchedSiblingOutcome, BatchedWalk, draw_dense
from underpaint.algos.tree import Drawn


class ResidualState(NamedTuple):
    """Where M nodes stand among their siblings.

    left: [M, V], the residual that is still to be emitted, of sum `mass` [M]. drafted: [M, V], what the next sibling is
    drawn from, of sum `draft_mass` [M].
    """

    left: FloatArray
    mass: FloatArray
    drafted: FloatArray
    draft_mass: FloatArray

    def at(self, nodes: IntArray) -> ResidualState:
        """Those of some nodes."""
        return ResidualState(*(part[nodes] for part in self))

    def less(self, offered: FloatArray) -> ResidualState:
        """[left - offered]_+, where `offered` [M, V] has the sums of `left` and is used up.

        Where nothing is left, all is: its sibling was certain to be kept, and only rounding said otherwise.
        """
        rest = np.subtract(self.left, offered, out=offered)
        np.maximum(rest, 0.0, out=rest)
        total = rest.sum(axis=1)
        if not total.all():
            none = np.flatnonzero(total == 0.0)
            rest[none], total[none] = self.left[none], self.mass[none]
        return self._replace(left=rest, mass=total)

    def offered(self) -> FloatArray:
        """[M, V] `drafted` with the sums of `left`."""
        scaled: FloatArray = self.drafted * (self.mass / self.draft_mass)[:, None]
        return scaled


if TYPE_CHECKING:  # the rules import their batched forms
    from underpaint.algos.accept.spec import Residual


@dataclass(frozen=True, slots=True)
class DrawnSiblings:
    """Drawn siblings, each tested against what it was drawn from.

    pool: how neighbours are pooled (LANTERN); None for the exact rules. weight: of the target in the mixture with the
    drafter that judges (the static ensemble); 1 for the others. repeats: siblings are independent draws, which may be
    equal; else each is drawn without those before it.
    """

    pool: NeighbourPool | None = None
    residual: Residual = "standard"
    weight: float = 1.0
    repeats: bool = False

    def __call__(
        self, batch: ImageBatch, level: int, rows: IntArray, tokens: IntArray, there: BoolArray
    ) -> BatchedSiblingOutcome:
        """See `BatchedSiblingRule`. The first sibling is tested on the tables; only what it loses is copied."""
        depth = batch.tables.draft_depth(level)
        target, draft, first = batch.tables.target, batch.tables.draft[depth], tokens[:, 0]
        mass_left, draft_mass = batch.tables.masses.take(rows), batch.tables.draft_masses[depth].take(rows)
        if self.pool is None:
            boosted, count = target[rows, first], np.zeros(rows.size, dtype=np.int64)
        else:
            own, pooled, count = self.pool.of_tables(batch.tables, rows, first, mass_left)
            boosted = own + pooled
        offered = draft[rows, first] * mass_left
        lost = (batch.draws.random(rows.size) * offered >= self._mixed(boosted * draft_mass, offered)).nonzero()[0]
        accepted, extra = np.zeros(rows.size, dtype=np.int64), np.full(rows.size, -1)
        rest = batch.tables.first_residual(depth) if self.pool is None else None
        if rest is not None:
            more = there[lost, 1] if tokens.shape[1] > 1 else np.zeros(lost.size, dtype=np.bool_)
            out, lost = lost[~more], lost[more]
            accepted[out], extra[out] = -1, rest.draw(rows[out], batch.draws.random(out.size))
        if lost.size:
            after, proposed = rows[lost], tokens[lost]
            drafted = draft.take(after, axis=0).astype(np.float64, copy=False)
            if rest is not None:
                state = ResidualState(rest.left.take(after, axis=0), rest.mass.take(after), drafted, draft_mass[lost])
            else:
                left = target.take(after, axis=0).astype(np.float64, copy=False)
                state = ResidualState(left, mass_left[lost], drafted, draft_mass[lost])
                state = self.reject(state, proposed[:, 0], boosted[lost], count[lost])
            accepted[lost], extra[lost] = self._others(batch, state, proposed, there[lost])
        return BatchedSiblingOutcome(accepted, extra)

    def _others(
        self, batch: ImageBatch, state: ResidualState, tokens: IntArray, there: BoolArray
    ) -> BatchedSiblingOutcome:
        """The siblings after the first, which was rejected; `state` [M] is used up."""
        accepted, extra = np.full(tokens.shape[0], -1), np.full(tokens.shape[0], -1)
        on = np.arange(tokens.shape[0])
        for turn in range(1, tokens.shape[1]):
            going = there[on, turn]
            if not going.all():
                out, stay = (~going).nonzero()[0], going.nonzero()[0]
                extra[on[out]] = draw_dense(batch, state.left[out])
                on, state = on[stay], state.at(stay)
            if not self.repeats:
                state = state._replace(draft_mass=_forget(state.drafted, tokens[on, :turn]))
            places, proposed = np.arange(on.size), tokens[on, turn]
            boosted, count = self.boosted(state.left, places, proposed, state.mass)
            offered = state.drafted[places, proposed] * state.mass
            won = batch.draws.random(on.size) * offered < self._mixed(boosted * state.draft_mass, offered)
            accepted[on[won]] = turn
            lost = (~won).nonzero()[0]
            if not lost.size:
                return BatchedSiblingOutcome(accepted, extra)
            on = on[lost]
            state = self.reject(state.at(lost), proposed[lost], boosted[lost], count[lost])
        extra[on] = draw_dense(batch, state.left)
        return BatchedSiblingOutcome(accepted, extra)

    def boosted(
        self, left: FloatArray, places: IntArray, tokens: IntArray, mass_left: FloatArray
    ) -> tuple[FloatArray, IntArray]:
        """[M] the mass that `tokens` [M] are kept for under rows `places` of `left`, of sums `mass_left` [M], and the
        codes pooled for it."""
        if self.pool is None:
            return left[places, tokens], np.zeros(places.size, dtype=np.int64)
        own, mass, count = self.pool(left, places, tokens, mass_left)
        return own + mass, count

    def _mixed(self, own: FloatArray, offered: FloatArray) -> FloatArray:
        """[M] what tokens of masses `own` [M] are kept for, where they were `offered` [M]."""
        return own if self.weight == 1.0 else own + (1.0 - self.weight) * (offered - own)

    def reject(self, state: ResidualState, gone: IntArray, boosted: FloatArray, count: IntArray) -> ResidualState:
        """What is left after `gone` [M], of mass `boosted` [M] with `count` [M] codes pooled, were rejected."""
        offered = state.offered()
        if self.pool is not None and self.residual == "released":
            pooled = np.flatnonzero(count > 0)
            offered[pooled[:, None], self.pool.neighbours[gone[pooled], : self.pool.columns + 1]] = 0.0
        elif self.pool is not None and self.residual == "paper":
            self.pool.empty(state.left, np.arange(gone.size), gone, count)
            state.left[np.arange(gone.size), gone] = boosted
        return state.less(offered)


def _forget(distributions: FloatArray, tried: IntArray) -> FloatArray:
    """Take the tokens `tried` [M, j] out of `distributions` [M, V]; what is empty then is even over the others. [M] the
    sums."""
    distributions[np.arange(tried.shape[0])[:, None], tried] = 0.0
    total: FloatArray = distributions.sum(axis=1)
    if not total.all():
        dry = np.flatnonzero(total == 0.0)
        even = np.ones((dry.size, distributions.shape[1]))
        np.put_along_axis(even, tried[dry], 0.0, axis=1)
        distributions[dry], total[dry] = even, even.sum(axis=1)
    return total


def batched_exact_siblings(rule: object, drawn: Drawn) -> BatchedRule | None:
    """The `batched` of the exact rules for drawn siblings: they differ in the trees they cover alone."""
    return None if drawn == "top_k" else BatchedWalk(DrawnSiblings(repeats=drawn == "iid"))
