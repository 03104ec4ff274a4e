"""Grouped speculation on the device, as `algos.accept.gsd`: a token is judged together with codes like it.

The reference sorts a distribution; here the tokens next to one in that order are found one pass each. The residual
"standard" needs every token's group, hence a whole sort: it has no form here.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from underpaint.algos.accept.gsd import GroupedSpeculation
from underpaint.runtime.device.kernels.proposals import POINTS, WITHOUT, kind_of, offer_others, take_offer
from underpaint.runtime.device.kernels.row_maths import copy_row, draw, flip, normalised
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


class Groups(NamedTuple):
    """Settings of GSD. codebook [V, E] floating; gap [1] float64; limit [1] of the codebook's type: squared distance.

    group: tokens in a window; before: those before the token in its order. width: E.
    """

    codebook: Tensor
    gap: Tensor
    limit: Tensor
    group: int
    before: int
    width: int


@kernel
def ranks(weights, RISING: tl.constexpr):
    """What tokens are sorted by, smallest first; equal ones stand by token id."""
    return weights if RISING else -weights


@kernel
def rank_of(row, V, token, RISING: tl.constexpr, BLOCK: tl.constexpr):
    """How many tokens stand before `token` in the order of rising, or falling, weight."""
    own = ranks(tl.load(row + token), RISING)
    rank = tl.full((), 0, tl.int64)
    for start in range(0, V, BLOCK):
        place = start + tl.arange(0, BLOCK)
        here = ranks(tl.load(row + place, place < V, other=0.0), RISING)
        first = (here < own) | ((here == own) & (place < token))
        rank += tl.sum((first & (place < V)).to(tl.int64), axis=0)
    return rank


@kernel
def beside(row, V, token, BEFORE: tl.constexpr, RISING: tl.constexpr, BLOCK: tl.constexpr):
    """The token (int64) right before (`BEFORE`) or behind `token` in that order; -1 at its end."""
    own = ranks(tl.load(row + token), RISING)
    best = tl.full((), 0.0, tl.float64)
    found = tl.full((), -1, tl.int64)
    for start in range(0, V, BLOCK):
        place = (start + tl.arange(0, BLOCK)).to(tl.int64)
        here = ranks(tl.load(row + place, place < V, other=0.0), RISING)
        if BEFORE:
            fits = ((here < own) | ((here == own) & (place < token))) & (place < V)
            nearest = tl.max(tl.where(fits, here, float("-inf")), axis=0)
            at = tl.max(tl.where(fits & (here == nearest), place, -1), axis=0)
            better = (at >= 0) & ((found < 0) | (nearest >= best))
        else:
            fits = ((here > own) | ((here == own) & (place > token))) & (place < V)
            nearest = tl.min(tl.where(fits, here, float("inf")), axis=0)
            at = tl.min(tl.where(fits & (here == nearest), place, V), axis=0)
            better = (at < V) & ((found < 0) | (nearest < best))
        found = tl.where(better, at, found)
        best = tl.where(better, nearest, best)
    return found


@kernel
def alike(row, groups, one, other, EBLOCK: tl.constexpr):
    """Whether two codes are within the groups' gap in weight and their limit in squared distance."""
    E = groups.width
    lane = tl.arange(0, EBLOCK)
    here = tl.load(groups.codebook + one * E + lane, lane < E, other=0.0)
    there = tl.load(groups.codebook + other * E + lane, lane < E, other=0.0)
    apart = tl.sum((there - here) * (there - here), axis=0)
    return (apart < tl.load(groups.limit)) & (tl.abs(tl.load(row + other) - tl.load(row + one)) < tl.load(groups.gap))


@kernel
def walk_gsd_kernel(
    tree,
    out,
    groups,
    left,
    drafted,
    V,
    N,
    drafts,
    rows,
    KIND: tl.constexpr,
    RISING: tl.constexpr,
    ROLES: tl.constexpr,
    CHILDREN: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    EBLOCK: tl.constexpr,
) -> None:
    """One program an image; the target's and the drafter's remains stand in `left` and `drafted` [B, V] float64."""
    image = tl.program_id(0)
    if takes_part(out.status, out.finite, out.taken, image, rows, ROWS) == 0:
        return
    base = image * N
    accept, residual, bonus = noise_of(tree, image, N, ROLES)
    rest = left + image.to(tl.int64) * V
    offered = drafted + image.to(tl.int64) * V
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
            if KIND != POINTS:
                normalised(drafted_row(tree, image, node, drafts, V, N), offered, V, BLOCK)
        else:
            copy_row(row, rest, V, BLOCK)
        tl.debug_barrier()
        while (child >= 0) & (kept < 0):  # trips: tries
            proposed = tl.load(tree.tokens + base + child)
            mass = tl.load(rest + proposed)
            chance = tl.full((), 1.0, tl.float64)
            if KIND != POINTS:
                chance = tl.load(offered + proposed)
            if chance <= 0.0:
                sound = tl.full((), 0, tl.int32)
            rank = rank_of(rest, V, proposed, RISING, BLOCK)
            if (RISING == 0) | (rank >= groups.before):
                other = proposed
                for _ in range(0, tl.minimum(groups.before, rank)):  # trips: groups.before
                    other = beside(rest, V, other, True, RISING, BLOCK)
                    if alike(rest, groups, proposed, other, EBLOCK):
                        mass += tl.load(rest + other)
                        if KIND != POINTS:
                            chance += tl.load(offered + other)
                other = proposed
                for _ in range(0, tl.minimum(groups.group - groups.before - 1, V - 1 - rank)):  # trips: groups.group
                    other = beside(rest, V, other, False, RISING, BLOCK)
                    if alike(rest, groups, proposed, other, EBLOCK):
                        mass += tl.load(rest + other)
                        if KIND != POINTS:
                            chance += tl.load(offered + other)
            if flip(tl.load(accept + child), mass, chance):
                kept = child
            else:
                gone = tl.where(turns == tried, proposed, gone)
                tried += 1
                take_offer(rest, offered, proposed, 1.0, V, KIND, BLOCK)
                if KIND == WITHOUT:
                    offer_others(offered, gone, V, BLOCK)
                    tl.debug_barrier()
                child = tl.load(tree.sibling + base + child)
        if kept >= 0:
            tl.store(out.path + base + length, kept)
            length += 1
            node = kept
        else:
            going = tl.full((), 0, tl.int32)
    role = tl.where(tried > 0, residual, bonus)
    found = draw(rest, V, tl.load(role + node), BLOCK)
    conclude(out, image, length, found, V, sound)


def gsd_walk(rule: GroupedSpeculation, shape: Shape, device: torch.device) -> Decide:
    """The device form of rule 'gsd', but with the residual "standard"."""
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
    left, drafted, drawn = scratch(shape, device), scratch(shape, device), kind_of(shape.drawn)

    def decide(tree: BatchTree, depths: Tensor, out: Verdicts) -> None:
        launch_walk(
            walk_gsd_kernel,
            shape,
            tree,
            out,
            row_bytes(tree, shape.levels + 1, 4 + 4 + 8 * (rule.group + 3)),
            groups,
            left,
            drafted,
            KIND=drawn,
            RISING=int(grouped.rising),
            CHILDREN=next_power_of_2(max(2, shape.children)),
            BLOCK=tile(shape.vocab_size, wide=True),
            EBLOCK=next_power_of_2(max(2, groups.width)),
            warps=16,
        )

    return decide
