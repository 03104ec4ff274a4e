"""LANTERN's walk over drawn siblings, as `algos.accept.lantern.Pooling.try_drawn`; see `walk_drawn`.

Pools read and clear the residual at scattered codes, so it is kept in memory. It is stored as the subtraction left it,
not normalised; `share` scales it to sum 1. The sign bit marks tokens that were tried.
"""

import torch

from underpaint.runtime.device.kernels.pool import PAPER, RELATIVE, RELEASED, Pools, clear, pool
from underpaint.runtime.device.kernels.residuals import next_offer
from underpaint.runtime.device.kernels.row_maths import copy_row, draw, flip, row_sum
from underpaint.runtime.device.kernels.siblings import drawn_children, follow, goes_on, node_walk
from underpaint.runtime.device.kernels.walk import Decide, Shape, lane_of, noise_of, tile
from underpaint.runtime.device.launch import kernel, next_power_of_2, tl, wait_for_earlier_kernels


@kernel
def mark(weights, tried):
    """Return the weights (float64, not below 0), with the sign bit set where `tried`."""
    sign = tl.full((), 1, tl.int64) << 63
    bits = weights.to(tl.int64, bitcast=True)
    return tl.where(tried, bits | sign, bits).to(tl.float64, bitcast=True)


@kernel
def is_marked(weights):
    """Return where the sign bit is set, which -0.0 has too."""
    return weights.to(tl.int64, bitcast=True) < 0


@kernel
def unmark(row, V, BLOCK: tl.constexpr) -> None:
    """Remove all marks from a row [V]."""
    for start in range(0, V, BLOCK):
        place = start + tl.arange(0, BLOCK)
        tl.store(row + place, tl.abs(tl.load(row + place, place < V, other=0.0)), place < V)


