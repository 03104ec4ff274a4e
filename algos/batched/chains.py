"""Rules that judge whole chains, for many images at once: each draft has a flip, and all flips decide how many stay.

An image's uniforms are drawn as one row: column i for the flip at node i, the last column for the extra token.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, Self

import numpy as np

from underpaint.algos.accept.walk import MOST_RATIO
from underpaint.algos.arrays import BoolArray, FloatArray, IntArray
from underpaint.algos.batched.spec import BatchedVerdicts, ImageBatch, TreeBatch
from underpaint.algos.batched.walk import draw_at, flips, normalised_rows


@dataclass(slots=True)
class Chains:
    """The drafted paths of A images, sorted by falling length.

    Attributes:
        batch: The images, with the tables of their distributions.
        tokens: [A, L], the drafted tokens; at least one column.
        rows: [A, L], the table row by which token i is judged.
        length: [A], the number of drafts.
        own: [A, L], p(x) of each token x; 1 past the end.
        drafted: [A, L], q(x) of each token x; 1 past the end.
        points: Whether the tokens are point proposals.
    """

    batch: ImageBatch
    tokens: IntArray
    rows: IntArray
    length: IntArray
    own: FloatArray
    drafted: FloatArray
    points: bool

    @classmethod
    def empty(cls, batch: ImageBatch, trees: TreeBatch, points: bool = False, **more: Any) -> Self:
        """Return chains whose tokens are not filled in yet; more: The additional fields of a subclass."""
        shape = trees.images.size, max(1, len(trees.levels))
        tokens: IntArray = np.zeros(shape, dtype=np.int64)
        return cls(batch, tokens, tokens.copy(), trees.depth, np.ones(shape), np.ones(shape), points, **more)

    @classmethod
    def of(cls, batch: ImageBatch, trees: TreeBatch, points: bool = False) -> Self:
        """Return the chains of trees in which no node has two children."""
        chains = cls.empty(batch, trees, points)
        for level, block in enumerate(trees.levels):
            here = slice(np.count_nonzero(chains.length > level))
            chains.tokens[here, level], chains.rows[here, level] = block.tokens[here, 0, 0], block.rows[here, 0]
            chains.look_up(np.arange(here.stop), level)
        return chains

    def look_up(self, images: IntArray, level: int) -> None:
        """Fill in p(x) and q(x) of the tokens at `level` of `images`."""
        tables, rows, tokens = self.batch.tables, self.rows[images, level], self.tokens[images, level]
        self.own[images, level] = tables.target[rows, tokens] / tables.masses[rows]
        if not self.points:
            depth = tables.draft_depth(level)
            self.drafted[images, level] = tables.draft[depth][rows, tokens] / tables.draft_masses[depth][rows]

    def rows_after(self, trees: TreeBatch, accepted: IntArray) -> IntArray:
        """Return [A], the table rows after the first `accepted` [A] drafts."""
        last, some = self.batch.roots(trees.images), np.flatnonzero(accepted > 0)
        last[some] = self.tokens[some, accepted[some] - 1]
        return self.batch.rows_after(trees.images, accepted, last)

    @property
    def there(self) -> BoolArray:
        """[A, L]: whether an image has a draft at this place."""
        there: BoolArray = np.arange(self.tokens.shape[1]) < self.length[:, None]
        return there

    def target(self, images: IntArray, level: int) -> FloatArray:
        """Return [M, V], the target's distributions (sum 1) of the tokens at `level` of `images`."""
        return normalised_rows(self.batch.tables.target, self.rows[images, level])

    def draft(self, images: IntArray, level: int) -> FloatArray:
        """Return [M, V], the distributions that these tokens were drawn from."""
        tables = self.batch.tables
        if self.points:
            drafts = np.zeros((images.size, tables.target.shape[1]))
            drafts[np.arange(images.size), self.tokens[images, level]] = 1.0
            return drafts
        return normalised_rows(tables.draft[tables.draft_depth(level)], self.rows[images, level])

    def running(self, most: float, fresh: BoolArray | None = None) -> FloatArray:
        """Return [A, L], running products of p(x) / q(x), at most `most`; they restart from 1 where `fresh` is True."""
        products: FloatArray = np.ones(self.own.shape)
        for level in range(self.tokens.shape[1]):
            above = products[:, level - 1] if level else np.ones(self.length.size)
            if fresh is not None:
                above = np.where(fresh[:, level], 1.0, above)
            np.minimum(most, above * self.own[:, level] / self.drafted[:, level], out=products[:, level])
        return products


