"""Walks that test every node by itself: point proposals, greedy match, greedy LANTERN and typical acceptance.

All nodes are tested at once, and the last program takes the longest path of passed nodes. The references in
`algos.accept` are `point`, `greedy`, `lantern_greedy`, `typical` and `walk.kept_ends`.
"""

from typing import Any

import torch
from torch import Tensor

from underpaint.algos.accept.greedy import GreedyMatch
from underpaint.algos.accept.lantern_greedy import LanternGreedy, LanternPPGreedy
from underpaint.algos.accept.point import PointProposals
from underpaint.algos.accept.typical import TypicalAcceptance
from underpaint.runtime.device.kernels.pool import NONE, RELATIVE, Pools, no_pools, pool, pools_of
from underpaint.runtime.device.kernels.row_maths import draw, flip, hide, restore, row_argmax, whole, whole_sum
from underpaint.runtime.device.kernels.siblings import is_judge
from underpaint.runtime.device.kernels.walk import (
    BatchTree,
    Decide,
    Shape,
    Verdicts,
    conclude,
    launch_walk,
    row_bytes,
    tile,
)
from underpaint.runtime.device.launch import kernel, next_power_of_2, tl, wait_for_earlier_kernels

FIRST = tl.constexpr(0)
"""Only the first of the siblings that pass goes on; the path ends at the deepest node."""
LONGEST = tl.constexpr(1)
"""All siblings that pass go on; the path ends at the first of the deepest nodes."""
LIKELIEST = tl.constexpr(2)
"""As LONGEST, but the path ends at the likeliest of the deepest nodes."""
GREEDY = tl.constexpr(0)
BONUS = tl.constexpr(1)
RESIDUAL = tl.constexpr(2)
"""The extra token: the likeliest, drawn from the target's row, or drawn from what the last node's children leave."""


@kernel
def pass_by_argmax(
    tree, pools, passes, image, node, V, N, POOLED: tl.constexpr, BLOCK: tl.constexpr, KBLOCK: tl.constexpr
) -> None:
    """Store whether a node holds its parent's likeliest token, or outweighs that token together with its pool."""
    base = image * N
    row = tree.probs + (base + tl.load(tree.parents + base + node)) * V
    token = tl.load(tree.tokens + base + node)
    best, top = row_argmax(row, V, BLOCK)
    kept = token == top
    if POOLED != NONE:
        own = tl.load(row + token).to(tl.float64)
        limit = tl.load(pools.bound)
        if POOLED == RELATIVE:
            limit = limit * own
        mass, _ = pool(row, pools.neighbours + token * pools.columns, pools.k, limit, 1.0, KBLOCK)
        boosted = own + mass
        kept = kept | (boosted > best) | ((boosted == best) & (token < top))
    tl.store(passes + base + node, kept.to(tl.int64))


@kernel
def pass_by_typical(tree, bound, passes, logs, image, node, V, N, BLOCK: tl.constexpr) -> None:
    """Store whether p(x) > min(epsilon, alpha exp(-H)) at a node, and log p(x) in `logs`. bound: [2] float64."""
    base = image * N
    row = tree.probs + (base + tl.load(tree.parents + base + node)) * V
    entropy = tl.full((), 0.0, tl.float64)
    for start in range(0, V, BLOCK):
        place = start + tl.arange(0, BLOCK)
        weights = tl.load(row + place, place < V, other=0.0).to(tl.float64)
        in_support = weights > 0.0
        entropy -= tl.sum(tl.where(in_support, weights * tl.log(tl.where(in_support, weights, 1.0)), 0.0), axis=0)
    least = tl.load(bound)
    alpha = tl.load(bound + 1)
    if alpha < float("inf"):
        least = tl.minimum(least, alpha * tl.exp(-entropy))
    own = tl.load(row + tl.load(tree.tokens + base + node)).to(tl.float64)
    tl.store(passes + base + node, (own > least).to(tl.int64))
    tl.store(logs + base + node, tl.log(tl.where(own > 0.0, own, 1.0)))


