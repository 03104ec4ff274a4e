"""A rule of one's own with a device form: of each node's children only the first is judged."""

from dataclasses import dataclass
from pathlib import Path

from underpaint.algos.accept import RULES, RuleSpec
from underpaint.algos.accept.point import try_points
from underpaint.algos.accept.walk import SiblingOutcome, walk
from underpaint.algos.arrays import FloatArray
from underpaint.algos.chance import Chance
from underpaint.algos.tree import DraftTree, Verdict


def _first(tree: DraftTree, node: int, children: list[int], distribution: FloatArray, chance: Chance) -> SiblingOutcome:
    return try_points(tree, node, children[:1], distribution, chance)


@dataclass(frozen=True, slots=True)
class FirstOnly:
    """Accept a node's first child x with probability p(x), else draw from the rest of p and stop."""

    def __call__(self, tree: DraftTree, probs: FloatArray, chance: Chance) -> Verdict:
        return walk(tree, probs, chance, _first)


RULES.register(
    RuleSpec(
        name="first_only",
        make=FirstOnly,
        promise="lossless",
        drawn=frozenset({"top_k"}),
        source="this page",
        device=f"{Path(__file__).with_name('first_only_device.py')}:first_only_walk",
    )
)
