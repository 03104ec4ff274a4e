"""Hierarchical speculative decoding (HSD): block verification inside a chain, and the joint ratio at its end."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

from underpaint.algos.accept.block import judge_chain
from underpaint.algos.accept.spec import RULES, RuleSpec, every_combination
from underpaint.algos.arrays import FloatArray
from underpaint.algos.batched.chains import BatchedChain, BlockJudge
from underpaint.algos.chance import Chance
from underpaint.algos.registry import check_bounds
from underpaint.algos.tree import DraftTree, Verdict

End: TypeAlias = Literal["joint", "capped"]
"""How the whole chain is judged: by the product of its ratios p / q, or by that product capped as in other places."""


@dataclass(frozen=True, slots=True)
class HierarchicalVerification:
    """Keep the whole chain with probability min(1, r_L), or else the longest prefix i whose flip h_i succeeds.

    r_i = prod p(x_j) / q(x_j) over j <= i, c_i = r_i / max(1, r_1, ..., r_i);
    h_i = sum [c_i p - q]_+ / sum [q - c_i p]_+ over the token after x_i, drawn from norm([c_i p - q]_+).
    arXiv 2601.05724, as in its released code (the capped form for one draft). c_i and h_i are the w_i and h_i of block
    verification (arXiv 2403.10444, algorithm 2), so only the end differs: c_L there, r_L here.

    Attributes:
        end: How the whole chain is judged. "joint", as released, is not lossless for two or more draft tokens; "capped"
            is block verification.
    """

    end: End = "joint"

    def __post_init__(self) -> None:
        check_bounds("hsd", self)

    def __call__(self, tree: DraftTree, probs: FloatArray, chance: Chance) -> Verdict:
        return judge_chain(tree, probs, chance, capped=self.end == "capped")


SPEC = RULES.register(
    RuleSpec(
        name="hsd",
        device="underpaint.runtime.device.kernels.walk_block:block_walk",
        make=HierarchicalVerification,
        promise="unbounded",
        drawn=frozenset({"iid"}),
        source="arXiv 2601.05724 (HSD); released code: ZhouYuxuanYX/Hierarchical-Speculative-Decoding",
        bound="none proved: the end of a chain is kept too often by up to r_L - c_L",
        deviations=(
            "One draft only, not the recursion over several. Where p = q at a place of weight 1 the released code "
            "divides 0 by 0; here the token is drawn from p. The paper calls the rule lossless; as released it is not"
        ),
        needs_chain=True,
        looks_ahead=True,
        lossless_when=lambda settings: settings["end"] == "capped",
        greedy_variant="greedy",
        examples=every_combination(end=("joint", "capped")),
        batched=lambda rule, drawn: BatchedChain(BlockJudge(capped=rule.end == "capped")),
    )
)
