"""The walks in which every node passes or fails by its own test: greedy match, greedy LANTERN, typical acceptance.

Two kernels: one tests all nodes at once, the other takes the longest path of nodes that passed, as `algos.accept`'s
`greedy`, `lantern_greedy`, `typical` and `longest`.
"""

from typing import Final

import torch
from torch import Tensor

from underpaint.algos.accept.greedy import GreedyMatch
from underpaint.algos.accept.lantern_greedy import LanternGreedy, LanternPPGreedy
from underpaint.algos.accept.typical import TypicalAcceptance
from underpaint.runtime.device.kernels.pool import NONE, RELATIVE, pool
from underpaint.runtime.device.kernels.row_maths import draw, row_argmax
from underpaint.runtime.device.kernels.walk import (
    BatchTree,
    Decide,
    Shape,
    Verdicts,
    conclude,
    row_bytes,
    takes_part,
    tile,
)
from underpaint.runtime.device.kernels.walk_lantern import Pools, pools_of
from underpaint.runtime.device.language import kernel, launch, next_power_of_2, tl

FIRST: Final = 0
"""Of several siblings that pass, the first alone goes on; the path ends at the deepest node."""
LONGEST: Final = 1
"""All siblings that pass go on; the path ends at the first of the deepest nodes."""
LIKELIEST: Final = 2
"""As LONGEST, at the likeliest of the deepest nodes."""


@kernel
def pass_by_argmax_kernel(
    tokens,
    parents,
    counts,
    probs,
    neighbours,
    bound,
    passes,
    K,
    columns,
    V,
    N,
    POOLED: tl.constexpr,
    BLOCK: tl.constexpr,
    KBLOCK: tl.constexpr,
) -> None:
    """One program a (node, image): whether it holds its parent's likeliest token, or its pool outweighs that."""
    node, image = tl.program_id(0) + 1, tl.program_id(1)
    if node >= tl.load(counts + image):
        return
    tree = image * N
    row = probs + (tree + tl.load(parents + tree + node)) * V
    token = tl.load(tokens + tree + node)
    best, top = row_argmax(row, V, BLOCK)
    kept = token == top
    if POOLED != NONE:
        own = tl.load(row + token).to(tl.float64)
        limit = tl.load(bound)
        if POOLED == RELATIVE:
            limit = limit * own
        mass, _ = pool(row, neighbours + token * columns, K, limit, KBLOCK)
        boosted = own + mass
        kept = kept | (boosted > best) | ((boosted == best) & (token < top))
    tl.store(passes + tree + node, kept.to(tl.int64))


@kernel
def pass_by_typical_kernel(
    tokens,
    parents,
    counts,
    probs,
    bound,
    passes,
    logs,
    V,
    N,
    BLOCK: tl.constexpr,
) -> None:
    """One program a (node, image): whether p(x) > min(epsilon, alpha exp(-H)); `logs`: log p(x). bound: [2] float64."""
    node, image = tl.program_id(0) + 1, tl.program_id(1)
    if node >= tl.load(counts + image):
        return
    tree = image * N
    row = probs + (tree + tl.load(parents + tree + node)) * V
    entropy = tl.full((), 0.0, tl.float64)
    for start in range(0, V, BLOCK):
        place = start + tl.arange(0, BLOCK)
        weights = tl.load(row + place, place < V, other=0.0).to(tl.float64)
        held = weights > 0.0
        entropy -= tl.sum(tl.where(held, weights * tl.log(tl.where(held, weights, 1.0)), 0.0), axis=0)
    least = tl.load(bound)
    alpha = tl.load(bound + 1)
    if alpha < float("inf"):
        least = tl.minimum(least, alpha * tl.exp(-entropy))
    own = tl.load(row + tl.load(tokens + tree + node)).to(tl.float64)
    tl.store(passes + tree + node, (own > least).to(tl.int64))
    tl.store(logs + tree + node, tl.log(tl.where(own > 0.0, own, 1.0)))


