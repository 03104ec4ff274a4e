"""The walk over drawn siblings: speculative sampling, multi-round, without replacement, and LANTERN's forms of them.

The reference is `algos.accept.proposals.try_siblings` and, with pools, `algos.accept.lantern.Pooling.try_drawn`.
"""

import torch
from torch import Tensor

from underpaint.algos.accept.lantern import Lantern, LanternPP
from underpaint.runtime.device.kernels.pool import NONE, PAPER, RELATIVE, RELEASED, clear, pool
from underpaint.runtime.device.kernels.row_maths import draw, flip, row_sum
from underpaint.runtime.device.kernels.walk import (
    BatchTree,
    Decide,
    Shape,
    Verdicts,
    conclude,
    row_bytes,
    scratch,
    takes_part,
    tile,
)
from underpaint.runtime.device.kernels.walk_lantern import Pools, pools_of, walk_lantern
from underpaint.runtime.device.language import kernel, launch, next_power_of_2, tl


@kernel
def normalised(row, out, V, BLOCK: tl.constexpr) -> None:
    """`row` [V] as float64 with sum 1, in `out`."""
    none = tl.full((2,), -1, tl.int64)
    total = row_sum(row, V, none, BLOCK)
    for start in range(0, V, BLOCK):
        place = start + tl.arange(0, BLOCK)
        tl.store(out + place, tl.load(row + place, place < V, other=0.0).to(tl.float64) / total, place < V)


@kernel
def spared(near, place, count, COUNT: tl.constexpr):
    """Which of the tokens `place` [BLOCK] are among the first `count` of `near`: an int32 above 0."""
    hit = tl.zeros_like(place)
    for start in range(0, count, COUNT):
        lane = start + tl.arange(0, COUNT)
        codes = tl.load(near + lane, lane < count, other=-1)
        hit += tl.sum((place[:, None] == codes[None, :]).to(tl.int32), axis=1)
    return hit


@kernel
def walk_drawn_kernel(
    tokens,
    first,
    sibling,
    probs,
    draft_probs,
    draft_rows,
    uniforms,
    neighbours,
    left,
    drafted,
    path,
    taken,
    token,
    status,
    finite,
    bound,
    K,
    columns,
    V,
    N,
    drafts,
    rows,
    REPLACED: tl.constexpr,
    POOLED: tl.constexpr,
    RESIDUAL: tl.constexpr,
    ROLES: tl.constexpr,
    CHILDREN: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    KBLOCK: tl.constexpr,
) -> None:
    """One program an image; the target's and the drafter's remains stand in `left` and `drafted` [B, V] float64."""
    image = tl.program_id(0)
    if takes_part(status, finite, taken, image, rows, ROWS) == 0:
        return
    tree = image * N
    accept = uniforms + image * ROLES * N + N
    residual = accept + N
    bonus = residual + N
    rest = left + image.to(tl.int64) * V
    offered = drafted + image.to(tl.int64) * V
    none = tl.full((2,), -1, tl.int64)
    turns = tl.arange(0, CHILDREN)
    node = tl.full((), 0, tl.int64)
    length = tl.full((), 0, tl.int64)
    tried = tl.full((), 0, tl.int32)
    going = tl.full((), 1, tl.int32)
    sound = tl.full((), 1, tl.int32)
    while going == 1:
        row = probs + (tree + node) * V
        child = tl.load(first + tree + node)
        kept = tl.full((), -1, tl.int64)
        tried = tl.full((), 0, tl.int32)
        gone = tl.full((CHILDREN,), -1, tl.int64)
        tl.debug_barrier()
        if child >= 0:
            normalised(row, rest, V, BLOCK)
            line = image.to(tl.int64) * drafts + tl.load(draft_rows + tree + node)
            normalised(draft_probs + line * V, offered, V, BLOCK)
        else:
            for start in range(0, V, BLOCK):
                place = start + tl.arange(0, BLOCK)
                tl.store(rest + place, tl.load(row + place, place < V, other=0.0).to(tl.float64), place < V)
        tl.debug_barrier()
        while (child >= 0) & (kept < 0):
            proposed = tl.load(tokens + tree + child)
            near = neighbours + proposed * columns
            own = tl.load(rest + proposed)
            chance = tl.load(offered + proposed)
            if chance <= 0.0:
                sound = tl.full((), 0, tl.int32)
            mass = tl.full((), 0.0, tl.float64)
            codes = tl.full((), 0, tl.int64)
            if POOLED != NONE:
                limit = tl.load(bound)
                if POOLED == RELATIVE:
                    limit = limit * own
                mass, codes = pool(rest, near, K, limit, KBLOCK)
            if flip(tl.load(accept + child), own + mass, chance):
                kept = child
            else:
                gone = tl.where(turns == tried, proposed, gone)
                tried += 1
                tl.debug_barrier()
                excepted = tl.full((), 0, tl.int64)
                if POOLED != NONE:
                    if RESIDUAL == PAPER:
                        clear(rest, near, codes, KBLOCK)
                    if RESIDUAL == RELEASED:
                        excepted = tl.where(codes > 0, tl.minimum(K + 1, columns), 0).to(tl.int64)
                    tl.debug_barrier()
                owed_sum = tl.full((), 0.0, tl.float64)
                offered_sum = tl.full((), 0.0, tl.float64)
                for start in range(0, V, BLOCK):
                    place = start + tl.arange(0, BLOCK)
                    inside = place < V
                    here = tl.load(offered + place, inside, other=0.0)
                    taken_here = here
                    if (POOLED != NONE) and (RESIDUAL == RELEASED):
                        taken_here = tl.where(spared(near, place, excepted, 16) > 0, 0.0, here)
                    owed_sum += tl.sum(tl.maximum(tl.load(rest + place, inside, other=0.0) - taken_here, 0.0), axis=0)
                    offered_sum += tl.sum(tl.where(place == proposed, 0.0, here), axis=0)
                nothing = owed_sum <= 0.0
                stays = (POOLED == NONE) & nothing
                if nothing & (POOLED != NONE) & (RESIDUAL != RELEASED):
                    kept = child
                else:
                    # One pass: what the target still owes, and what the drafter has not offered yet, each of sum 1.
                    untried = tl.full((), 0.0, tl.float64)
                    for start in range(0, V, BLOCK):
                        place = start + tl.arange(0, BLOCK)
                        inside = place < V
                        here = tl.load(offered + place, inside, other=0.0)
                        taken_here = here
                        if (POOLED != NONE) and (RESIDUAL == RELEASED):
                            taken_here = tl.where(spared(near, place, excepted, 16) > 0, 0.0, here)
                        before = tl.load(rest + place, inside, other=0.0)
                        residual_here = tl.maximum(before - taken_here, 0.0) / tl.where(nothing, 1.0, owed_sum)
                        residual_here = tl.where(nothing, tl.where(POOLED == NONE, before, 1.0 / V), residual_here)
                        tl.store(rest + place, residual_here, inside)
                        if REPLACED == 0:
                            fresh = tl.sum((place[:, None] == gone[None, :]).to(tl.int32), axis=1) == 0
                            untried += tl.sum((fresh & inside).to(tl.float64), axis=0)
                            tl.store(offered + place, tl.where(place == proposed, 0.0, here), inside)
                    tl.debug_barrier()
                    if REPLACED == 0:
                        for start in range(0, V, BLOCK):
                            place = start + tl.arange(0, BLOCK)
                            inside = place < V
                            fresh = tl.sum((place[:, None] == gone[None, :]).to(tl.int32), axis=1) == 0
                            here = tl.load(offered + place, inside, other=0.0)
                            even = tl.where(fresh, 1.0 / untried, 0.0)
                            scaled = tl.where(
                                offered_sum > 0.0, here / tl.where(offered_sum > 0.0, offered_sum, 1.0), even
                            )
                            tl.store(offered + place, scaled, inside)
                    tl.debug_barrier()
                    child = tl.load(sibling + tree + child)
                    if stays:
                        child = tl.full((), -1, tl.int64)  # only rounding tells this rejection from an acceptance
        if kept >= 0:
            tl.store(path + tree + length, kept)
            length += 1
            node = kept
        else:
            going = tl.full((), 0, tl.int32)
    role = tl.where(tried > 0, residual, bonus)
    found = draw(rest, V, tl.load(role + node), none, BLOCK)
    conclude(status, taken, token, image, length, found, V)
    if sound == 0:
        tl.store(taken + image, 0)
        tl.store(status + image, 4)


