"""Speculative sampling, exact: on a chain, over independent siblings, and over siblings drawn without replacement."""

from dataclasses import dataclass

from underpaint.algos.accept.spec import RULES, RuleSpec, require_chain, require_drawn
from underpaint.algos.accept.walk import try_siblings, walk
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


CHAIN = RULES.register(
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


@dataclass(frozen=True, slots=True)
class MultiRound:
    """Try the siblings in order against the same q; after each rejection p <- norm([p - q]_+)."""

    def __call__(self, tree: DraftTree, probs: FloatArray, chance: Chance) -> Verdict:
        require_drawn(tree, "iid")
        return walk(tree, probs, chance, try_siblings)


MULTI_ROUND = RULES.register(
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


@dataclass(frozen=True, slots=True)
class WithoutReplacement:
    """Try the siblings in order, the j-th against q_j: q with the siblings before it zeroed, renormalised.

    Where q has no token left, the later siblings count as drawn uniformly from the untried tokens.
    """

    def __call__(self, tree: DraftTree, probs: FloatArray, chance: Chance) -> Verdict:
        require_drawn(tree, "without_replacement")
        return walk(tree, probs, chance, try_siblings)


WITHOUT_REPLACEMENT = RULES.register(
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
