"""Traversal verification on the device: judges a tree from its leaves to its root, as `algos.accept.traversal`.

A node is judged only after all nodes before it in that order were rejected, so its odds depend on no outcome. Every
node goes down its own path from the root, and subtracts the proposals of the rejected siblings on the way from each
row. All nodes flip at once. The verdict is the first kept node in the order of the reference.
"""

import torch

from underpaint.algos.accept.traversal import TraversalVerification
from underpaint.runtime.device.kernels.proposals import IID, POINTS, kind_of
from underpaint.runtime.device.kernels.residuals import draw_left, next_offer, reject, untried_mass
from underpaint.runtime.device.kernels.row_maths import UNIT, flip, whole, whole_sum
from underpaint.runtime.device.kernels.siblings import children_of, goes_on, is_judge, node_walk
from underpaint.runtime.device.kernels.walk import Decide, Shape, conclude, drafted_row, lane_of, noise_of, tile
from underpaint.runtime.device.launch import kernel, next_power_of_2, tl, wait_for_earlier_kernels


@kernel
def lowered(weight, total):
    """Return a node's weight after the rejection of a child that leaves mass `total` of weight * row."""
    nothing = tl.where(weight < 1.0, 0.0, weight)
    return tl.where(total > 0.0, total / tl.where(total > 0.0, total + (1.0 - weight), 1.0), nothing)


@kernel
def reject_points(row, tokens, stop, weight, V, CHILDREN: tl.constexpr, TILE: tl.constexpr):
    """Reject the first `stop` of a node's children, point proposals; return its weight, the mass left, and `gone`.

    tokens [CHILDREN]: the children's. The mass left of the row is an integer, see `row_maths.whole`. gone [CHILDREN]: 1
    for a token that was removed from the row.
    """
    turns = tl.arange(0, CHILDREN)
    owns = whole(tl.load(row + tokens, tokens >= 0, other=0.0))
    left = whole_sum(row, V, TILE)
    gone = tl.zeros((CHILDREN,), tl.int32)
    for turn in range(0, stop):  # trips: tries
        token = lane_of(tokens, turns, turn)
        again = tl.max(((tokens == token) & (gone == 1)).to(tl.int32), axis=0)
        own = tl.where(again == 1, 0, lane_of(owns, turns, turn))
        rest = (left - own).to(tl.float64)
        taken = rest * weight > 0.0
        weight = lowered(weight, weight * rest / tl.maximum(left, 1).to(tl.float64))
        left = tl.where(taken, left - own, left)
        gone = tl.where(turns == turn, tl.where(taken, 1, 0), gone)
    return weight, left, gone


