"""The walk over drawn siblings: speculative sampling, multi-round, without replacement, and LANTERN's forms of them.

The reference is `algos.accept.walk.try_siblings` and, with pools, `algos.accept.lantern.Pooling.try_drawn`.
"""

import torch
from torch import Tensor

from underpaint.runtime.device.kernels.pool import NONE, PAPER, RELATIVE, RELEASED, Pools, clear, no_pools, pool
from underpaint.runtime.device.kernels.row_maths import copy_row, draw, flip, normalised
from underpaint.runtime.device.kernels.walk import (
    BatchTree,
    Decide,
    Shape,
    Verdicts,
    conclude,
    launch_walk,
    noise_of,
    row_bytes,
    scratch,
    takes_part,
    tile,
)
from underpaint.runtime.device.language import kernel, next_power_of_2, tl


@kernel
def spared(near, place, count, COUNT: tl.constexpr):
    """Which of the tokens `place` [BLOCK] are among the first `count` of `near`: an int32 above 0."""
    hit = tl.zeros_like(place)
    for start in range(0, count, COUNT):  # trips: (pools.k + 1) / 16
        lane = start + tl.arange(0, COUNT)
        codes = tl.load(near + lane, lane < count, other=-1)
        hit += tl.sum((place[:, None] == codes[None, :]).to(tl.int32), axis=1)
    return hit


@kernel
def walk_drawn_kernel(
    tree,
    out,
    pools,
    left,
    drafted,
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
    if takes_part(out.status, out.finite, out.taken, image, rows, ROWS) == 0:
        return
    base = image * N
    accept, residual, bonus = noise_of(tree, image, N, ROLES)
    rest = left + image.to(tl.int64) * V
    offered = drafted + image.to(tl.int64) * V
    none = tl.full((2,), -1, tl.int64)
    turns = tl.arange(0, CHILDREN)
    node = tl.full((), 0, tl.int64)
    length = tl.full((), 0, tl.int64)
    tried = tl.full((), 0, tl.int32)
    going = tl.full((), 1, tl.int32)
    sound = tl.full((), 1, tl.int32)
    while going == 1:  # trips: levels + 1
        row = tree.probs + (base + node) * V
        child = tl.load(tree.first + base + node)
        kept = tl.full((), -1, tl.int64)
        tried = tl.full((), 0, tl.int32)
        gone = tl.full((CHILDREN,), -1, tl.int64)
        tl.debug_barrier()
        if child >= 0:
            normalised(row, rest, V, BLOCK)
            line = image.to(tl.int64) * drafts + tl.load(tree.draft_rows + base + node)
            normalised(tree.draft_probs + line * V, offered, V, BLOCK)
        else:
            copy_row(row, rest, V, BLOCK)
        tl.debug_barrier()
        while (child >= 0) & (kept < 0):  # trips: children
            proposed = tl.load(tree.tokens + base + child)
            near = pools.neighbours + proposed * pools.columns
            own = tl.load(rest + proposed)
            chance = tl.load(offered + proposed)
            if chance <= 0.0:
                sound = tl.full((), 0, tl.int32)
            mass = tl.full((), 0.0, tl.float64)
            codes = tl.full((), 0, tl.int64)
            if POOLED != NONE:
                limit = tl.load(pools.bound)
                if POOLED == RELATIVE:
                    limit = limit * own
                mass, codes = pool(rest, near, pools.k, limit, KBLOCK)
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
                        excepted = tl.where(codes > 0, tl.minimum(pools.k + 1, pools.columns), 0).to(tl.int64)
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
                    child = tl.load(tree.sibling + base + child)
                    if stays:
                        child = tl.full((), -1, tl.int64)  # only rounding tells this rejection from an acceptance
        if kept >= 0:
            tl.store(out.path + base + length, kept)
            length += 1
            node = kept
        else:
            going = tl.full((), 0, tl.int32)
    role = tl.where(tried > 0, residual, bonus)
    found = draw(rest, V, tl.load(role + node), none, BLOCK)
    conclude(out, image, length, found, V, sound)


def drawn_walk(
    rule: object, shape: Shape, device: torch.device, pooling: tuple[Pools, dict[str, int]] | None = None
) -> Decide:
    """The device form of the rules that try drawn siblings one by one; pooling: of LANTERN, None for the exact rules.

    Siblings are independent draws ("iid"), or each is drawn from what those before it left of the distribution.
    """
    left, drafted = scratch(shape, device), scratch(shape, device)
    pools, constants = pooling or no_pools(device)
    replaced, most_children = shape.drawn == "iid", shape.children

    def decide(tree: BatchTree, depths: Tensor, out: Verdicts) -> None:
        wide = tree.draft_probs.dtype == torch.float64
        block = tile(shape.vocab_size, most_children)
        if wide or (not replaced and most_children in (3, 4)):
            block = min(512, block)  # with more of them registers spill
        launch_walk(
            walk_drawn_kernel,
            shape,
            tree,
            out,
            row_bytes(tree, shape.levels + 1, 4 + 4 + 8 + 8),
            pools,
            left,
            drafted,
            REPLACED=int(replaced),
            CHILDREN=next_power_of_2(max(2, most_children)),
            BLOCK=block,
            warps=4 if wide else 8,
            **constants,
        )

    return decide
