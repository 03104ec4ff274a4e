"""A relaxed rule with a total-variation budget: at most `delta` of mass moves to draft codes from their nearest codes.

The rule tries siblings exactly, but in a distribution near the target's. So the total variation of the next token is at
most the mass moved: at most `delta` per node, for any number of siblings, point proposals or drawn. LANTERN's delta
gives such a bound only for one point proposal.

For point proposals and for one drawn sibling, the next token follows the moved distribution exactly. For several drawn
siblings, most of the mass moves when the last one is tried, see `_first_and_last`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from underpaint.algos.accept.lantern import check_settings
from underpaint.algos.accept.point import try_points
from underpaint.algos.accept.spec import RULES, DraftedNode, RuleSpec, every_combination
from underpaint.algos.accept.walk import SiblingOutcome, excess, normalised, proposal_distributions, try_siblings, walk
from underpaint.algos.arrays import FloatArray, IntArray
from underpaint.algos.batched.moving import MovedDrafts, MovedPoints
from underpaint.algos.batched.spec import BatchedRule
from underpaint.algos.batched.walk import BatchedWalk
from underpaint.algos.chance import At, Chance, Role
from underpaint.algos.registry import Codes, Share
from underpaint.algos.tree import DraftTree, Drawn, Verdict


def move_to_points(probs: FloatArray, tokens: Sequence[int], neighbours: IntArray, delta: float) -> FloatArray:
    """Return `probs` [V] with up to `delta` of mass moved to `tokens` from their nearest codes outside `tokens`.

    Tokens take mass in order, each from its nearest code first. The sum stays 1 up to rounding.

    Args:
        probs: [V], the target's distribution.
        tokens: The drafted tokens that take mass.
        neighbours: [V, k], the nearest codes of each code.
        delta: The largest mass moved, over all tokens together.
    """
    moved: FloatArray = normalised(probs)
    proposals = set(tokens)
    budget = delta
    for token in tokens:
        near = [code for code in neighbours[token].tolist() if code not in proposals]
        if budget <= 0.0 or not near:
            continue
        amounts = np.diff(np.minimum(np.cumsum(moved[near]), budget), prepend=0.0)
        moved[near] -= amounts
        moved[token] += amounts.sum()
        budget -= float(amounts.sum())
    return np.maximum(moved, 0.0)


def move_to_draft(probs: FloatArray, draft: FloatArray, neighbours: IntArray, delta: float) -> FloatArray:
    """Return `probs` [V] with up to `delta` of mass moved towards `draft` [V], only between a code and its near codes.

    Codes with more draft than target probability take mass from near codes with less, nearest first; codes that need
    the same mass share it in proportion. The moves without a budget are scaled down to `delta`, so the result does not
    depend on the drawn tokens. The overlap of target and draft grows by the mass moved.
    """
    target, proposal = normalised(probs), normalised(draft)
    lacking, spare = excess(proposal, target), excess(target, proposal)
    takers = np.flatnonzero(lacking)
    flow = np.zeros(target.size)
    for column in neighbours[takers].T if delta > 0.0 else ():
        amounts, taken = _shared(np.minimum(lacking[takers], spare[column]), column, spare)
        lacking[takers] -= amounts
        flow[takers] += amounts
        spare = np.maximum(spare - taken, 0.0)
        flow -= taken
    total = float(np.maximum(flow, 0.0).sum())
    scale = min(1.0, delta / total) if total > 0.0 else 0.0
    return np.maximum(target + scale * flow, 0.0)


def _shared(requests: FloatArray, column: IntArray, spare: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the amounts [N] for `requests` [N] from the codes `column` [N], and their sums by code [V].

    Requests from one code get its mass in `spare` [V] in proportion.
    """
    demand = np.bincount(column, weights=requests, minlength=spare.size)
    share = np.minimum(1.0, np.divide(spare, demand, out=np.ones_like(spare), where=demand > 0.0))
    amounts = requests * share[column]
    return amounts, np.bincount(column, weights=amounts, minlength=spare.size).astype(np.float64, copy=False)


def check_budget(what: str, neighbours: IntArray, k: int, delta: float) -> None:
    """Raise ValueError if the table, `k` or the budget is invalid."""
    check_settings(what, neighbours, k)
    if not 0.0 <= delta <= 1.0:
        raise ValueError(f"{what}: delta must be in [0, 1], got {delta!r}")


