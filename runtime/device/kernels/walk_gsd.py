"""Grouped speculation on the device, as `algos.accept.gsd`: judges a token together with similar codes.

Noise is addressed by node, so a node's decision does not depend on the nodes above it, and all nodes decide at once.
The reference sorts a distribution; here one pass per side finds the tokens next to a token in that order. The residual
"standard" needs the groups of all tokens, and so a full sort; it has no device form.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from underpaint.algos.accept.gsd import GroupedSpeculation
from underpaint.runtime.device.kernels.order import nearest_by_lane, ranks, take_nearest
from underpaint.runtime.device.kernels.proposals import POINTS, WITHOUT, kind_of
from underpaint.runtime.device.kernels.row_maths import UNIT, draw, flip, scaled, whole, whole_sum
from underpaint.runtime.device.kernels.siblings import follow, goes_on, node_walk
from underpaint.runtime.device.kernels.walk import Decide, Shape, drafted_row, noise_of, tile
from underpaint.runtime.device.launch import kernel, next_power_of_2, tl, wait_for_earlier_kernels


class Groups(NamedTuple):
    """Settings of GSD.

    Attributes:
        codebook: The codes, [V, E] floating.
        gap: Largest difference of two alike weights, [1] float64.
        limit: Limit of the squared distance of two alike codes, [1] of the codebook's dtype.
        group: Tokens in a window.
        before: How many of them come before the token in its order.
        width: E.
    """

    codebook: Tensor
    gap: Tensor
    limit: Tensor
    group: int
    before: int
    width: int


@kernel
def offered_to(line, token, offer, even, gone):
    """Return the probability (float64) that `token` was proposed with: weight * offer + even; 0 if it is in `gone`."""
    chance = tl.load(line + token).to(tl.float64) * offer + even
    return tl.where(tl.max((gone == token).to(tl.int32), axis=0) == 0, chance, 0.0)


@kernel
def alike(row, groups, one, other, EBLOCK: tl.constexpr):
    """Return whether `other` (-1: none) is like `one`: its weight within `gap`, its squared distance below `limit`."""
    E = groups.width
    lane = tl.arange(0, EBLOCK)
    near = tl.maximum(other, 0)
    here = tl.load(groups.codebook + one * E + lane, lane < E, other=0.0)
    there = tl.load(groups.codebook + near * E + lane, lane < E, other=0.0)
    apart = tl.sum((there - here) * (there - here), axis=0)
    gap = tl.abs(tl.load(row + near) - tl.load(row + one))
    return (other >= 0) & (apart < tl.load(groups.limit)) & (gap < tl.load(groups.gap))


@kernel
def take_point(rest, token, V, BLOCK: tl.constexpr) -> None:
    """Remove `token` from `rest` [V] float64 of sum 1, and normalise it again; no change if nothing else is left."""
    own = tl.load(rest + token)
    tl.debug_barrier()
    tl.store(rest + token, 0.0)
    tl.debug_barrier()
    total = tl.full((), 0.0, tl.float64)
    for start in range(0, V, BLOCK):
        place = start + tl.arange(0, BLOCK)
        total += tl.sum(tl.load(rest + place, place < V, other=0.0), axis=0)
    if total > 0.0:
        scaled(rest, rest, 1.0 / total, V, BLOCK)
    else:
        tl.store(rest + token, own)
    tl.debug_barrier()


@kernel
def take_line(rest, line, offer, even, gone, V, BLOCK: tl.constexpr) -> None:
    """Replace `rest` [V] float64 by norm([rest - offer * line - even]_+), unless that is 0 everywhere.

    The tokens `gone` [CHILDREN] could not be proposed again, so nothing is subtracted from them.
    """
    tried = gone >= 0
    before = tl.load(rest + gone, tried, other=0.0)
    spared = tl.load(line + gone, tried, other=0.0).to(tl.float64) * offer + even
    total = tl.sum(tl.where(tried, tl.minimum(before, spared), 0.0), axis=0)
    for start in range(0, V, BLOCK):
        place = start + tl.arange(0, BLOCK)
        offered = tl.load(line + place, place < V, other=0.0).to(tl.float64) * offer + even
        total += tl.sum(tl.maximum(tl.load(rest + place, place < V, other=0.0) - offered, 0.0), axis=0)
    tl.debug_barrier()
    if total > 0.0:
        share = 1.0 / total
        for start in range(0, V, BLOCK):
            place = start + tl.arange(0, BLOCK)
            offered = tl.load(line + place, place < V, other=0.0).to(tl.float64) * offer + even
            lacking = tl.maximum(tl.load(rest + place, place < V, other=0.0) - offered, 0.0)
            tl.store(rest + place, lacking * share, place < V)
        tl.debug_barrier()
        tl.store(rest + gone, before * share, tried)
    tl.debug_barrier()


@kernel
def walk_gsd_kernel(
    tree,
    out,
    depths,
    choices,
    groups,
    left,
    V,
    N,
    drafts,
    rows,
    KIND: tl.constexpr,
    RISING: tl.constexpr,
    ROLES: tl.constexpr,
    NODES: tl.constexpr,
    CHILDREN: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    COLUMN: tl.constexpr,
    DRAW_BLOCK: tl.constexpr,
    EBLOCK: tl.constexpr,
) -> None:
    """One program per (node, image) keeps a child or draws a token; an image's last follows the kept children.

    left [B, N, V] float64: each node's target residual. `offered_to` returns a child's proposal probability.
    """
    wait_for_earlier_kernels()
    node, image = tl.program_id(0), tl.program_id(1)
    base = image * N
    if goes_on(out, image, rows, ROWS) & (node < tl.load(tree.counts + image)):
        accept, residual, bonus = noise_of(tree, image, N, ROLES)
        row = tree.probs + (base + node).to(tl.int64) * V
        line = drafted_row(tree, image, node, drafts, V, N)
        rest = left + (base + node).to(tl.int64) * V
        turns = tl.arange(0, CHILDREN)
        child = tl.load(tree.first + base + node)
        kept = tl.full((), -1, tl.int64)
        sound = tl.full((), 1, tl.int64)
        tried = tl.full((), 0, tl.int32)
        gone = tl.full((CHILDREN,), -1, tl.int64)
        remaining = tl.full((), 0, tl.int64)
        offer, even = tl.full((), 0.0, tl.float64), tl.full((), 0.0, tl.float64)
        share = tl.full((), 1.0, tl.float64)
        if child >= 0:
            share = UNIT / whole_sum(row, V, BLOCK).to(tl.float64)
        scaled(row, rest, share, V, BLOCK)
        if (KIND != POINTS) & (child >= 0):
            remaining = whole_sum(line, V, BLOCK)
            offer = UNIT / remaining.to(tl.float64)
        tl.debug_barrier()
        while (child >= 0) & (kept < 0):  # trips: tries
            proposed = tl.load(tree.tokens + base + child)
            own = tl.load(rest + proposed)
            mass = own
            chance = tl.full((), 1.0, tl.float64)
            if KIND != POINTS:
                chance = offered_to(line, proposed, offer, even, gone)
            only = chance
            if chance <= 0.0:
                sound = tl.full((), 0, tl.int64)
            other, rank = proposed, ranks(own, RISING)
            near, places = nearest_by_lane(rest, V, proposed, rank, True, RISING, BLOCK)
            for _ in range(0, groups.before):  # trips: groups.before
                other, near, places = take_nearest(rest, V, near, places, True, RISING, BLOCK, COLUMN)
                if alike(rest, groups, proposed, other, EBLOCK):
                    mass += tl.load(rest + other)
                    if KIND != POINTS:
                        chance += offered_to(line, other, offer, even, gone)
            if (RISING == 1) & (other < 0):
                mass = own
                chance = only
            else:
                near, places = nearest_by_lane(rest, V, proposed, rank, False, RISING, BLOCK)
                for _ in range(0, groups.group - groups.before - 1):  # trips: groups.group - groups.before - 1
                    other, near, places = take_nearest(rest, V, near, places, False, RISING, BLOCK, COLUMN)
                    if alike(rest, groups, proposed, other, EBLOCK):
                        mass += tl.load(rest + other)
                        if KIND != POINTS:
                            chance += offered_to(line, other, offer, even, gone)
            if flip(tl.load(accept + child), mass, chance):
                kept = child
            else:
                if KIND == POINTS:
                    take_point(rest, proposed, V, BLOCK)
                else:
                    take_line(rest, line, offer, even, gone, V, BLOCK)
                if KIND == WITHOUT:
                    gone = tl.where(turns == tried, proposed, gone)
                    remaining -= whole(tl.load(line + proposed))
                    offer = tl.where(remaining > 0, UNIT / tl.maximum(remaining, 1).to(tl.float64), 0.0)
                    even = tl.where(remaining > 0, 0.0, 1.0 / tl.maximum(V - tried - 1, 1).to(tl.float64))
                tried += 1
                child = tl.load(tree.sibling + base + child)
        tl.store(choices.nexts + base + node, kept)
        tl.store(choices.sounds + base + node, sound)
        if kept < 0:
            uniform = tl.load(tl.where(tried > 0, residual, bonus) + node)
            tl.store(choices.tokens + base + node, draw(rest, V, uniform, DRAW_BLOCK))
    follow(tree, out, depths, choices, image, rows, V, N, NODES, ROWS)


def gsd_walk(rule: GroupedSpeculation, shape: Shape, device: torch.device) -> Decide:
    """Return the device form of rule 'gsd'; ValueError for residual "standard" and for a codebook not of V codes."""
    if rule.residual == "standard":
        raise ValueError(
            "device: rule 'gsd' has no form with residual 'standard'; those that have one: paper, released"
        )
    if rule.codebook.shape[0] != shape.vocab_size:
        raise ValueError(
            f"device: gsd: expected a codebook of V = {shape.vocab_size} codes, got {rule.codebook.shape[0]}"
        )
    codebook = torch.as_tensor(rule.codebook, device=device).contiguous()
    grouped = rule.grouped
    groups = Groups(
        codebook,
        torch.tensor([rule.gap], dtype=torch.float64, device=device),
        torch.tensor([rule.distance**2], dtype=codebook.dtype, device=device),
        rule.group,
        grouped.before,
        codebook.shape[1],
    )
    left = torch.zeros(shape.batch, shape.nodes, shape.vocab_size, dtype=torch.float64, device=device)
    widest = tile(shape.vocab_size, wide=True)
    lanes = max(2, widest // 8)
    return node_walk(
        walk_gsd_kernel,
        shape,
        device,
        groups,
        left,
        target_bytes=4 + 4 + 8 + 8,
        KIND=kind_of(shape.drawn),
        RISING=int(grouped.rising),
        CHILDREN=next_power_of_2(max(2, shape.children)),
        BLOCK=lanes,  # passes hold a tile in addition to the walk's values
        COLUMN=next_power_of_2(max(2, -(-shape.vocab_size // lanes))),
        DRAW_BLOCK=max(2, widest // 2),
        EBLOCK=next_power_of_2(max(2, groups.width)),
    )
