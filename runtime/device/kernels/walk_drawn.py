"""The walk over drawn siblings: speculative sampling, multi-round, without replacement, and LANTERN's forms of them.

The reference is `algos.accept.walk.try_siblings` and, with pools, `algos.accept.lantern.Pooling.try_drawn`. Noise is by
node, so what a node decides does not depend on those above it: all of them decide at once.
"""

import torch
from torch import Tensor

from underpaint.algos.accept.ensemble import StaticEnsemble
from underpaint.runtime.device.kernels.pool import NONE, PAPER, RELATIVE, RELEASED, Pools, clear, no_pools, pool
from underpaint.runtime.device.kernels.row_maths import copy_row, draw, flip, row_sum, scaled
from underpaint.runtime.device.kernels.siblings import (
    Choices,
    children_of,
    follow,
    goes_on,
    is_marked,
    mark,
    next_offer,
    take_offer,
    unmark,
)
from underpaint.runtime.device.kernels.walk import (
    BatchTree,
    Decide,
    Shape,
    Verdicts,
    drafted_row,
    lane_of,
    launch_walk,
    noise_of,
    row_bytes,
    tile,
)
from underpaint.runtime.device.language import kernel, next_power_of_2, tl


@kernel
def walk_drawn_kernel(
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
    MIXED: tl.constexpr,
    POOLED: tl.constexpr,
    RESIDUAL: tl.constexpr,
    ROLES: tl.constexpr,
    NODES: tl.constexpr,
    CHILDREN: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    KBLOCK: tl.constexpr,
) -> None:
    """One program a (node, image): the child that it keeps, or the token behind it; the last follows the kept ones.

    `rest` times `share` is what the target still owes, or its row while that is fresh. The drafter's row times `offer`,
    and once nothing of it is left `even`, is what the next child was drawn from. MIXED: the target is mixed with the
    drafter, of weight `pools.bound`. left [B, N, V] float64: a row of each node.
    """
    node, image = tl.program_id(0), tl.program_id(1)
    base = image * N
    SPARES: tl.constexpr = (POOLED != NONE) and (RESIDUAL == RELEASED)
    if goes_on(out, image, rows, ROWS) & (node < tl.load(tree.counts + image)):
        accept, residual, bonus = noise_of(tree, image, N, ROLES)
        row = tree.probs + (base + node) * V
        line = drafted_row(tree, image, node, drafts, V, N)
        rest = left + (base + node).to(tl.int64) * V
        turns = tl.arange(0, CHILDREN)
        kids, count = children_of(tree, image, node, N, NODES, CHILDREN)
        there = kids >= 0
        tokens = tl.load(tree.tokens + base + kids, there, other=0)
        flips = tl.load(accept + kids, there, other=0.0)
        wanted = tl.load(row + tokens, there, other=0.0).to(tl.float64)
        weights = tl.load(line + tokens, there, other=0.0).to(tl.float64)
        excess = wanted
        whole = tl.full((), 1.0, tl.float64)
        given = tl.full((), 1.0, tl.float64)
        if count > 0:
            whole = 1.0 / row_sum(row, V, BLOCK)
            given = 1.0 / row_sum(line, V, BLOCK)
        share, offer, even = whole, given, tl.full((), 0.0, tl.float64)
        fresh = tl.full((), 1, tl.int32)
        if POOLED != NONE:
            scaled(row, rest, whole, V, BLOCK)
            tl.debug_barrier()
            fresh, share = tl.full((), 0, tl.int32), tl.full((), 1.0, tl.float64)
        kept = tl.full((), -1, tl.int64)
        sound = tl.full((), 1, tl.int64)
        rejected = tl.full((), 0, tl.int32)
        turn = tl.full((), 0, tl.int32)
        while turn < count:  # trips: children
            proposed = lane_of(tokens, turns, turn)
            own = lane_of(excess, turns, turn) * share
            again = tl.max(((tokens == proposed) & (turns < turn)).to(tl.int32), axis=0)
            chance = lane_of(weights, turns, turn) * offer + even
            if REPLACED == 0:
                chance = tl.where(again == 0, chance, 0.0)
            if chance <= 0.0:
                sound = tl.full((), 0, tl.int64)
            near = pools.neighbours + proposed * pools.columns
            mass = tl.full((), 0.0, tl.float64)
            codes = tl.full((), 0, tl.int64)
            if POOLED != NONE:
                own = tl.abs(tl.load(rest + proposed))
                limit = tl.load(pools.bound)
                if POOLED == RELATIVE:
                    limit = limit * own
                mass, codes = pool(rest, near, pools.k, limit, KBLOCK)
            if MIXED:
                mass = tl.load(pools.bound) * (chance - own)
            if flip(lane_of(flips, turns, turn), own + mass, chance):
                kept = lane_of(kids, turns, turn)
                count = turn
            else:
                rejected = tl.full((), 1, tl.int32)
                spared = tl.full((), 0, tl.int64)
                if POOLED != NONE:
                    if RESIDUAL == PAPER:
                        tl.debug_barrier()
                        clear(rest, near, codes, KBLOCK)
                        if REPLACED == 0:
                            tl.debug_barrier()
                            nothing_left = mark(tl.zeros((CHILDREN,), tl.float64), turns >= 0)
                            tl.store(rest + tokens, nothing_left, there & (turns < turn))
                    if RESIDUAL == RELEASED:
                        spared = tl.where(codes > 0, tl.minimum(pools.k + 1, pools.columns), 0).to(tl.int64)
                total, remaining = take_offer(
                    row, rest, fresh, share, line, offer, even, proposed, near, spared, V, REPLACED, SPARES, BLOCK
                )
                lacking = excess * share - tl.where((turns >= turn) | (REPLACED == 1), weights * offer + even, 0.0)
                excess = tl.where(lacking > 0.0, lacking, 0.0)
                turn += 1
                fresh = tl.full((), 0, tl.int32)
                if total > 0.0:
                    share = 1.0 / total
                elif POOLED == NONE:
                    # Only rounding tells this rejection from an acceptance, so it takes nothing: once more, up to here.
                    count = turn - 1
                    turn = tl.full((), 0, tl.int32)
                    fresh = tl.full((), 1, tl.int32)
                    excess, share = wanted, whole
                elif RESIDUAL != RELEASED:
                    kept = lane_of(kids, turns, turn - 1)
                    count = turn
                if POOLED != NONE:
                    for start in range(0, V, BLOCK):
                        place = start + tl.arange(0, BLOCK)
                        here = tl.load(rest + place, place < V, other=0.0)
                        alike = mark(tl.full((BLOCK,), 1.0, tl.float64) / V, is_marked(here))
                        tl.store(rest + place, tl.where(total > 0.0, here * share, alike), place < V)
                    tl.debug_barrier()
                    share = tl.full((), 1.0, tl.float64)
                if REPLACED == 0:
                    offer, even = next_offer(remaining, V - turn)
                    if turn == 0:
                        offer, even = given, tl.full((), 0.0, tl.float64)
        tl.store(choices.nexts + base + node, kept)
        tl.store(choices.sounds + base + node, sound)
        if kept < 0:
            uniform = tl.load(tl.where(rejected == 1, residual, bonus) + node)
            if fresh == 1:
                copy_row(row, rest, V, BLOCK)
            if SPARES and REPLACED == 0:
                unmark(rest, V, BLOCK)
            tl.debug_barrier()
            tl.store(choices.tokens + base + node, draw(rest, V, uniform, BLOCK))
    follow(tree, out, depths, choices, image, rows, V, N, NODES, ROWS)