@kernel
def take_offer(
    rest, share, line, offer, even, proposed, near, spared, V,
    REPLACED: tl.constexpr, SPARES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Replace `rest` [V] float64 by [share * rest - offer * line - even]_+; return its sum and that of untried weights.

    Unless siblings are independent (REPLACED), `proposed` becomes marked in `rest`. Tokens that were tried before are
    marked already; nothing is subtracted from them. SPARES: nor from the first `spared` codes of `near`.
    """
    totals = tl.zeros((BLOCK,), tl.float64)
    remains = tl.zeros((BLOCK,), tl.float64)
    tl.debug_barrier()
    for start in range(0, V, BLOCK):
        place = start + tl.arange(0, BLOCK)
        inside = place < V
        left = tl.load(rest + place, inside, other=0.0)
        drafted = tl.load(line + place, inside, other=0.0).to(tl.float64)
        offered = drafted * offer + even
        if SPARES:
            for turn in range(0, spared):  # trips: pools.k + 1
                offered = tl.where(place == tl.load(near + turn), 0.0, offered)
        tried = is_marked(left) & (REPLACED == 0)
        lacking = tl.abs(left) * share - tl.where(tried, 0.0, offered)
        lacking = tl.where(lacking > 0.0, lacking, 0.0)
        totals += lacking
        if REPLACED == 0:
            tried = tried | (place == proposed)
            remains += tl.where(tried, 0.0, drafted)
            lacking = mark(lacking, tried)
        tl.store(rest + place, lacking, inside)
    tl.debug_barrier()
    total = tl.sum(totals, axis=0)
    return total, tl.sum(remains, axis=0)


@kernel
def level_out(rest, V, BLOCK: tl.constexpr) -> None:
    """Set all tokens of `rest` [V] to 1 / V. Marks stay."""
    for start in range(0, V, BLOCK):  # trips: 0.01 * V / BLOCK
        place = start + tl.arange(0, BLOCK)
        tried = is_marked(tl.load(rest + place, place < V, other=0.0))
        tl.store(rest + place, mark(tl.full((BLOCK,), 1.0, tl.float64) / V, tried), place < V)
    tl.debug_barrier()


@kernel
def walk_pooled_kernel(
    tree,
    out,
    depths,
    choices,
    pools,
    left,
    V,
    N,
    drafts,
    rows,
    REPLACED: tl.constexpr,
    POOLED: tl.constexpr,
    RESIDUAL: tl.constexpr,
    ROLES: tl.constexpr,
    NODES: tl.constexpr,
    CHILDREN: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    DRAW_BLOCK: tl.constexpr,
    KBLOCK: tl.constexpr,
) -> None:
    """One program per (node, image) keeps a child or draws a token; an image's last follows the kept children.

    `rest` times `share` is the target's residual. The next child was drawn from the draft row times `offer`, or, once
    nothing of that row is left, with probability `even` per token. left [B, N, V] float64: `rest` of each node.
    """
    wait_for_earlier_kernels()
    node, image = tl.program_id(0), tl.program_id(1)
    base = image * N
    if goes_on(out, image, rows, ROWS) & (node < tl.load(tree.counts + image)):
        accept, residual, bonus = noise_of(tree, image, N, ROLES)
        row, line, kids, count, tokens, flips, drafted = drawn_children(
            tree, image, node, accept, drafts, V, N, NODES, CHILDREN
        )
        rest = left + (base + node).to(tl.int64) * V
        turns = tl.arange(0, CHILDREN)
        weights = drafted.to(tl.float64)
        copy_row(row, rest, V, BLOCK)
        tl.debug_barrier()
        share = 1.0 / row_sum(row, V, BLOCK)
        offered = row_sum(line, tl.where(count > 0, V, 0), BLOCK)  # without children there is no draft row
        offer, even = 1.0 / tl.where(offered > 0.0, offered, 1.0), tl.full((), 0.0, tl.float64)
        kept = tl.full((), -1, tl.int64)
        sound = tl.full((), 1, tl.int64)
        rejected = tl.full((), 0, tl.int32)
        turn = tl.full((), 0, tl.int32)
        while turn < count:  # trips: children
            proposed = lane_of(tokens, turns, turn)
            chance = lane_of(weights, turns, turn) * offer + even
            if REPLACED == 0:
                again = tl.max(((tokens == proposed) & (turns < turn)).to(tl.int32), axis=0)
                chance = tl.where(again == 0, chance, 0.0)
            if chance <= 0.0:
                sound = tl.full((), 0, tl.int64)
            near = pools.neighbours + proposed * pools.columns
            own = tl.abs(tl.load(rest + proposed)) * share
            limit = tl.load(pools.bound)
            if POOLED == RELATIVE:
                limit = limit * own
            mass, codes = pool(rest, near, pools.k, limit, share, KBLOCK)
            if flip(lane_of(flips, turns, turn), own + mass, chance):
                kept = lane_of(kids, turns, turn)
                count = turn
            else:
                rejected = tl.full((), 1, tl.int32)
                spared = tl.full((), 0, tl.int64)
                if RESIDUAL == PAPER:
                    tl.debug_barrier()
                    clear(rest, near, codes, KBLOCK)
                    if REPLACED == 0:
                        tl.debug_barrier()
                        nothing_left = mark(tl.zeros((CHILDREN,), tl.float64), turns >= 0)
                        tl.store(rest + tokens, nothing_left, (kids >= 0) & (turns < turn))
                if RESIDUAL == RELEASED:
                    spared = tl.where(codes > 0, tl.minimum(pools.k + 1, pools.columns), 0).to(tl.int64)
                total, remaining = take_offer(
                    rest, share, line, offer, even, proposed, near, spared, V, REPLACED, RESIDUAL == RELEASED, BLOCK
                )
                turn += 1
                share = 1.0 / tl.where(total > 0.0, total, 1.0)
                if RESIDUAL == RELEASED:
                    level_out(rest, tl.where(total > 0.0, 0, V), BLOCK)
                elif total <= 0.0:
                    kept = lane_of(kids, turns, turn - 1)
                    count = turn
                if REPLACED == 0:
                    offer, even = next_offer(remaining, V - turn)
        tl.store(choices.nexts + base + node, kept)
        tl.store(choices.sounds + base + node, sound)
        if kept < 0:
            uniform = tl.load(tl.where(rejected == 1, residual, bonus) + node)
            if (RESIDUAL == RELEASED) and (REPLACED == 0):
                unmark(rest, V, BLOCK)
            tl.debug_barrier()
            tl.store(choices.tokens + base + node, draw(rest, V, uniform, DRAW_BLOCK))
    follow(tree, out, depths, choices, image, rows, V, N, NODES, ROWS)


def pooled_walk(shape: Shape, device: torch.device, pools: Pools, constants: dict[str, int]) -> Decide:
    """Return the device form of LANTERN's rules on drawn trees."""
    left = torch.zeros(shape.batch, shape.nodes, shape.vocab_size, dtype=torch.float64, device=device)
    widest = tile(shape.vocab_size, wide=True)
    return node_walk(
        walk_pooled_kernel,
        shape,
        device,
        pools,
        left,
        draft_bytes=4 + 8 + 8,
        REPLACED=int(shape.drawn == "iid"),
        CHILDREN=next_power_of_2(max(2, shape.children)),
        BLOCK=min(2048 if shape.drawn == "iid" else 1024, widest),
        DRAW_BLOCK=min(2048, widest),
        **constants,
    )
