"""The walk over drawn siblings: speculative sampling, multi-round, without replacement, and the static ensemble.

The reference is `algos.accept.walk.try_siblings`. Noise is addressed by node, so a node's decision does not depend on
the nodes above it, and all nodes decide at once.
"""

import torch

from underpaint.algos.accept.ensemble import StaticEnsemble
from underpaint.runtime.device.kernels.residuals import draw_left, next_offer, reject, untried_mass
from underpaint.runtime.device.kernels.row_maths import UNIT, flip, whole, whole_sum
from underpaint.runtime.device.kernels.siblings import drawn_children, follow, goes_on, node_walk
from underpaint.runtime.device.kernels.walk import Decide, Shape, lane_of, noise_of, tile
from underpaint.runtime.device.launch import kernel, next_power_of_2, tl, wait_for_earlier_kernels


@kernel
def walk_drawn_kernel(
    tree,
    out,
    depths,
    choices,
    mixed,
    V,
    N,
    drafts,
    rows,
    REPLACED: tl.constexpr,
    MIXED: tl.constexpr,
    ROLES: tl.constexpr,
    NODES: tl.constexpr,
    CHILDREN: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """One program per (node, image) keeps a child or draws a token; an image's last follows the kept children.

    The target's residual is given by `factor`, `taken` and `evenly`, see `residuals`; `share` scales it to sum 1. The
    next child was drawn from the draft row times `offer`, or, once nothing of that row is left, with probability `even`
    per token. MIXED: the target is mixed with the drafter, which has weight `mixed`.
    """
    wait_for_earlier_kernels()
    node, image = tl.program_id(0), tl.program_id(1)
    base = image * N
    if goes_on(out, image, rows, ROWS) & (node < tl.load(tree.counts + image)):
        accept, residual, bonus = noise_of(tree, image, N, ROLES)
        row, line, kids, count, tokens, flips, drafted = drawn_children(
            tree, image, node, accept, drafts, V, N, NODES, CHILDREN
        )
        turns = tl.arange(0, CHILDREN)
        target_probs = tl.load(row + tokens, kids >= 0, other=0.0).to(tl.float64)
        weights = drafted.to(tl.float64)
        lines = tl.where(count > 0, V, 0)  # without children there is no draft row
        draft_mass = whole_sum(line, lines, BLOCK)
        sum_of_row = whole_sum(row, V, BLOCK).to(tl.float64) * (1.0 / UNIT)
        nothing = tl.full((), 0.0, tl.float64)
        all_of_it = tl.full((), 1.0, tl.float64)
        factor, taken, evenly = all_of_it, nothing, nothing
        all_shared = 1.0 / sum_of_row
        excess, total, share = target_probs, sum_of_row, all_shared
        mass = untried_mass(line, tokens, 0, draft_mass, lines, CHILDREN, BLOCK)
        offer, even = 1.0 / tl.where(mass > 0.0, mass, 1.0), nothing
        kept = tl.full((), -1, tl.int64)
        sound = tl.full((), 1, tl.int64)
        rejected = tl.full((), 0, tl.int32)
        turn = tl.full((), 0, tl.int32)
        while turn < count:  # trips: children
            proposed = lane_of(tokens, turns, turn)
            own = lane_of(excess, turns, turn) * share
            chance = lane_of(weights, turns, turn) * offer + even
            if REPLACED == 0:
                again = tl.max(((tokens == proposed) & (turns < turn)).to(tl.int32), axis=0)
                chance = tl.where(again == 0, chance, 0.0)
            if chance <= 0.0:
                sound = tl.full((), 0, tl.int64)
            mass = nothing
            if MIXED:
                mass = tl.load(mixed) * (chance - own)
            if flip(lane_of(flips, turns, turn), own + mass, chance):
                kept = lane_of(kids, turns, turn)
                count = turn
            else:
                rejected = tl.full((), 1, tl.int32)
                rest, factor, taken, evenly, excess = reject(
                    row, line, factor, taken, evenly, excess, weights, share, offer, even, V, BLOCK
                )
                turn += 1
                if rest > 0.0:
                    total, share = rest, 1.0 / rest
                else:
                    # Only rounding made this a rejection, so it removes nothing: redo the rejections before it.
                    count = turn - 1
                    turn = tl.full((), 0, tl.int32)
                    factor, taken, evenly = all_of_it, nothing, nothing
                    excess, total, share = target_probs, sum_of_row, all_shared
                if REPLACED == 0:
                    untried = draft_mass - tl.sum(tl.where(turns < turn, whole(drafted), 0), axis=0)
                    mass = untried_mass(line, tokens, turn, untried, lines, CHILDREN, BLOCK)
                    offer, even = next_offer(mass, V - turn)
        tl.store(choices.nexts + base + node, kept)
        tl.store(choices.sounds + base + node, sound)
        if kept < 0:
            uniform = tl.load(tl.where(rejected == 1, residual, bonus) + node)
            token = draw_left(row, line, tokens, factor, taken, evenly, total, V, uniform, True, CHILDREN, BLOCK)
            tl.store(choices.tokens + base + node, token)
    follow(tree, out, depths, choices, image, rows, V, N, NODES, ROWS)


def drawn_walk(rule: object, shape: Shape, device: torch.device, mixed: float | None = None) -> Decide:
    """Return the device form of the exact rules that try drawn siblings one by one.

    Args:
        rule: The rule, which is not read.
        shape: Sizes of the trees; siblings are independent draws ("iid"), or drawn without replacement.
        device: Device of the buffers.
        mixed: The drafter's ensemble weight, or None.
    """
    weight = torch.tensor([mixed or 0.0], dtype=torch.float64, device=device)
    return node_walk(
        walk_drawn_kernel,
        shape,
        device,
        weight,
        draft_bytes=4,
        REPLACED=int(shape.drawn == "iid"),
        MIXED=int(mixed is not None),
        CHILDREN=next_power_of_2(max(2, shape.children)),
        BLOCK=min(1024, tile(shape.vocab_size, wide=True)),
    )


def ensemble_walk(rule: StaticEnsemble, shape: Shape, device: torch.device) -> Decide:
    """Return the device form of rule 'ensemble'."""
    return drawn_walk(rule, shape, device, 1.0 - rule.weight)
