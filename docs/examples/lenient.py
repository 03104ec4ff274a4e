"""A relaxed rule of one's own, with a bound: acceptance is raised by a factor."""

from dataclasses import dataclass

import numpy as np

from underpaint.algos.accept import RULES, RuleSpec
from underpaint.algos.accept.relaxed import Odds, RelaxedSiblings
from underpaint.algos.accept.spec import every_combination
from underpaint.algos.accept.walk import walk
from underpaint.algos.arrays import FloatArray
from underpaint.algos.chance import Chance
from underpaint.algos.tree import DRAWN, DraftTree, Verdict


@dataclass(frozen=True, slots=True)
class Lenient:
    """Accept x ~ q with probability min(1, factor * p(x) / q(x))."""

    factor: float = 1.5

    def odds(self, target: FloatArray, draft: FloatArray, token: int, place: int) -> Odds:
        return Odds(self.factor * float(target[token]), float(draft[token]))

    def taken(self, target: FloatArray, draft: FloatArray, place: int) -> FloatArray:
        return np.minimum(draft, self.factor * target)

    def __call__(self, tree: DraftTree, probs: FloatArray, chance: Chance) -> Verdict:
        return walk(tree, probs, chance, RelaxedSiblings(self))


SPEC = RULES.register(
    RuleSpec(
        "lenient",
        Lenient,
        "bounded",
        frozenset(DRAWN),
        source="this page",
        bound="total variation per token <= 1 - 1 / factor, however many siblings",
        bound_at=lambda settings, node: max(0.0, 1.0 - 1.0 / settings["factor"]),
        lossless_when=lambda settings: settings["factor"] <= 1.0,
        examples=every_combination(factor=(0.8, 1.0, 1.37, 3.1)),
    )
)
