"""Block verification: a chain is judged as a whole, which keeps at least as many tokens as judging one by one."""

from dataclasses import dataclass
from typing import Final

from underpaint.algos.accept.spec import RULES, RuleSpec, require_chain, require_drawn
from underpaint.algos.accept.walk import excess, normalised
from underpaint.algos.arrays import FloatArray
from underpaint.algos.chance import At, Chance, Role
from underpaint.algos.tree import DraftTree, Verdict

MOST_RATIO: Final = 1e150
"""Of a product of ratios, so that it never overflows."""


@dataclass(frozen=True, slots=True)
class BlockVerification:
    """Keep the longest prefix i whose own flip succeeds, with probability h_i.

    w_0 = 1, w_i = min(1, w_{i-1} p(x_i) / q(x_i)); z_i = sum [w_i p - q]_+ over the token after x_i;
    h_i = z_i / (z_i + 1 - w_i) inside the chain and w_i at its end. The extra token is drawn from
    norm([w_i p - q]_+), or from p after the whole chain. arXiv 2403.10444, algorithm 2.
    """

    def __call__(self, tree: DraftTree, probs: FloatArray, chance: Chance) -> Verdict:
        return judge_chain(tree, probs, chance, capped=True)


def judge_chain(tree: DraftTree, probs: FloatArray, chance: Chance, capped: bool) -> Verdict:
    """Decide a chain by `BlockVerification`; its end by the product of all ratios p / q where `capped` is False."""
    require_drawn(tree, "iid")
    require_chain(tree)
    last = tree.size - 1
    targets = [normalised(probs[node]) for node in range(last)]
    drafts = [normalised(tree.draft_distribution(node)) for node in range(last)]
    weights, joint = [1.0], 1.0
    for node in range(1, last + 1):
        token = int(tree.tokens[node])
        drafted = float(drafts[node - 1][token])
        if drafted <= 0.0:
            raise ValueError(f"tree.draft_probs: node {node} holds token {token}, which its distribution cannot draw")
        own = float(targets[node - 1][token])
        weights.append(min(1.0, weights[-1] * own / drafted))
        joint = min(MOST_RATIO, joint * own / drafted)
    if chance.flip(weights[last] if capped else joint, At(Role.ACCEPT, last)):
        return Verdict(tuple(range(1, last + 1)), chance.draw(probs[last], At(Role.BONUS, last)))
    for node in range(last - 1, -1, -1):
        rest = excess(weights[node] * targets[node], drafts[node])
        total = float(rest.sum())
        if weights[node] == 1.0 or chance.flip(total, At(Role.ACCEPT, node), out_of=total + (1.0 - weights[node])):
            # No residual at weight 1: p = q here, and only rounding made the flips below fail.
            residual = rest if total > 0.0 else targets[node]
            return Verdict(tuple(range(1, node + 1)), chance.draw(residual, At(Role.RESIDUAL, node)))
    raise AssertionError("block: the root's weight is 1, so the empty prefix is always kept")


SPEC = RULES.register(
    RuleSpec(
        name="block",
        device="underpaint.runtime.device.kernels.walk_block:block_walk",
        make=BlockVerification,
        promise="lossless",
        drawn=frozenset({"iid"}),
        source="arXiv 2403.10444, algorithm 2",
        needs_chain=True,
        looks_ahead=True,
    )
)
