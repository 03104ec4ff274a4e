"""`neighbour_budget` for many nodes at once: mass moves to draft codes from their nearest codes."""

from dataclasses import dataclass

import numpy as np

from underpaint.algos.arrays import BoolArray, FloatArray, IntArray
from underpaint.algos.batched.drawn import forget
from underpaint.algos.batched.spec import ImageBatch
from underpaint.algos.batched.walk import BatchedSiblingOutcome, draw_dense, normalised_rows


def move_rows_to_points(
    rows: FloatArray, tokens: IntArray, there: BoolArray, neighbours: IntArray, delta: float
) -> None:
    """Apply `accept.neighbour_budget.move_to_points` in place to each of `rows` [M, V] (sum 1); of `tokens` [M, k],
    those with `there` [M, k] are proposed."""
    at = np.arange(rows.shape[0])[:, None]
    proposal_mask = np.zeros(rows.shape, dtype=np.bool_)
    on, place = there.nonzero()
    proposal_mask[on, tokens[on, place]] = True
    budget = np.full(rows.shape[0], delta)
    for turn in range(tokens.shape[1]):
        near = neighbours[tokens[:, turn]]
        masses = np.where(proposal_mask[at, near] | ~there[:, turn, None], 0.0, rows[at, near])
        amounts = np.diff(np.minimum(masses.cumsum(axis=1), budget[:, None]), axis=1, prepend=0.0)
        rows[at, near] -= amounts
        whole = amounts.sum(axis=1)
        rows[at[:, 0], tokens[:, turn]] += whole
        budget -= whole
    np.maximum(rows, 0.0, out=rows)


def move_rows_to_drafts(targets: FloatArray, drafts: FloatArray, neighbours: IntArray, most: FloatArray) -> FloatArray:
    """Apply `accept.neighbour_budget.move_to_draft` to each row: `targets`, `drafts` [M, V] (sum 1), `most` [M]."""
    size = targets.shape[1]
    flow = np.zeros(targets.size)
    spare = np.maximum(targets - drafts, 0.0).reshape(-1)
    lacking = np.maximum(drafts - targets, 0.0).reshape(-1)
    lacking *= (most > 0.0).repeat(size)
    takers = np.flatnonzero(lacking)
    lacking = lacking[takers]
    first, codes = takers - takers % size, takers % size
    for column in neighbours.T:
        from_codes = first + column[codes]
        requests = np.minimum(lacking, spare[from_codes])
        some = np.flatnonzero(requests)
        if not some.size:
            continue
        requests, places = requests[some], from_codes[some]
        demand = np.bincount(places, weights=requests, minlength=spare.size)[places]
        amounts = requests * np.minimum(1.0, spare[places] / demand)
        lacking[some] -= amounts
        flow[takers[some]] += amounts
        out = np.bincount(places, weights=amounts, minlength=spare.size)
        spare = np.maximum(spare - out, 0.0)
        flow -= out
    gained = flow.reshape(targets.shape)
    total = np.maximum(gained, 0.0).sum(axis=1)
    scale = np.minimum(1.0, np.divide(most, total, out=np.zeros_like(total), where=total > 0.0))
    moved: FloatArray = np.maximum(targets + scale[:, None] * gained, 0.0)
    return moved


@dataclass(frozen=True, slots=True)
class MovedPoints:
    """Point proposals in the moved distribution. Trying them one by one equals a single draw."""

    neighbours: IntArray
    delta: float

    def __call__(
        self, batch: ImageBatch, level: int, rows: IntArray, tokens: IntArray, there: BoolArray
    ) -> BatchedSiblingOutcome:
        """See `BatchedSiblingRule`."""
        moved = normalised_rows(batch.tables.target, rows)
        move_rows_to_points(moved, tokens, there, self.neighbours, self.delta)
        drawn = draw_dense(batch, moved)
        accepted = np.full(rows.size, -1)
        on, child = ((tokens == drawn[:, None]) & there).nonzero()
        accepted[on] = child
        return BatchedSiblingOutcome(accepted, drawn)


@dataclass(frozen=True, slots=True)
class MovedDrafts:
    """Drawn siblings, tried in the moved distribution.

    Attributes:
        neighbours: [V, k], the nearest codes of each code, nearest first.
        delta: The largest total variation per node, see `accept.neighbour_budget`.
        repeats: Siblings are independent draws, which may be equal.
    """

    neighbours: IntArray
    delta: float
    repeats: bool = False

    def __call__(
        self, batch: ImageBatch, level: int, rows: IntArray, tokens: IntArray, there: BoolArray
    ) -> BatchedSiblingOutcome:
        """See `BatchedSiblingRule`."""
        residual = normalised_rows(batch.tables.target, rows)
        drafted = normalised_rows(batch.tables.draft[batch.tables.draft_depth(level)], rows)
        count = there.sum(axis=1)
        lacking = np.maximum(residual - drafted, 0.0).sum(axis=1)
        whole = (count == 1) | (self.delta >= lacking)
        residual = move_rows_to_drafts(residual, drafted, self.neighbours, np.where(whole, self.delta, 0.0))
        reached = np.where(whole, 1.0, lacking * self._reached_again(residual, drafted, count))
        share = np.divide(self.delta, reached, out=np.ones(count.size), where=reached > 0.0)
        most = np.where(whole, 1.0, np.minimum(1.0, share))
        most[count == 1] = 0.0
        accepted, extra = np.full(rows.size, -1), np.full(rows.size, -1)
        on = np.arange(rows.size)
        for turn in range(tokens.shape[1]):
            out = np.flatnonzero(count[on] <= turn)
            if out.size:
                extra[on[out]] = draw_dense(batch, residual[out])
                stay = np.flatnonzero(count[on] > turn)
                on, residual, drafted = on[stay], residual[stay], drafted[stay]
            if not on.size:
                return BatchedSiblingOutcome(accepted, extra)
            last = np.where(count[on] == turn + 1, most[on], 0.0)
            residual = move_rows_to_drafts(residual, drafted, self.neighbours, last)
            places, proposed = np.arange(on.size), tokens[on, turn]
            won = batch.draws.random(on.size) * drafted[places, proposed] < residual[places, proposed]
            accepted[on[won]] = turn
            lost = np.flatnonzero(~won)
            on, residual, drafted, proposed = on[lost], residual[lost], drafted[lost], proposed[lost]
            rest = np.maximum(residual - drafted, 0.0)
            total = rest.sum(axis=1)
            sure = np.flatnonzero(total == 0.0)  # rounding differences only: draw the extra token from `residual`
            rest[sure], total[sure] = residual[sure], residual[sure].sum(axis=1)
            residual = rest / total[:, None]
            if not self.repeats:
                total = forget(drafted, tokens[on, : turn + 1])[:, None]
                np.divide(drafted, total, out=drafted, where=total > 0.0)
        extra[on] = draw_dense(batch, residual)
        return BatchedSiblingOutcome(accepted, extra)

    def _reached_again(self, residual: FloatArray, drafted: FloatArray, count: IntArray) -> FloatArray:
        """Return [M], the probability that the last of `count` [M] siblings is tried after the first was rejected."""
        reached = np.ones(count.size)
        if self.repeats:
            residual = np.maximum(residual - drafted, 0.0)
            for turn in range(2, int(count.max(initial=0))):
                on = np.flatnonzero((count > turn) & residual.any(axis=1))
                residual[on] = np.maximum(residual[on] / residual[on].sum(axis=1, keepdims=True) - drafted[on], 0.0)
                reached[on] *= residual[on].sum(axis=1)
        return reached
