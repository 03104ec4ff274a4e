"""Walks in which all nodes decide at once: a program knows one node's children, and what rejected ones leave of a row.

Noise is by node, so what a node decides does not depend on those above it; the last program follows what was kept. What
is left of a row is kept as it came out of a subtraction, beside the share by which that is of sum 1: so a rejection is
one pass over the row.
"""

from typing import NamedTuple, Self

import torch
from torch import Tensor

from underpaint.runtime.device.kernels.children import is_last
from underpaint.runtime.device.kernels.walk import Shape, conclude, takes_part
from underpaint.runtime.device.language import kernel, tl


class Choices(NamedTuple):
    """What each node decided, [B, N] int64, where all decide at once.

    nexts: the kept child or -1. tokens: the one drawn where none is kept. sounds: 0 where a child cannot have been
    drawn. arrivals [B] int32: 0 before and behind a launch.
    """

    nexts: Tensor
    tokens: Tensor
    sounds: Tensor
    arrivals: Tensor

    @classmethod
    def allocate(cls, shape: Shape, device: torch.device) -> Self:
        """Buffers for trees of a shape."""
        nexts, tokens, sounds = torch.zeros(3, shape.batch, shape.nodes, dtype=torch.int64, device=device)
        return cls(nexts, tokens, sounds, torch.zeros(shape.batch, dtype=torch.int32, device=device))


@kernel
def goes_on(out, image, rows, ROWS: tl.constexpr):
    """Whether an image's nodes have anything to decide: it goes on, and all its logits are finite."""
    lane = tl.arange(0, ROWS)
    sound = tl.min(tl.load(out.finite + image * rows + lane, lane < rows, other=1), axis=0)
    return (tl.load(out.status + image) == 0) & (sound == 1)


@kernel
def is_judge(out, arrivals, image, rows, ROWS: tl.constexpr):
    """1 for the last of an image's programs where the image goes on, see `walk.takes_part`; else 0."""
    judges = tl.full((), 0, tl.int32)
    if is_last(arrivals + image, tl.num_programs(0)):
        judges = takes_part(out.status, out.finite, out.taken, image, rows, ROWS)
    return judges


@kernel
def follow(tree, out, depths, choices, image, rows, V, N, NODES: tl.constexpr, ROWS: tl.constexpr) -> None:
    """The last of an image's programs writes its verdict from its nodes' `Choices`.

    A node is on the path where its ancestors and itself were kept, which is one operation on bits.
    """
    if is_judge(out, choices.arrivals, image, rows, ROWS) == 1:
        base = image * N
        node = tl.arange(0, NODES)
        here = node.to(tl.int64)
        inside = node < tl.load(tree.counts + image)
        parent = tl.load(tree.parents + base + node, inside & (node > 0), other=0)
        chosen = tl.load(choices.nexts + base + parent, inside & (node > 0), other=-1, cache_modifier=".cg")
        kept = (chosen == here) | (node == 0)
        good = tl.sum(tl.where(kept, tl.full((NODES,), 1, tl.int64) << here, 0), axis=0)
        mask = tl.load(tree.masks + base + node, inside, other=0)
        alive = inside & ((mask & good) == mask)
        depth = tl.where(alive, tl.load(depths + base + node, inside, other=-1), -1)
        deepest = tl.max(depth, axis=0)
        end = tl.max(tl.where(alive & (depth == deepest), here, 0), axis=0)
        tl.store(out.path + base + depth - 1, here, alive & (node > 0))
        sound = tl.min(tl.load(choices.sounds + base + node, alive, other=1, cache_modifier=".cg"), axis=0)
        conclude(out, image, deepest, tl.load(choices.tokens + base + end, cache_modifier=".cg"), V, sound)


