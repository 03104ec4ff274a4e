"""Greedy match for temperature 0: keeps a draft token only if it is the target's likeliest token."""

from dataclasses import dataclass

import numpy as np

from underpaint.algos.accept.spec import RULES, RuleSpec
from underpaint.algos.arrays import FloatArray
from underpaint.algos.batched.longest import LongestPath, is_best
from underpaint.algos.chance import Chance
from underpaint.algos.tree import DRAWN, DraftTree, Verdict


@dataclass(frozen=True, slots=True)
class GreedyMatch:
    """Descend to the child whose token is argmax p (ties: the first index); the extra token is argmax p. No chance."""

    def __call__(self, tree: DraftTree, probs: FloatArray, chance: Chance) -> Verdict:
        below = tree.children()
        path: list[int] = []
        node: int | None = 0
        while node is not None:
            best = int(np.argmax(probs[node]))
            node = next((child for child in below[node] if int(tree.tokens[child]) == best), None)
            if node is not None:
                path.append(node)
        return Verdict(tuple(path), best)


SPEC = RULES.register(
    RuleSpec(
        name="greedy",
        device="underpaint.runtime.device.kernels.walk_longest:greedy_walk",
        make=GreedyMatch,
        promise="lossless",
        drawn=frozenset(DRAWN),
        source="arXiv 1811.03115 (blockwise parallel decoding), exact match; on trees as in arXiv 2305.09781",
        greedy=True,
        batched=lambda rule, drawn: LongestPath(is_best, first=True, draw=False),
    )
)
