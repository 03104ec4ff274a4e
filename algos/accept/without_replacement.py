"""Siblings drawn without replacement (EAGLE-1, Sequoia): a token is proposed once."""

from dataclasses import dataclass

from underpaint.algos.accept.proposals import try_siblings
from underpaint.algos.accept.spec import RULES, RuleSpec, require_drawn
from underpaint.algos.accept.walk import walk
from underpaint.algos.arrays import FloatArray
from underpaint.algos.batched.drawn import batched_exact_siblings
from underpaint.algos.chance import Chance
from underpaint.algos.tree import DraftTree, Verdict


@dataclass(frozen=True, slots=True)
class WithoutReplacement:
    """Try the siblings in order, the j-th against q_j: q with the siblings before it zeroed, renormalised.

    Where q has no token left, the later siblings count as drawn uniformly from the untried tokens.
    """

    def __call__(self, tree: DraftTree, probs: FloatArray, chance: Chance) -> Verdict:
        require_drawn(tree, "without_replacement")
        return walk(tree, probs, chance, try_siblings)


SPEC = RULES.register(
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
