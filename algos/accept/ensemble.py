"""The static ensemble of drafter and target: judges drafts by a mixture of the two distributions."""

from dataclasses import dataclass
from typing import Final, NamedTuple

from underpaint.algos.accept.relaxed import Odds, RelaxedSiblings
from underpaint.algos.accept.spec import RULES, DraftedNode, RuleSpec, Settings, every_combination, require_drawn
from underpaint.algos.accept.walk import normalised, walk
from underpaint.algos.arrays import FloatArray
from underpaint.algos.batched.drawn import DrawnSiblings
from underpaint.algos.batched.walk import BatchedWalk
from underpaint.algos.chance import Chance
from underpaint.algos.registry import PositiveShare, check_bounds
from underpaint.algos.transport import overlap
from underpaint.algos.tree import DraftTree, Drawn, Verdict

KINDS: Final[tuple[Drawn, ...]] = ("iid", "without_replacement")
"""The supported trees. A point proposal has no draft distribution to mix; transformers also needs draft logits."""


class MixedAcceptance(NamedTuple):
    """Accept x with probability min(1, v(x) / q(x)), v = weight p + (1 - weight) q; a rejection takes q from p."""

    weight: float

    def odds(self, target: FloatArray, draft: FloatArray, token: int, place: int) -> Odds:
        target_prob, drafted = float(target[token]), float(draft[token])
        return Odds(target_prob + (1.0 - self.weight) * (drafted - target_prob), drafted)

    def taken(self, target: FloatArray, draft: FloatArray, place: int) -> FloatArray:
        """[v - q]_+ equals weight [p - q]_+, so the residual is the same as in plain speculative sampling."""
        return draft


@dataclass(frozen=True, slots=True)
class StaticEnsemble:
    """Keep x ~ q with probability min(1, v(x) / q(x)), v = w p + (1 - w) q; else draw from norm([p - q]_+).

    arXiv 2604.07622, as in transformers' `_speculative_sampling` with `assistant_ensemble_weight`. For one draft token
    the output has distribution v: its total variation is (1 - w) TV(p, q), and the token is kept with probability
    1 - w TV(p, q). The bonus token is drawn from p.

    Attributes:
        weight: The target's weight w, 0 < w <= 1; 1 is plain speculative sampling.
    """

    weight: PositiveShare = 0.9

    def __post_init__(self) -> None:
        check_bounds("ensemble", self)

    def __call__(self, tree: DraftTree, probs: FloatArray, chance: Chance) -> Verdict:
        require_drawn(tree, *KINDS)
        return walk(tree, probs, chance, RelaxedSiblings(MixedAcceptance(self.weight)))


def _bound(settings: Settings, node: DraftedNode) -> float:
    """With several siblings, each rejection (probability at most w) passes the target's part to the next sibling."""
    if node.siblings == 1:
        return float((1.0 - settings["weight"]) * (1.0 - overlap(normalised(node.target), normalised(node.draft))))
    return float(1.0 - settings["weight"] ** node.siblings)


SPEC = RULES.register(
    RuleSpec(
        name="ensemble",
        device="underpaint.runtime.device.kernels.walk_drawn:ensemble_walk",
        make=StaticEnsemble,
        promise="bounded",
        drawn=frozenset(KINDS),
        source="arXiv 2604.07622; released code: transformers, `assistant_ensemble_weight`",
        bound="total variation (1 - w) TV(p, q) after one drawn token, <= 1 - w^m for m siblings",
        deviations=(
            "transformers judges chains; siblings are tried one after another, each against what is left. At "
            "temperature 0 it matches the argmax of the mixture, and here the rule is `greedy`"
        ),
        bound_at=_bound,
        lossless_when=lambda settings: settings["weight"] == 1.0,
        greedy_variant="greedy",
        examples=every_combination(weight=(1.0, 0.9, 0.5, 0.2)),
        batched=lambda rule, drawn: BatchedWalk(DrawnSiblings(weight=rule.weight, repeats=drawn == "iid")),
    )
)
