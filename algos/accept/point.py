"""Point proposals: deterministic children (EAGLE-2's top-k), each kept with its target probability."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from underpaint.algos.accept.spec import RULES, RuleSpec, require_drawn
from underpaint.algos.accept.walk import SiblingOutcome, walk
from underpaint.algos.arrays import FloatArray
from underpaint.algos.batched.walk import BatchedWalk, try_points_at_once
from underpaint.algos.chance import At, Chance, Role
from underpaint.algos.tree import DraftTree, Verdict


@dataclass(frozen=True, slots=True)
class PointProposals:
    """Accept a proposed x with probability p(x); after a rejection p(x) <- 0, renormalise, try the next sibling.

    EAGLE-2, arXiv 2406.16858; speculative sampling (arXiv 2211.17192, algorithm 1) with a one-hot draft distribution.
    """

    def __call__(self, tree: DraftTree, probs: FloatArray, chance: Chance) -> Verdict:
        require_drawn(tree, "top_k")
        return walk(tree, probs, chance, try_points)


def try_points(
    tree: DraftTree, node: int, children: Sequence[int], distribution: FloatArray, chance: Chance
) -> SiblingOutcome:
    """Try point proposals in order, and remove each rejected token from the distribution."""
    residual = distribution.astype(np.float64)
    for child in children:
        token = int(tree.tokens[child])
        if chance.flip(float(residual[token]), At(Role.ACCEPT, child), out_of=float(residual.sum())):
            return SiblingOutcome(child, residual)
        residual[token] = 0.0
    return SiblingOutcome(None, residual)


SPEC = RULES.register(
    RuleSpec(
        name="point",
        device="underpaint.runtime.device.kernels.walk_longest:point_walk",
        make=PointProposals,
        promise="lossless",
        drawn=frozenset({"top_k"}),
        source="arXiv 2406.16858 (EAGLE-2); arXiv 2211.17192, algorithm 1, one-hot draft distribution",
        batched=lambda rule, drawn: BatchedWalk(try_points_at_once) if drawn == "top_k" else None,
    )
)