@kernel
def reject_drawn(
    row, line, tokens, stop, weight, V, REPLACED: tl.constexpr, CHILDREN: tl.constexpr, BLOCK: tl.constexpr
):
    """Reject the first `stop` of a node's children, which were drawn from `line`.

    Returns the node's weight; the residual (of sum 1) and the proposal probability of the children's tokens [CHILDREN];
    and the residual as `residuals.draw_left` takes it: factor, taken, evenly, total. Results for a node that comes
    after a kept one are not used.
    """
    turns = tl.arange(0, CHILDREN)
    there = tokens >= 0
    target_probs = tl.load(row + tokens, there, other=0.0).to(tl.float64)
    drafted = tl.load(line + tokens, there, other=0.0)
    weights = drafted.to(tl.float64)
    lines = tl.where(tl.max(tokens, axis=0) >= 0, V, 0)  # without children there is no draft row
    draft_mass = whole_sum(line, lines, BLOCK)
    sum_of_row = whole_sum(row, V, BLOCK).to(tl.float64) * (1.0 / UNIT)
    nothing = tl.full((), 0.0, tl.float64)
    all_of_it = tl.full((), 1.0, tl.float64)
    entered = weight
    factor, taken, evenly = all_of_it, nothing, nothing
    all_shared = 1.0 / sum_of_row
    excess, total, share = target_probs, sum_of_row, all_shared
    mass = untried_mass(line, tokens, 0, draft_mass, lines, CHILDREN, BLOCK)
    offer, even = 1.0 / tl.where(mass > 0.0, mass, 1.0), nothing
    idle = tl.full((), 0, tl.int64)
    turn = tl.full((), 0, tl.int32)
    while turn < stop:  # trips: tries
        passed = ((idle >> turn) & 1) == 1
        rest, factor, taken, evenly, excess = reject(
            row, line, factor, taken, evenly, excess, weights, tl.where(passed, 1.0, share * weight),
            tl.where(passed, 0.0, offer), tl.where(passed, 0.0, even), V, BLOCK,
        )  # fmt: skip
        turn += 1
        if passed:
            weight = lowered(weight, 0.0)
        elif rest > 0.0:
            weight, total, share = lowered(weight, rest), rest, 1.0 / rest
        elif weight < 1.0:
            weight = nothing
            stop = turn
        else:
            # The rejection removes nothing, and the row stays as it was: start again, and skip this child.
            idle = idle | (tl.full((), 1, tl.int64) << (turn - 1).to(tl.int64))
            turn = tl.full((), 0, tl.int32)
            factor, taken, evenly = all_of_it, nothing, nothing
            excess, total, share, weight = target_probs, sum_of_row, all_shared, entered
        if REPLACED == 0:
            untried = draft_mass - tl.sum(tl.where(turns < turn, whole(drafted), 0), axis=0)
            offer, even = next_offer(untried_mass(line, tokens, turn, untried, lines, CHILDREN, BLOCK), V - turn)
    return weight, excess * share, weights * offer + even, factor, taken, evenly, total


@kernel
def first_kept(kept, mask, NODES: tl.constexpr):
    """Return the kept node that comes first from the leaves to the root, its path, and the nodes visited up to it.

    Where the paths of two nodes part, the node on the earlier branch comes first. A node comes before its ancestors.
    """
    node = tl.arange(0, NODES)
    own = mask[:, None] & ~mask[None, :]
    other = mask[None, :] & ~mask[:, None]
    # The lowest bit that only one mask has is that node's branch; a node without one is the other's ancestor.
    branch = ((own & (0 - own)) - 1).to(tl.uint64)
    before = branch < ((other & (0 - other)) - 1).to(tl.uint64)
    beaten = tl.sum((before & kept[:, None]).to(tl.int32), axis=0) > 0
    first = tl.sum(tl.where(kept & (beaten == 0), node, 0), axis=0).to(tl.int64)
    line = tl.sum(tl.where(node == first, mask, 0), axis=0)
    on_line = ((line >> node.to(tl.int64)) & 1) == 1
    earlier = tl.sum((before & (node == first)[None, :]).to(tl.int32), axis=1) > 0
    return first, on_line, earlier | on_line