@kernel
def pass_by_point(
    tree, passes, image, node, V, N, ROLES: tl.constexpr, NODES: tl.constexpr, BLOCK: tl.constexpr
) -> None:
    """Store whether a node's flip keeps it, given what the siblings before it leave of its parent's row.

    Masses are integers, so that rest is exact, and a flip's probability is off by at most V * 2^-60 of the row's mass.
    """
    base = image * N
    parent = tl.load(tree.parents + base + node)
    row = tree.probs + (base + parent) * V
    proposed = tl.load(tree.tokens + base + node)
    lane = tl.arange(0, NODES)
    elder = (lane < node) & (tl.load(tree.parents + base + lane, lane < N, other=-1) == parent)
    token = tl.load(tree.tokens + base + lane, elder, other=-1)
    again = (token[:, None] == token[None, :]) & (lane[None, :] < lane[:, None])
    fresh = elder & (tl.sum(again.to(tl.int32), axis=1) == 0)
    tried = tl.where(fresh, whole(tl.load(row + token, elder, other=0.0)), 0)
    own = tl.where(tl.max((token == proposed).to(tl.int32), axis=0) == 1, 0, whole(tl.load(row + proposed)))
    left = whole_sum(row, V, BLOCK) - tl.sum(tried, axis=0)
    kept = flip(tl.load(tree.uniforms + (image * ROLES + 1) * N + node), own.to(tl.float64), left.to(tl.float64))
    tl.store(passes + base + node, kept.to(tl.int64))


@kernel
def take_longest(
    tree, out, depths, passes, logs, image, V, N,
    CHOOSE: tl.constexpr, EXTRA: tl.constexpr, ROLES: tl.constexpr, NODES: tl.constexpr, BLOCK: tl.constexpr,
) -> None:  # fmt: skip
    """Write an image's verdict. A node is kept if it and all its ancestors passed: one test on its ancestor mask."""
    base = image * N
    node = tl.arange(0, NODES)
    here = node.to(tl.int64)
    inside = node < tl.load(tree.counts + image)
    passed = tl.load(passes + base + node, inside & (node > 0), other=0, cache_modifier=".cg") == 1
    parent = tl.load(tree.parents + base + node, inside, other=-1)
    if CHOOSE == FIRST:
        earlier = (parent[:, None] == parent[None, :]) & (node[None, :] < node[:, None]) & passed[None, :]
        passed = passed & (tl.sum(earlier.to(tl.int32), axis=1) == 0)
    own = tl.full((NODES,), 1, tl.int64) << here
    good = tl.sum(tl.where(passed | (node == 0), own, 0), axis=0)
    mask = tl.load(tree.masks + base + node, inside, other=0)
    alive = inside & ((mask & good) == mask)
    depth = tl.where(alive, tl.load(depths + base + node, inside, other=-1), -1)
    deepest = tl.max(depth, axis=0)
    ends = depth == deepest
    if CHOOSE == LIKELIEST:
        above = ((mask[:, None] >> here[None, :]) & 1) == 1
        log = tl.load(logs + base + node, inside & (node > 0), other=0.0, cache_modifier=".cg")
        sums = tl.sum(tl.where(above, log[None, :], 0.0), axis=1)
        best = tl.max(tl.where(ends, sums, float("-inf")), axis=0)
        ends = ends & (sums == best)
    end = tl.min(tl.where(ends, here, NODES), axis=0)
    line = tl.sum(tl.where(here == end, mask, 0), axis=0)
    on_path = ((line >> here) & 1) == 1
    tl.store(out.path + base + depth - 1, here, on_path & (node > 0))
    row = tree.probs + (base + end) * V
    if EXTRA == GREEDY:
        _, extra_token = row_argmax(row, V, BLOCK)
    else:
        tried = inside & (parent == end) & (EXTRA == RESIDUAL)
        role = 3 - tl.max(tried.to(tl.int32), axis=0)
        uniform = tl.load(tree.uniforms + (image * ROLES + role) * N + end)
        token = tl.load(tree.tokens + base + node, tried, other=0)
        weights = hide(row, token, tried)
        extra_token = draw(row, V, uniform, BLOCK)
        restore(row, token, weights, tried)
    conclude(out, image, deepest, extra_token, V, 1)


@kernel
def walk_greedy_kernel(
    tree,
    out,
    depths,
    passes,
    arrivals,
    pools,
    V,
    N,
    drafts,
    rows,
    CHOOSE: tl.constexpr,
    POOLED: tl.constexpr,
    RESIDUAL: tl.constexpr,
    ROLES: tl.constexpr,
    NODES: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    KBLOCK: tl.constexpr,
) -> None:
    """One program per (node, image) tests by `pass_by_argmax`; an image's last takes the path."""
    wait_for_earlier_kernels()
    node, image = tl.program_id(0) + 1, tl.program_id(1)
    if node < tl.load(tree.counts + image):
        pass_by_argmax(tree, pools, passes, image, node, V, N, POOLED, BLOCK, KBLOCK)
    if is_judge(out, arrivals, image, rows, ROWS) == 1:
        take_longest(tree, out, depths, passes, passes, image, V, N, CHOOSE, GREEDY, ROLES, NODES, BLOCK)