@kernel
def children_of(tree, image, node, N, NODES: tl.constexpr, CHILDREN: tl.constexpr):
    """The children of a node in their order, [CHILDREN] int64 with -1 behind them; and their number."""
    lane = tl.arange(0, NODES)
    inside = (lane > 0) & (lane < tl.load(tree.counts + image))
    below = inside & (tl.load(tree.parents + image * N + lane, inside, other=-1) == node)
    rank = tl.cumsum(below.to(tl.int32), axis=0) - 1
    here = (rank[None, :] == tl.arange(0, CHILDREN)[:, None]) & below[None, :]
    kids = tl.sum(tl.where(here, lane[None, :] + 1, 0), axis=1).to(tl.int64) - 1
    return kids, tl.sum(below.to(tl.int32), axis=0)


@kernel
def mark(weights, tried):
    """The weights (float64, not below 0), with the sign bit where `tried`."""
    sign = tl.full((), 1, tl.int64) << 63
    bits = weights.to(tl.int64, bitcast=True)
    return tl.where(tried, bits | sign, bits).to(tl.float64, bitcast=True)


@kernel
def is_marked(weights):
    """Where the sign bit is, which -0.0 has too."""
    return weights.to(tl.int64, bitcast=True) < 0


@kernel
def unmark(row, V, BLOCK: tl.constexpr) -> None:
    """Take all marks out of a row [V]."""
    for start in range(0, V, BLOCK):
        place = start + tl.arange(0, BLOCK)
        tl.store(row + place, tl.abs(tl.load(row + place, place < V, other=0.0)), place < V)


@kernel
def take_offer(
    row, rest, fresh, share, line, offer, even, proposed, near, spared, V,
    REPLACED: tl.constexpr, SPARES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """`rest` [V] float64 becomes [share * left - offer * line - even]_+; its sum, and that of the untried weights.

    left: `rest`, or the target's `row` where nothing was taken from it yet (fresh). Unless siblings are independent
    (REPLACED), `proposed` is marked in `rest` as tokens that were tried before are: nothing of those was offered any
    more. SPARES: nor of the first `spared` codes of `near`.
    """
    totals = tl.zeros((BLOCK,), tl.float64)
    remains = tl.zeros((BLOCK,), tl.float64)
    tl.debug_barrier()
    for start in range(0, V, BLOCK):
        place = start + tl.arange(0, BLOCK)
        inside = place < V
        whole = tl.load(row + place, place < tl.where(fresh == 1, V, 0), other=0.0).to(tl.float64)
        kept = tl.load(rest + place, place < tl.where(fresh == 1, 0, V), other=0.0)
        left = tl.where(fresh == 1, whole, kept)
        drafted = tl.load(line + place, inside, other=0.0).to(tl.float64)
        offered = drafted * offer + even
        if SPARES:
            for turn in range(0, spared):  # trips: pools.k + 1
                offered = tl.where(place == tl.load(near + turn), 0.0, offered)
        if REPLACED:
            lacking = left * share - offered
            lacking = tl.where(lacking > 0.0, lacking, 0.0)
            totals += lacking
        else:
            tried = is_marked(left)
            lacking = tl.abs(left) * share - tl.where(tried, 0.0, offered)
            lacking = tl.where(lacking > 0.0, lacking, 0.0)
            totals += lacking
            tried = tried | (place == proposed)
            remains += tl.where(tried, 0.0, drafted)
            lacking = mark(lacking, tried)
        tl.store(rest + place, lacking, inside)
    tl.debug_barrier()
    total = tl.sum(totals, axis=0)
    remaining = total
    if REPLACED == 0:
        remaining = tl.sum(remains, axis=0)
    return total, remaining


@kernel
def next_offer(remaining, untried):
    """What a weight is drawn with (float64), and any of the `untried` tokens once nothing remains of the weights."""
    there = remaining > 0.0
    offer = tl.where(there, 1.0 / tl.where(there, remaining, 1.0), 0.0)
    return offer, tl.where(there, 0.0, 1.0 / tl.maximum(untried, 1).to(tl.float64))