@kernel
def walk_traversal_kernel(
    tree,
    out,
    depths,
    choices,
    V,
    N,
    drafts,
    rows,
    KIND: tl.constexpr,
    ROLES: tl.constexpr,
    NODES: tl.constexpr,
    CHILDREN: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    TILE: tl.constexpr,
) -> None:
    """One program per (node, image) judges a node; an image's last finds the first kept one."""
    wait_for_earlier_kernels()
    node, image = tl.program_id(0), tl.program_id(1)
    base = image * N
    turns = tl.arange(0, CHILDREN)
    if goes_on(out, image, rows, ROWS) & (node < tl.load(tree.counts + image)):
        accept, residual, bonus = noise_of(tree, image, N, ROLES)
        mask = tl.load(tree.masks + base + node)
        weight = tl.full((), 1.0, tl.float64)
        factor, total = weight, weight
        taken, evenly = tl.full((), 0.0, tl.float64), tl.full((), 0.0, tl.float64)
        sound = tl.full((), 1, tl.int64)
        here = tl.full((), 0, tl.int64)
        refused = tl.full((CHILDREN,), -1, tl.int64)
        children = tl.full((), 0, tl.int32)
        going = tl.full((), 1, tl.int32)
        while going == 1:  # trips: levels + 1
            kids, children = children_of(tree, image, here, N, NODES, CHILDREN)
            tokens = tl.load(tree.tokens + base + kids, kids >= 0, other=-1)
            below = (kids >= 0) & (((mask >> tl.maximum(kids, 0)) & 1) == 1)
            stop = tl.where(here == node, children, tl.min(tl.where(below, turns, CHILDREN), axis=0))
            row = tree.probs + (base + here) * V
            token = lane_of(tokens, turns, stop)
            if KIND == POINTS:
                weight, mass, gone = reject_points(row, tokens, stop, weight, V, CHILDREN, TILE)
                again = tl.max(((tokens == token) & (gone == 1)).to(tl.int32), axis=0)
                whole_own = tl.where(again == 1, 0, whole(tl.load(row + token, token >= 0, other=0.0)))
                own = whole_own.to(tl.float64) / tl.maximum(mass, 1).to(tl.float64)
                chance = tl.full((), 1.0, tl.float64)
                refused = tl.where(gone == 1, tokens, -1)
            else:
                line = drafted_row(tree, image, here, drafts, V, N)
                weight, owns, chances, factor, taken, evenly, total = reject_drawn(
                    row, line, tokens, stop, weight, V, KIND == IID, CHILDREN, BLOCK
                )
                own, chance = lane_of(owns, turns, stop), lane_of(chances, turns, stop)
                if KIND != IID:
                    again = tl.max(((tokens == token) & (turns < stop)).to(tl.int32), axis=0)
                    chance = tl.where(again == 1, 0.0, chance)
            if here == node:
                going = tl.full((), 0, tl.int32)
            else:
                if (chance <= 0.0) & (weight > 0.0):
                    sound = tl.full((), 0, tl.int64)
                weight = tl.minimum(1.0, weight * own / tl.where(chance > 0.0, chance, 1.0))
                here = lane_of(kids, turns, stop)
                going = tl.where(weight > 0.0, 1, 0)
        kept = (node == 0) | flip(tl.load(accept + node), weight, 1.0)
        if kept:
            row = tree.probs + (base + node).to(tl.int64) * V
            line = row if KIND == POINTS else drafted_row(tree, image, node, drafts, V, N)
            uniform = tl.load(tl.where(children > 0, residual, bonus) + node)
            token = draw_left(
                row, line, refused, factor, taken, evenly, total, V, uniform, KIND != POINTS, CHILDREN, BLOCK
            )
            tl.store(choices.tokens + base + node, token)
        tl.store(choices.nexts + base + node, kept.to(tl.int64))
        tl.store(choices.sounds + base + node, sound)
    if is_judge(out, choices.arrivals, image, rows, ROWS) == 1:
        lane = tl.arange(0, NODES)
        inside = lane < tl.load(tree.counts + image)
        mask = tl.load(tree.masks + base + lane, inside, other=0)
        kept = tl.load(choices.nexts + base + lane, inside, other=0, cache_modifier=".cg") == 1
        end, on_line, seen = first_kept(kept, mask, NODES)
        depth = tl.load(depths + base + lane, inside & on_line, other=0)
        tl.store(out.path + base + depth - 1, lane.to(tl.int64), inside & on_line & (lane > 0))
        sound = tl.min(tl.load(choices.sounds + base + lane, inside & seen, other=1, cache_modifier=".cg"), axis=0)
        extra_token = tl.load(choices.tokens + base + end, cache_modifier=".cg")
        conclude(out, image, tl.max(depth, axis=0), extra_token, V, sound)


def traversal_walk(rule: TraversalVerification, shape: Shape, device: torch.device) -> Decide:
    """Return the device form of rule 'traversal'."""
    return node_walk(
        walk_traversal_kernel,
        shape,
        device,
        draft_bytes=4,
        warps=8,
        KIND=kind_of(shape.drawn),
        CHILDREN=next_power_of_2(max(2, shape.children)),
        BLOCK=min(1024, tile(shape.vocab_size, wide=True)),
        TILE=tile(shape.vocab_size),
    )