@dataclass(frozen=True, slots=True)
class NeighbourBudget:
    """Try siblings exactly in a distribution near the target's; the next token is at most `delta` from the target.

    Attributes:
        neighbours: [V, K] int64, see `nearest_codes`.
        k: How many of them may give mass; 0 means all.
        delta: The largest total variation per node, in [0, 1].

    Raises:
        ValueError: A setting is out of range.
    """

    neighbours: IntArray
    k: Codes = 0
    delta: Share = 0.1

    def __post_init__(self) -> None:
        check_budget("neighbour_budget", self.neighbours, self.k, self.delta)

    def __call__(self, tree: DraftTree, probs: FloatArray, chance: Chance) -> Verdict:
        """Return the verdict on the tree; see `Rule`."""
        return walk(tree, probs, chance, self._try)

    def _try(
        self, tree: DraftTree, node: int, children: Sequence[int], distribution: FloatArray, chance: Chance
    ) -> SiblingOutcome:
        near = self.neighbours[:, : self.k or None]
        if tree.drawn == "top_k":
            tokens = [int(tree.tokens[child]) for child in children]
            decided_by = move_to_points(distribution, tokens, near, self.delta)
            return try_points(tree, node, children, decided_by, chance)
        draft = normalised(tree.draft_distribution(node))
        target = normalised(distribution)
        if len(children) == 1:
            return try_siblings(tree, node, children, move_to_draft(target, draft, near, self.delta), chance)
        first_target, most = _first_and_last(target, draft, near, self.delta, tree.drawn, len(children))
        return try_moved(tree, node, children, first_target, near, most, chance)


def try_moved(
    tree: DraftTree,
    node: int,
    children: Sequence[int],
    target: FloatArray,
    neighbours: IntArray,
    most: float,
    chance: Chance,
) -> SiblingOutcome:
    """Try drawn siblings exactly in `target` [V]; before the last one, move up to `most` of mass towards its draft."""
    residual = target
    for child, drafted in zip(children, proposal_distributions(tree, node, children), strict=True):
        if child == children[-1]:
            residual = move_to_draft(residual, drafted, neighbours, most)
        token = int(tree.tokens[child])
        if chance.flip(float(residual[token]), At(Role.ACCEPT, child), out_of=float(drafted[token])):
            return SiblingOutcome(child, residual)
        rest = excess(residual, drafted)
        if not rest.any():  # they differ only by rounding, so the rejection counts as an acceptance
            return SiblingOutcome(child, residual)
        residual = normalised(rest)
    return SiblingOutcome(None, residual)


def _first_and_last(
    target: FloatArray, draft: FloatArray, near: IntArray, delta: float, drawn: Drawn, count: int
) -> tuple[FloatArray, float]:
    """Return the distribution [V] for the first of several drawn siblings, and the budget for the last one.

    The last sibling is tried only with some probability, so each unit moved there costs that fraction of the budget but
    adds the full unit of acceptance. Mass moved earlier would partly have been accepted later. So the whole budget is
    spent there, unless it covers everything that could move. The probability is exact for independent siblings; for
    others the probability of the first rejection is used, which is not smaller.
    """
    if delta >= float(excess(target, draft).sum()):
        return move_to_draft(target, draft, near, delta), 1.0
    reached = last_sibling(target, draft, drawn, count).reached
    return target, min(1.0, delta / reached) if reached > 0.0 else 1.0


class LastSibling(NamedTuple):
    """The last of several drawn siblings: tried with probability <= `reached`, in the distribution `left` [V]."""

    reached: float
    left: FloatArray


def last_sibling(target: FloatArray, draft: FloatArray, drawn: Drawn, count: int) -> LastSibling:
    """Return the state before the last of `count` siblings is tried. Exact for independent siblings, and for one.

    Otherwise `reached` is the probability of the first rejection, and `left` its residual.
    """
    residual, reached = target, 1.0
    for _ in range(count - 1 if drawn == "iid" else min(1, count - 1)):
        rest = excess(residual, draft)
        reached *= float(rest.sum())
        if not reached > 0.0:
            return LastSibling(0.0, residual)
        residual = normalised(rest)
    return LastSibling(reached, residual)


def _batched(rule: NeighbourBudget, drawn: Drawn) -> BatchedRule:
    near = rule.neighbours[:, : rule.k or None]
    if drawn == "top_k":
        return BatchedWalk(MovedPoints(near, rule.delta))
    return BatchedWalk(MovedDrafts(near, rule.delta, repeats=drawn == "iid"))


def bound_at(settings: Any, node: DraftedNode) -> float:
    """The `RuleSpec.bound_at` of a budget rule: `delta`."""
    return float(settings["delta"])


SPEC = RULES.register(
    RuleSpec(
        name="neighbour_budget",
        make=NeighbourBudget,
        promise="bounded",
        drawn=frozenset({"top_k", "without_replacement", "iid"}),
        source="this project; compare arXiv 2410.03355 (LANTERN)",
        bound="total variation at most delta a node, over all of its siblings, points or drawn",
        bound_at=bound_at,
        lossless_when=lambda settings: settings["delta"] == 0.0,
        examples=every_combination(delta=(0.0, 0.0713, 0.2371, 0.93)),
        codebook=True,
        batched=_batched,
        greedy_variant="lantern_greedy",
    )
)
