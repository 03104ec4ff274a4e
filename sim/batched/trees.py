"""Tree policies over many images at once: fixed shapes, and EAGLE-2's tree with a depth and a width for each image."""

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from underpaint.algos.arrays import BoolArray, IntArray
from underpaint.algos.draft.adt import AdtTree
from underpaint.algos.draft.chain import Chain, LikeliestChain
from underpaint.algos.draft.eagle1 import Eagle1, StaticTopK
from underpaint.algos.draft.eagle2 import Eagle2
from underpaint.algos.draft.fused import Shape
from underpaint.algos.draft.shape import ranked_shape
from underpaint.algos.draft.spec import Policy
from underpaint.sim.batched.dynamic_trees import grow_dynamic
from underpaint.sim.batched.images import Batch, Block, FusedTree, closed, tiers

_REDRAWS = 6
"""Draws that may repeat a sibling before the tokens tried are taken out of the distribution instead."""


class Grower(Protocol):
    """A tree policy for a batch. Sizes are upper bounds, to be checked before anything runs."""

    @property
    def most_children(self) -> int:
        """Children of a node at most."""
        ...

    @property
    def most_nodes(self) -> int:
        """Nodes of a tree at most, root included."""
        ...

    @property
    def deepest(self) -> int:
        """Levels at most."""
        ...

    def begin(self, images: int, cells: int) -> None:
        """Start `images` images."""
        ...

    def grow(self, batch: Batch, active: IntArray) -> FusedTree:
        """The trees of the images `active` [A], in an order of their own."""
        ...

    def observe(self, grown: FusedTree, accepted: IntArray) -> None:
        """Learn from the verdicts: `accepted` [A] nodes of each tree."""
        ...


class _Level(NamedTuple):
    above: IntArray
    """[F] flat places of the expanded nodes among the level before's candidates."""
    kept: BoolArray
    """[F, k]."""


def _levels(shape: Shape) -> list[_Level]:
    """A static shape as blocks."""
    below: list[list[int]] = [[] for _ in shape]
    for node, parent in enumerate(shape):
        if parent >= 0:
            below[parent].append(node)
    expanded, places, levels = [0], [0], []
    while expanded:
        width = max(len(below[node]) for node in expanded)
        kept = np.arange(width) < np.array([len(below[node]) for node in expanded])[:, None]
        levels.append(_Level(np.array(places), kept))
        deeper = [
            (one, place * width + rank)
            for place, node in enumerate(expanded)
            for rank, one in enumerate(below[node])
            if below[one]
        ]
        expanded, places = [one for one, _ in deeper], [place for _, place in deeper]
    return levels


class BatchedStaticTree:
    """A static tree of sampled siblings (without replacement; a chain's are independent draws) or likeliest tokens."""

    def __init__(self, shape: Shape, sampled: bool, one_call: bool = False) -> None:
        self._levels = _levels(shape)
        self._sampled = sampled
        self._one_call = one_call
        self.most_nodes = len(shape)
        self.most_children = max(level.kept.shape[1] for level in self._levels)
        self.deepest = len(self._levels)

    def begin(self, images: int, cells: int) -> None:
        """See `Grower`."""

    def observe(self, grown: FusedTree, accepted: IntArray) -> None:
        """See `Grower`."""

    def grow(self, batch: Batch, active: IntArray) -> FusedTree:
        """See `Grower`."""
        order, sizes = tiers(np.minimum(batch.budget_depth(active), self.deepest))
        active = active[order]
        blocks: list[Block] = []
        passes: list[IntArray] = []
        tokens = batch.roots(active)[:, None]
        there: BoolArray = np.ones((active.size, 1), dtype=np.bool_)
        for depth, (level, size) in enumerate(zip(self._levels, sizes, strict=False)):
            if blocks:
                last = blocks[-1]
                tokens = last.tokens[:size].reshape(size, -1).take(level.above, axis=1)
                there = last.kept[:size].reshape(size, -1).take(level.above, axis=1)
            else:
                tokens, there = tokens[:size], there[:size]
            rows = batch.rows_after(active[:size], depth, tokens)
            found, sound = self._children(batch, rows, depth, level.kept.shape[1])
            above = np.broadcast_to(level.above, rows.shape)
            blocks.append(Block(found, sound & level.kept & there[..., None], rows, above))
            passes.append(np.count_nonzero(there, axis=1))
        return closed(active, blocks, passes, np.full(active.size, self._one_call))

    def _children(self, batch: Batch, rows: IntArray, level: int, count: int) -> tuple[IntArray, BoolArray]:
        tables = batch.tables
        depth = tables.draft_depth(level)
        if not self._sampled:
            probs = tables.top_probs[depth].take(rows, axis=0)[..., :count]
            return tables.top_tokens[depth].take(rows, axis=0)[..., :count], probs > 0.0
        flat = rows.reshape(-1)
        tokens = tables.draw_drafts(depth, flat[:, None], batch.draws.random((flat.size, count)))
        sound = np.ones(tokens.shape, dtype=np.bool_)
        for turn in range(1, count):
            again = (tokens[:, :turn] == tokens[:, turn, None]).any(axis=1).nonzero()[0]
            for _ in range(_REDRAWS):
                if not again.size:
                    break
                new = tables.draw_drafts(depth, flat[again], batch.draws.random(again.size))
                tokens[again, turn] = new
                again = again[(tokens[again, :turn] == new[:, None]).any(axis=1)]
            if again.size:
                tokens[again, turn], sound[again, turn] = _untried(batch, depth, flat[again], tokens[again, :turn])
        shape = (*rows.shape, count)
        return tokens.reshape(shape), sound.reshape(shape)