def walk_drawn(
    tree: BatchTree,
    out: Verdicts,
    left: Tensor,
    drafted: Tensor,
    replaced: bool,
    most_children: int,
    levels: int,
    pools: Pools | None = None,
) -> None:
    """Decide every image's tree of drawn siblings; left and drafted [B, V] float64 are scratch.

    replaced: siblings are independent draws ("iid"); else each from what those before it left of the distribution.
    """
    batch, nodes, vocab_size = tree.probs.shape
    wide = tree.draft_probs.dtype == torch.float64
    block = tile(vocab_size, most_children)
    if wide or (not replaced and most_children in (3, 4)):
        block = min(512, block)  # with more of them registers spill
    launch(
        walk_drawn_kernel,
        (batch,),
        row_bytes(tree, levels + 1, 4 + 4 + 8 + 8),
        tree.tokens,
        tree.first,
        tree.sibling,
        tree.probs,
        tree.draft_probs,
        tree.draft_rows,
        tree.uniforms,
        tree.tokens if pools is None else pools.neighbours,
        left,
        drafted,
        out.path,
        out.taken,
        out.token,
        out.status,
        out.finite,
        left if pools is None else pools.bound,
        1 if pools is None else pools.k,
        0 if pools is None else pools.neighbours.shape[1],
        vocab_size,
        nodes,
        tree.draft_probs.shape[1],
        out.finite.shape[1],
        REPLACED=int(replaced),
        POOLED=NONE.value if pools is None else pools.kind,
        RESIDUAL=PAPER.value if pools is None else pools.residual,
        ROLES=tree.uniforms.shape[1],
        CHILDREN=next_power_of_2(max(2, most_children)),
        ROWS=next_power_of_2(out.finite.shape[1]),
        BLOCK=block,
        KBLOCK=2 if pools is None else pools.tile,
        warps=4 if wide else 8,
    )


def drawn_walk(rule: object, shape: Shape, device: torch.device, pools: Pools | None = None) -> Decide:
    """The device form of the rules that try drawn siblings one by one; pools: of LANTERN, None for the exact rules."""
    left, drafted = scratch(shape, device), scratch(shape, device)

    def decide(tree: BatchTree, depths: Tensor, out: Verdicts) -> None:
        walk_drawn(tree, out, left, drafted, shape.drawn == "iid", shape.children, shape.levels, pools)

    return decide


def lantern_walk(rule: Lantern | LanternPP, shape: Shape, device: torch.device) -> Decide:
    """The device form of rules 'lantern' and 'lantern_pp', on trees of any kind."""
    pools = pools_of(rule, device, rule.residual)
    if shape.drawn == "top_k":
        left = scratch(shape, device)
        return lambda tree, depths, out: walk_lantern(tree, out, pools, left, shape.levels)
    if shape.drawn == "iid" and rule.residual == "released":
        raise ValueError("device: residual 'released' says nothing of 'iid' trees; use 'paper' or 'standard'")
    return drawn_walk(rule, shape, device, pools)
