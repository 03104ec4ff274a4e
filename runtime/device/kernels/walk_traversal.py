"""Traversal verification on the device: a tree judged from its leaves to its root, as `algos.accept.traversal`.

A program visits an image's tree depth first. What it holds of the nodes above (a stack in the reference) is a lane a
level, and of distributions a row of scratch a level.
"""

import torch
from torch import Tensor

from underpaint.algos.accept.traversal import TraversalVerification
from underpaint.runtime.device.kernels.proposals import POINTS, WITHOUT, kind_of, offer_others, take_offer
from underpaint.runtime.device.kernels.row_maths import copy_row, draw, flip, normalised
from underpaint.runtime.device.kernels.walk import (
    BatchTree,
    Decide,
    Shape,
    Verdicts,
    conclude,
    drafted_row,
    lane_of,
    launch_walk,
    noise_of,
    row_bytes,
    takes_part,
    tile,
)
from underpaint.runtime.device.language import kernel, next_power_of_2, tl


@kernel
def tried_before(tokens, sibling, tree, start, child, CHILDREN: tl.constexpr):
    """The tokens [CHILDREN] of the siblings from `start` to the one before `child`; -1 past them."""
    turns = tl.arange(0, CHILDREN)
    gone = tl.full((CHILDREN,), -1, tl.int64)
    turn = tl.full((), 0, tl.int32)
    while start != child:  # trips: tries
        gone = tl.where(turns == turn, tl.load(tokens + tree + start), gone)
        turn += 1
        start = tl.load(sibling + tree + start)
    return gone


@kernel
def walk_traversal_kernel(
    tree,
    out,
    left,
    drafted,
    levels,
    V,
    N,
    drafts,
    rows,
    KIND: tl.constexpr,
    ROLES: tl.constexpr,
    LANES: tl.constexpr,
    CHILDREN: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """One program an image; left and drafted [B, levels, V] float64: what is lacking and offered at each open node."""
    image = tl.program_id(0)
    if takes_part(out.status, out.finite, out.taken, image, rows, ROWS) == 0:
        return
    base = image * N
    accept, residual, bonus = noise_of(tree, image, N, ROLES)
    scratch = image.to(tl.int64) * levels
    lane = tl.arange(0, LANES)
    nodes = tl.zeros((LANES,), tl.int64)
    weights = tl.full((LANES,), 1.0, tl.float64)
    children = tl.where(lane == 0, tl.load(tree.first + base), -1)
    tried = tl.zeros((LANES,), tl.int32)
    depth = tl.full((), 0, tl.int32)
    going = tl.full((), 1, tl.int32)
    sound = tl.full((), 1, tl.int32)
    found = tl.full((), 0, tl.int64)
    while going == 1:  # trips: 2 * N
        node = lane_of(nodes, lane, depth)
        weight = lane_of(weights, lane, depth)
        child = lane_of(children, lane, depth)
        turn = lane_of(tried, lane, depth)
        row = tree.probs + (base + node) * V
        rest = left + (scratch + depth) * V
        offered = drafted + (scratch + depth) * V
        tl.debug_barrier()
        if (child >= 0) & (weight != 0.0):
            if turn == 0:
                normalised(row, rest, V, BLOCK)
                if KIND != POINTS:
                    normalised(drafted_row(tree, image, node, drafts, V, N), offered, V, BLOCK)
            else:
                if KIND == WITHOUT:
                    gone = tried_before(
                        tree.tokens, tree.sibling, base, tl.load(tree.first + base + node), child, CHILDREN
                    )
                    offer_others(offered, gone, V, BLOCK)
            tl.debug_barrier()
            proposed = tl.load(tree.tokens + base + child)
            chance = tl.full((), 1.0, tl.float64)
            if KIND != POINTS:
                chance = tl.load(offered + proposed)
            if chance <= 0.0:
                sound = tl.full((), 0, tl.int32)
            own = weight * tl.load(rest + proposed)
            deeper = tl.minimum(1.0, own / tl.where(chance > 0.0, chance, 1.0))
            children = tl.where(lane == depth, tl.load(tree.sibling + base + child), children)
            tried = tl.where(lane == depth, turn + 1, tried)
            depth += 1
            nodes = tl.where(lane == depth, child, nodes)
            weights = tl.where(lane == depth, deeper, weights)
            children = tl.where(lane == depth, tl.load(tree.first + base + child), children)
            tried = tl.where(lane == depth, 0, tried)
        else:
            if (depth == 0) | flip(tl.load(accept + node), weight, 1.0):
                going = tl.full((), 0, tl.int32)
                inner = tl.load(tree.first + base + node) >= 0
                uniform = tl.load(tl.where(inner, residual, bonus) + node)
                if turn == 0:  # nothing was judged here: what is lacking is the target's own row
                    tl.debug_barrier()
                    copy_row(row, rest, V, BLOCK)
                    tl.debug_barrier()
                found = draw(rest, V, uniform, BLOCK)
            else:
                proposed = tl.load(tree.tokens + base + node)
                depth -= 1
                above = lane_of(weights, lane, depth)
                lacking = left + (scratch + depth) * V
                given = drafted + (scratch + depth) * V
                total = take_offer(lacking, given, proposed, above, V, KIND, BLOCK)
                nothing = tl.where(above < 1.0, 0.0, above)
                lowered = total / tl.where(total > 0.0, total + (1.0 - above), 1.0)
                weights = tl.where(lane == depth, tl.where(total > 0.0, lowered, nothing), weights)
    tl.store(out.path + base + lane - 1, nodes, (lane > 0) & (lane <= depth))
    conclude(out, image, depth.to(tl.int64), found, V, sound)


def traversal_walk(rule: TraversalVerification, shape: Shape, device: torch.device) -> Decide:
    """The device form of rule 'traversal'."""
    levels, drawn = shape.levels + 1, kind_of(shape.drawn)
    size = (shape.batch, levels, shape.vocab_size)
    left = torch.zeros(size, dtype=torch.float64, device=device)
    drafted = torch.zeros((1, 1, 1) if drawn == POINTS.value else size, dtype=torch.float64, device=device)

    def decide(tree: BatchTree, depths: Tensor, out: Verdicts) -> None:
        launch_walk(
            walk_traversal_kernel,
            shape,
            tree,
            out,
            row_bytes(tree, shape.nodes, 4 + 4 + 8 + 8),
            left,
            drafted,
            levels,
            KIND=drawn,
            LANES=next_power_of_2(max(2, levels)),
            CHILDREN=next_power_of_2(max(2, shape.children)),
            BLOCK=tile(shape.vocab_size, wide=True),
        )

    return decide
