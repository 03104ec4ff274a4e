"""Traversal verification on the device: a tree judged from its leaves to its root, as `algos.accept.traversal`.

A program visits an image's tree depth first. What it holds of the nodes above (a stack in the reference) is a lane a
level, and of distributions a row of scratch a level.
"""

import torch
from torch import Tensor

from underpaint.algos.accept.traversal import TraversalVerification
from underpaint.runtime.device.kernels.proposals import POINTS, WITHOUT, kind_of, offer_others
from underpaint.runtime.device.kernels.row_maths import draw, flip
from underpaint.runtime.device.kernels.walk import (
    BatchTree,
    Decide,
    Shape,
    Verdicts,
    conclude,
    row_bytes,
    takes_part,
    tile,
)
from underpaint.runtime.device.kernels.walk_drawn import normalised
from underpaint.runtime.device.kernels.walk_lantern import copy_row
from underpaint.runtime.device.language import kernel, launch, next_power_of_2, tl


@kernel
def lane_of(held, lane, depth):
    """The number of a level."""
    return tl.sum(tl.where(lane == depth, held, tl.zeros_like(held)), axis=0)


@kernel
def tried_before(tokens, sibling, tree, start, child, CHILDREN: tl.constexpr):
    """The tokens [CHILDREN] of the siblings from `start` to the one before `child`; -1 past them."""
    turns = tl.arange(0, CHILDREN)
    gone = tl.full((CHILDREN,), -1, tl.int64)
    turn = tl.full((), 0, tl.int32)
    while start != child:
        gone = tl.where(turns == turn, tl.load(tokens + tree + start), gone)
        turn += 1
        start = tl.load(sibling + tree + start)
    return gone


