"""A relaxed rule with a budget over a whole picture, spent where it keeps the most tokens.

Siblings are tried as `neighbour_budget` tries them, in a distribution to which mass was moved from near codes. But what
a node spends is taken from an account of the picture: `delta` for each of its cells. A node moves mass only where a
unit of it keeps more tokens than the price. The price follows from what is left for how many cells, and from what the
picture's trees have offered so far (see `prices`).

The sum of the total variations of the cells, each of its token's distribution given all that was decided before, is at
most `delta` a cell of the picture, on every path. What a node spends is known before its siblings are drawn.
"""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Self

import numpy as np

from underpaint.algos.accept.neighbour_budget import bound_at, check_budget, last_sibling, move_to_draft, try_moved
from underpaint.algos.accept.point import try_points
from underpaint.algos.accept.prices import PRICES, Curve, LevelMeans, PointPlan, Price, plan_points, price_of
from underpaint.algos.accept.proposals import excess, normalised, try_siblings
from underpaint.algos.accept.spec import RULES, RuleSpec, every_combination
from underpaint.algos.accept.walk import SiblingOutcome, SiblingRule, walk
from underpaint.algos.arrays import FloatArray, IntArray
from underpaint.algos.chance import Chance
from underpaint.algos.tree import DraftTree, Verdict


@dataclass(slots=True)
class Account:
    """What a picture may still spend, and what it was offered.

    left: total variation, for `cells` cells that are not decided yet. offered: the sum of the curves of its trees of
    points so far, `trees` of them. levels: of its drawn trees.
    """

    left: float
    cells: int
    spent: float = 0.0
    trees: int = 0
    offered: Curve = field(default_factory=lambda: Curve(np.zeros(PRICES.size), np.zeros(PRICES.size)))
    levels: LevelMeans = field(default_factory=LevelMeans)

    @property
    def rate(self) -> float:
        """What is left for each cell."""
        return self.left / max(1, self.cells)

    def spend(self, amount: float) -> None:
        """Take `amount` from what is left."""
        self.left = max(0.0, self.left - amount)
        self.spent += amount

    def offer(self, curve: Curve) -> Price:
        """The price, once a tree with `curve` is counted."""
        self.trees += 1
        self.offered = Curve(self.offered.spent + curve.spent, self.offered.kept + curve.kept)
        return price_of(Curve(self.offered.spent / self.trees, self.offered.kept / self.trees), self.rate)


@dataclass(slots=True, eq=False)
class PictureBudget:
    """Move mass to drafted codes from their nearest codes where a unit keeps most, at most `delta` a cell over the
    picture.

    neighbours: [V, K] int64, see `nearest_codes`. k: how many of them mass may come from; 0 takes all. delta: the most
    total variation of a cell in the mean over a picture, in [0, 1]. A tree outside of a picture counts as one cell.
    Raises ValueError on settings out of range.
    """

    neighbours: IntArray
    k: int = 0
    delta: float = 0.05
    _account: Account | None = field(init=False, repr=False, default=None)

    def __post_init__(self) -> None:
        check_budget("picture_budget", self.neighbours, self.k, self.delta)

    def begin(self, cells: int) -> None:
        """Start a picture of `cells` cells; see `PictureRule`."""
        self._account = Account(self.delta * cells, cells)

    def fork(self) -> Self:
        """See `PictureRule`."""
        other = replace(self)
        other._account = deepcopy(self._account)
        return other

    @property
    def spent(self) -> float:
        """Total variation that the picture has spent; 0 outside of one."""
        return self._account.spent if self._account is not None else 0.0

    def __call__(self, tree: DraftTree, probs: FloatArray, chance: Chance) -> Verdict:
        """Decide the tree; see `Rule`."""
        account = self._account or Account(self.delta, 1)
        near = self.neighbours[:, : self.k or None]
        verdict = walk(tree, probs, chance, _siblings(account, tree, probs, near))
        if tree.drawn != "top_k" and tree.size > 1:
            last = verdict.path[-1] if verdict.path else 0
            if not (tree.parents == last).any():
                account.levels.add(len(verdict.path), 0.0, 0.0)
        account.cells -= len(verdict.path) + 1
        return verdict


