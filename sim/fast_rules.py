"""Acceptance rules over many draft trees at once. Each has the law of its namesake in `algos.accept`, not its noise."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from algos.accept.spec import Residual
from algos.arrays import BoolArray, FloatArray, IntArray
from sim.fast_batch import Batch, Grown

_THIN = 1e-9
"""Mass under which a row may be empty, but for rounding."""


class Decided(NamedTuple):
    """Verdicts on A trees: `path` [A, L] tokens, of which `kept` [A] count, and the `extra` [A] token."""

    path: IntArray
    kept: IntArray
    extra: IntArray


class Judge(Protocol):
    """A rule for a batch."""

    def __call__(self, batch: Batch, active: IntArray, grown: Grown) -> Decided:
        """Decide the trees of the images `active` [A]."""
        ...


class Tried(NamedTuple):
    """What came of the children of M nodes: which is kept (-1: none), and the extra token where none is."""

    kept: IntArray
    extra: IntArray


class Siblings(Protocol):
    """Tries the children of M nodes, each in order."""

    def __call__(self, batch: Batch, level: int, rows: IntArray, tokens: IntArray, there: BoolArray) -> Tried:
        """`rows` [M] of the tables hold the nodes' laws; `tokens` [M, k], of which `there` [M, k] are proposed."""
        ...


@dataclass(frozen=True, slots=True)
class Walk:
    """Down from the root while a child is kept, as `algos.accept.walk` does."""

    siblings: Siblings

    def __call__(self, batch: Batch, active: IntArray, grown: Grown) -> Decided:
        """See `Judge`."""
        count = active.size
        path = np.zeros((count, max(1, len(grown.blocks))), dtype=np.int64)
        kept = np.zeros(count, dtype=np.int64)
        extra = np.full(count, -1)
        place = np.zeros(count, dtype=np.int64)
        last = batch.roots(active)
        for level, block in enumerate(grown.blocks):
            here = np.flatnonzero((place >= 0) & (kept == level) & (extra < 0))
            here = here[block.kept[here, place[here]].any(axis=1)]
            if not here.size:
                break
            at = place[here]
            tokens = block.tokens[here, at]
            tried = self.siblings(batch, level, block.rows[here, at], tokens, block.kept[here, at])
            won = tried.kept >= 0
            extra[here[~won]] = tried.extra[~won]
            on, child = here[won], tried.kept[won]
            last[on] = path[on, level] = tokens[won, child]
            place[on] = block.child[on, at[won], child]
            kept[on] += 1
        leaves = np.flatnonzero(extra < 0)
        rows = rows_below(batch, active[leaves], kept[leaves], last[leaves])
        extra[leaves] = batch.tables.draw(rows, batch.draws.random(leaves.size))
        return Decided(path, kept, extra)


def rows_below(batch: Batch, active: IntArray, kept: IntArray, last: IntArray) -> IntArray:
    """[M] the rows after the kept nodes, at a depth of their own each."""
    rows = np.zeros(active.size, dtype=np.int64)
    for level in np.unique(kept).tolist():
        here = np.flatnonzero(kept == level)
        rows[here] = batch.rows_after(active[here], level, last[here])
    return rows


def try_points(batch: Batch, level: int, rows: IntArray, tokens: IntArray, there: BoolArray) -> Tried:
    """Point proposals: trying them one by one is drawing once, and looking whether it was proposed."""
    drawn = batch.tables.draw(rows, batch.draws.random(rows.size))
    return _found(drawn, tokens, there)


def _found(drawn: IntArray, tokens: IntArray, there: BoolArray) -> Tried:
    same = (tokens == drawn[:, None]) & there
    return Tried(np.where(same.any(axis=1), same.argmax(axis=1), -1), drawn)


def _draw_dense(batch: Batch, weights: FloatArray) -> IntArray:
    """[M] one token from each row of weights [M, V]; its weight is never 0."""
    steps = weights.cumsum(axis=1)
    reached = batch.draws.random(weights.shape[0]) * (1.0 - 1e-12) * steps[:, -1]
    found: IntArray = (steps <= reached[:, None]).sum(axis=1)
    return found


class Pool(NamedTuple):
    """How neighbours are pooled: the table [V, columns], the columns used, and the limit of (own, total) [M]."""

    neighbours: IntArray
    columns: int
    limit: Callable[[FloatArray, FloatArray], FloatArray]

    def __call__(
        self, left: FloatArray, places: IntArray, tokens: IntArray, total: FloatArray
    ) -> tuple[FloatArray, FloatArray, IntArray]:
        """Own mass, pooled mass and pooled codes [M] of `tokens` [M] under rows `places` [M] of `left`."""
        own: FloatArray = left[places, tokens]
        running = left[places[:, None], self.neighbours[tokens, : self.columns]].cumsum(axis=1)
        count: IntArray = (running <= self.limit(own, total)[:, None]).sum(axis=1)
        mass = np.where(count > 0, running[np.arange(places.size), np.maximum(count - 1, 0)], 0.0)
        return own, mass, count