@kernel
def walk_longest_kernel(
    parents,
    counts,
    depths,
    masks,
    probs,
    passes,
    logs,
    uniforms,
    path,
    taken,
    token,
    status,
    finite,
    V,
    N,
    rows,
    CHOOSE: tl.constexpr,
    GREEDY: tl.constexpr,
    ROLES: tl.constexpr,
    NODES: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """One program an image: a node is kept where its ancestors and itself passed, which is one operation on bits."""
    image = tl.program_id(0)
    if takes_part(status, finite, taken, image, rows, ROWS) == 0:
        return
    tree = image * N
    node = tl.arange(0, NODES)
    here = node.to(tl.int64)
    inside = node < tl.load(counts + image)
    passed = (tl.load(passes + tree + node, inside & (node > 0), other=0) == 1) & (node > 0)
    parent = tl.load(parents + tree + node, inside, other=-1)
    if CHOOSE == 0:
        earlier = (parent[:, None] == parent[None, :]) & (node[None, :] < node[:, None]) & passed[None, :]
        passed = passed & (tl.sum(earlier.to(tl.int32), axis=1) == 0)
    own = tl.full((NODES,), 1, tl.int64) << here
    good = tl.sum(tl.where(passed | (node == 0), own, 0), axis=0)
    mask = tl.load(masks + tree + node, inside, other=0)
    alive = inside & ((mask & good) == mask)
    depth = tl.where(alive, tl.load(depths + tree + node, inside, other=-1), -1)
    deepest = tl.max(depth, axis=0)
    ends = depth == deepest
    if CHOOSE == 2:
        above = ((mask[:, None] >> here[None, :]) & 1) == 1
        log = tl.load(logs + tree + node, inside & (node > 0), other=0.0)
        sums = tl.sum(tl.where(above, log[None, :], 0.0), axis=1)
        best = tl.max(tl.where(ends, sums, float("-inf")), axis=0)
        ends = ends & (sums == best)
    end = tl.min(tl.where(ends, here, NODES), axis=0)
    line = tl.sum(tl.where(here == end, mask, 0), axis=0)
    on_path = ((line >> here) & 1) == 1
    tl.store(path + tree + depth - 1, here, on_path & (node > 0))
    row = probs + (tree + end) * V
    if GREEDY:
        _, found = row_argmax(row, V, BLOCK)
    else:
        none = tl.full((2,), -1, tl.int64)
        uniform = tl.load(uniforms + image * ROLES * N + 3 * N + end)
        found = draw(row, V, uniform, none, BLOCK)
    conclude(status, taken, token, image, deepest, found, V)


def pass_by_argmax(tree: BatchTree, passes: Tensor, pools: Pools | None) -> None:
    """Fill passes [B, N] int64 by greedy match, or by greedy LANTERN with `pools`."""
    batch, nodes, vocab_size = tree.probs.shape
    if nodes == 1:
        return
    launch(
        pass_by_argmax_kernel,
        (nodes - 1, batch),
        row_bytes(tree, nodes - 1),
        tree.tokens,
        tree.parents,
        tree.counts,
        tree.probs,
        tree.tokens if pools is None else pools.neighbours,
        tree.uniforms if pools is None else pools.bound,
        passes,
        1 if pools is None else pools.k,
        0 if pools is None else pools.neighbours.shape[1],
        vocab_size,
        nodes,
        POOLED=NONE.value if pools is None else pools.kind,
        BLOCK=tile(vocab_size),
        KBLOCK=2 if pools is None else pools.tile,
    )


def pass_by_typical(tree: BatchTree, passes: Tensor, logs: Tensor, bound: Tensor) -> None:
    """Fill passes [B, N] int64 and logs [B, N] float64; bound [2] float64 is (epsilon, alpha)."""
    batch, nodes, vocab_size = tree.probs.shape
    if nodes == 1:
        return
    launch(
        pass_by_typical_kernel,
        (nodes - 1, batch),
        row_bytes(tree, nodes - 1),
        tree.tokens,
        tree.parents,
        tree.counts,
        tree.probs,
        bound,
        passes,
        logs,
        vocab_size,
        nodes,
        BLOCK=tile(vocab_size),
    )


def walk_longest(
    tree: BatchTree, depths: Tensor, out: Verdicts, passes: Tensor, logs: Tensor, choose: int, greedy: bool
) -> None:
    """Decide every image's tree by its nodes' tests; the extra token is the likeliest (`greedy`) or drawn."""
    batch, nodes, vocab_size = tree.probs.shape
    launch(
        walk_longest_kernel,
        (batch,),
        row_bytes(tree, 1),
        tree.parents,
        tree.counts,
        depths,
        tree.masks,
        tree.probs,
        passes,
        logs,
        tree.uniforms,
        out.path,
        out.taken,
        out.token,
        out.status,
        out.finite,
        vocab_size,
        nodes,
        out.finite.shape[1],
        CHOOSE=choose,
        GREEDY=greedy,
        ROLES=tree.uniforms.shape[1],
        NODES=next_power_of_2(max(2, nodes)),
        ROWS=next_power_of_2(out.finite.shape[1]),
        BLOCK=tile(vocab_size),
    )


def _by_nodes(shape: Shape, device: torch.device) -> tuple[Tensor, Tensor]:
    passes = torch.zeros(shape.batch, shape.nodes, dtype=torch.int64, device=device)
    return passes, torch.zeros(shape.batch, shape.nodes, dtype=torch.float64, device=device)


def greedy_walk(
    rule: GreedyMatch | LanternGreedy | LanternPPGreedy, shape: Shape, device: torch.device, pools: Pools | None = None
) -> Decide:
    """The device form of rule 'greedy'; with `pools`, of greedy LANTERN."""
    passes, logs = _by_nodes(shape, device)
    choose = LONGEST if getattr(rule, "choose", "first") == "longest" else FIRST

    def decide(tree: BatchTree, depths: Tensor, out: Verdicts) -> None:
        pass_by_argmax(tree, passes, pools)
        walk_longest(tree, depths, out, passes, logs, choose, greedy=True)

    return decide


def lantern_greedy_walk(rule: LanternGreedy | LanternPPGreedy, shape: Shape, device: torch.device) -> Decide:
    """The device form of rules 'lantern_greedy' and 'lantern_pp_greedy'."""
    return greedy_walk(rule, shape, device, pools_of(rule, device))


def typical_walk(rule: TypicalAcceptance, shape: Shape, device: torch.device) -> Decide:
    """The device form of rule 'typical'."""
    passes, logs = _by_nodes(shape, device)
    bound = torch.tensor([rule.epsilon, rule.alpha], dtype=torch.float64, device=device)
    choose = LIKELIEST if rule.choose == "likeliest" else LONGEST

    def decide(tree: BatchTree, depths: Tensor, out: Verdicts) -> None:
        pass_by_typical(tree, passes, logs, bound)
        walk_longest(tree, depths, out, passes, logs, choose, greedy=False)

    return decide
