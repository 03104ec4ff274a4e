"""LANTERN and LANTERN++: a drafted code also stands for its nearest codes, up to a bound on the mass pooled."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, NamedTuple, Protocol

import numpy as np

from underpaint.algos.accept.neighbours import check_neighbours
from underpaint.algos.accept.spec import (
    RULES,
    DraftedNode,
    Residual,
    RuleSpec,
    Settings,
    every_combination,
    require_drawn,
)
from underpaint.algos.accept.walk import SiblingOutcome, excess, normalised, proposal_distributions, walk
from underpaint.algos.arrays import FloatArray, IntArray
from underpaint.algos.batched.drawn import DrawnSiblings
from underpaint.algos.batched.pooling import NeighbourPool, PooledPoints, additive_limit, relative_limit
from underpaint.algos.batched.spec import BatchedRule
from underpaint.algos.batched.walk import BatchedWalk
from underpaint.algos.chance import At, Chance, Role
from underpaint.algos.registry import Codes, Factor, Share, Tune, check_bounds
from underpaint.algos.tree import DRAWN, DraftTree, Drawn, Verdict


class PooledMass(NamedTuple):
    """Neighbours pooled with a token: the first `codes` of its row, of total weight `mass`."""

    mass: float
    codes: int


def pool(distribution: FloatArray, near: IntArray, limit: float) -> PooledMass:
    """The longest prefix of the codes `near` [k] whose weight under `distribution` [V] is at most `limit`."""
    running = np.add.accumulate(distribution.take(near).astype(np.float64))
    count = int(running.searchsorted(limit, side="right"))
    return PooledMass(float(running[count - 1]) if count else 0.0, count)


class Limit(Protocol):
    """The most mass that may be pooled with a token of weight `own`, in a distribution of weight `total`."""

    def __call__(self, own: float, total: float) -> float: ...


class Pooling(NamedTuple):
    """How a rule pools: the table [V, columns], the columns used, the limit, and whose residual it leaves."""

    neighbours: IntArray
    k: int
    limit: Limit
    residual: Residual

    def pooled(self, left: FloatArray, token: int, total: float) -> PooledMass:
        """Return the mass of `token` and its pool under `left` [V] of weight `total`, and the codes in the pool."""
        own = float(left[token])
        near = pool(left, self.neighbours[token, : self.k], self.limit(own, total))
        return PooledMass(own + near.mass, near.codes)

    def take_out(self, left: FloatArray, token: int, kept: PooledMass) -> float:
        """Set to zero, in `left` [V], what goes with the rejected point `token`.

        Args:
            left: What is left of the target's distribution, [V] float64; it is written to.
            token: The rejected token.
            kept: The mass that it was to be kept with, see `pooled`.

        Returns:
            The weight that left `left`; for residual "released", that of the token alone.
        """
        own, near = float(left[token]), self.neighbours[token]
        if self.residual == "paper":
            left[near[: kept.codes]] = 0.0
        elif self.residual == "released" and kept.codes:
            left[near[: self.k + 1]] = 0.0
        left[token] = 0.0
        return kept.mass if self.residual == "paper" else own

    def rest(self, left: FloatArray, drafted: FloatArray, token: int, kept: PooledMass) -> FloatArray:
        """Return the residual [V], of any scale, after `token`, drawn from `drafted` [V], was rejected."""
        near = self.neighbours[token]
        if self.residual == "released" and kept.codes:
            drafted = drafted.copy()
            drafted[near[: self.k + 1]] = 0.0
        elif self.residual == "paper":
            left[near[: kept.codes]] = 0.0  # what x gains is less than q(x), or x would have been kept
        return excess(left, drafted)

    def try_points(
        self, tree: DraftTree, node: int, children: Sequence[int], distribution: FloatArray, chance: Chance
    ) -> SiblingOutcome:
        """See `SiblingRule`, for point proposals: each is kept with probability p(x) + p(A(x)).

        p is what is left of the distribution after the siblings before it, renormalised; the pool A(x) is measured in
        it too.
        """
        left = distribution
        total = summed = float(np.add.reduce(distribution, dtype=np.float64))
        for child in children:
            token = int(tree.tokens[child])
            kept = self.pooled(left, token, total)
            if chance.flip(kept.mass, At(Role.ACCEPT, child), out_of=total):
                return SiblingOutcome(child, left)
            if left is distribution:  # most are kept, and then need no copy
                left = distribution.astype(np.float64)
            total -= self.take_out(left, token, kept)
            if self.residual == "released" or total < 0.5 * summed:  # above that, the running total is exact to an ulp
                total = summed = float(np.add.reduce(left))
            if not total > 0.0:
                if self.residual != "released":  # it was certain to be kept, and only rounding said otherwise
                    return SiblingOutcome(child, left)
                left[:] = 1.0
                total = summed = float(left.size)
        return SiblingOutcome(None, left)

    def try_drawn(
        self, tree: DraftTree, node: int, children: Sequence[int], distribution: FloatArray, chance: Chance
    ) -> SiblingOutcome:
        """See `SiblingRule`, for drawn ones: as `try_points`, with probability min(1, (p(x) + p(A(x))) / q(x))."""
        left = normalised(distribution)
        for child, drafted in zip(children, proposal_distributions(tree, node, children), strict=False):
            token = int(tree.tokens[child])
            kept = self.pooled(left, token, 1.0)
            if chance.flip(kept.mass, At(Role.ACCEPT, child), out_of=float(drafted[token])):
                return SiblingOutcome(child, left)
            rest = self.rest(left, drafted, token, kept)
            if not rest.any():
                if self.residual != "released":
                    return SiblingOutcome(child, left)
                rest[:] = 1.0
            left = normalised(rest)
        return SiblingOutcome(None, left)

    def verdict(self, tree: DraftTree, probs: FloatArray, chance: Chance) -> Verdict:
        """Decide a whole tree."""
        require_drawn(tree, "top_k", "without_replacement", "iid")
        if self.residual == "released" and tree.drawn == "iid" and tree.size > 1:
            raise ValueError(
                "residual 'released': the released code draws siblings without replacement or takes the top k, so it "
                "says nothing of 'iid' trees; use 'paper' or 'standard'"
            )
        check_vocab(self.neighbours, probs)
        return walk(tree, probs, chance, self.try_points if tree.drawn == "top_k" else self.try_drawn)


def check_vocab(neighbours: IntArray, probs: FloatArray) -> None:
    """Raise ValueError unless the table is over the codes that the distributions are over."""
    if neighbours.shape[0] != probs.shape[-1]:
        raise ValueError(
            f"neighbours: expected one row per code, V = {probs.shape[-1]}, got {neighbours.shape[0]}; build the table "
            "from this model's codebook"
        )


def check_settings(what: str, neighbours: IntArray, k: int, residual: Residual = "paper") -> None:
    """Raise ValueError on a table, a `k` or a residual that does not make sense."""
    check_neighbours(neighbours, what)
    count, columns = neighbours.shape
    if not 0 <= k <= columns:
        raise ValueError(f"{what}: k must be in 0..{columns} (the table's columns; 0 takes all), got {k}")
    if residual == "released" and (k or columns) == columns < count - 1:
        raise ValueError(
            f"{what}: the released code zeroes k + 1 neighbours, the table has {columns} columns; "
            "lower k or make a wider table"
        )


@dataclass(frozen=True, slots=True, eq=False)
class Lantern:
    """Accept x with probability min(1, (p(x) + p(A(x))) / q(x)): A(x) is pooled with x (arXiv 2410.03355).

    A(x) is the longest prefix of x's `k` nearest codes, nearest first, with p(A) <= delta; q(x) = 1 on "top_k" trees.
    neighbours: [V, columns] int64 from `nearest_codes`; k: columns used, 0 for all; delta in [0, 1].

    residual, on a rejection of x (the next sibling is tried against it, and its pool is measured in it):
    "paper": p with A's mass moved to x, less q; so on a top_k tree A and x drop out.
    "standard": [p - q]_+, on a top_k tree p without x; neighbours keep their mass.
    "released": on a top_k tree x and its k + 1 nearest drop out, pooled or not (as soon as one is pooled, even one of
    probability 0); on a "without_replacement" tree they are taken out of q instead, so that they keep all of p; and
    where nothing is left, the uniform distribution over the whole codebook.
    """

    neighbours: IntArray
    k: Codes = 0
    delta: Annotated[Share, Tune((0.1, 0.2, 0.4, 0.6, 0.8))] = 0.1
    residual: Residual = "paper"

    def __post_init__(self) -> None:
        if self.delta > 1.0:
            raise ValueError(
                f"lantern: delta must be in [0, 1], got {self.delta}; a bound relative to p(x), as the released code "
                "takes a delta above 1 to mean, is rule 'lantern_pp' with factor = delta"
            )
        check_bounds("lantern", self)
        check_settings("lantern", self.neighbours, self.k, self.residual)

    def __call__(self, tree: DraftTree, probs: FloatArray, chance: Chance) -> Verdict:
        columns = self.k or self.neighbours.shape[1]
        return Pooling(self.neighbours, columns, self._limit, self.residual).verdict(tree, probs, chance)

    def _limit(self, own: float, total: float) -> float:
        return self.delta * total


@dataclass(frozen=True, slots=True, eq=False)
class LanternPP:
    """LANTERN with a relative bound: x and its pool may weigh at most `factor` * p(x) (arXiv 2502.06352).

    factor >= 1 (the paper's lambda; a delta above 1 in the released code); 1 pools nothing. The rest as `Lantern`.
    """

    neighbours: IntArray
    k: Codes = 0
    factor: Annotated[Factor, Tune((2.0, 3.0, 5.0, 10.0))] = 5.0
    residual: Residual = "paper"

    def __post_init__(self) -> None:
        check_bounds("lantern_pp", self)
        check_settings("lantern_pp", self.neighbours, self.k, self.residual)

    def __call__(self, tree: DraftTree, probs: FloatArray, chance: Chance) -> Verdict:
        columns = self.k or self.neighbours.shape[1]
        return Pooling(self.neighbours, columns, self._limit, self.residual).verdict(tree, probs, chance)

    def _limit(self, own: float, total: float) -> float:
        return (self.factor - 1.0) * own


def _batched(rule: Lantern | LanternPP, drawn: Drawn) -> BatchedRule:
    limit = additive_limit(rule.delta) if isinstance(rule, Lantern) else relative_limit(rule.factor)
    pool = NeighbourPool(rule.neighbours, rule.k or rule.neighbours.shape[1], limit)
    if drawn == "top_k":
        return BatchedWalk(PooledPoints(pool, rule.residual))
    return BatchedWalk(DrawnSiblings(pool, rule.residual, repeats=drawn == "iid"))


def _bound(settings: Settings, node: DraftedNode) -> float:
    delta = float(settings["delta"])
    if settings["residual"] == "released":
        return 1.0
    if node.drawn == "top_k":
        return 1.0 - (1.0 - delta) ** node.siblings
    if settings["residual"] == "standard" and node.siblings == 1:
        return float(np.minimum(delta, np.maximum(node.draft - node.target, 0.0)).sum())
    return 1.0


def _bound_pp(settings: Settings, node: DraftedNode) -> float:
    if settings["residual"] == "standard" or (settings["residual"] == "paper" and node.drawn == "top_k"):
        return 1.0 - 1.0 / float(settings["factor"])
    return 1.0


_RESIDUALS: dict[Residual, frozenset[Drawn]] = {
    "paper": frozenset(DRAWN),
    "released": frozenset({"top_k", "without_replacement"}),
    "standard": frozenset(DRAWN),
}

SPEC = RULES.register(
    RuleSpec(
        name="lantern",
        device="underpaint.runtime.device.kernels.walk_lantern:lantern_walk",
        make=Lantern,
        promise="bounded",
        drawn=frozenset({"top_k", "without_replacement", "iid"}),
        source="arXiv 2410.03355 (LANTERN); released code: jadohu/LANTERN, evaluate_posterior, evaluate_posterior_v1",
        bound=(
            "top_k trees, residual 'paper' or 'standard': total variation per token <= 1 - (1 - delta)^m for m "
            "siblings. One drawn sibling, residual 'standard': <= sum(min(delta, [q - p]_+)). Otherwise none"
        ),
        deviations=(
            "Pools are measured in the renormalised distribution that the rejected siblings leave. A draw of exactly "
            "0 does not accept an impossible token. The released code has no residual for 'iid' trees: that pair raises"
        ),
        codebook=True,
        batched=_batched,
        bound_at=_bound,
        lossless_when=lambda settings: settings["delta"] == 0.0 and settings["residual"] != "released",
        examples=every_combination(delta=(0.0, 0.0713, 0.2371, 0.5237, 0.93)),
        residuals=_RESIDUALS,
        greedy_variant="lantern_greedy",
    )
)
SPEC_PP = RULES.register(
    RuleSpec(
        name="lantern_pp",
        device="underpaint.runtime.device.kernels.walk_lantern:lantern_walk",
        make=LanternPP,
        promise="bounded",
        drawn=frozenset({"top_k", "without_replacement", "iid"}),
        source="arXiv 2502.06352 (LANTERN++); released code: jadohu/LANTERN with --static_tree and a delta above 1",
        bound=(
            "residual 'standard' (any tree), or 'paper' on top_k trees: total variation per token <= 1 - 1 / factor, "
            "however many siblings. Residual 'paper' on drawn trees and 'released': none"
        ),
        deviations="As lantern",
        codebook=True,
        batched=_batched,
        bound_at=_bound_pp,
        lossless_when=lambda settings: settings["factor"] == 1.0 and settings["residual"] != "released",
        examples=every_combination(factor=(1.0, 1.713, 3.137, 9.7)),
        residuals=_RESIDUALS,
        greedy_variant="lantern_pp_greedy",
    )
)
