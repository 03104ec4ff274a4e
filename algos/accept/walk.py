"""The walks down a draft tree that rules share, and speculative sampling, whose rules are such walks and no more.

Walks go sibling by sibling from the root, or along the longest path of kept nodes. Siblings that were drawn are tested
exactly, each against the distribution that it was drawn from.
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
"""Of a product of ratios p / q, so that it never overflows."""


class SiblingOutcome(NamedTuple):
    """What came of trying one node's children."""

    accepted: int | None
    """The child that was accepted; None if all were rejected."""
    residual: FloatArray
    """[V] weights (any scale) to draw the extra token from; read only when `accepted` is None."""


class SiblingRule(Protocol):
    """Tries the children of one node in order."""

    def __call__(
        self, tree: DraftTree, node: int, children: Sequence[int], distribution: FloatArray, chance: Chance
    ) -> SiblingOutcome:
        """Flip at `At(Role.ACCEPT, child)`; `distribution` [V] is the target's after `node`, not to be written to."""
        ...


def walk(tree: DraftTree, probs: FloatArray, chance: Chance, siblings: SiblingRule) -> Verdict:
    """Accept from the root downwards while a child is accepted; then one extra token.

    The extra token comes from the residual of the node whose children were all rejected, or, below a leaf, from
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
"""Which of several siblings that pass the test: the one on the longest kept path, or the first."""


class Passing(Protocol):
    """The test of one node's children."""

    def __call__(self, node: int, children: Sequence[int]) -> Sequence[int]:
        """Those of `children` that pass, in their order."""
        ...


def kept_ends(tree: DraftTree, passing: Passing, choose: Choice = "longest") -> list[int]:
    """The deepest nodes that pass with all their ancestors, in order of index; [0] if no child of the root passes.

    Only the children of kept nodes are tested.
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
    """`row` [V] as float64 with sum 1: distributions arrive in the engine's precision, decisions are made in this
    one."""
    wide: FloatArray = row.astype(np.float64)
    wide /= np.add.reduce(wide)
    return wide


def excess(target: FloatArray, draft: FloatArray) -> FloatArray:
    """[target - draft]_+ [V]: what the target still owes once `draft` has been offered."""
    return np.maximum(target - draft, 0.0)


def proposal_distributions(tree: DraftTree, node: int, children: Sequence[int]) -> Iterator[FloatArray]:
    """For each child in sibling order, the distribution [V] (float64, sum 1) it was drawn from, given the siblings
    before it.

    "iid": the node's draft distribution each time. "without_replacement": that distribution with the earlier siblings
    zeroed and renormalised; once nothing is left of it, the uniform distribution on the tokens not tried yet (Sequoia,
    arXiv 2402.12374).
    "top_k": one-hot, a point proposal.
    Raises ValueError where the distribution gives a child's token no probability: the tree is not what `drawn` says.
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
            if not untried.any():  # every token was proposed
                return
            distribution = normalised(distribution if distribution.any() else untried.astype(np.float64))


def try_siblings(
    tree: DraftTree, node: int, children: Sequence[int], distribution: FloatArray, chance: Chance
) -> SiblingOutcome:
    """Keep a child x drawn from q with probability min(1, p(x) / q(x)); on a rejection p <- norm([p - q]_+).

    arXiv 2211.17192, algorithm 1, repeated over siblings as in SpecInfer (arXiv 2305.09781, multi-round sampling).
    """
    left = normalised(distribution)
    for child, drafted in zip(children, proposal_distributions(tree, node, children), strict=True):
        token = int(tree.tokens[child])
        if chance.flip(float(left[token]), At(Role.ACCEPT, child), out_of=float(drafted[token])):
            return SiblingOutcome(child, left)
        rest = excess(left, drafted)
        if not rest.any():  # the distributions differ by rounding alone, and so does this rejection from an acceptance
            return SiblingOutcome(None, left)
        left = normalised(rest)
    return SiblingOutcome(None, left)


@dataclass(frozen=True, slots=True)
class SpeculativeSampling:
    """Keep x ~ q with probability min(1, p(x) / q(x)); at the first rejection draw from norm([p - q]_+) and stop.

    Each step keeps with probability 1 - TV(p, q).
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
    """Try the siblings in order against the same q; after each rejection p <- norm([p - q]_+)."""

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
    """Try the siblings in order, the j-th against q_j: q with the siblings before it zeroed, renormalised.

    Where q has no token left, the later siblings count as drawn uniformly from the untried tokens.
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
