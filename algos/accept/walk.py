"""The tree walks that rules share, and the rules of plain speculative sampling, which consist of such a walk.

A walk either tries siblings in order, from the root downwards, or finds the longest path of kept nodes. Drawn siblings
are tested exactly, each against the distribution that it was drawn from.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, Protocol, TypeAlias

import numpy as np

from underpaint.algos.accept.spec import RULES, RuleSpec, require_chain, require_drawn
from underpaint.algos.arrays import FloatArray
from underpaint.algos.batched.drawn import batched_exact_siblings
from underpaint.algos.chance import At, Chance, Role
from underpaint.algos.tree import DraftTree, Verdict

MOST_RATIO: Final = 1e150
"""Upper limit of a product of ratios p / q, which prevents overflow."""


class SiblingOutcome(NamedTuple):
    """The result of trying the children of one node."""

    accepted: int | None
    """The accepted child; None if all children were rejected."""
    residual: FloatArray
    """[V] unnormalised weights of the extra token; used only if `accepted` is None."""


class SiblingRule(Protocol):
    """A function that tries the children of one node in order."""

    def __call__(
        self, tree: DraftTree, node: int, children: Sequence[int], distribution: FloatArray, chance: Chance
    ) -> SiblingOutcome:
        """Flip at `At(Role.ACCEPT, child)`; `distribution` [V] is the target's after `node`, and is read-only."""
        ...


def walk(tree: DraftTree, probs: FloatArray, chance: Chance, siblings: SiblingRule) -> Verdict:
    """Walk down from the root while a child is accepted, then draw one extra token.

    The extra token comes from the residual of the node whose children were all rejected, or, after a leaf, from
    the target's own distribution (the bonus token).
    """
    below = tree.children()
    path: list[int] = []
    node = 0
    while below[node]:
        accepted, residual = siblings(tree, node, below[node], probs[node], chance)
        if accepted is None:
            return Verdict(tuple(path), chance.draw(residual, At(Role.RESIDUAL, node)))
        path.append(accepted)
        node = accepted
    return Verdict(tuple(path), chance.draw(probs[node], At(Role.BONUS, node)))


Choice: TypeAlias = Literal["longest", "first"]
"""How to choose between several siblings that pass the test: the one on the longest kept path, or the first."""


class Passing(Protocol):
    """A function that tests the children of one node."""

    def __call__(self, node: int, children: Sequence[int]) -> Sequence[int]:
        """Return the `children` that pass, in the same order."""
        ...


def kept_ends(tree: DraftTree, passing: Passing, choose: Choice = "longest") -> list[int]:
    """Return the deepest nodes that pass with all their ancestors, by index; [0] if no child of the root passes.

    Only children of kept nodes are tested.
    """
    below = tree.children()
    level = deque([0])
    while level:
        ends = list(level)
        level.clear()
        for node in ends:
            if below[node]:
                passed = passing(node, below[node])
                level.extend(passed[:1] if choose == "first" else passed)
    return sorted(ends)


def normalised(row: FloatArray) -> FloatArray:
    """Return `row` [V] as float64 with sum 1. Rules decide in float64, whatever the engine's precision."""
    wide: FloatArray = row.astype(np.float64)
    wide /= np.add.reduce(wide)
    return wide


def excess(target: FloatArray, draft: FloatArray) -> FloatArray:
    """Return [target - draft]_+ [V]: the target's mass that `draft` did not offer."""
    return np.maximum(target - draft, 0.0)


def proposal_distributions(tree: DraftTree, node: int, children: Sequence[int]) -> Iterator[FloatArray]:
    """Yield, for each child in sibling order, the distribution [V] (float64, sum 1) that it was drawn from, given the
    siblings before it.

    "iid": The node's draft distribution each time. "without_replacement": That distribution with the earlier siblings
    zeroed, renormalised; if no mass is left, the uniform distribution over the untried tokens (Sequoia, arXiv
    2402.12374). "top_k": One-hot, a point proposal.
    Raises ValueError if a child's token has probability 0 in its distribution: the tree does not match `drawn`.
    """
    distribution = (
        normalised(tree.draft_distribution(node)) if tree.drawn != "top_k" else np.zeros(tree.draft_probs.shape[1])
    )
    untried = np.ones(distribution.size, dtype=np.bool_) if tree.drawn == "without_replacement" else None
    for child in children:
        token = int(tree.tokens[child])
        if tree.drawn == "top_k":
            distribution[:] = 0.0
            distribution[token] = 1.0
        if distribution[token] <= 0.0:
            raise ValueError(
                f"tree.draft_probs: node {child} holds token {token}, which its '{tree.drawn}' distribution cannot "
                "draw; keep the distribution that the drafter really drew from"
            )
        yield distribution
        if untried is not None:
            untried[token] = False
            distribution[token] = 0.0
            if not untried.any():  # all tokens were proposed
                return
            distribution = normalised(distribution if distribution.any() else untried.astype(np.float64))