@kernel
def walk_traversal_kernel(
    tokens,
    first,
    sibling,
    probs,
    draft_probs,
    draft_rows,
    uniforms,
    left,
    drafted,
    path,
    taken,
    token,
    status,
    finite,
    V,
    N,
    drafts,
    rows,
    levels,
    KIND: tl.constexpr,
    ROLES: tl.constexpr,
    LANES: tl.constexpr,
    CHILDREN: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """One program an image; left and drafted [B, levels, V] float64: what is lacking and offered at each open node."""
    image = tl.program_id(0)
    if takes_part(status, finite, taken, image, rows, ROWS) == 0:
        return
    tree = image * N
    accept = uniforms + image * ROLES * N + N
    residual = accept + N
    bonus = residual + N
    scratch = image.to(tl.int64) * levels
    none = tl.full((2,), -1, tl.int64)
    lane = tl.arange(0, LANES)
    nodes = tl.zeros((LANES,), tl.int64)
    weights = tl.full((LANES,), 1.0, tl.float64)
    children = tl.where(lane == 0, tl.load(first + tree), -1)
    tried = tl.zeros((LANES,), tl.int32)
    depth = tl.full((), 0, tl.int32)
    going = tl.full((), 1, tl.int32)
    sound = tl.full((), 1, tl.int32)
    found = tl.full((), 0, tl.int64)
    while going == 1:
        node = lane_of(nodes, lane, depth)
        weight = lane_of(weights, lane, depth)
        child = lane_of(children, lane, depth)
        turn = lane_of(tried, lane, depth)
        row = probs + (tree + node) * V
        rest = left + (scratch + depth) * V
        offered = drafted + (scratch + depth) * V
        tl.debug_barrier()
        if (child >= 0) & (weight != 0.0):
            if turn == 0:
                normalised(row, rest, V, BLOCK)
                if KIND != POINTS:
                    line = image.to(tl.int64) * drafts + tl.load(draft_rows + tree + node)
                    normalised(draft_probs + line * V, offered, V, BLOCK)
            else:
                if KIND == WITHOUT:
                    gone = tried_before(tokens, sibling, tree, tl.load(first + tree + node), child, CHILDREN)
                    offer_others(offered, gone, V, BLOCK)
            tl.debug_barrier()
            proposed = tl.load(tokens + tree + child)
            chance = tl.full((), 1.0, tl.float64)
            if KIND != POINTS:
                chance = tl.load(offered + proposed)
            if chance <= 0.0:
                sound = tl.full((), 0, tl.int32)
            own = weight * tl.load(rest + proposed)
            deeper = tl.minimum(1.0, own / tl.where(chance > 0.0, chance, 1.0))
            children = tl.where(lane == depth, tl.load(sibling + tree + child), children)
            tried = tl.where(lane == depth, turn + 1, tried)
            depth += 1
            nodes = tl.where(lane == depth, child, nodes)
            weights = tl.where(lane == depth, deeper, weights)
            children = tl.where(lane == depth, tl.load(first + tree + child), children)
            tried = tl.where(lane == depth, 0, tried)
        else:
            if (depth == 0) | flip(tl.load(accept + node), weight, 1.0):
                going = tl.full((), 0, tl.int32)
                inner = tl.load(first + tree + node) >= 0
                uniform = tl.load(tl.where(inner, residual, bonus) + node)
                if turn == 0:  # nothing was judged here: what is lacking is the target's own row
                    tl.debug_barrier()
                    copy_row(row, rest, V, BLOCK)
                    tl.debug_barrier()
                found = draw(rest, V, uniform, none, BLOCK)
            else:
                proposed = tl.load(tokens + tree + node)
                depth -= 1
                above = lane_of(weights, lane, depth)
                lacking = left + (scratch + depth) * V
                given = drafted + (scratch + depth) * V
                total = tl.full((), 0.0, tl.float64)
                for start in range(0, V, BLOCK):
                    place = start + tl.arange(0, BLOCK)
                    inside = place < V
                    offer = tl.where(place == proposed, 1.0, 0.0).to(tl.float64)
                    if KIND != POINTS:
                        offer = tl.load(given + place, inside, other=0.0)
                    total += tl.sum(
                        tl.maximum(above * tl.load(lacking + place, inside, other=0.0) - offer, 0.0), axis=0
                    )
                if total > 0.0:
                    for start in range(0, V, BLOCK):
                        place = start + tl.arange(0, BLOCK)
                        inside = place < V
                        offer = tl.where(place == proposed, 1.0, 0.0).to(tl.float64)
                        if KIND != POINTS:
                            offer = tl.load(given + place, inside, other=0.0)
                        here = tl.maximum(above * tl.load(lacking + place, inside, other=0.0) - offer, 0.0)
                        tl.store(lacking + place, here / total, inside)
                nothing = tl.where(above < 1.0, 0.0, above)
                lowered = total / tl.where(total > 0.0, total + (1.0 - above), 1.0)
                weights = tl.where(lane == depth, tl.where(total > 0.0, lowered, nothing), weights)
    tl.store(path + tree + lane - 1, nodes, (lane > 0) & (lane <= depth))
    conclude(status, taken, token, image, depth.to(tl.int64), found, V)
    if sound == 0:
        tl.store(taken + image, 0)
        tl.store(status + image, 4)


def walk_traversal(tree: BatchTree, out: Verdicts, left: Tensor, drafted: Tensor, drawn: int, children: int) -> None:
    """Decide every image's tree of any kind; left and drafted [B, levels + 1, V] float64 are scratch.

    drawn: of `proposals.kind_of`. children: of one node at most.
    """
    batch, nodes, vocab_size = tree.probs.shape
    levels = left.shape[1]
    launch(
        walk_traversal_kernel,
        (batch,),
        row_bytes(tree, nodes, 4 + 4 + 8 + 8),
        tree.tokens,
        tree.first,
        tree.sibling,
        tree.probs,
        tree.draft_probs,
        tree.draft_rows,
        tree.uniforms,
        left,
        drafted,
        out.path,
        out.taken,
        out.token,
        out.status,
        out.finite,
        vocab_size,
        nodes,
        tree.draft_probs.shape[1],
        out.finite.shape[1],
        levels,
        KIND=drawn,
        ROLES=tree.uniforms.shape[1],
        LANES=next_power_of_2(max(2, levels)),
        CHILDREN=next_power_of_2(max(2, children)),
        ROWS=next_power_of_2(out.finite.shape[1]),
        BLOCK=tile(vocab_size, children),
        warps=8,
    )


def traversal_walk(rule: TraversalVerification, shape: Shape, device: torch.device) -> Decide:
    """The device form of rule 'traversal'."""
    size = (shape.batch, shape.levels + 1, shape.vocab_size)
    drawn = kind_of(shape.drawn)
    left = torch.zeros(size, dtype=torch.float64, device=device)
    drafted = torch.zeros((1, 1, 1) if drawn == POINTS.value else size, dtype=torch.float64, device=device)
    return lambda tree, depths, out: walk_traversal(tree, out, left, drafted, drawn, shape.children)
