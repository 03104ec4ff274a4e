"""Cool-SD: a factor that decreases along the draft loosens the acceptance; the residual has the least bias."""

from dataclasses import dataclass, replace
from math import exp, log
from typing import Annotated, Final, NamedTuple

import numpy as np

from underpaint.algos.accept.relaxed import Odds, RelaxedSiblings
from underpaint.algos.accept.spec import RULES, DraftedNode, RuleSpec, Settings, every_combination, require_drawn
from underpaint.algos.accept.walk import walk
from underpaint.algos.arrays import FloatArray
from underpaint.algos.chance import Chance
from underpaint.algos.numbers import MOST_FACTOR
from underpaint.algos.registry import Bounds, check_bounds
from underpaint.algos.tree import DRAWN, DraftTree, Verdict

MOST_COOLING: Final = 50.0
"""Upper limit of |nu| and |mu|; exp of it covers the range that float64 can resolve."""


class ScaledAcceptance(NamedTuple):
    """Accept x with probability min(1, factors[place] * p(x) / q(x)); a rejection takes min(q, factor * p) from p."""

    factors: tuple[float, ...]

    def odds(self, target: FloatArray, draft: FloatArray, token: int, place: int) -> Odds:
        return Odds(self.factors[place] * float(target[token]), float(draft[token]))

    def taken(self, target: FloatArray, draft: FloatArray, place: int) -> FloatArray:
        mass: FloatArray = np.minimum(draft, self.factors[place] * target)
        return mass


@dataclass(frozen=True, slots=True)
class CoolSD:
    """Accept the i-th draft token (i = 0 first) with probability min(1, w_i p / q), w_i = delta exp(-nu i - mu).

    arXiv 2601.09212, with the paper's residual norm([p - q accept]_+). Factors of at most 1 leave p exact.

    Attributes:
        delta: The scale of all factors, > 0.
        nu: How fast the factors decrease along the draft, >= 0; 0 makes all of them equal.
        mu: A shift of all exponents; None sets it so that the factors have mean `delta` over the depth of the tree.
    """

    delta: Annotated[float, Bounds(0.0, MOST_FACTOR, above=True)] = 1.1
    nu: Annotated[float, Bounds(0.0, MOST_COOLING)] = 0.7
    mu: Annotated[float, Bounds(-MOST_COOLING, MOST_COOLING)] | None = None

    def __post_init__(self) -> None:
        check_bounds("cool", self)

    def factors(self, depth: int) -> tuple[float, ...]:
        """Return w_i for each level of a tree of this depth."""
        cooling = [exp(-self.nu * level) for level in range(depth)]
        scale = depth / sum(cooling) if self.mu is None else exp(-self.mu)
        return tuple(self.delta * scale * factor for factor in cooling)

    def at_depth(self, depth: int) -> "CoolSD":
        """Return the rule whose factors are those of a tree of this depth, at least 1, for trees of any depth."""
        return replace(self, mu=-log(self.factors(depth)[0] / self.delta))

    def __call__(self, tree: DraftTree, probs: FloatArray, chance: Chance) -> Verdict:
        require_drawn(tree, *DRAWN)
        factors = self.factors(tree.depth) if tree.size > 1 else ()
        return walk(tree, probs, chance, RelaxedSiblings(ScaledAcceptance(factors)))


def _bound(settings: Settings, node: DraftedNode) -> float:
    if not node.depth:  # a policy that drafts nothing here
        return 0.0
    factors = CoolSD(settings["delta"], settings["nu"], settings["mu"]).factors(node.depth)
    return max(0.0, 1.0 - 1.0 / factors[node.level])


def _is_lossless(settings: Settings) -> bool:
    """Return whether all factors are at most 1. If `mu` is None and nu > 0, the first one exceeds their mean delta."""
    if settings["mu"] is None:
        return bool(settings["delta"] <= 1.0 and settings["nu"] == 0.0)
    return bool(settings["delta"] * exp(-settings["mu"]) <= 1.0)


SPEC = RULES.register(
    RuleSpec(
        name="cool",
        make=CoolSD,
        promise="bounded",
        drawn=frozenset(DRAWN),
        source="arXiv 2601.09212 (Cool-SD); no released code",
        bound="total variation of the i-th token <= max(0, 1 - 1 / w_i), however many siblings",
        deviations=(
            "The paper drafts chains; siblings are tried one after another, each against what is left. Where i starts "
            "and how mu is set are open: i = 0 first, and mu None keeps the mean factor at delta"
        ),
        bound_at=_bound,
        lossless_when=_is_lossless,
        examples=every_combination(delta=(0.6, 1.0, 1.1, 2.0), nu=(0.0, 0.7), mu=(None, 0.3)),
    )
)
