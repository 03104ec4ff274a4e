"""Finds what walks and attention read of a tree: depths, first children, next siblings, and ancestors as bit masks."""

from typing import NamedTuple

from torch import Tensor

from underpaint.runtime.device.kernels.walk import BatchTree
from underpaint.runtime.device.launch import kernel, launch, next_power_of_2, tl, wait_for_earlier_kernels

MOST_NODES = 64
"""Largest number of nodes of a tree: one int64 holds a mask of them."""


class TreePlaces(NamedTuple):
    """Where each tree lies in the picture, see `tree_meta`: cells [B], positions and depths [B, N], all int64."""

    cells: Tensor
    positions: Tensor
    depths: Tensor


@kernel
def lay_out_tree(tree, layout, image, N, most, LEVELS: tl.constexpr, BLOCK: tl.constexpr) -> None:
    """Lay out an image's tree in registers. Each turn adds one level: a node reads its parent's mask and depth."""
    node = tl.arange(0, BLOCK)
    count = tl.load(tree.counts + image)
    parent = tl.load(tree.parents + image * N + node, node < N, other=-1).to(tl.int32)
    parent = tl.where(node < count, parent, -1)
    above = tl.maximum(parent, 0)
    own = tl.full((BLOCK,), 1, tl.int64) << node.to(tl.int64)
    mask, depth = own, tl.zeros((BLOCK,), tl.int32)
    for _ in range(LEVELS):
        mask = own | tl.where(parent >= 0, tl.gather(mask, above, axis=0), 0)
        depth = tl.where(parent >= 0, tl.gather(depth, above, axis=0) + 1, 0)
    youngest = tl.min(tl.where(parent[:, None] == node[None, :], node[:, None], BLOCK), axis=0)
    later = (parent[:, None] == parent[None, :]) & (node[:, None] < node[None, :]) & (parent[None, :] >= 0)
    beside = tl.min(tl.where(later, node[None, :], BLOCK), axis=1)
    place = image * N + node
    inside = node < N
    tl.store(layout.depths + place, depth, inside)
    tl.store(layout.positions + place, tl.minimum(tl.load(layout.cells + image) - 1 + depth, most), inside)
    tl.store(tree.masks + place, mask, inside)
    tl.store(tree.first + place, tl.where(youngest < BLOCK, youngest, -1), inside)
    tl.store(tree.sibling + place, tl.where(beside < BLOCK, beside, -1), inside)


@kernel
def tree_meta_kernel(tree, layout, N, most, LEVELS: tl.constexpr, BLOCK: tl.constexpr) -> None:
    """One program per image."""
    wait_for_earlier_kernels()
    lay_out_tree(tree, layout, tl.program_id(0), N, most, LEVELS, BLOCK)


def tree_meta(tree: BatchTree, layout: TreePlaces, levels: int, most: int) -> None:
    """Fill the first children, next siblings and masks of trees, and their layout, from their parents.

    All are [B, N] int64, and N is at most 64. A first child or a next sibling is -1 for none. In masks, node i has the
    bits of itself and of its ancestors. Nodes past the tree's counts have no relatives.

    Args:
        tree: The trees; first, sibling and masks are filled.
        layout: Its depths are filled, and its positions: the cell of each node's token, where layout.cells is the cell
            of the root's children.
        levels: The largest depth.
        most: No position is above it.
    """
    batch, nodes = tree.parents.shape
    launch(
        tree_meta_kernel,
        (batch,),
        6 * 8 * tree.parents.numel(),
        tree,
        layout,
        nodes,
        most,
        LEVELS=levels,
        BLOCK=next_power_of_2(nodes),
        warps=8,
    )
