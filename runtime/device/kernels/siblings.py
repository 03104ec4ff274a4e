"""Walks in which all nodes decide at once: one program per node, and the last one follows the kept children.

Noise is addressed by node, so a node's decision does not depend on the nodes above it.
"""

from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from underpaint.runtime.device.kernels.children import is_last
from underpaint.runtime.device.kernels.walk import (
    BatchTree,
    Decide,
    Shape,
    Verdicts,
    conclude,
    drafted_row,
    launch_walk,
    row_bytes,
    takes_part,
)
from underpaint.runtime.device.launch import kernel, next_power_of_2, tl


class Choices(NamedTuple):
    """The decision of each node in walks where all nodes decide at once; [B, N] int64 unless noted.

    Attributes:
        nexts: The kept child, or -1.
        tokens: The token drawn if no child is kept.
        sounds: 0 if a child cannot have been drawn.
        arrivals: Counters for `is_last`, [B] int32; 0 before and after a launch.
    """

    nexts: Tensor
    tokens: Tensor
    sounds: Tensor
    arrivals: Tensor

    @classmethod
    def allocate(cls, shape: Shape, device: torch.device) -> Self:
        """Allocate buffers for trees of a shape."""
        nexts, tokens, sounds = torch.zeros(3, shape.batch, shape.nodes, dtype=torch.int64, device=device)
        return cls(nexts, tokens, sounds, torch.zeros(shape.batch, dtype=torch.int32, device=device))


@kernel
def goes_on(out, image, rows, ROWS: tl.constexpr):
    """Return whether an image's nodes have to decide: it still runs, and all its logits are finite."""
    lane = tl.arange(0, ROWS)
    sound = tl.min(tl.load(out.finite + image * rows + lane, lane < rows, other=1), axis=0)
    return (tl.load(out.status + image) == 0) & (sound == 1)


@kernel
def is_judge(out, arrivals, image, rows, ROWS: tl.constexpr):
    """Return 1 in the last of an image's programs if the image takes part, see `walk.takes_part`; else 0."""
    judges = tl.full((), 0, tl.int32)
    if is_last(arrivals + image, tl.num_programs(0)):
        judges = takes_part(out.status, out.finite, out.taken, image, rows, ROWS)
    return judges


@kernel
def follow(tree, out, depths, choices, image, rows, V, N, NODES: tl.constexpr, ROWS: tl.constexpr) -> None:
    """Write an image's verdict from its nodes' `Choices`, in the last of its programs.

    A node is on the path if it and all its ancestors were kept: one test on its ancestor mask.
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
    """Return the children of a node in order, [CHILDREN] int64 padded with -1, and their number."""
    lane = tl.arange(0, NODES)
    inside = (lane > 0) & (lane < tl.load(tree.counts + image))
    below = inside & (tl.load(tree.parents + image * N + lane, inside, other=-1) == node)
    rank = tl.cumsum(below.to(tl.int32), axis=0) - 1
    here = (rank[None, :] == tl.arange(0, CHILDREN)[:, None]) & below[None, :]
    kids = tl.sum(tl.where(here, lane[None, :] + 1, 0), axis=1).to(tl.int64) - 1
    return kids, tl.sum(below.to(tl.int32), axis=0)


@kernel
def drawn_children(tree, image, node, accept, drafts, V, N, NODES: tl.constexpr, CHILDREN: tl.constexpr):
    """Return a node's target row, the row that its children were drawn from, and the children as `children_of`.

    Also return for each child [CHILDREN]: its token (-1: none), its flip's uniform, and its weight in that second row.
    """
    row = tree.probs + (image * N + node).to(tl.int64) * V
    line = drafted_row(tree, image, node, drafts, V, N)
    kids, count = children_of(tree, image, node, N, NODES, CHILDREN)
    there = kids >= 0
    tokens = tl.load(tree.tokens + image * N + kids, there, other=-1)
    flips = tl.load(accept + kids, there, other=0.0)
    return row, line, kids, count, tokens, flips, tl.load(line + tokens, there, other=0.0)


def node_walk(
    function: Any,
    shape: Shape,
    device: torch.device,
    *own: Any,
    target_bytes: int = 4,
    draft_bytes: int = 0,
    warps: int = 4,
    **constants: int,
) -> Decide:
    """Return the rule of `function(tree, out, depths, choices, *own, V, N, drafts, rows, NODES, **constants)`.

    Args:
        function: The kernel; each of its programs decides one node.
        shape: Sizes of the trees.
        device: Device of the buffers.
        *own: The kernel's own arguments.
        target_bytes: Bytes moved per value of a target row, one for each node.
        draft_bytes: Bytes moved per value of a draft row.
        warps: See `launch_walk`.
        **constants: The kernel's own constants, and BLOCK.
    """
    choices, constants = Choices.allocate(shape, device), {"NODES": next_power_of_2(max(2, shape.nodes)), **constants}

    def decide(tree: BatchTree, depths: Tensor, out: Verdicts) -> None:
        moved = row_bytes(tree, shape.nodes, target_bytes) + row_bytes(tree, tree.draft_probs.shape[1], draft_bytes)
        buffers = depths, choices, *own
        launch_walk(function, shape, tree, out, moved, *buffers, warps=warps, programs=shape.nodes, **constants)

    return decide
