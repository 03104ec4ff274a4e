"""Block verification and HSD on the device: a chain judged as a whole, as `algos.accept.block.judge_chain`."""

from typing import Any

import torch
from torch import Tensor

from underpaint.algos.accept.block import BlockVerification
from underpaint.algos.accept.hsd import HierarchicalVerification
from underpaint.algos.accept.walk import MOST_RATIO as REFERENCE_MOST
from underpaint.runtime.device.kernels.proposals import POINTS, kind_of
from underpaint.runtime.device.kernels.row_maths import draw, flip, row_sum
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
    scratch,
    takes_part,
    tile,
)
from underpaint.runtime.device.language import kernel, next_power_of_2, tl

MOST_RATIO = tl.constexpr(REFERENCE_MOST)


@kernel
def chain_odds(tree, image, drafts, last, V, N, KIND: tl.constexpr, NODES: tl.constexpr, BLOCK: tl.constexpr):
    """What a chain of `last` drafts is judged by, float64 [NODES] each; and whether all drafts can have been drawn.

    p(x) and q(x) in the lane of each draft; the sums of the target's and the drafter's rows in that of the node before.
    """
    base = image * N
    lane = tl.arange(0, NODES)
    owns = tl.zeros((NODES,), tl.float64)
    chances = tl.full((NODES,), 1.0, tl.float64)
    sums = tl.full((NODES,), 1.0, tl.float64)
    offers = tl.full((NODES,), 1.0, tl.float64)
    sound = tl.full((), 1, tl.int32)
    for node in range(0, last):  # trips: levels
        row = tree.probs + (base + node) * V
        proposed = tl.load(tree.tokens + base + node + 1)
        target_sum = row_sum(row, V, BLOCK)
        sums = tl.where(lane == node, target_sum, sums)
        owns = tl.where(lane == node + 1, tl.load(row + proposed).to(tl.float64) / target_sum, owns)
        if KIND != POINTS:
            line = drafted_row(tree, image, node, drafts, V, N)
            draft_sum = row_sum(line, V, BLOCK)
            offers = tl.where(lane == node, draft_sum, offers)
            chance = tl.load(line + proposed).to(tl.float64) / draft_sum
            if chance <= 0.0:
                sound = tl.full((), 0, tl.int32)
            chances = tl.where(lane == node + 1, tl.where(chance > 0.0, chance, 1.0), chances)
    return owns, chances, sums, offers, sound


@kernel
def store_excess(row, line, token, rest, scale, offer, V, KIND: tl.constexpr, BLOCK: tl.constexpr):
    """`rest` [V] float64 becomes [scale * row - offer * line]_+; its sum. Of points, `line` is 1 at `token` alone."""
    total = tl.full((), 0.0, tl.float64)
    tl.debug_barrier()
    for start in range(0, V, BLOCK):
        place = start + tl.arange(0, BLOCK)
        drafted = tl.where(place == token, 1.0, 0.0).to(tl.float64)
        if KIND != POINTS:
            drafted = tl.load(line + place, place < V, other=0.0).to(tl.float64) * offer
        target = tl.load(row + place, place < V, other=0.0).to(tl.float64) * scale
        here = tl.maximum(target - drafted, 0.0)
        total += tl.sum(here, axis=0)
        tl.store(rest + place, here, place < V)
    tl.debug_barrier()
    return total


@kernel
def walk_block_kernel(
    tree,
    out,
    left,
    V,
    N,
    drafts,
    rows,
    CAPPED: tl.constexpr,
    KIND: tl.constexpr,
    ROLES: tl.constexpr,
    NODES: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """One program an image: the weights w_i go down the chain, the flips come up from its end."""
    image = tl.program_id(0)
    if takes_part(out.status, out.finite, out.taken, image, rows, ROWS) == 0:
        return
    base = image * N
    accept, residual, bonus = noise_of(tree, image, N, ROLES)
    rest = left + image.to(tl.int64) * V
    lane = tl.arange(0, NODES)
    last = tl.load(tree.counts + image) - 1
    owns, chances, sums, offers, sound = chain_odds(tree, image, drafts, last, V, N, KIND, NODES, BLOCK)
    weight = tl.full((), 1.0, tl.float64)
    joint = tl.full((), 1.0, tl.float64)
    weights = tl.full((NODES,), 1.0, tl.float64)
    for node in range(1, last + 1):  # trips: levels
        own, offered = lane_of(owns, lane, node), lane_of(chances, lane, node)
        weight = tl.minimum(1.0, weight * own / offered)
        joint = tl.minimum(MOST_RATIO, joint * own / offered)
        weights = tl.where(lane == node, weight, weights)
    length = tl.full((), -1, tl.int64)
    if CAPPED == 0:
        weight = joint
    if flip(tl.load(accept + last), weight, 1.0):
        length = last
    found = tl.full((), 0, tl.int64)
    if length >= 0:
        found = draw(tree.probs + (base + last) * V, V, tl.load(bonus + last), BLOCK)
    node = last - 1
    while length < 0:  # trips: levels
        row = tree.probs + (base + node) * V
        line = drafted_row(tree, image, node, drafts, V, N)
        here = lane_of(weights, lane, node)
        scale, offer = here / lane_of(sums, lane, node), 1.0 / lane_of(offers, lane, node)
        total = store_excess(row, line, 0, rest, scale, offer, V, KIND, BLOCK)
        if (here == 1.0) | flip(tl.load(accept + node), total, total + (1.0 - here)):
            length = node
            if total > 0.0:
                found = draw(rest, V, tl.load(residual + node), BLOCK)
            else:
                found = draw(row, V, tl.load(residual + node), BLOCK)
        node -= 1
    tl.store(out.path + base + lane, lane.to(tl.int64) + 1, lane < length)
    conclude(out, image, length, found, V, sound)


def chain_walk(
    function: Any, shape: Shape, device: torch.device, rows_read: int, *own: Any, warps: int = 8, **constants: int
) -> Decide:
    """A rule of chains: `function(tree, out, *own, left, V, N, drafts, rows, KIND, NODES, **constants)`.

    rows_read: of float32 numbers by an image. left [B, V] float64: scratch. warps: see `launch_walk`.
    """
    left = scratch(shape, device)
    constants = {"KIND": kind_of(shape.drawn), "NODES": next_power_of_2(max(2, shape.nodes)), **constants}
    constants["BLOCK"] = tile(shape.vocab_size, wide=True)

    def decide(tree: BatchTree, depths: Tensor, out: Verdicts) -> None:
        launch_walk(function, shape, tree, out, row_bytes(tree, rows_read), *own, left, warps=warps, **constants)

    return decide


def block_walk(rule: BlockVerification | HierarchicalVerification, shape: Shape, device: torch.device) -> Decide:
    """The device form of rules 'block' and 'hsd'."""
    capped = int(getattr(rule, "end", "capped") == "capped")
    return chain_walk(walk_block_kernel, shape, device, 4 * shape.nodes, CAPPED=capped)