def try_siblings(
    tree: DraftTree, node: int, children: Sequence[int], distribution: FloatArray, chance: Chance
) -> SiblingOutcome:
    """Keep a child x drawn from q with probability min(1, p(x) / q(x)); after a rejection p <- norm([p - q]_+).

    This is algorithm 1 of arXiv 2211.17192, repeated over siblings as in SpecInfer (arXiv 2305.09781, multi-round).
    """
    residual = normalised(distribution)
    for child, drafted in zip(children, proposal_distributions(tree, node, children), strict=True):
        token = int(tree.tokens[child])
        if chance.flip(float(residual[token]), At(Role.ACCEPT, child), out_of=float(drafted[token])):
            return SiblingOutcome(child, residual)
        rest = excess(residual, drafted)
        if not rest.any():  # the distributions differ only by rounding, so the rejection does not change anything
            return SiblingOutcome(None, residual)
        residual = normalised(rest)
    return SiblingOutcome(None, residual)


@dataclass(frozen=True, slots=True)
class SpeculativeSampling:
    """Keep x ~ q with probability min(1, p(x) / q(x)); at the first rejection draw from norm([p - q]_+) and stop.

    Each step keeps its token with probability 1 - TV(p, q).
    """

    def __call__(self, tree: DraftTree, probs: FloatArray, chance: Chance) -> Verdict:
        require_drawn(tree, "iid")
        require_chain(tree)
        return walk(tree, probs, chance, try_siblings)


CHAIN = RULES.register(
    RuleSpec(
        name="chain",
        device="underpaint.runtime.device.kernels.walk_drawn:drawn_walk",
        make=SpeculativeSampling,
        promise="lossless",
        drawn=frozenset({"iid"}),
        source="arXiv 2211.17192, algorithm 1; arXiv 2302.01318, algorithm 2",
        needs_chain=True,
        batched=batched_exact_siblings,
    )
)


@dataclass(frozen=True, slots=True)
class MultiRound:
    """Try the siblings in order against the same q; after each rejection p <- norm([p - q]_+), as in SpecInfer."""

    def __call__(self, tree: DraftTree, probs: FloatArray, chance: Chance) -> Verdict:
        require_drawn(tree, "iid")
        return walk(tree, probs, chance, try_siblings)


MULTI_ROUND = RULES.register(
    RuleSpec(
        name="multi_round",
        device="underpaint.runtime.device.kernels.walk_drawn:drawn_walk",
        make=MultiRound,
        promise="lossless",
        drawn=frozenset({"iid"}),
        source="arXiv 2305.09781 (SpecInfer), multi-step speculative sampling",
        batched=batched_exact_siblings,
    )
)


@dataclass(frozen=True, slots=True)
class WithoutReplacement:
    """Try the siblings in order, the j-th against q_j: q with the earlier siblings zeroed, renormalised.

    If q has no token left, later siblings count as drawn uniformly from the untried tokens.
    """

    def __call__(self, tree: DraftTree, probs: FloatArray, chance: Chance) -> Verdict:
        require_drawn(tree, "without_replacement")
        return walk(tree, probs, chance, try_siblings)


WITHOUT_REPLACEMENT = RULES.register(
    RuleSpec(
        name="without_replacement",
        device="underpaint.runtime.device.kernels.walk_drawn:drawn_walk",
        make=WithoutReplacement,
        promise="lossless",
        drawn=frozenset({"without_replacement"}),
        source="arXiv 2401.15077 (EAGLE); arXiv 2402.12374 (Sequoia), sampling without replacement",
        batched=batched_exact_siblings,
    )
)
