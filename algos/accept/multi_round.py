"""Multi-round sampling (SpecInfer): siblings drawn independently from one law."""

from dataclasses import dataclass

from algos.accept.proposals import try_siblings
from algos.accept.spec import RULES, RuleSpec, require_drawn
from algos.accept.walk import walk
from algos.arrays import FloatArray
from algos.chance import Chance
from algos.tree import DraftTree, Verdict


@dataclass(frozen=True, slots=True)
class MultiRound:
    """Try the siblings in order against the same q; after each rejection p <- norm([p - q]_+)."""

    def __call__(self, tree: DraftTree, probs: FloatArray, chance: Chance) -> Verdict:
        """See `Rule`."""
        require_drawn(tree, "iid")
        return walk(tree, probs, chance, try_siblings)


SPEC = RULES.register(
    RuleSpec(
        name="multi_round",
        make=MultiRound,
        promise="lossless",
        drawn=frozenset({"iid"}),
        source="arXiv 2305.09781 (SpecInfer), multi-step speculative sampling",
    )
)