def _untried(batch: Batch, depth: int, rows: IntArray, tried: IntArray) -> tuple[IntArray, BoolArray]:
    """[M] one token from each distribution with the tokens `tried` [M, j] taken out, and whether there was one."""
    left = batch.model.draft[depth, rows].astype(np.float64)
    np.put_along_axis(left, tried, 0.0, 1)
    with np.errstate(divide="ignore", over="ignore"):
        arrivals = batch.draws.standard_exponential(left.shape) / left
    tokens: IntArray = arrivals.argmin(axis=1)
    return tokens, np.isfinite(arrivals.min(axis=1))


@dataclass(slots=True)
class BatchedEagle2:
    """EAGLE-2's tree, the same for every image."""

    policy: Eagle2

    @property
    def most_children(self) -> int:
        """See `Grower`."""
        return self.policy.top_k

    @property
    def most_nodes(self) -> int:
        """See `Grower`."""
        return self.policy.total_tokens + 1

    @property
    def deepest(self) -> int:
        """See `Grower`."""
        return self.policy.depth

    def begin(self, images: int, cells: int) -> None:
        """See `Grower`."""

    def observe(self, grown: FusedTree, accepted: IntArray) -> None:
        """See `Grower`."""

    def grow(self, batch: Batch, active: IntArray) -> FusedTree:
        """See `Grower`."""
        own = self.policy
        sizes = (np.full(active.size, size) for size in (own.depth, own.top_k, own.total_tokens))
        return grow_dynamic(batch, active, *sizes)


class BatchedAdt:
    """ADT-Tree's tree, whose state is carried along the raster (arXiv 2512.21857, equation 2)."""

    def __init__(self, policy: AdtTree) -> None:
        self._policy = policy
        self.most_children = policy.max_width
        widest = policy.max_depth * policy.max_width / (policy.start_depth * policy.start_width)
        self.most_nodes = 1 + int(np.ceil(policy.total_tokens * (widest if policy.nodes == "proportional" else 1.0)))
        self.deepest = policy.max_depth
        self.begin(1, 1)

    def begin(self, images: int, cells: int) -> None:
        """See `Grower`."""
        self._depth = np.full(images, self._policy.start_depth)
        self._width = np.full(images, self._policy.start_width)

    def grow(self, batch: Batch, active: IntArray) -> FusedTree:
        """See `Grower`."""
        own = self._policy
        depth, width = self._depth[active], self._width[active]
        total = np.full(active.size, own.total_tokens)
        if own.nodes == "proportional":
            total = np.ceil(total * depth * width / (own.start_depth * own.start_width)).astype(np.int64)
        return grow_dynamic(batch, active, depth, width, total)

    def observe(self, grown: FusedTree, accepted: IntArray) -> None:
        """See `Grower`. A tree with no proposal leaves the state as it was."""
        own = self._policy
        share = accepted / np.maximum(grown.depth, 1) if own.acceptance == "ratio" else accepted.astype(np.float64)
        sign = np.where(share >= own.beta, 1, -1) * (grown.nodes > 1)
        depth, width = self._depth[grown.images], self._width[grown.images]
        self._depth[grown.images] = np.clip(depth + sign * own.step_depth, own.min_depth, own.max_depth)
        self._width[grown.images] = np.clip(width - sign * own.step_width, own.min_width, own.max_width)


def grower(policy: Policy) -> Grower | None:
    """The policy for a batch; None where there is none, and the decoding loop has to do."""
    if isinstance(policy, Eagle1):
        return BatchedStaticTree(ranked_shape(tuple(policy.widths)), sampled=True)
    if isinstance(policy, StaticTopK):
        return BatchedStaticTree(ranked_shape(tuple(policy.widths)), sampled=False)
    if isinstance(policy, Chain):
        return BatchedStaticTree(tuple(range(-1, policy.length)), sampled=True)
    if isinstance(policy, LikeliestChain):
        return BatchedStaticTree(tuple(range(-1, policy.length)), sampled=False, one_call=True)
    if isinstance(policy, Eagle2):
        return BatchedEagle2(policy)
    if isinstance(policy, AdtTree) and (policy.init, policy.row_start) == ("horizontal", "carry"):
        return BatchedAdt(policy)
    return None
