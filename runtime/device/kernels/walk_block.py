"""Block verification and HSD on the device: judge a chain as a whole, as `algos.accept.block.judge_chain`."""

from typing import Any

import torch
from torch import Tensor

from underpaint.algos.accept.block import BlockVerification
from underpaint.algos.accept.hsd import HierarchicalVerification
from underpaint.algos.accept.walk import MOST_RATIO as REFERENCE_MOST
from underpaint.runtime.device.kernels.proposals import POINTS, kind_of
from underpaint.runtime.device.kernels.residuals import draw_left, left_sum
from underpaint.runtime.device.kernels.row_maths import flip, row_sum
from underpaint.runtime.device.kernels.siblings import goes_on, is_judge, node_walk
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
    tile,
)
from underpaint.runtime.device.launch import kernel, launch, next_power_of_2, tl, wait_for_earlier_kernels

MOST_RATIO = tl.constexpr(REFERENCE_MOST)


@kernel
def top_entropy(row, total, top, V, BLOCK: tl.constexpr):
    """Return -sum p ln p (float64, nats) over the `top` largest weights of a row of sum `total`; ties by token id."""
    entropy = tl.full((), 0.0, tl.float64)
    last = tl.full((), float("inf"), tl.float64)
    at = tl.full((), -1, tl.int64)
    for _ in range(0, tl.minimum(top, V)):  # trips: top
        best = tl.full((), -1.0, tl.float64)
        index = tl.full((), 0, tl.int64)
        for start in range(0, V, BLOCK):
            place = start + tl.arange(0, BLOCK)
            weights = tl.load(row + place, place < V, other=-1.0).to(tl.float64)
            after = (weights < last) | ((weights == last) & (place > at))
            weights = tl.where(after, weights, -1.0)
            here = tl.max(weights, axis=0)
            first = tl.min(tl.where(weights == here, place, V), axis=0)
            index = tl.where(here > best, first.to(tl.int64), index)
            best = tl.maximum(best, here)
        last = best
        at = index
        share = best / total
        entropy -= tl.where(share > 0.0, share * tl.log(tl.where(share > 0.0, share, 1.0)), 0.0)
    return entropy


@kernel
def sum_rows_kernel(
    tree, sums, top, V, N, drafts, KIND: tl.constexpr, ENTROPY: tl.constexpr, BLOCK: tl.constexpr
) -> None:
    """One program per (node, image) computes the `ChainSums` of a node that a draft follows."""
    wait_for_earlier_kernels()
    node, image = tl.program_id(0), tl.program_id(1)
    if node + 1 < tl.load(tree.counts + image):
        place = sums + 3 * (image * N + node)
        row = tree.probs + (image * N + node).to(tl.int64) * V
        total = row_sum(row, V, BLOCK)
        tl.store(place, total)
        if KIND != POINTS:
            tl.store(place + 1, row_sum(drafted_row(tree, image, node, drafts, V, N), V, BLOCK))
        if ENTROPY:
            tl.store(place + 2, top_entropy(row, total, top, V, BLOCK))


@kernel
def chain_odds(tree, sums, image, drafts, last, V, N, KIND: tl.constexpr, NODES: tl.constexpr):
    """Return what judges a chain of `last` drafts, [NODES] float64 each, and whether all of them can have been drawn.

    These are p(x) and q(x) in each draft's lane, and the sums of the target's and the draft row in the lane before it.
    """
    base = image * N
    lane = tl.arange(0, NODES)
    above = lane < last
    drafted = (lane > 0) & (lane <= last)
    token = tl.load(tree.tokens + base + lane, drafted, other=0)
    row = base + lane - 1
    totals = tl.load(sums + 3 * (base + lane), above, other=1.0)
    own = tl.load(tree.probs + row.to(tl.int64) * V + token, drafted, other=0.0).to(tl.float64)
    owns = own / tl.load(sums + 3 * row, drafted, other=1.0)
    chances = tl.full((NODES,), 1.0, tl.float64)
    offers = tl.full((NODES,), 1.0, tl.float64)
    sound = tl.full((), 1, tl.int32)
    if KIND != POINTS:
        offers = tl.load(sums + 3 * (base + lane) + 1, above, other=1.0)
        line = image.to(tl.int64) * drafts + tl.load(tree.draft_rows + row, drafted, other=0)
        chance = tl.load(tree.draft_probs + line * V + token, drafted, other=1.0).to(tl.float64)
        chance = chance / tl.load(sums + 3 * row + 1, drafted, other=1.0)
        sound = tl.min(tl.where(chance > 0.0, 1, 0), axis=0)
        chances = tl.where(chance > 0.0, chance, 1.0)
    return owns, chances, totals, offers, sound