def drawn_walk(
    rule: object, shape: Shape, device: torch.device, pooling: tuple[Pools, dict[str, int]] | None = None
) -> Decide:
    """The device form of the rules that try drawn siblings one by one; pooling: of LANTERN, None for the exact rules.

    Siblings are independent draws ("iid"), or each is drawn from what those before it left of the distribution.
    """
    pools, constants = pooling or no_pools(device)
    choices = Choices.allocate(shape, device)
    left = torch.zeros(shape.batch, shape.nodes, shape.vocab_size, dtype=torch.float64, device=device)

    def decide(tree: BatchTree, depths: Tensor, out: Verdicts) -> None:
        launch_walk(
            walk_drawn_kernel,
            shape,
            tree,
            out,
            row_bytes(tree, shape.nodes) + row_bytes(tree, tree.draft_probs.shape[1], 4 + 8 + 8),
            depths,
            choices,
            pools,
            left,
            REPLACED=int(shape.drawn == "iid"),
            NODES=next_power_of_2(max(2, shape.nodes)),
            CHILDREN=next_power_of_2(max(2, shape.children)),
            BLOCK=min(2048 if shape.drawn == "iid" else 1024, tile(shape.vocab_size, wide=True)),
            warps=4,
            programs=shape.nodes,
            **{"MIXED": 0, **constants},
        )

    return decide


def ensemble_walk(rule: StaticEnsemble, shape: Shape, device: torch.device) -> Decide:
    """The device form of rule 'ensemble'."""
    pools, constants = no_pools(device)
    mixed = pools._replace(bound=torch.tensor([1.0 - rule.weight], dtype=torch.float64, device=device))
    return drawn_walk(rule, shape, device, (mixed, {**constants, "MIXED": 1}))
