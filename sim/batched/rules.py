"""Acceptance rules over many draft trees at once. Each has the distribution of its namesake in `algos.accept`, not its
noise."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from underpaint.algos.accept.spec import Residual
from underpaint.algos.arrays import BoolArray, FloatArray, IntArray
from underpaint.algos.batched.spec import ImageBatch, TreeBatch
from underpaint.sim.batched.residuals import Owed


class Decided(NamedTuple):
    """Verdicts on A trees: `path` [A, L] tokens, of which `kept` [A] count, and the `extra` [A] token."""

    path: IntArray
    kept: IntArray
    extra: IntArray


class Judge(Protocol):
    """A rule for a batch."""

    def __call__(self, batch: ImageBatch, grown: TreeBatch) -> Decided:
        """Decide the trees of the images `grown.images` [A]."""
        ...


class Tried(NamedTuple):
    """What came of the children of M nodes: which is kept (-1: none), and the extra token where none is."""

    kept: IntArray
    extra: IntArray


class Siblings(Protocol):
    """Tries the children of M nodes, each in order."""

    def __call__(self, batch: ImageBatch, level: int, rows: IntArray, tokens: IntArray, there: BoolArray) -> Tried:
        """`rows` [M] of the tables hold the nodes' distributions; `tokens` [M, k], of which `there` [M, k] are
        proposed."""
        ...


@dataclass(frozen=True, slots=True)
class Walk:
    """Down from the root while a child is kept, as `algos.accept.walk` does."""

    siblings: Siblings

    def __call__(self, batch: ImageBatch, grown: TreeBatch) -> Decided:
        """See `Judge`."""
        active, count = grown.images, grown.images.size
        path = np.zeros((count, max(1, len(grown.levels))), dtype=np.int64)
        kept, extra = np.zeros(count, dtype=np.int64), np.full(count, -1)
        last = batch.roots(active)
        here, chosen = np.arange(count), np.zeros(count, dtype=np.int64)
        for level, block in enumerate(grown.levels):
            size, _, width = block.tokens.shape
            # Where the walk stands among the expanded nodes; it ends at a node that was not expanded.
            inside = here.searchsorted(size)
            on, at = (block.above[here[:inside]] == chosen[:inside, None]).nonzero()
            here = here[on]
            flat = here * block.rows.shape[1] + at
            there = block.kept.reshape(-1, width).take(flat, axis=0)
            if not there[:, 0].all():
                on = np.flatnonzero(there[:, 0])
                here, at, flat, there = here[on], at[on], flat[on], there[on]
            if not here.size:
                break
            tokens = block.tokens.reshape(-1, width).take(flat, axis=0)
            tried = self.siblings(batch, level, block.rows.take(flat), tokens, there)
            won, lost = np.flatnonzero(tried.kept >= 0), np.flatnonzero(tried.kept < 0)
            extra[here[lost]] = tried.extra[lost]
            here, child = here[won], tried.kept[won]
            last[here] = path[here, level] = tokens[won, child]
            chosen = at[won] * width + child
            kept[here] += 1
        leaves = np.flatnonzero(extra < 0)
        rows = batch.rows_after(active[leaves], kept[leaves], last[leaves])
        extra[leaves] = batch.tables.draw(rows, batch.draws.random(leaves.size))
        return Decided(path, kept, extra)


def try_points(batch: ImageBatch, level: int, rows: IntArray, tokens: IntArray, there: BoolArray) -> Tried:
    """Point proposals: trying them one by one is drawing once, and looking whether it was proposed."""
    drawn = batch.tables.draw(rows, batch.draws.random(rows.size))
    kept = np.full(rows.size, -1)
    on, child = ((tokens == drawn[:, None]) & there).nonzero()
    kept[on] = child
    return Tried(kept, drawn)


def _draw_dense(batch: ImageBatch, weights: FloatArray) -> IntArray:
    """[M] one token from each row of weights [M, V]; its weight is never 0."""
    steps = weights.cumsum(axis=1)
    reached = batch.draws.random(weights.shape[0]) * (1.0 - 1e-12) * steps[:, -1]
    found: IntArray = (steps > reached[:, None]).argmax(axis=1)
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
        running = left[places[:, None], self.neighbours[tokens, : self.columns]].cumsum(axis=1, dtype=np.float64)
        count: IntArray = (running <= self.limit(own, total)[:, None]).sum(axis=1)
        mass = np.where(count > 0, running[np.arange(places.size), np.maximum(count - 1, 0)], 0.0)
        return own, mass, count


@dataclass(frozen=True, slots=True)
class TryPooledPoints:
    """LANTERN on point proposals, as `algos.accept.lantern.Pooling.try_points`."""

    pool: Pool
    residual: Residual

    def __call__(self, batch: ImageBatch, level: int, rows: IntArray, tokens: IntArray, there: BoolArray) -> Tried:
        """See `Siblings`. The first sibling is tested on the tables; only what it loses is copied."""
        left, at = batch.tables.target, rows
        total = summed = batch.tables.masses[rows]
        kept, extra = np.full(rows.size, -1), np.full(rows.size, -1)
        on = np.arange(rows.size)
        for turn in range(tokens.shape[1]):
            if turn and not there[on, turn].all():
                out = np.flatnonzero(~there[on, turn])
                extra[on[out]] = _draw_dense(batch, left[out])
                stay = np.flatnonzero(there[on, turn])
                on, left, total, summed = on[stay], left[stay], total[stay], summed[stay]
                at = np.arange(on.size)
            gone = tokens[on, turn]
            own, mass, count = self.pool(left, at, gone, total)
            won = batch.draws.random(on.size) * total < own + mass
            kept[on[won]] = turn
            lost = np.flatnonzero(~won)
            if not lost.size:
                return Tried(kept, extra)
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
                kept[on[empty]] = turn  # certain to be kept, and only rounding said otherwise
                stay = np.flatnonzero(total > 0.0)
                on, left, total, summed = on[stay], left[stay], total[stay], summed[stay]
                at = np.arange(on.size)
        extra[on] = _draw_dense(batch, left)
        return Tried(kept, extra)

    def take(self, left: FloatArray, gone: IntArray, count: IntArray) -> None:
        """Take out of the rows `left` [M, V] what a rejection of `gone` [M] takes beside the token itself."""
        if self.residual == "paper":
            near = self.pool.neighbours[gone, : self.pool.columns]
            inside = np.arange(near.shape[1]) < count[:, None]
            left[np.arange(gone.size).repeat(count), near[inside]] = 0.0
        elif self.residual == "released":
            pooled = np.flatnonzero(count > 0)
            left[pooled[:, None], self.pool.neighbours[gone[pooled], : self.pool.columns + 1]] = 0.0


@dataclass(frozen=True, slots=True)
class TryDrawn:
    """Siblings drawn without replacement (one alone: independently), tested as their distributions demand; `pool`:
    LANTERN."""

    pool: Pool | None = None
    residual: Residual = "standard"

    def __call__(self, batch: ImageBatch, level: int, rows: IntArray, tokens: IntArray, there: BoolArray) -> Tried:
        """See `Siblings`. The first sibling is tested on the tables; only what it loses is copied."""
        depth = batch.tables.draft_depth(level)
        target, draft, first = batch.tables.target, batch.tables.draft[depth], tokens[:, 0]
        owing, offering = batch.tables.masses.take(rows), batch.tables.draft_masses[depth].take(rows)
        boosted, count = self.boosted(target, rows, first, owing)
        lost = (batch.draws.random(rows.size) * draft[rows, first] * owing >= boosted * offering).nonzero()[0]
        kept, extra = np.zeros(rows.size, dtype=np.int64), np.full(rows.size, -1)
        rest = batch.tables.first_residual(depth) if self.pool is None else None
        if rest is not None:
            more = there[lost, 1] if tokens.shape[1] > 1 else np.zeros(lost.size, dtype=np.bool_)
            out, lost = lost[~more], lost[more]
            kept[out], extra[out] = -1, rest.draw(rows[out], batch.draws.random(out.size))
        if lost.size:
            after, proposed = rows[lost], tokens[lost]
            drafted = draft.take(after, axis=0).astype(np.float64, copy=False)
            if rest is not None:
                owed = Owed(rest.left.take(after, axis=0), rest.mass.take(after), drafted, offering[lost])
            else:
                left = target.take(after, axis=0).astype(np.float64, copy=False)
                owed = Owed(left, owing[lost], drafted, offering[lost])
                owed = self.reject(owed, proposed[:, 0], boosted[lost], count[lost])
            kept[lost], extra[lost] = self._others(batch, owed, proposed, there[lost])
        return Tried(kept, extra)

    def _others(self, batch: ImageBatch, owed: Owed, tokens: IntArray, there: BoolArray) -> Tried:
        """The siblings after the first, which was rejected; `owed` [M] is used up."""
        kept, extra = np.full(tokens.shape[0], -1), np.full(tokens.shape[0], -1)
        on = np.arange(tokens.shape[0])
        for turn in range(1, tokens.shape[1]):
            going = there[on, turn]
            if not going.all():
                out, stay = (~going).nonzero()[0], going.nonzero()[0]
                extra[on[out]] = _draw_dense(batch, owed.left[out])
                on, owed = on[stay], owed.of(stay)
            owed = owed._replace(offering=_forget(owed.drafted, tokens[on, :turn]))
            places, proposed = np.arange(on.size), tokens[on, turn]
            boosted, count = self.boosted(owed.left, places, proposed, owed.owing)
            offered = batch.draws.random(on.size) * owed.drafted[places, proposed]
            won = offered * owed.owing < boosted * owed.offering
            kept[on[won]] = turn
            lost = (~won).nonzero()[0]
            if not lost.size:
                return Tried(kept, extra)
            on = on[lost]
            owed = self.reject(owed.of(lost), proposed[lost], boosted[lost], count[lost])
        extra[on] = _draw_dense(batch, owed.left)
        return Tried(kept, extra)

    def boosted(
        self, left: FloatArray, places: IntArray, tokens: IntArray, owing: FloatArray
    ) -> tuple[FloatArray, IntArray]:
        """[M] the mass that `tokens` [M] are kept for under rows `places` of `left`, of sum `owing` [M] each, and the
        codes pooled for it."""
        if self.pool is None:
            return left[places, tokens], np.zeros(places.size, dtype=np.int64)
        own, mass, count = self.pool(left, places, tokens, owing)
        return own + mass, count

    def reject(self, owed: Owed, gone: IntArray, boosted: FloatArray, count: IntArray) -> Owed:
        """What is owed after `gone` [M], of mass `boosted` [M] with `count` [M] codes pooled, were rejected."""
        offered = owed.offered()
        if self.pool is not None and self.residual == "released":
            pooled = np.flatnonzero(count > 0)
            offered[pooled[:, None], self.pool.neighbours[gone[pooled], : self.pool.columns + 1]] = 0.0
        elif self.pool is not None and self.residual == "paper":
            near = self.pool.neighbours[gone, : self.pool.columns]
            inside = np.arange(near.shape[1]) < count[:, None]
            owed.left[np.arange(gone.size).repeat(count), near[inside]] = 0.0
            owed.left[np.arange(gone.size), gone] = boosted
        return owed.less(offered)


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