@kernel
def walk_typical_kernel(
    tree,
    out,
    depths,
    passes,
    arrivals,
    bound,
    logs,
    V,
    N,
    drafts,
    rows,
    CHOOSE: tl.constexpr,
    ROLES: tl.constexpr,
    NODES: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """One program per (node, image) tests by `pass_by_typical`; an image's last takes the path."""
    wait_for_earlier_kernels()
    node, image = tl.program_id(0) + 1, tl.program_id(1)
    if node < tl.load(tree.counts + image):
        pass_by_typical(tree, bound, passes, logs, image, node, V, N, BLOCK)
    if is_judge(out, arrivals, image, rows, ROWS) == 1:
        take_longest(tree, out, depths, passes, logs, image, V, N, CHOOSE, BONUS, ROLES, NODES, BLOCK)


@kernel
def walk_points_kernel(
    tree,
    out,
    depths,
    passes,
    arrivals,
    V,
    N,
    drafts,
    rows,
    ROLES: tl.constexpr,
    NODES: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """One program per (node, image) tests by `pass_by_point`; an image's last takes the path."""
    wait_for_earlier_kernels()
    node, image = tl.program_id(0) + 1, tl.program_id(1)
    if node < tl.load(tree.counts + image):
        pass_by_point(tree, passes, image, node, V, N, ROLES, NODES, BLOCK)
    if is_judge(out, arrivals, image, rows, ROWS) == 1:
        take_longest(tree, out, depths, passes, passes, image, V, N, FIRST, RESIDUAL, ROLES, NODES, BLOCK)


def _walk_by_tests(
    function: Any, shape: Shape, device: torch.device, *own: Any, wide: int = 0, **constants: int
) -> Decide:
    """Return the rule of `function`, a kernel that tests every node. own, constants: for it. wide: 1 for float64."""
    passes = torch.zeros(shape.batch, shape.nodes, dtype=torch.int64, device=device)
    arrivals = torch.zeros(shape.batch, dtype=torch.int32, device=device)

    def decide(tree: BatchTree, depths: Tensor, out: Verdicts) -> None:
        launch_walk(
            function,
            shape,
            tree,
            out,
            row_bytes(tree, shape.nodes),
            depths,
            passes,
            arrivals,
            *own,
            NODES=next_power_of_2(max(2, shape.nodes)),
            BLOCK=tile(shape.vocab_size, wide == 1),
            programs=max(1, shape.nodes - 1),
            warps=4,
            **constants,
        )

    return decide


def point_walk(rule: PointProposals, shape: Shape, device: torch.device) -> Decide:
    """Return the device form of rule 'point'."""
    return _walk_by_tests(walk_points_kernel, shape, device)


def greedy_walk(
    rule: GreedyMatch | LanternGreedy | LanternPPGreedy,
    shape: Shape,
    device: torch.device,
    pooling: tuple[Pools, dict[str, int]] | None = None,
) -> Decide:
    """Return the device form of rule 'greedy' or, with `pooling`, of greedy LANTERN."""
    pools, constants = pooling or no_pools(device)
    choose = LONGEST if getattr(rule, "choose", "first") == "longest" else FIRST
    return _walk_by_tests(walk_greedy_kernel, shape, device, pools, CHOOSE=choose.value, **constants)


def lantern_greedy_walk(rule: LanternGreedy | LanternPPGreedy, shape: Shape, device: torch.device) -> Decide:
    """Return the device form of rules 'lantern_greedy' and 'lantern_pp_greedy'."""
    return greedy_walk(rule, shape, device, pools_of(rule, device))


def typical_walk(rule: TypicalAcceptance, shape: Shape, device: torch.device) -> Decide:
    """Return the device form of rule 'typical'."""
    bound = torch.tensor([rule.epsilon, rule.alpha], dtype=torch.float64, device=device)
    logs = torch.zeros(shape.batch, shape.nodes, dtype=torch.float64, device=device)
    choose = LIKELIEST if rule.choose == "likeliest" else LONGEST
    return _walk_by_tests(walk_typical_kernel, shape, device, bound, logs, wide=1, CHOOSE=choose.value)