class ChainJudge(Protocol):
    """Decides how many drafts of each chain are kept, and what follows them."""

    __slots__ = ()

    def chains(self, batch: ImageBatch, trees: TreeBatch) -> Chains:
        """Return the paths to judge; by default those of trees in which no node has two children."""
        return Chains.of(batch, trees)

    def count_accepted(self, chains: Chains, uniforms: FloatArray) -> IntArray:
        """Return [A], the number of kept drafts, given `uniforms` [A, L + 1], one per node."""
        ...

    def weights(self, chains: Chains) -> FloatArray:
        """Return [A, L + 1], by number of kept drafts: the weight w in the residual [w p - q]_+; 1 by default."""
        return np.ones((chains.length.size, chains.tokens.shape[1] + 1))


@dataclass(frozen=True, slots=True)
class BatchedChain:
    """Keeps the drafts that `judge` keeps. Then it draws from the residual, or after a whole chain from the target."""

    judge: ChainJudge

    def __call__(self, batch: ImageBatch, trees: TreeBatch) -> BatchedVerdicts:
        chains = self.judge.chains(batch, trees)
        count, levels = chains.tokens.shape
        uniforms = batch.draws.random((count, levels + 2))
        accepted, weights = self.judge.count_accepted(chains, uniforms[:, :-1]), self.judge.weights(chains)
        extra = np.empty(count, dtype=np.int64)
        for level in range(levels):
            on = np.flatnonzero((accepted == level) & (chains.length > level))
            if on.size:
                target = chains.target(on, level)
                rest = target * weights[on, level, None] - chains.draft(on, level)
                np.maximum(rest, 0.0, out=rest)
                sure = np.flatnonzero(~rest.any(axis=1))  # p = q: only rounding made the flips fail
                rest[sure] = target[sure]
                extra[on] = draw_at(rest, uniforms[on, -1])
        whole = np.flatnonzero(accepted == chains.length)
        extra[whole] = batch.tables.draw(chains.rows_after(trees, accepted)[whole], uniforms[whole, -1])
        return BatchedVerdicts(chains.tokens, accepted, extra)


@dataclass(frozen=True, slots=True)
class BlockJudge(ChainJudge):
    """Block verification, or HSD if the end is not `capped`, like `algos.accept.block.judge_path`."""

    capped: bool = True

    def count_accepted(self, chains: Chains, uniforms: FloatArray) -> IntArray:
        """See `ChainJudge`; runs from the end of each chain until a flip succeeds."""
        weights = self.weights(chains)
        ends_by = weights if self.capped else np.pad(chains.running(MOST_RATIO), ((0, 0), (1, 0)), constant_values=1.0)
        accepted = np.full(chains.length.size, -1)
        for level in range(chains.tokens.shape[1], -1, -1):
            ends = np.flatnonzero(chains.length == level)
            accepted[ends[flips(uniforms[ends, level], ends_by[ends, level])]] = level
            inside = np.flatnonzero((accepted < 0) & (chains.length > level))
            if inside.size:
                weight = weights[inside, level]
                rest = chains.target(inside, level) * weight[:, None] - chains.draft(inside, level)
                total = np.maximum(rest, 0.0, out=rest).sum(axis=1)
                stays = (weight == 1.0) | flips(uniforms[inside, level], total, total + (1.0 - weight))
                accepted[inside[stays]] = level
        return accepted

    def weights(self, chains: Chains) -> FloatArray:
        """See `ChainJudge`: w_i = min(1, w_{i-1} p(x_i) / q(x_i)), with w_0 = 1."""
        return np.pad(chains.running(1.0), ((0, 0), (1, 0)), constant_values=1.0)


