"""Multi-round sampling (SpecInfer): siblings drawn independently from one distribution."""

from dataclasses import dataclass

from underpaint.algos.accept.proposals import try_siblings
from underpaint.algos.accept.spec import RULES, RuleSpec, require_drawn
from underpaint.algos.accept.walk import walk
from underpaint.algos.arrays import FloatArray
from underpaint.algos.batched.drawn import batched_exact_siblings
from underpaint.algos.chance import Chance
from underpaint.algos.tree import DraftTree, Verdict


@dataclass(frozen=True, slots=True)
class MultiRound:
    """Try the siblings in order against the same q; after each rejection p <- norm([p - q]_+)."""

    def __call__(self, tree: DraftTree, probs: FloatArray, chance: Chance) -> Verdict:
        require_drawn(tree, "iid")
        return walk(tree, probs, chance, try_siblings)


SPEC = RULES.register(
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
