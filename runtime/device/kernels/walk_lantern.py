"""The walk of `algos.accept.lantern` over point proposals: a token is kept with its own mass plus its pool's."""

import torch

from underpaint.algos.accept.lantern import Lantern, LanternPP
from underpaint.runtime.device.kernels.pool import PAPER, RELATIVE, RELEASED, clear, pool, pools_of
from underpaint.runtime.device.kernels.row_maths import copy_row, draw, flip, row_sum
from underpaint.runtime.device.kernels.siblings import follow, goes_on, node_walk
from underpaint.runtime.device.kernels.walk import Decide, Shape, noise_of, tile
from underpaint.runtime.device.kernels.walk_pooled import pooled_walk
from underpaint.runtime.device.launch import kernel, tl, wait_for_earlier_kernels

LITTLE = tl.constexpr(2.0**-16)
"""Share of the last sum: below it, subtraction leaves too few digits. A child is rejected with a probability equal to
the share that it leaves, so a rejection leaves less than this in at most one of 65,536 cases."""


@kernel
def little_sum(row, V, BLOCK: tl.constexpr):
    """Return the sum (float64) of a row of which little is left, as `row_sum`."""
    total = tl.full((), 0.0, tl.float64)
    for start in range(0, V, BLOCK):  # trips: 0.01 * V / BLOCK
        place = start + tl.arange(0, BLOCK)
        total += tl.sum(tl.load(row + place, place < V, other=0.0).to(tl.float64), axis=0)
    return total


@kernel
def walk_lantern_kernel(
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
    POOLED: tl.constexpr,
    RESIDUAL: tl.constexpr,
    ROLES: tl.constexpr,
    NODES: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    KBLOCK: tl.constexpr,
) -> None:
    """One program per (node, image) keeps a child or draws a token; an image's last follows the kept children.

    left [B, N, V] float32: each node's residual, which is its weights with 0 at the tokens that were removed.
    """
    wait_for_earlier_kernels()
    node, image = tl.program_id(0), tl.program_id(1)
    base = image * N
    if goes_on(out, image, rows, ROWS) & (node < tl.load(tree.counts + image)):
        accept, residual, bonus = noise_of(tree, image, N, ROLES)
        rest = left + (base + node).to(tl.int64) * V
        most = tl.load(pools.bound)
        copy_row(tree.probs + (base + node).to(tl.int64) * V, rest, V, BLOCK)
        tl.debug_barrier()
        total = row_sum(rest, V, BLOCK)
        summed = total
        tried = tl.full((), 0, tl.int32)
        kept = tl.full((), -1, tl.int64)
        child = tl.load(tree.first + base + node)
        while (child >= 0) & (kept < 0):  # trips: children
            proposed = tl.load(tree.tokens + base + child)
            near = pools.neighbours + proposed * pools.columns
            own = tl.load(rest + proposed).to(tl.float64)
            limit = most * total
            if POOLED == RELATIVE:
                limit = most * own
            mass, codes = pool(rest, near, pools.k, limit, 1.0, KBLOCK)
            if flip(tl.load(accept + child), own + mass, total):
                kept = child
            else:
                tried += 1
                tl.debug_barrier()
                if RESIDUAL == PAPER:
                    clear(rest, near, codes, KBLOCK)
                if RESIDUAL == RELEASED:
                    clear(rest, near, tl.where(codes > 0, tl.minimum(pools.k + 1, pools.columns), 0), KBLOCK)
                tl.store(rest + proposed, 0.0)
                tl.debug_barrier()
                if RESIDUAL == PAPER:
                    total -= own + mass
                else:
                    total -= own
                if RESIDUAL == RELEASED:
                    total = row_sum(rest, V, BLOCK)
                elif total < LITTLE * summed:
                    total = little_sum(rest, V, BLOCK)
                    summed = total
                if total > 0.0:
                    child = tl.load(tree.sibling + base + child)
                elif RESIDUAL != RELEASED:
                    kept = child  # it was certain to be kept; only rounding rejected it
                else:
                    for start in range(0, V, BLOCK):
                        place = start + tl.arange(0, BLOCK)
                        tl.store(rest + place, tl.full((BLOCK,), 1.0, tl.float32), place < V)
                    tl.debug_barrier()
                    total = row_sum(rest, V, BLOCK)
                    child = tl.load(tree.sibling + base + child)
        tl.store(choices.nexts + base + node, kept)
        tl.store(choices.sounds + base + node, tl.full((), 1, tl.int64))
        if kept < 0:
            uniform = tl.load(tl.where(tried > 0, residual, bonus) + node)
            tl.store(choices.tokens + base + node, draw(rest, V, uniform, BLOCK))
    follow(tree, out, depths, choices, image, rows, V, N, NODES, ROWS)


def lantern_walk(rule: Lantern | LanternPP, shape: Shape, device: torch.device) -> Decide:
    """Return the device form of rules 'lantern' and 'lantern_pp', for trees of any kind."""
    if shape.drawn == "iid" and rule.residual == "released":
        raise ValueError("device: residual 'released' says nothing of 'iid' trees; use 'paper' or 'standard'")
    pools, constants = pools_of(rule, device)
    if shape.drawn != "top_k":
        return pooled_walk(shape, device, pools, constants)
    left = torch.zeros(shape.batch, shape.nodes, shape.vocab_size, device=device)
    block = tile(shape.vocab_size, wide=True)
    return node_walk(walk_lantern_kernel, shape, device, pools, left, target_bytes=4 + 4 + 4, BLOCK=block, **constants)
