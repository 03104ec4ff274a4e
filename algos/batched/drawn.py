"""Siblings drawn from the drafter's distribution, for many nodes at once: exact rules, or LANTERN's pools."""

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
    """The state of M nodes between two of their siblings.

    Attributes:
        left: [M, V], the current residual.
        mass: [M], the row sums of `left`.
        drafted: [M, V], the distribution of the next sibling.
        draft_mass: [M], the row sums of `drafted`.
    """

    left: FloatArray
    mass: FloatArray
    drafted: FloatArray
    draft_mass: FloatArray

    def at(self, nodes: IntArray) -> ResidualState:
        """Return the state of the nodes at the indices `nodes`."""
        return ResidualState(*(part[nodes] for part in self))

    def less(self, offered: FloatArray) -> ResidualState:
        """Return the state with left = [left - offered]_+; `offered` [M, V] has the sums of `left` and is overwritten.

        If nothing remains, `left` is kept: the sibling was certain to be accepted, and only rounding rejected it.
        """
        rest = np.subtract(self.left, offered, out=offered)
        np.maximum(rest, 0.0, out=rest)
        total = rest.sum(axis=1)
        if not total.all():
            none = np.flatnonzero(total == 0.0)
            rest[none], total[none] = self.left[none], self.mass[none]
        return self._replace(left=rest, mass=total)

    def offered(self) -> FloatArray:
        """Return `drafted` [M, V], scaled to the sums of `left`."""
        scaled: FloatArray = self.drafted * (self.mass / self.draft_mass)[:, None]
        return scaled


if TYPE_CHECKING:  # avoids a circular import: the rules import their batched forms
    from underpaint.algos.accept.spec import Residual


@dataclass(frozen=True, slots=True)
class DrawnSiblings:
    """Tries drawn siblings; tests each against the distribution that it was drawn from.

    Attributes:
        pool: How neighbours are pooled (LANTERN); None for the exact rules.
        residual: The residual after a rejection, see `Residual`; used only with a pool.
        weight: The target's weight in the mixture with the drafter (static ensemble); 1 for the other rules.
        repeats: Siblings are independent draws, which may be equal; otherwise they are drawn without replacement.
    """

    pool: NeighbourPool | None = None
    residual: Residual = "standard"
    weight: float = 1.0
    repeats: bool = False

    def __call__(
        self, batch: ImageBatch, level: int, rows: IntArray, tokens: IntArray, there: BoolArray
    ) -> BatchedSiblingOutcome:
        """See `BatchedSiblingRule`. Tests the first sibling on the tables, and copies only rows of rejected ones."""
        depth = batch.tables.draft_depth(level)
        target, draft, first = batch.tables.target, batch.tables.draft[depth], tokens[:, 0]
        mass_left, draft_mass = batch.tables.masses.take(rows), batch.tables.draft_masses[depth].take(rows)
        if self.pool is None:
            boosted, count = target[rows, first], np.zeros(rows.size, dtype=np.int64)
        else:
            token_mass, pooled, count = self.pool.of_tables(batch.tables, rows, first, mass_left)
            boosted = token_mass + pooled
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
                target_rows = target.take(after, axis=0).astype(np.float64, copy=False)
                state = ResidualState(target_rows, mass_left[lost], drafted, draft_mass[lost])
                state = self.reject(state, proposed[:, 0], boosted[lost], count[lost])
            accepted[lost], extra[lost] = self._others(batch, state, proposed, there[lost])
        return BatchedSiblingOutcome(accepted, extra)

    def _others(
        self, batch: ImageBatch, state: ResidualState, tokens: IntArray, there: BoolArray
    ) -> BatchedSiblingOutcome:
        """Try the siblings after the first one, which was rejected; `state` [M] is overwritten."""
        accepted, extra = np.full(tokens.shape[0], -1), np.full(tokens.shape[0], -1)
        on = np.arange(tokens.shape[0])
        for turn in range(1, tokens.shape[1]):
            going = there[on, turn]
            if not going.all():
                out, stay = (~going).nonzero()[0], going.nonzero()[0]
                extra[on[out]] = draw_dense(batch, state.left[out])
                on, state = on[stay], state.at(stay)
            if not self.repeats:
                state = state._replace(draft_mass=forget(state.drafted, tokens[on, :turn]))
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
        """Return [M], the masses that keep `tokens` in rows `places` of `left`, and the numbers of pooled codes."""
        if self.pool is None:
            return left[places, tokens], np.zeros(places.size, dtype=np.int64)
        token_mass, mass, count = self.pool(left, places, tokens, mass_left)
        return token_mass + mass, count

    def _mixed(self, masses: FloatArray, offered: FloatArray) -> FloatArray:
        """Return [M], the mass with which tokens of `masses` [M] and draft mass `offered` [M] are kept."""
        return masses if self.weight == 1.0 else masses + (1.0 - self.weight) * (offered - masses)

    def reject(self, state: ResidualState, gone: IntArray, boosted: FloatArray, count: IntArray) -> ResidualState:
        """Return the state after `gone` [M], of mass `boosted` [M] with `count` [M] codes pooled, was rejected."""
        offered = state.offered()
        if self.pool is not None and self.residual == "released":
            pooled = np.flatnonzero(count > 0)
            offered[pooled[:, None], self.pool.neighbours[gone[pooled], : self.pool.columns + 1]] = 0.0
        elif self.pool is not None and self.residual == "paper":
            self.pool.empty(state.left, np.arange(gone.size), gone, count)
            state.left[np.arange(gone.size), gone] = boosted
        return state.less(offered)


def forget(distributions: FloatArray, tried: IntArray) -> FloatArray:
    """Remove the tokens `tried` [M, j] from `distributions` [M, V] in place; empty rows become uniform over the others.
    Returns the sums [M]."""
    distributions[np.arange(tried.shape[0])[:, None], tried] = 0.0
    total: FloatArray = distributions.sum(axis=1)
    if not total.all():
        dry = np.flatnonzero(total == 0.0)
        even = np.ones((dry.size, distributions.shape[1]))
        np.put_along_axis(even, tried[dry], 0.0, axis=1)
        distributions[dry], total[dry] = even, even.sum(axis=1)
    return total


def batched_exact_siblings(rule: object, drawn: Drawn) -> BatchedRule | None:
    """The `batched` field of the exact rules for drawn siblings, which differ only in the trees they support."""
    return None if drawn == "top_k" else BatchedWalk(DrawnSiblings(repeats=drawn == "iid"))
