"""GBV for many images at once: judges the best of several drawn paths by block verification."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from underpaint.algos.arrays import BoolArray, FloatArray, IntArray
from underpaint.algos.batched.chains import BlockJudge, Chains
from underpaint.algos.batched.spec import ImageBatch, TreeBatch, TreeLevel


class _Paths(NamedTuple):
    """K drawn paths of each of M images, up to the current level.

    places: [M, K], flat index among the candidates of the level. alive: [M, K], the paths still equal to the best one.
    """

    places: IntArray
    alive: BoolArray


@dataclass(slots=True)
class BestPaths(Chains):
    """The trunk of each image's tree and the best path below it; the best path's distribution replaces the drafter's.

    See `algos.accept.gbv.Ranking`.

    Attributes:
        below: [A, L], the probability that one path is less than the prefix before a token.
        here: [A, L], the probability that one path begins with this prefix.
        paths: [A, L], the number of paths compared; 1 in the trunk.
    """

    below: FloatArray
    here: FloatArray
    paths: IntArray

    def draft(self, images: IntArray, level: int) -> FloatArray:
        """See `Chains`."""
        drafts = Chains.draft(self, images, level)
        several = np.flatnonzero(self.paths[images, level] > 1)
        if several.size:
            order = by_ratio(self.target(images[several], level), drafts[several])
            drafts[several] = self.skewed(images[several], level, drafts[several], order)
        return drafts

    def skewed(self, images: IntArray, level: int, drafts: FloatArray, order: IntArray) -> FloatArray:
        """Return [M, V]: the distribution of the best path's token at `level`, if one path draws from `drafts`."""
        below, here = (part[images, level, None] for part in (self.below, self.here))
        sorted_drafts = np.take_along_axis(drafts, order, axis=1)
        reached = (below + here * sorted_drafts.cumsum(axis=1)) / (below + here)
        before = reached - here * sorted_drafts / (below + here)
        paths, shares = self.paths[images, level], np.zeros(drafts.shape)
        for power in range(int(paths.max())):
            on = paths > power
            before_power = (paths[on] - 1 - power)[:, None]
            shares[on] += reached[on] ** power * before[on] ** before_power
        skewed = np.empty(drafts.shape)
        np.put_along_axis(skewed, order, sorted_drafts * shares, axis=1)
        skewed /= skewed.sum(axis=1, keepdims=True)
        return skewed

    def choose(self, level: int, block: TreeLevel, paths: _Paths) -> _Paths:
        """Choose the best tokens at `level` among those of `paths`, which lead to the candidates of `block`."""
        count, width = paths.places.shape[0], block.tokens.shape[2]
        images = np.arange(count)
        tokens = block.tokens[:count].reshape(count, -1)[images[:, None], paths.places]
        nodes = paths.places[images, paths.alive.argmax(axis=1)] // width
        self.rows[images, level] = block.rows[:count][images, nodes]
        self.paths[images, level] = paths.places.shape[1]
        if paths.places.shape[1] == 1:
            self.tokens[images, level] = tokens[:, 0]
            self.look_up(images, level)
            return paths
        drafts = Chains.draft(self, images, level)
        order = by_ratio(self.target(images, level), drafts)
        rank = np.take_along_axis(order.argsort(axis=1), tokens, axis=1)
        best = np.where(paths.alive, rank, -1).max(axis=1)
        token = order[images, best]
        self.tokens[images, level] = token
        self.look_up(images, level)
        self.drafted[images, level] = self.skewed(images, level, drafts, order)[images, token]
        if level + 1 < self.here.shape[1]:
            draft_cdf = np.take_along_axis(drafts, order, axis=1).cumsum(axis=1)
            lower = np.where(best > 0, draft_cdf[images, best - 1], 0.0)
            below, here = self.below[:count, level], self.here[:count, level]
            self.below[:count, level + 1] = below + here * lower
            self.here[:count, level + 1] = here * drafts[images, token]
        return paths._replace(alive=paths.alive & (rank == best[:, None]))


def by_ratio(targets: FloatArray, drafts: FloatArray) -> IntArray:
    """Return [M, V] token ids in order of rising p / q, ties by token id; tokens with q = 0 come last."""
    ratios = np.divide(targets, drafts, out=np.full(targets.shape, np.inf), where=drafts > 0.0)
    order: IntArray = ratios.argsort(axis=1, kind="stable")
    return order


@dataclass(frozen=True, slots=True)
class BestPathJudge(BlockJudge):
    """GBV, like `algos.accept.gbv`, on bundles: trees of one shape, a trunk with equally long paths below it."""

    def chains(self, batch: ImageBatch, trees: TreeBatch) -> Chains:
        """See `ChainJudge`."""
        shape = trees.images.size, max(1, len(trees.levels))
        none, all_here = np.zeros(shape), np.ones(shape)
        best_paths = BestPaths.empty(batch, trees, below=none, here=all_here, paths=np.ones(shape, dtype=np.int64))
        count = trees.images.size
        paths = _Paths(np.zeros((count, 1), dtype=np.int64), np.ones((count, 1), dtype=np.bool_))
        for level, block in enumerate(trees.levels):
            count, width = block.rows.shape[0], block.tokens.shape[2]
            paths = _Paths(paths.places[:count], paths.alive[:count])
            # The index of each path among the expanded nodes; its children are its next candidates.
            at = (block.above[:, None, :] == paths.places[..., None]).argmax(axis=2)
            places = (at[..., None] * width + np.arange(width)).reshape(count, -1)
            paths = best_paths.choose(level, block, _Paths(places, paths.alive.repeat(width, axis=1)))
        return best_paths
