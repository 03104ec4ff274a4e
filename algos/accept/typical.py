"""Medusa's typical acceptance: keeps a token that is likely enough, given the target's uncertainty."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, inf, log
from typing import Annotated, Literal, TypeAlias

import numpy as np

from underpaint.algos.accept.spec import RULES, RuleSpec, every_combination
from underpaint.algos.accept.walk import kept_ends
from underpaint.algos.arrays import FloatArray
from underpaint.algos.chance import At, Chance, Role
from underpaint.algos.registry import Bounds, PositiveShare, check_bounds
from underpaint.algos.tree import DRAWN, DraftTree, Verdict

Ends: TypeAlias = Literal["likeliest", "first"]
"""How to choose between several longest paths: the likeliest under the target (the released code), or the first."""


def entropy(distribution: FloatArray) -> float:
    """Return the Shannon entropy of `distribution` [V], in nats."""
    probs = distribution[distribution > 0].astype(np.float64)
    return float(-(probs @ np.log(probs)))


def log_likelihood(tree: DraftTree, probs: FloatArray, end: int) -> float:
    """Return the log probability of the path to node `end` under the target's `probs` [N, V]."""
    path = tree.path_to(end)
    return sum(log(float(probs[int(tree.parents[node]), int(tree.tokens[node])])) for node in path)


@dataclass(frozen=True, slots=True)
class TypicalAcceptance:
    """Keep x if p(x) > min(epsilon, alpha exp(-H(p))), H in nats, along the longest such path (arXiv 2401.10774).

    Uses no draft distribution and no residual: the extra token is drawn from p after the last kept node.
    epsilon > 0, alpha > 0 (infinity uses epsilon only). The defaults are those of the released model class; its
    utility function has them swapped, and the paper suggests alpha = sqrt(epsilon).
    For the flat distributions of images, exp(-H) is tiny, so almost all tokens pass.
    """

    epsilon: PositiveShare = 0.09
    alpha: Annotated[float, Bounds(0.0, inf, above=True)] = 0.3
    choose: Ends = "likeliest"

    def __post_init__(self) -> None:
        check_bounds("typical", self)

    def threshold(self, distribution: FloatArray) -> float:
        """Return the threshold that p(x) must exceed in `distribution` [V]."""
        return self.epsilon if self.alpha == inf else min(self.epsilon, self.alpha * exp(-entropy(distribution)))

    def __call__(self, tree: DraftTree, probs: FloatArray, chance: Chance) -> Verdict:

        def passing(node: int, children: Sequence[int]) -> list[int]:
            distribution, least = probs[node], self.threshold(probs[node])
            return [child for child in children if float(distribution[tree.tokens[child]]) > least]

        ends = kept_ends(tree, passing)
        likeliest = self.choose == "likeliest"
        end = max(ends, key=lambda end: log_likelihood(tree, probs, end)) if likeliest else ends[0]
        return Verdict(tree.path_to(end), chance.draw(probs[end], At(Role.BONUS, end)))


SPEC = RULES.register(
    RuleSpec(
        name="typical",
        device="underpaint.runtime.device.kernels.walk_longest:typical_walk",
        make=TypicalAcceptance,
        promise="unbounded",
        drawn=frozenset(DRAWN),
        source="arXiv 2401.10774 (Medusa), typical acceptance; released code: FasterDecoding/Medusa",
        bound="none: a kept x misses p by 1 - p(x). Only tokens of p(x) > min(epsilon, alpha exp(-H)) are kept",
        deviations="The first token is drafted like the others; Medusa draws it from the target and is sure of it",
        lossless_when=lambda settings: settings["epsilon"] >= 1.0 and settings["alpha"] == inf,
        examples=(*every_combination(epsilon=(0.09, 0.31), alpha=(0.3, 2.0)), {"epsilon": 1.0, "alpha": inf}),
    )
)
