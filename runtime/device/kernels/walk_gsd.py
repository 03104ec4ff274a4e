"""Grouped speculation on the device, as `algos.accept.gsd`: a token is judged together with codes like it.

The reference sorts a distribution; here the tokens next to one in that order are found one pass each. The residual
"standard" needs every token's group, hence a whole sort: it has no form here.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from underpaint.algos.accept.gsd import GroupedSpeculation
from underpaint.runtime.device.kernels.proposals import POINTS, WITHOUT, kind_of, offer_others
from underpaint.runtime.device.kernels.row_maths import draw, flip
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
from underpaint.runtime.device.kernels.walk_drawn import normalised
from underpaint.runtime.device.kernels.walk_lantern import copy_row
from underpaint.runtime.device.language import kernel, launch, next_power_of_2, tl


class Groups(NamedTuple):
    """Settings of GSD. codebook [V, E] floating; gap [1] float64; limit [1] of the codebook's type: squared distance.

    group: tokens in a window; before: those before the token in its order. rising: the window lies in the order of
    rising weight, and a token with fewer than `before` ones before it is judged alone.
    """

    codebook: Tensor
    gap: Tensor
    limit: Tensor
    group: int
    before: int
    rising: bool


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
def alike(row, codebook, one, other, gaps, limits, E, EBLOCK: tl.constexpr):
    """Whether two codes are within `gaps` in weight and `limits` in squared distance."""
    lane = tl.arange(0, EBLOCK)
    here = tl.load(codebook + one * E + lane, lane < E, other=0.0)
    there = tl.load(codebook + other * E + lane, lane < E, other=0.0)
    apart = tl.sum((there - here) * (there - here), axis=0)
    return (apart < tl.load(limits)) & (tl.abs(tl.load(row + other) - tl.load(row + one)) < tl.load(gaps))


@kernel
def walk_gsd_kernel(
    tokens,
    first,
    sibling,
    probs,
    draft_probs,
    draft_rows,
    uniforms,
    codebook,
    gaps,
    limits,
    left,
    drafted,
    path,
    taken,
    token,
    status,
    finite,
    group,
    before,
    E,
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
            if KIND != POINTS:
                line = image.to(tl.int64) * drafts + tl.load(draft_rows + tree + node)
                normalised(draft_probs + line * V, offered, V, BLOCK)
        else:
            copy_row(row, rest, V, BLOCK)
        tl.debug_barrier()
        while (child >= 0) & (kept < 0):
            proposed = tl.load(tokens + tree + child)
            mass = tl.load(rest + proposed)
            chance = tl.full((), 1.0, tl.float64)
            if KIND != POINTS:
                chance = tl.load(offered + proposed)
            if chance <= 0.0:
                sound = tl.full((), 0, tl.int32)
            rank = rank_of(rest, V, proposed, RISING, BLOCK)
            if (RISING == 0) | (rank >= before):
                other = proposed
                for _ in range(0, tl.minimum(before, rank)):
                    other = beside(rest, V, other, True, RISING, BLOCK)
                    if alike(rest, codebook, proposed, other, gaps, limits, E, EBLOCK):
                        mass += tl.load(rest + other)
                        if KIND != POINTS:
                            chance += tl.load(offered + other)
                other = proposed
                for _ in range(0, tl.minimum(group - before - 1, V - 1 - rank)):
                    other = beside(rest, V, other, False, RISING, BLOCK)
                    if alike(rest, codebook, proposed, other, gaps, limits, E, EBLOCK):
                        mass += tl.load(rest + other)
                        if KIND != POINTS:
                            chance += tl.load(offered + other)
            if flip(tl.load(accept + child), mass, chance):
                kept = child
            else:
                gone = tl.where(turns == tried, proposed, gone)
                tried += 1
                lacking = tl.full((), 0.0, tl.float64)
                for start in range(0, V, BLOCK):
                    place = start + tl.arange(0, BLOCK)
                    inside = place < V
                    offer = tl.where(place == proposed, 1.0, 0.0).to(tl.float64)
                    if KIND != POINTS:
                        offer = tl.load(offered + place, inside, other=0.0)
                    lacking += tl.sum(tl.maximum(tl.load(rest + place, inside, other=0.0) - offer, 0.0), axis=0)
                tl.debug_barrier()
                if lacking > 0.0:
                    for start in range(0, V, BLOCK):
                        place = start + tl.arange(0, BLOCK)
                        inside = place < V
                        offer = tl.where(place == proposed, 1.0, 0.0).to(tl.float64)
                        if KIND != POINTS:
                            offer = tl.load(offered + place, inside, other=0.0)
                        here = tl.maximum(tl.load(rest + place, inside, other=0.0) - offer, 0.0)
                        tl.store(rest + place, here / lacking, inside)
                tl.debug_barrier()
                if KIND == WITHOUT:
                    offer_others(offered, gone, V, BLOCK)
                    tl.debug_barrier()
                child = tl.load(sibling + tree + child)
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


def walk_gsd(
    tree: BatchTree,
    out: Verdicts,
    left: Tensor,
    drafted: Tensor,
    groups: Groups,
    drawn: int,
    children: int,
    levels: int,
) -> None:
    """Decide every image's tree of any kind; left and drafted [B, V] float64 are scratch.

    drawn: of `proposals.kind_of`. children: of one node at most; levels: the tree's greatest depth.
    """
    batch, nodes, vocab_size = tree.probs.shape
    width = groups.codebook.shape[1]
    launch(
        walk_gsd_kernel,
        (batch,),
        row_bytes(tree, levels + 1, 4 + 4 + 8 * (groups.group + 3)),
        tree.tokens,
        tree.first,
        tree.sibling,
        tree.probs,
        tree.draft_probs,
        tree.draft_rows,
        tree.uniforms,
        groups.codebook,
        groups.gap,
        groups.limit,
        left,
        drafted,
        out.path,
        out.taken,
        out.token,
        out.status,
        out.finite,
        groups.group,
        groups.before,
        width,
        vocab_size,
        nodes,
        tree.draft_probs.shape[1],
        out.finite.shape[1],
        KIND=drawn,
        RISING=int(groups.rising),
        ROLES=tree.uniforms.shape[1],
        CHILDREN=next_power_of_2(max(2, children)),
        ROWS=next_power_of_2(out.finite.shape[1]),
        BLOCK=tile(vocab_size, children),
        EBLOCK=next_power_of_2(max(2, width)),
        warps=4 if drawn == WITHOUT.value else 8,  # either way within the budget of registers, without spills
    )


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
        grouped.rising,
    )
    left, drafted, drawn = scratch(shape, device), scratch(shape, device), kind_of(shape.drawn)
    return lambda tree, depths, out: walk_gsd(tree, out, left, drafted, groups, drawn, shape.children, shape.levels)
