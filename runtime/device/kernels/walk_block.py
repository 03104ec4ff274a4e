"""Block verification and HSD on the device: a chain judged as a whole, as `algos.accept.block.judge_chain`."""

from typing import Any

import torch
from torch import Tensor

from underpaint.algos.accept.block import BlockVerification
from underpaint.algos.accept.hsd import HierarchicalVerification
from underpaint.algos.accept.walk import MOST_RATIO as REFERENCE_MOST
from underpaint.runtime.device.kernels.proposals import POINTS, kind_of
from underpaint.runtime.device.kernels.row_maths import copy_row, draw, flip, row_sum
from underpaint.runtime.device.kernels.siblings import Choices, goes_on, is_judge, take_offer
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
    scratch,
    tile,
)
from underpaint.runtime.device.language import kernel, launch, next_power_of_2, tl

MOST_RATIO = tl.constexpr(REFERENCE_MOST)


@kernel
def sum_rows_kernel(tree, sums, V, N, drafts, KIND: tl.constexpr, BLOCK: tl.constexpr) -> None:
    """One program a (node, image): the sums of the target's and the drafter's rows where a draft follows."""
    node, image = tl.program_id(0), tl.program_id(1)
    if node + 1 < tl.load(tree.counts + image):
        place = image * N + node
        tl.store(sums + 2 * place, row_sum(tree.probs + place * V, V, BLOCK))
        if KIND != POINTS:
            tl.store(sums + 2 * place + 1, row_sum(drafted_row(tree, image, node, drafts, V, N), V, BLOCK))


@kernel
def chain_odds(tree, sums, image, drafts, last, V, N, KIND: tl.constexpr, NODES: tl.constexpr):
    """What a chain of `last` drafts is judged by, float64 [NODES] each; and whether all drafts can have been drawn.

    p(x) and q(x) in the lane of each draft; the sums of the target's and the drafter's rows in that of the node before.
    """
    base = image * N
    lane = tl.arange(0, NODES)
    above = lane < last
    drafted = (lane > 0) & (lane <= last)
    token = tl.load(tree.tokens + base + lane, drafted, other=0)
    row = base + lane - 1
    totals = tl.load(sums + 2 * (base + lane), above, other=1.0)
    own = tl.load(tree.probs + row * V + token, drafted, other=0.0).to(tl.float64)
    owns = own / tl.load(sums + 2 * row, drafted, other=1.0)
    chances = tl.full((NODES,), 1.0, tl.float64)
    offers = tl.full((NODES,), 1.0, tl.float64)
    sound = tl.full((), 1, tl.int32)
    if KIND != POINTS:
        offers = tl.load(sums + 2 * (base + lane) + 1, above, other=1.0)
        line = image.to(tl.int64) * drafts + tl.load(tree.draft_rows + row, drafted, other=0)
        chance = tl.load(tree.draft_probs + line * V + token, drafted, other=1.0).to(tl.float64)
        chance = chance / tl.load(sums + 2 * row + 1, drafted, other=1.0)
        sound = tl.min(tl.where(chance > 0.0, 1, 0), axis=0)
        chances = tl.where(chance > 0.0, chance, 1.0)
    return owns, chances, totals, offers, sound


@kernel
def store_excess(row, line, token, rest, scale, offer, V, KIND: tl.constexpr, BLOCK: tl.constexpr):
    """`rest` [V] float64 becomes [scale * row - offer * line]_+; its sum. Of points, `line` is 1 at `token` alone."""
    total = tl.full((), 0.0, tl.float64)
    tl.debug_barrier()
    for start in range(0, V, BLOCK):
        place = start + tl.arange(0, BLOCK)
        drafted = tl.where(place == token, 1.0, 0.0).to(tl.float64)
        if KIND != POINTS:
            drafted = tl.load(line + place, place < V, other=0.0).to(tl.float64) * offer
        target = tl.load(row + place, place < V, other=0.0).to(tl.float64) * scale
        here = tl.maximum(target - drafted, 0.0)
        total += tl.sum(here, axis=0)
        tl.store(rest + place, here, place < V)
    tl.debug_barrier()
    return total


