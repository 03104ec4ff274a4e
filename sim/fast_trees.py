"""Tree policies over many images at once: fixed shapes, and EAGLE-2's tree with a depth and a width for each image."""

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from algos.arrays import BoolArray, IntArray
from algos.draft.adt import AdtTree
from algos.draft.chain import Chain, LikeliestChain
from algos.draft.eagle1 import Eagle1, StaticTopK
from algos.draft.eagle2 import Eagle2
from algos.draft.shape import Shape, ranked_shape
from algos.draft.spec import Policy
from sim.fast_batch import Batch, Block, Grown, closed
from sim.fast_dynamic import grow_dynamic

_REDRAWS = 6
"""Draws that may repeat a sibling before the tokens tried are taken out of the law instead."""


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

    def grow(self, batch: Batch, active: IntArray) -> Grown:
        """The trees of the images `active` [A]."""
        ...

    def observe(self, active: IntArray, cell: IntArray, grown: Grown, accepted: IntArray) -> None:
        """Learn from the verdicts: `accepted` [A] nodes of the trees below `cell` [A]."""
        ...


class _Level(NamedTuple):
    above: IntArray
    """[F] flat places of the expanded nodes among the level before's candidates."""
    kept: BoolArray
    """[F, k]."""
    child: IntArray
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
        kept = np.zeros((len(expanded), width), dtype=np.bool_)
        child = np.full((len(expanded), width), -1)
        deeper: list[int] = []
        deeper_places: list[int] = []
        for place, node in enumerate(expanded):
            for rank, one in enumerate(below[node]):
                kept[place, rank] = True
                if below[one]:
                    child[place, rank] = len(deeper)
                    deeper.append(one)
                    deeper_places.append(place * width + rank)
        levels.append(_Level(np.array(places), kept, child))
        expanded, places = deeper, deeper_places
    return levels


class FixedGrower:
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

    def observe(self, active: IntArray, cell: IntArray, grown: Grown, accepted: IntArray) -> None:
        """See `Grower`."""

    def grow(self, batch: Batch, active: IntArray) -> Grown:
        """See `Grower`."""
        budget = batch.budget_depth(active)
        blocks: list[Block] = []
        passes: list[IntArray] = []
        tokens = batch.roots(active)[:, None]
        there = np.ones((active.size, 1), dtype=np.bool_)
        for depth, level in enumerate(self._levels):
            if blocks:
                last = blocks[-1]
                tokens = last.tokens.reshape(active.size, -1)[:, level.above]
                there = last.kept.reshape(active.size, -1)[:, level.above]
            there = there & (budget > depth)[:, None]
            if not there.any():
                break
            rows = batch.rows_after(active, depth, tokens)
            found, sound = self._children(batch, rows, depth, level.kept.shape[1])
            above = np.broadcast_to(level.above, rows.shape)
            child = np.broadcast_to(level.child, found.shape)
            blocks.append(Block(found, sound & level.kept & there[..., None], rows, above, child))
            passes.append(there.sum(axis=1))
        return closed(blocks, passes, np.full(active.size, self._one_call))

    def _children(self, batch: Batch, rows: IntArray, level: int, count: int) -> tuple[IntArray, BoolArray]:
        tables = batch.tables
        depth = tables.draft_depth(level)
        if not self._sampled:
            return tables.top_tokens[depth, rows][..., :count], tables.top_probs[depth, rows][..., :count] > 0.0
        tokens = np.empty((*rows.shape, count), dtype=np.int64)
        sound = np.ones(tokens.shape, dtype=np.bool_)
        for turn in range(count):
            drawn = tables.draw_drafts(depth, rows, batch.draws.random(rows.shape))
            for _ in range(_REDRAWS):
                again = (tokens[..., :turn] == drawn[..., None]).any(axis=-1)
                if not again.any():
                    break
                drawn[again] = tables.draw_drafts(depth, rows[again], batch.draws.random(int(again.sum())))
            tokens[..., turn] = drawn
            again = (tokens[..., :turn] == drawn[..., None]).any(axis=-1)
            if again.any():
                tokens[again, turn], sound[again, turn] = _untried(batch, depth, rows[again], tokens[again, :turn])
        return tokens, sound


def _untried(batch: Batch, depth: int, rows: IntArray, tried: IntArray) -> tuple[IntArray, BoolArray]:
    """[M] one token from each law with the tokens `tried` [M, j] taken out, and whether there was one."""
    left = batch.world.draft[depth, rows].astype(np.float64)
    np.put_along_axis(left, tried, 0.0, 1)
    with np.errstate(divide="ignore", over="ignore"):
        arrivals = batch.draws.standard_exponential(left.shape) / left
    tokens: IntArray = arrivals.argmin(axis=1)
    return tokens, np.isfinite(arrivals.min(axis=1))


@dataclass(slots=True)
class DynamicGrower:
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

    def observe(self, active: IntArray, cell: IntArray, grown: Grown, accepted: IntArray) -> None:
        """See `Grower`."""

    def grow(self, batch: Batch, active: IntArray) -> Grown:
        """See `Grower`."""
        own = self.policy
        sizes = (np.full(active.size, size) for size in (own.depth, own.top_k, own.total_tokens))
        return grow_dynamic(batch, active, *sizes)


class AdaptiveGrower:
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

    def grow(self, batch: Batch, active: IntArray) -> Grown:
        """See `Grower`."""
        own = self._policy
        depth, width = self._depth[active], self._width[active]
        total = np.full(active.size, own.total_tokens)
        if own.nodes == "proportional":
            total = np.ceil(total * depth * width / (own.start_depth * own.start_width)).astype(np.int64)
        return grow_dynamic(batch, active, depth, width, total)

    def observe(self, active: IntArray, cell: IntArray, grown: Grown, accepted: IntArray) -> None:
        """See `Grower`. A tree with no proposal leaves the state as it was."""
        own = self._policy
        share = accepted / np.maximum(grown.depth, 1) if own.acceptance == "ratio" else accepted.astype(np.float64)
        sign = np.where(share >= own.beta, 1, -1) * (grown.nodes > 1)
        self._depth[active] = np.clip(self._depth[active] + sign * own.step_depth, own.min_depth, own.max_depth)
        self._width[active] = np.clip(self._width[active] - sign * own.step_width, own.min_width, own.max_width)


def grower(policy: Policy) -> Grower | None:
    """The policy for a batch; None where there is none, and the decoding loop has to do."""
    if isinstance(policy, Eagle1):
        return FixedGrower(ranked_shape(tuple(policy.widths)), sampled=True)
    if isinstance(policy, StaticTopK):
        return FixedGrower(ranked_shape(tuple(policy.widths)), sampled=False)
    if isinstance(policy, Chain):
        return FixedGrower(tuple(range(-1, policy.length)), sampled=True)
    if isinstance(policy, LikeliestChain):
        return FixedGrower(tuple(range(-1, policy.length)), sampled=False, one_call=True)
    if isinstance(policy, Eagle2):
        return DynamicGrower(policy)
    if isinstance(policy, AdtTree) and (policy.init, policy.row_start) == ("horizontal", "carry"):
        return AdaptiveGrower(policy)
    return None