@dataclass(frozen=True, slots=True)
class DeferredJudge(ChainJudge):
    """FLy, like `algos.accept.fly`: keeps a rejected draft at entropy >= `threshold` if the next `window` drafts pass.

    Attributes:
        threshold: The least entropy, in nats, at which a rejected draft can be kept.
        window: The number of next drafts that must pass their own tests.
        top: The number of likeliest tokens in the entropy.
        points: Whether the drafts are point proposals.
    """

    threshold: float
    window: int
    top: int
    points: bool = False

    def chains(self, batch: ImageBatch, trees: TreeBatch) -> Chains:
        """See `ChainJudge`."""
        return Chains.of(batch, trees, self.points)

    def count_accepted(self, chains: Chains, uniforms: FloatArray) -> IntArray:
        """See `ChainJudge`."""
        return self.forgiven(chains, flips(uniforms[:, 1:], chains.own, chains.drafted))

    def forgiven(self, chains: Chains, passed: BoolArray) -> IntArray:
        """Return [A], the number of kept drafts, if the drafts `passed` [A, L] pass their own tests."""
        passed &= chains.there
        before = np.pad(passed.cumsum(axis=1), ((0, 0), (0, self.window)), mode="edge")
        behind = before[:, self.window :] - before[:, : passed.shape[1]] == self.window
        stays = passed.copy()
        for level in range(passed.shape[1]):
            on = np.flatnonzero(~passed[:, level] & behind[:, level] & (chains.own[:, level] > 0.0))
            stays[on, level] = self._entropy(chains.target(on, level)) >= self.threshold
        accepted: IntArray = stays.cumprod(axis=1).sum(axis=1)
        return accepted

    def _entropy(self, rows: FloatArray) -> FloatArray:
        """Return [M], -sum p ln p over the `top` largest probabilities of rows [M, V], in nats."""
        likely = np.sort(rows, axis=1)[:, -self.top :]
        logs = np.log(likely, out=np.zeros(likely.shape), where=likely > 0.0)
        entropy: FloatArray = -(likely * logs).sum(axis=1)
        return entropy


@dataclass(frozen=True, slots=True)
class RunsJudge(ChainJudge):
    """SJD-SV, like `algos.accept.sjd_sv`: judges runs of rising p(x), of at most `longest` drafts, by joint ratios."""

    share: float
    longest: int

    def count_accepted(self, chains: Chains, uniforms: FloatArray) -> IntArray:
        """See `ChainJudge`."""
        probs = chains.own
        starts, ends = self._runs(probs, chains.length)
        behind = np.zeros(probs.shape)  # sum of the later p(x) in the same run
        for level in range(probs.shape[1] - 2, -1, -1):
            behind[:, level] = np.where(ends[:, level], 0.0, behind[:, level + 1] + probs[:, level + 1])
        judged = ends | (behind < self.share * np.take_along_axis(behind + probs, starts, axis=1))
        fresh = np.ones(probs.shape, dtype=np.bool_)
        fresh[:, 1:] = ends[:, :-1] | ~judged[:, :-1]
        passed = ~judged | flips(uniforms[:, 1:], chains.running(MOST_RATIO, fresh))
        failed = ends & ~passed & chains.there
        accepted = np.where(failed.any(axis=1), failed.argmax(axis=1), chains.length)
        for level in range(probs.shape[1] - 1, 0, -1):  # back to the last draft of the run that passed
            short = (accepted == level) & (accepted < chains.length)
            accepted[short & (starts[:, level] < level) & ~passed[:, level - 1]] -= 1
        return accepted

    def _runs(self, probs: FloatArray, length: IntArray) -> tuple[IntArray, BoolArray]:
        """Return [A, L]: where each draft's run starts, and whether the draft is the last one of its run."""
        starts = np.zeros(probs.shape, dtype=np.int64)
        for level in range(1, probs.shape[1]):
            before = starts[:, level - 1]
            new = (probs[:, level] < probs[:, level - 1]) | (level - before >= self.longest) | (level >= length)
            starts[:, level] = np.where(new, level, before)
        ends = np.ones(probs.shape, dtype=np.bool_)
        ends[:, :-1] = starts[:, 1:] > np.arange(probs.shape[1] - 1)
        return starts, ends


@dataclass(frozen=True, slots=True)
class GreedyDeferred:
    """FLy at temperature 0, like `algos.accept.fly.DeferredMatch`. Makes no draw."""

    deferred: DeferredJudge

    def __call__(self, batch: ImageBatch, trees: TreeBatch) -> BatchedVerdicts:
        chains = Chains.of(batch, trees, points=True)
        accepted = self.deferred.forgiven(chains, chains.tokens == batch.tables.best[chains.rows])
        return BatchedVerdicts(chains.tokens, accepted, batch.tables.best[chains.rows_after(trees, accepted)])