@kernel
def walk_block_kernel(
    tree,
    out,
    sums,
    choices,
    left,
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
    DRAW_BLOCK: tl.constexpr,
) -> None:
    """One program a (node, image): whether the chain may end there, and with what token; the last takes the farthest.

    The weights w_i go down the chain, in every program.
    """
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
        row = tree.probs + (base + node) * V
        rest = left + (base + node).to(tl.int64) * V
        total = tl.full((), 0.0, tl.float64)
        kept = flip(tl.load(accept + node), weight if CAPPED else joint, 1.0)
        role = bonus
        if node < last:
            role = residual
            scale, offer = weight / lane_of(totals, lane, node), 1.0 / lane_of(offers, lane, node)
            line = drafted_row(tree, image, node, drafts, V, N)
            total, _ = take_offer(row, rest, 1, scale, line, offer, 0.0, -1, line, 0, V, True, False, BLOCK)
            kept = (weight == 1.0) | flip(tl.load(accept + node), total, total + (1.0 - weight))
        tl.store(choices.nexts + base + node, kept.to(tl.int64))
        tl.store(choices.sounds + base + node, sound.to(tl.int64))
        if kept:
            if total <= 0.0:
                copy_row(row, rest, V, BLOCK)
                tl.debug_barrier()
            tl.store(choices.tokens + base + node, draw(rest, V, tl.load(role + node), DRAW_BLOCK))
    if is_judge(out, choices.arrivals, image, rows, ROWS) == 1:
        kept = tl.load(choices.nexts + base + lane, lane <= last, other=0, cache_modifier=".cg")
        length = tl.max(tl.where(kept == 1, lane, 0), axis=0).to(tl.int64)
        found = tl.load(choices.tokens + base + length, cache_modifier=".cg")
        sound = tl.load(choices.sounds + base, cache_modifier=".cg")  # each program looks at the whole chain
        tl.store(out.path + base + lane, lane.to(tl.int64) + 1, lane < length)
        conclude(out, image, length, found, V, sound)


class ChainSums:
    """The sums of both models' rows [B, N, 2] float64 that a chain is judged by, in a launch before its walk."""

    def __init__(self, shape: Shape, device: torch.device, kind: int) -> None:
        self.sums = torch.ones(shape.batch, shape.nodes, 2, dtype=torch.float64, device=device)
        self._kind, self._block = kind, tile(shape.vocab_size)

    def fill(self, tree: BatchTree) -> None:
        """Sum the rows of a batch."""
        batch, nodes, vocab_size = tree.probs.shape
        moved = row_bytes(tree, nodes, 4 if self._kind == POINTS.value else 8)
        sizes, drafts = (vocab_size, nodes), tree.draft_probs.shape[1]
        launch(
            sum_rows_kernel,
            (nodes, batch),
            moved,
            tree,
            self.sums,
            *sizes,
            drafts,
            KIND=self._kind,
            BLOCK=self._block,
            warps=4,
        )


def chain_walk(
    function: Any, shape: Shape, device: torch.device, rows_read: int, *own: Any, warps: int = 8, **constants: int
) -> Decide:
    """A rule of chains: `function(tree, out, *own, sums, left, V, N, drafts, rows, KIND, NODES, **constants)`.

    rows_read: of float32 numbers by an image. sums [B, N, 2] float64: see `ChainSums`. left [B, V] float64: scratch.
    warps: see `launch_walk`.
    """
    left = scratch(shape, device)
    constants = {"KIND": kind_of(shape.drawn), "NODES": next_power_of_2(max(2, shape.nodes)), **constants}
    constants["BLOCK"] = tile(shape.vocab_size, wide=True)
    sums = ChainSums(shape, device, constants["KIND"])

    def decide(tree: BatchTree, depths: Tensor, out: Verdicts) -> None:
        sums.fill(tree)
        moved = row_bytes(tree, rows_read)
        launch_walk(function, shape, tree, out, moved, *own, sums.sums, left, warps=warps, **constants)

    return decide


def block_walk(rule: BlockVerification | HierarchicalVerification, shape: Shape, device: torch.device) -> Decide:
    """The device form of rules 'block' and 'hsd'."""
    kind = kind_of(shape.drawn)
    sums, choices = ChainSums(shape, device, kind), Choices.allocate(shape, device)
    left = torch.zeros(shape.batch, shape.nodes, shape.vocab_size, dtype=torch.float64, device=device)

    def decide(tree: BatchTree, depths: Tensor, out: Verdicts) -> None:
        sums.fill(tree)
        launch_walk(
            walk_block_kernel,
            shape,
            tree,
            out,
            row_bytes(tree, shape.nodes, 4 + 4 + 8 + 8),
            sums.sums,
            choices,
            left,
            CAPPED=int(getattr(rule, "end", "capped") == "capped"),
            KIND=kind,
            NODES=next_power_of_2(max(2, shape.nodes)),
            BLOCK=min(1024, tile(shape.vocab_size, wide=True)),
            DRAW_BLOCK=min(2048, tile(shape.vocab_size, wide=True)),
            warps=4,
            programs=shape.nodes,
        )

    return decide
