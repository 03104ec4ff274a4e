"""LANTERN and LANTERN++: pools a draft token with its nearest codes, up to a limit on the pooled mass."""

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
    """The neighbours pooled with a token: the first `codes` entries of its row, with total probability `mass`."""

    mass: float
    codes: int


def pool(distribution: FloatArray, near: IntArray, limit: float) -> PooledMass:
    """Return the longest prefix of the codes `near` [k] whose mass in `distribution` [V] is at most `limit`."""
    running = np.add.accumulate(distribution.take(near).astype(np.float64))
    count = int(running.searchsorted(limit, side="right"))
    return PooledMass(float(running[count - 1]) if count else 0.0, count)


class Limit(Protocol):
    """The largest mass to pool with a token of mass `token_mass`, in a distribution of total mass `total`."""

    def __call__(self, token_mass: float, total: float) -> float: ...


class Pooling(NamedTuple):
    """The settings of pooling: the table [V, columns], the number of columns used, the limit, and the residual."""

    neighbours: IntArray
    k: int
    limit: Limit
    residual: Residual

    def pooled(self, left: FloatArray, token: int, total: float) -> PooledMass:
        """Return the mass of `token` and its pool in `left` [V] of sum `total`, and the number of pooled codes."""
        token_mass = float(left[token])
        near = pool(left, self.neighbours[token, : self.k], self.limit(token_mass, total))
        return PooledMass(token_mass + near.mass, near.codes)

    def take_out(self, left: FloatArray, token: int, pooled: PooledMass) -> float:
        """Set to zero, in `left` [V], the mass that is removed with the rejected point `token`.

        Args:
            left: The rest of the target's distribution, [V] float64; modified in place.
            token: The rejected token.
            pooled: The mass with which it could have been kept, from the method `pooled`.

        Returns:
            The mass removed from `left`; for residual "released", only that of the token.
        """
        token_mass, near = float(left[token]), self.neighbours[token]
        if self.residual == "paper":
            left[near[: pooled.codes]] = 0.0
        elif self.residual == "released" and pooled.codes:
            left[near[: self.k + 1]] = 0.0
        left[token] = 0.0
        return pooled.mass if self.residual == "paper" else token_mass

    def rest(self, left: FloatArray, drafted: FloatArray, token: int, pooled: PooledMass) -> FloatArray:
        """Return the unnormalised residual [V] after the rejection of `token`, which was drawn from `drafted` [V]."""
        near = self.neighbours[token]
        if self.residual == "released" and pooled.codes:
            drafted = drafted.copy()
            drafted[near[: self.k + 1]] = 0.0
        elif self.residual == "paper":
            left[near[: pooled.codes]] = 0.0  # x gains less than q(x), or else x would have been kept
        return excess(left, drafted)

    def try_points(
        self, tree: DraftTree, node: int, children: Sequence[int], distribution: FloatArray, chance: Chance
    ) -> SiblingOutcome:
        """See `SiblingRule`. Tries point proposals; each is kept with probability p(x) + p(A(x)).

        p is the rest of the distribution after the earlier siblings, renormalised. The pool A(x) is measured in the
        same p.
        """
        residual = distribution
        total = summed = float(np.add.reduce(distribution, dtype=np.float64))
        for child in children:
            token = int(tree.tokens[child])
            pooled_mass = self.pooled(residual, token, total)
            if chance.flip(pooled_mass.mass, At(Role.ACCEPT, child), out_of=total):
                return SiblingOutcome(child, residual)
            if residual is distribution:  # most tokens are kept, and then no copy is needed
                residual = distribution.astype(np.float64)
            total -= self.take_out(residual, token, pooled_mass)
            if self.residual == "released" or total < 0.5 * summed:  # above that, the running total is exact to 1 ulp
                total = summed = float(np.add.reduce(residual))
            if not total > 0.0:
                if self.residual != "released":  # the token was certain to be kept; only rounding rejected it
                    return SiblingOutcome(child, residual)
                residual[:] = 1.0
                total = summed = float(residual.size)
        return SiblingOutcome(None, residual)

    def try_drawn(
        self, tree: DraftTree, node: int, children: Sequence[int], distribution: FloatArray, chance: Chance
    ) -> SiblingOutcome:
        """See `SiblingRule`. Tries drawn siblings as `try_points`, with probability min(1, (p(x) + p(A(x))) / q(x))."""
        residual = normalised(distribution)
        for child, drafted in zip(children, proposal_distributions(tree, node, children), strict=False):
            token = int(tree.tokens[child])
            pooled_mass = self.pooled(residual, token, 1.0)
            if chance.flip(pooled_mass.mass, At(Role.ACCEPT, child), out_of=float(drafted[token])):
                return SiblingOutcome(child, residual)
            rest = self.rest(residual, drafted, token, pooled_mass)
            if not rest.any():
                if self.residual != "released":
                    return SiblingOutcome(child, residual)
                rest[:] = 1.0
            residual = normalised(rest)
        return SiblingOutcome(None, residual)

    def verdict(self, tree: DraftTree, probs: FloatArray, chance: Chance) -> Verdict:
        """Return the verdict on a whole tree."""
        require_drawn(tree, "top_k", "without_replacement", "iid")
        if self.residual == "released" and tree.drawn == "iid" and tree.size > 1:
            raise ValueError(
                "residual 'released': the released code draws siblings without replacement or takes the top k, so it "
                "says nothing of 'iid' trees; use 'paper' or 'standard'"
            )
        check_vocab(self.neighbours, probs)
        return walk(tree, probs, chance, self.try_points if tree.drawn == "top_k" else self.try_drawn)


def check_vocab(neighbours: IntArray, probs: FloatArray) -> None:
    """Raise ValueError unless the table and the distributions have the same vocabulary."""
    if neighbours.shape[0] != probs.shape[-1]:
        raise ValueError(
            f"neighbours: expected one row per code, V = {probs.shape[-1]}, got {neighbours.shape[0]}; build the table "
            "from this model's codebook"
        )


def check_settings(what: str, neighbours: IntArray, k: int, residual: Residual = "paper") -> None:
    """Raise ValueError if the table, `k` or the residual is invalid."""
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

    Attributes:
        neighbours: [V, columns] int64 from `nearest_codes`.
        k: Columns used, 0 for all.
        delta: The limit of p(A), in [0, 1].
        residual: What remains after x is rejected. The next sibling is tried in it, and its pool is measured in it.
            "paper": p with A's mass moved to x, minus q; so on a "top_k" tree A and x are removed.
            "standard": [p - q]_+, on a "top_k" tree p without x; neighbours keep their mass.
            "released": On a "top_k" tree, x and its k + 1 nearest codes are removed, pooled or not, as soon as one code
            is pooled (even with probability 0). On a "without_replacement" tree they are removed from q instead, so
            that they keep all of p. If no mass remains, the residual is uniform over the whole codebook.
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

    def _limit(self, token_mass: float, total: float) -> float:
        return self.delta * total


@dataclass(frozen=True, slots=True, eq=False)
class LanternPP:
    """LANTERN with a relative limit: x and its pool may have at most the mass `factor` * p(x) (arXiv 2502.06352).

    Otherwise like `Lantern`.

    Attributes:
        neighbours: As in `Lantern`.
        k: As in `Lantern`.
        factor: >= 1 (the paper's lambda; a delta above 1 in the released code); 1 pools nothing.
        residual: As in `Lantern`.
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

    def _limit(self, token_mass: float, total: float) -> float:
        return (self.factor - 1.0) * token_mass


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
