"""Block verification: judges a chain as a whole, and keeps at least as many tokens as token-wise verification."""

from collections.abc import Sequence
from dataclasses import dataclass

from underpaint.algos.accept.spec import RULES, RuleSpec, require_chain, require_drawn
from underpaint.algos.accept.walk import MOST_RATIO, excess, normalised
from underpaint.algos.arrays import FloatArray
from underpaint.algos.batched.chains import BatchedChain, BlockJudge
from underpaint.algos.chance import At, Chance, Role
from underpaint.algos.tree import DraftTree, Verdict


@dataclass(frozen=True, slots=True)
class BlockVerification:
    """Keep the longest prefix i whose own flip succeeds; the flip has probability h_i.

    w_0 = 1, w_i = min(1, w_{i-1} p(x_i) / q(x_i)); z_i = sum [w_i p - q]_+ over the token after x_i;
    h_i = z_i / (z_i + 1 - w_i) inside the chain and w_i at its end. The extra token is drawn from
    norm([w_i p - q]_+), or from p after the whole chain. arXiv 2403.10444, algorithm 2.
    """

    def __call__(self, tree: DraftTree, probs: FloatArray, chance: Chance) -> Verdict:
        return judge_chain(tree, probs, chance, capped=True)


def judge_chain(tree: DraftTree, probs: FloatArray, chance: Chance, capped: bool) -> Verdict:
    """Judge a chain by `BlockVerification`; if not `capped`, judge its end by the product of all ratios p / q."""
    require_drawn(tree, "iid")
    require_chain(tree)
    drafts = [normalised(tree.draft_distribution(node)) for node in range(tree.size - 1)]
    return judge_path(tree, range(tree.size), drafts, probs, chance, capped)


def judge_path(
    tree: DraftTree,
    nodes: Sequence[int],
    drafts: Sequence[FloatArray],
    probs: FloatArray,
    chance: Chance,
    capped: bool = True,
) -> Verdict:
    """Judge one path of a tree in the way of `judge_chain`.

    Args:
        tree: The draft tree.
        nodes: The path, from the root on.
        drafts: For each node but the last, the distribution [V] (float64, sum 1) that the next node was drawn from.
        probs: [N, V], the target's rows.
        chance: Flips at ACCEPT of each node; draws at RESIDUAL, or at BONUS of the last node.
        capped: Whether the end is judged like all other places.
    """
    last = len(nodes) - 1
    targets = [normalised(probs[node]) for node in nodes[:-1]]
    weights, joint = [1.0], 1.0
    for place, node in enumerate(nodes[1:]):
        token = int(tree.tokens[node])
        drafted = float(drafts[place][token])
        if drafted <= 0.0:
            raise ValueError(f"tree.draft_probs: node {node} holds token {token}, which its distribution cannot draw")
        target_prob = float(targets[place][token])
        weights.append(min(1.0, weights[-1] * target_prob / drafted))
        joint = min(MOST_RATIO, joint * target_prob / drafted)
    if chance.flip(weights[last] if capped else joint, At(Role.ACCEPT, nodes[last])):
        return Verdict(tuple(nodes[1:]), chance.draw(probs[nodes[last]], At(Role.BONUS, nodes[last])))
    for place in range(last - 1, -1, -1):
        rest = excess(weights[place] * targets[place], drafts[place])
        total, at = float(rest.sum()), At(Role.ACCEPT, nodes[place])
        if weights[place] == 1.0 or chance.flip(total, at, out_of=total + (1.0 - weights[place])):
            # At weight 1 with no residual, p = q, and only rounding made the flips below fail.
            residual = rest if total > 0.0 else targets[place]
            return Verdict(tuple(nodes[1 : place + 1]), chance.draw(residual, At(Role.RESIDUAL, nodes[place])))
    raise AssertionError("block: the root's weight is 1, so the empty prefix is always kept")


SPEC = RULES.register(
    RuleSpec(
        name="block",
        device="underpaint.runtime.device.kernels.walk_block:block_walk",
        make=BlockVerification,
        promise="lossless",
        drawn=frozenset({"iid"}),
        source="arXiv 2403.10444, algorithm 2",
        batched=lambda rule, drawn: BatchedChain(BlockJudge()),
        needs_chain=True,
        looks_ahead=True,
    )
)
