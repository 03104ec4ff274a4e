"""Speculative sampling on a chain of drafted tokens: the token-wise rule that all others start from."""

from dataclasses import dataclass

from underpaint.algos.accept.proposals import try_siblings
from underpaint.algos.accept.spec import RULES, RuleSpec, require_chain, require_drawn
from underpaint.algos.accept.walk import walk
from underpaint.algos.arrays import FloatArray
from underpaint.algos.batched.drawn import batched_exact_siblings
from underpaint.algos.chance import Chance
from underpaint.algos.tree import DraftTree, Verdict


@dataclass(frozen=True, slots=True)
class SpeculativeSampling:
    """Keep x ~ q with probability min(1, p(x) / q(x)); at the first rejection draw from norm([p - q]_+) and stop.

    Each step keeps with probability 1 - TV(p, q).
    """

    def __call__(self, tree: DraftTree, probs: FloatArray, chance: Chance) -> Verdict:
        require_drawn(tree, "iid")
        require_chain(tree)
        return walk(tree, probs, chance, try_siblings)


SPEC = RULES.register(
    RuleSpec(
        name="chain",
        device="underpaint.runtime.device.kernels.walk_drawn:drawn_walk",
        make=SpeculativeSampling,
        promise="lossless",
        drawn=frozenset({"iid"}),
        source="arXiv 2211.17192, algorithm 1; arXiv 2302.01318, algorithm 2",
        needs_chain=True,
        batched=batched_exact_siblings,
    )
)