def _siblings(account: Account, tree: DraftTree, probs: FloatArray, near: IntArray) -> SiblingRule:
    """How the siblings of `tree` are tried."""
    if tree.drawn == "top_k":
        plan = plan_points(tree, probs, near)
        return PointSiblings(account, plan, account.offer(plan.curve))
    if not account.levels.seen:
        return BudgetedSiblings(account, near, None, np.ones((0, PRICES.size)), account.rate)
    curve, worth = account.levels.plan()
    return BudgetedSiblings(account, near, price_of(curve, account.rate), worth, account.rate)


@dataclass(frozen=True, slots=True)
class PointSiblings:
    """`SiblingRule` of point proposals: all that moves at a node is spent there."""

    account: Account
    plan: PointPlan
    price: Price

    def __call__(
        self, tree: DraftTree, node: int, children: Sequence[int], distribution: FloatArray, chance: Chance
    ) -> SiblingOutcome:
        moved = normalised(distribution)
        for child, codes in self.plan.sources[node]:
            share = self.price.moves(self.plan.worth[child])
            if share <= 0.0 or self.account.left <= 0.0 or not codes.size:
                continue
            there = np.cumsum(moved[codes])
            taken = np.diff(np.minimum(there, min(share * float(there[-1]), self.account.left)), prepend=0.0)
            moved[codes] -= taken
            moved[tree.tokens[child]] += taken.sum()
            self.account.spend(float(taken.sum()))
        return try_points(tree, node, children, np.maximum(moved, 0.0), chance)


@dataclass(frozen=True, slots=True)
class BudgetedSiblings:
    """`SiblingRule` of drawn siblings: nothing that is decided here depends on the tokens drawn at this node or below.

    price: None where the picture has seen no tree yet: then each node may spend `rate`. worth: [levels, P].
    """

    account: Account
    near: IntArray
    price: Price | None
    worth: FloatArray
    rate: float

    def __call__(
        self, tree: DraftTree, node: int, children: Sequence[int], distribution: FloatArray, chance: Chance
    ) -> SiblingOutcome:
        target, draft = normalised(distribution), normalised(tree.draft_distribution(node))
        level = int(tree.depths()[node])
        last = last_sibling(target, draft, tree.drawn, len(children))
        whole = move_to_draft(last.left, draft, self.near, 1.0)
        movable = last.reached * _apart(whole, last.left)
        self.account.levels.add(level, 1.0 - last.reached * float(excess(last.left, draft).sum()), movable)
        most = min(self.account.left, self.share(level) * movable if self.price is not None else self.rate)
        if len(children) == 1:
            moved = move_to_draft(target, draft, self.near, most)
            self.account.spend(_apart(moved, target))
            return try_siblings(tree, node, children, moved, chance)
        most = min(most, movable)
        self.account.spend(most)
        each = min(1.0, most / last.reached) if last.reached > 0.0 else 0.0
        return try_moved(tree, node, children, target, self.near, each, chance)

    def share(self, level: int) -> float:
        """The share of what could move that does, at a node of `level`."""
        assert self.price is not None
        worth = self.worth[level] if level < self.worth.shape[0] else np.ones(PRICES.size)
        return self.price.moves(worth)


def _apart(one: FloatArray, other: FloatArray) -> float:
    return float(0.5 * np.abs(one - other).sum())


SPEC = RULES.register(
    RuleSpec(
        name="picture_budget",
        make=PictureBudget,
        promise="bounded",
        drawn=frozenset({"top_k", "without_replacement", "iid"}),
        source="this project; compare arXiv 2410.03355 (LANTERN)",
        bound=(
            "the total variations of a picture's cells, each given all before it, sum to at most delta times the "
            "cells; one cell may have more than delta, a tree outside of a picture has at most delta"
        ),
        bound_at=bound_at,
        lossless_when=lambda settings: settings["delta"] == 0.0,
        examples=every_combination(delta=(0.0, 0.0713, 0.2371, 0.93)),
        codebook=True,
        greedy_variant="lantern_greedy",
    )
)