@kernel
def walk_block_kernel(
    tree,
    out,
    depths,
    choices,
    sums,
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
    """One program per (node, image) decides if the chain may end there and draws a token; the last takes the farthest.

    Every program computes the weights w_i from the root down to its node.
    """
    wait_for_earlier_kernels()
    node, image = tl.program_id(0), tl.program_id(1)
    base = image * N
    lane = tl.arange(0, NODES)
    last = tl.load(tree.counts + image).to(tl.int32) - 1
    if goes_on(out, image, rows, ROWS) & (node <= last):
        accept, residual, bonus = noise_of(tree, image, N, ROLES)
        owns, chances, totals, offers, sound = chain_odds(tree, sums, image, drafts, last, V, N, KIND, NODES)
        weight = tl.full((), 1.0, tl.float64)
        joint = tl.full((), 1.0, tl.float64)
        for draft in range(1, node + 1):  # trips: levels
            own, offered = lane_of(owns, lane, draft), lane_of(chances, lane, draft)
            weight = tl.minimum(1.0, weight * own / offered)
            joint = tl.minimum(MOST_RATIO, joint * own / offered)
        row = tree.probs + (base + node).to(tl.int64) * V
        line = tree.draft_probs
        factor, taken, total = tl.full((), 1.0, tl.float64), tl.full((), 0.0, tl.float64), tl.full((), 1.0, tl.float64)
        kept = flip(tl.load(accept + node), weight if CAPPED else joint, 1.0)
        role = bonus
        if node < last:
            role = residual
            line = drafted_row(tree, image, node, drafts, V, N)
            scale, offer = weight / lane_of(totals, lane, node), 1.0 / lane_of(offers, lane, node)
            rest = left_sum(row, line, scale, offer, 0.0, V, BLOCK)
            kept = (weight == 1.0) | flip(tl.load(accept + node), rest, rest + (1.0 - weight))
            if rest > 0.0:
                factor, taken, total = scale, offer, rest
        tl.store(choices.nexts + base + node, kept.to(tl.int64))
        tl.store(choices.sounds + base + node, sound.to(tl.int64))
        if kept:
            uniform = tl.load(role + node)
            extra_token = draw_left(row, line, -1, factor, taken, 0.0, total, V, uniform, True, 2, BLOCK)
            tl.store(choices.tokens + base + node, extra_token)
    if is_judge(out, choices.arrivals, image, rows, ROWS) == 1:
        kept = tl.load(choices.nexts + base + lane, lane <= last, other=0, cache_modifier=".cg")
        length = tl.max(tl.where(kept == 1, lane, 0), axis=0).to(tl.int64)
        extra_token = tl.load(choices.tokens + base + length, cache_modifier=".cg")
        sound = tl.load(choices.sounds + base, cache_modifier=".cg")  # every program checks the whole chain
        tl.store(out.path + base + lane, lane.to(tl.int64) + 1, lane < length)
        conclude(out, image, length, extra_token, V, sound)


class ChainSums:
    """Sums over the rows of each node that a draft follows, [B, N, 3] float64, made in a launch before the walk.

    They are the sums of both models' rows and, if `top` is above 0, the entropy of the `top` likeliest tokens.
    """

    def __init__(self, shape: Shape, device: torch.device, kind: int, top: int = 0) -> None:
        self.sums = torch.ones(shape.batch, shape.nodes, 3, dtype=torch.float64, device=device)
        self._kind, self._top = kind, top
        self._block = min(2048, tile(shape.vocab_size)) if top else tile(shape.vocab_size)

    def fill(self, tree: BatchTree) -> None:
        """Compute the sums for the trees of a batch."""
        batch, nodes, vocab_size = tree.probs.shape
        launch(
            sum_rows_kernel,
            (nodes, batch),
            row_bytes(tree, nodes, 4 if self._kind == POINTS.value else 8),
            tree,
            self.sums,
            self._top,
            vocab_size,
            nodes,
            tree.draft_probs.shape[1],
            KIND=self._kind,
            ENTROPY=int(self._top > 0),
            BLOCK=self._block,
            warps=4,
        )


def chain_walk(
    function: Any, shape: Shape, device: torch.device, *own: Any, top: int = 0, warps: int = 8, **constants: int
) -> Decide:
    """Return a rule for chains: `function(tree, out, *own, sums, V, N, drafts, rows, KIND, NODES, **constants)`.

    Args:
        function: The kernel; its `sums` are those of `ChainSums`.
        shape: Sizes of the trees.
        device: Device of the buffers.
        *own: The kernel's own arguments.
        top: See `ChainSums`.
        warps: See `launch_walk`.
        **constants: The kernel's own constants.
    """
    constants = {"KIND": kind_of(shape.drawn), "NODES": next_power_of_2(max(2, shape.nodes)), **constants}
    constants["BLOCK"] = min(2048, tile(shape.vocab_size, wide=True))
    sums = ChainSums(shape, device, constants["KIND"], top)

    def decide(tree: BatchTree, depths: Tensor, out: Verdicts) -> None:
        sums.fill(tree)
        launch_walk(function, shape, tree, out, row_bytes(tree, 2), *own, sums.sums, warps=warps, **constants)

    return decide


def block_walk(rule: BlockVerification | HierarchicalVerification, shape: Shape, device: torch.device) -> Decide:
    """Return the device form of rules 'block' and 'hsd'."""
    kind = kind_of(shape.drawn)
    sums = ChainSums(shape, device, kind)
    walk = node_walk(
        walk_block_kernel,
        shape,
        device,
        sums.sums,
        target_bytes=2 * 4,
        CAPPED=int(getattr(rule, "end", "capped") == "capped"),
        KIND=kind,
        BLOCK=min(1024, tile(shape.vocab_size, wide=True)),
    )

    def decide(tree: BatchTree, depths: Tensor, out: Verdicts) -> None:
        sums.fill(tree)
        walk(tree, depths, out)

    return decide
