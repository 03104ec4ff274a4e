"""The walk over drawn siblings: speculative sampling, multi-round, without replacement, and LANTERN's forms of them.

The reference is `algos.accept.walk.try_siblings` and, with pools, `algos.accept.lantern.Pooling.try_drawn`.
"""

import torch
from torch import Tensor

from underpaint.algos.accept.ensemble import StaticEnsemble
from underpaint.runtime.device.kernels.pool import NONE, PAPER, RELATIVE, RELEASED, Pools, clear, no_pools, pool
from underpaint.runtime.device.kernels.row_maths import draw, flip, restore, row_sum, scaled
from underpaint.runtime.device.kernels.walk import (
    BatchTree,
    Decide,
    Shape,
    Verdicts,
    conclude,
    drafted_row,
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
def offered_at(line, offer, even, near, excepted, start, V, SPARES: tl.constexpr, BLOCK: tl.constexpr):
    """What the tokens [BLOCK] from `start` on were offered with (float64): offer * line + even; 0 where spared."""
    place = start + tl.arange(0, BLOCK)
    here = tl.load(line + place, place < V, other=0.0).to(tl.float64) * offer + even
    if SPARES:
        here = tl.where(spared(near, place, excepted, 16) > 0, 0.0, here)
    return here


@kernel
def walk_drawn_kernel(
    tree,
    out,
    pools,
    left,
    V,
    N,
    drafts,
    rows,
    REPLACED: tl.constexpr,
    MIXED: tl.constexpr,
    POOLED: tl.constexpr,
    RESIDUAL: tl.constexpr,
    ROLES: tl.constexpr,
    CHILDREN: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    KBLOCK: tl.constexpr,
) -> None:
    """One program an image; what the target still owes stands in `left` [B, V] float64, of sum 1.

    The drafter's own row, of which tried tokens are hidden, times `offer` is what it may still draw; once nothing of it
    is left, `even` on every token that was not tried. MIXED: the target is mixed with the drafter, of weight
    `pools.bound`.
    """
    image = tl.program_id(0)
    if takes_part(out.status, out.finite, out.taken, image, rows, ROWS) == 0:
        return
    base = image * N
    accept, residual, bonus = noise_of(tree, image, N, ROLES)
    rest = left + image.to(tl.int64) * V
    SPARES: tl.constexpr = (POOLED != NONE) and (RESIDUAL == RELEASED)
    turns = tl.arange(0, CHILDREN)
    node = tl.full((), 0, tl.int64)
    length = tl.full((), 0, tl.int64)
    tried = tl.full((), 0, tl.int32)
    going = tl.full((), 1, tl.int32)
    sound = tl.full((), 1, tl.int32)
    while going == 1:  # trips: levels + 1
        row = tree.probs + (base + node) * V
        child = tl.load(tree.first + base + node)
        line = drafted_row(tree, image, node, drafts, V, N)
        kept = tl.full((), -1, tl.int64)
        tried = tl.full((), 0, tl.int32)
        gone = tl.full((CHILDREN,), -1, tl.int64)
        weights = tl.zeros((CHILDREN,), tree.draft_probs.dtype.element_ty)
        offer = tl.full((), 1.0, tl.float64)
        even = tl.full((), 0.0, tl.float64)
        share = tl.full((), 1.0, tl.float64)
        if child >= 0:
            share = 1.0 / row_sum(row, V, BLOCK)
            offer = 1.0 / row_sum(line, V, BLOCK)
            if POOLED != NONE:
                tl.debug_barrier()
                scaled(row, rest, share, V, BLOCK)
                tl.debug_barrier()
        while (child >= 0) & (kept < 0):  # trips: tries
            proposed = tl.load(tree.tokens + base + child)
            near = pools.neighbours + proposed * pools.columns
            own = tl.load(row + proposed).to(tl.float64) * share
            if tried > 0:
                own = tl.load(rest + proposed)
            weight = tl.load(line + proposed)
            chance = weight.to(tl.float64) * offer + even
            if REPLACED == 0:
                chance = tl.where(tl.max((gone == proposed).to(tl.int32), axis=0) == 0, chance, 0.0)
            if chance <= 0.0:
                sound = tl.full((), 0, tl.int32)
            mass = tl.full((), 0.0, tl.float64)
            codes = tl.full((), 0, tl.int64)
            if POOLED != NONE:
                limit = tl.load(pools.bound)
                if POOLED == RELATIVE:
                    limit = limit * own
                mass, codes = pool(rest, near, pools.k, limit, KBLOCK)
            if MIXED:
                mass = tl.load(pools.bound) * (chance - own)
            if flip(tl.load(accept + child), own + mass, chance):
                kept = child
            else:
                if (POOLED == NONE) & (tried == 0):
                    tl.debug_barrier()
                    scaled(row, rest, share, V, BLOCK)
                tl.debug_barrier()
                excepted = tl.full((), 0, tl.int64)
                if POOLED != NONE:
                    if RESIDUAL == PAPER:
                        clear(rest, near, codes, KBLOCK)
                    if RESIDUAL == RELEASED:
                        excepted = tl.where(codes > 0, tl.minimum(pools.k + 1, pools.columns), 0).to(tl.int64)
                    tl.debug_barrier()
                excess_mass = tl.full((), 0.0, tl.float64)
                for start in range(0, V, BLOCK):
                    place = start + tl.arange(0, BLOCK)
                    here = offered_at(line, offer, even, near, excepted, start, V, SPARES, BLOCK)
                    excess_mass += tl.sum(tl.maximum(tl.load(rest + place, place < V, other=0.0) - here, 0.0), axis=0)
                if REPLACED == 0:
                    spares = turns < tl.where(even > 0.0, tried, 0)
                    before = tl.load(rest + gone, spares, other=0.0)
                    excess_mass += tl.sum(tl.minimum(before, even), axis=0)  # nothing is offered of what was tried
                nothing = excess_mass <= 0.0
                if nothing & (POOLED == NONE):
                    child = tl.full((), -1, tl.int64)  # only rounding tells this rejection from an acceptance
                    tried += 1
                elif nothing & (RESIDUAL != RELEASED):
                    kept = child
                else:
                    left_share = tl.where(nothing, 0.0, 1.0 / tl.where(nothing, 1.0, excess_mass))
                    alike = tl.where(nothing, tl.full((), 1.0, tl.float64) / V, 0.0)
                    tl.debug_barrier()
                    left_over = tl.full((), 0.0, tl.float64)
                    for start in range(0, V, BLOCK):
                        place = start + tl.arange(0, BLOCK)
                        inside = place < V
                        here = offered_at(line, offer, even, near, excepted, start, V, SPARES, BLOCK)
                        lacking = tl.maximum(tl.load(rest + place, inside, other=0.0) - here, 0.0)
                        tl.store(rest + place, lacking * left_share + alike, inside)
                        if REPLACED == 0:
                            weighs = tl.load(line + place, inside & (place != proposed), other=0.0)
                            left_over += tl.sum(weighs.to(tl.float64), axis=0)
                    tl.debug_barrier()
                    if REPLACED == 0:
                        tl.store(rest + gone, before * left_share + alike, spares)
                        here = turns == tried
                        gone = tl.where(here, proposed, gone)
                        weights = tl.where(here, weight, weights)
                        tl.store(line + proposed, tl.zeros_like(weight))
                        offer = tl.where(left_over > 0.0, 1.0 / tl.where(left_over > 0.0, left_over, 1.0), 0.0)
                        even = tl.where(left_over > 0.0, 0.0, 1.0 / tl.maximum(V - tried - 1, 1).to(tl.float64))
                    tl.debug_barrier()
                    tried += 1
                    child = tl.load(tree.sibling + base + child)
        if REPLACED == 0:
            restore(line, gone, weights, gone >= 0)
        if kept >= 0:
            tl.store(out.path + base + length, kept)
            length += 1
            node = kept
        else:
            going = tl.full((), 0, tl.int32)
    if tried > 0:
        found = draw(rest, V, tl.load(residual + node), BLOCK)
    else:
        found = draw(tree.probs + (base + node) * V, V, tl.load(bonus + node), BLOCK)
    conclude(out, image, length, found, V, sound)


def drawn_walk(
    rule: object, shape: Shape, device: torch.device, pooling: tuple[Pools, dict[str, int]] | None = None
) -> Decide:
    """The device form of the rules that try drawn siblings one by one; pooling: of LANTERN, None for the exact rules.

    Siblings are independent draws ("iid"), or each is drawn from what those before it left of the distribution.
    """
    left = scratch(shape, device)
    pools, constants = pooling or no_pools(device)

    def decide(tree: BatchTree, depths: Tensor, out: Verdicts) -> None:
        launch_walk(
            walk_drawn_kernel,
            shape,
            tree,
            out,
            row_bytes(tree, shape.levels + 1, 4 + 4 + 8 + 8),
            pools,
            left,
            REPLACED=int(shape.drawn == "iid"),
            CHILDREN=next_power_of_2(max(2, shape.children)),
            BLOCK=tile(shape.vocab_size, wide=True),
            warps=4 if pooling is None and shape.drawn != "iid" else 8,  # see `launch_walk`
            **{"MIXED": 0, **constants},
        )

    return decide


def ensemble_walk(rule: StaticEnsemble, shape: Shape, device: torch.device) -> Decide:
    """The device form of rule 'ensemble'."""
    pools, constants = no_pools(device)
    mixed = pools._replace(bound=torch.tensor([1.0 - rule.weight], dtype=torch.float64, device=device))
    return drawn_walk(rule, shape, device, (mixed, {**constants, "MIXED": 1}))