@dataclass(frozen=True, slots=True)
class TryPooledPoints:
    """LANTERN on point proposals, as `algos.accept.lantern.Pooling.try_points`."""

    pool: Pool
    residual: Residual

    def __call__(self, batch: Batch, level: int, rows: IntArray, tokens: IntArray, there: BoolArray) -> Tried:
        """See `Siblings`."""
        left = batch.world.target[rows].astype(np.float64)
        kept = np.full(rows.size, -1)
        totals = left.sum(axis=1)
        for turn in range(tokens.shape[1]):
            here = np.flatnonzero((kept < 0) & there[:, turn])
            if not here.size:
                continue
            proposed, total = tokens[here, turn], totals[here]
            own, mass, count = self.pool(left, here, proposed, total)
            won = batch.draws.random(here.size) * total < own + mass
            kept[here[won]] = turn
            lost, gone = here[~won], proposed[~won]
            self.take(left, lost, gone, count[~won])
            left[lost, gone] = 0.0
            rest = total[~won] - own[~won] if self.residual == "optimal" else left[lost].sum(axis=1)
            totals[lost] = np.maximum(rest, 0.0)
            thin = lost[totals[lost] < _THIN]
            empty = thin[~left[thin].any(axis=1)]
            if self.residual == "released":
                left[empty], totals[empty] = 1.0, left.shape[1]
            else:
                kept[empty] = turn  # certain to be kept, and only rounding said otherwise
        extra = np.full(rows.size, -1)
        out = np.flatnonzero(kept < 0)
        extra[out] = _draw_dense(batch, left[out])
        return Tried(kept, extra)

    def take(self, left: FloatArray, lost: IntArray, gone: IntArray, count: IntArray) -> None:
        """Take out of the rows `lost` [M] of `left` what a rejection of `gone` [M] takes beside the token itself."""
        if self.residual == "paper":
            near = self.pool.neighbours[gone, : self.pool.columns]
            inside = np.arange(near.shape[1]) < count[:, None]
            left[np.repeat(lost, count), near[inside]] = 0.0
        elif self.residual == "released":
            pooled = count > 0
            left[lost[pooled][:, None], self.pool.neighbours[gone[pooled], : self.pool.columns + 1]] = 0.0


@dataclass(frozen=True, slots=True)
class TryDrawn:
    """Siblings drawn without replacement (one alone: independently), tested as their laws demand; `pool`: LANTERN."""

    pool: Pool | None = None
    residual: Residual = "optimal"

    def __call__(self, batch: Batch, level: int, rows: IntArray, tokens: IntArray, there: BoolArray) -> Tried:
        """See `Siblings`. The first sibling is tested on the tables; only what it loses is copied."""
        target, draft = batch.world.target, batch.world.draft[batch.tables.draft_depth(level)]
        first = tokens[:, 0]
        boosted, count = self.boosted(target, rows, first)
        lost = np.flatnonzero(batch.draws.random(rows.size) * draft[rows, first] >= boosted)
        kept, extra = np.zeros(rows.size, dtype=np.int64), np.full(rows.size, -1)
        if lost.size:
            left = _normalised(target[rows[lost]].astype(np.float64))
            drafted = _normalised(draft[rows[lost]].astype(np.float64))
            kept[lost], extra[lost] = self._others(
                batch, left, drafted, tokens[lost], there[lost], boosted[lost], count[lost]
            )
        return Tried(kept, extra)

    def _others(
        self,
        batch: Batch,
        left: FloatArray,
        drafted: FloatArray,
        tokens: IntArray,
        there: BoolArray,
        boosted: FloatArray,
        count: IntArray,
    ) -> Tried:
        """The siblings after the first, which was rejected; `left` and `drafted` [M, V] are used up."""
        untried = np.ones(left.shape, dtype=np.bool_)
        kept = np.full(tokens.shape[0], -1)
        lost = np.arange(tokens.shape[0])
        for turn in range(tokens.shape[1]):
            if turn:
                here = np.flatnonzero((kept < 0) & there[:, turn])
                boosted, count = self.boosted(left, here, tokens[here, turn])
                won = batch.draws.random(here.size) * drafted[here, tokens[here, turn]] < boosted
                kept[here[won]] = turn
                lost, boosted, count = here[~won], boosted[~won], count[~won]
            if not lost.size:
                continue
            gone = tokens[lost, turn]
            self.reject(left, drafted, lost, gone, boosted, count)
            if turn + 1 < tokens.shape[1]:
                untried[lost, gone] = False
                drafted[lost, gone] = 0.0
                dry = lost[~drafted[lost].any(axis=1)]
                drafted[dry] = untried[dry]
                drafted[lost] = _normalised(drafted[lost])
        extra = np.full(kept.size, -1)
        out = np.flatnonzero(kept < 0)
        extra[out] = _draw_dense(batch, left[out])
        return Tried(kept, extra)

    def boosted(self, left: FloatArray, places: IntArray, tokens: IntArray) -> tuple[FloatArray, IntArray]:
        """[M] the mass that `tokens` [M] are kept for under rows `places` of `left`, and the codes pooled for it."""
        if self.pool is None:
            return left[places, tokens], np.zeros(places.size, dtype=np.int64)
        own, mass, count = self.pool(left, places, tokens, np.ones(places.size))
        return own + mass, count

    def reject(
        self,
        left: FloatArray,
        drafted: FloatArray,
        lost: IntArray,
        gone: IntArray,
        boosted: FloatArray,
        count: IntArray,
    ) -> None:
        """Turn the rows `lost` [M] of `left` into what is owed after `gone` [M] were rejected."""
        offered = drafted[lost]
        if self.pool is not None and self.residual == "released":
            pooled = np.flatnonzero(count > 0)
            offered[pooled[:, None], self.pool.neighbours[gone[pooled], : self.pool.columns + 1]] = 0.0
        elif self.pool is not None and self.residual == "paper":
            near = self.pool.neighbours[gone, : self.pool.columns]
            inside = np.arange(near.shape[1]) < count[:, None]
            left[np.repeat(lost, count), near[inside]] = 0.0
            left[lost, gone] = boosted
        owed = np.maximum(left[lost] - offered, 0.0)
        some = owed.any(axis=1)
        left[lost[some]] = _normalised(owed[some])


def _normalised(rows: FloatArray) -> FloatArray:
    scaled: FloatArray = rows / rows.sum(axis=1, keepdims=True)
    return scaled
