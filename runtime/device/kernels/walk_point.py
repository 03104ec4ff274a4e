"""The walk of `algos.accept.point`: proposals chosen deterministically, each kept with its target probability."""

import torch
from torch import Tensor

from underpaint.algos.accept.point import PointProposals
from underpaint.runtime.device.kernels.row_maths import draw, flip, row_sum
from underpaint.runtime.device.kernels.walk import (
    BatchTree,
    Decide,
    Shape,
    Verdicts,
    conclude,
    launch_walk,
    noise_of,
    row_bytes,
    takes_part,
    tile,
)
from underpaint.runtime.device.language import kernel, next_power_of_2, tl


@kernel
def walk_point_kernel(
    tree, out, V, N, drafts, rows, ROLES: tl.constexpr, CHILDREN: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr
) -> None:
    """One program an image. Rejected siblings are remembered in registers; no row is written to."""
    image = tl.program_id(0)
    if takes_part(out.status, out.finite, out.taken, image, rows, ROWS) == 0:
        return
    base = image * N
    accept, residual, bonus = noise_of(tree, image, N, ROLES)
    turns = tl.arange(0, CHILDREN)
    gone = tl.full((CHILDREN,), -1, tl.int64)
    node = tl.full((), 0, tl.int64)
    length = tl.full((), 0, tl.int64)
    tried = tl.full((), 0, tl.int32)
    going = tl.full((), 1, tl.int32)
    while going == 1:  # trips: levels + 1
        row = tree.probs + (base + node) * V
        gone = tl.full((CHILDREN,), -1, tl.int64)
        tried = tl.full((), 0, tl.int32)
        kept = tl.full((), -1, tl.int64)
        child = tl.load(tree.first + base + node)
        while (child >= 0) & (kept < 0):  # trips: children
            proposed = tl.load(tree.tokens + base + child)
            own = tl.load(row + proposed).to(tl.float64)
            again = tl.sum((gone == proposed).to(tl.int32), axis=0)
            own = tl.where(again > 0, 0.0, own)
            if flip(tl.load(accept + child), own, row_sum(row, V, gone, BLOCK)):
                kept = child
            else:
                gone = tl.where(turns == tried, proposed, gone)
                tried += 1
                child = tl.load(tree.sibling + base + child)
        if kept >= 0:
            tl.store(out.path + base + length, kept)
            length += 1
            node = kept
        else:
            going = tl.full((), 0, tl.int32)
    role = tl.where(tried > 0, residual, bonus)
    found = draw(tree.probs + (base + node) * V, V, tl.load(role + node), gone, BLOCK)
    conclude(out, image, length, found, V, 1)


def point_walk(rule: PointProposals, shape: Shape, device: torch.device) -> Decide:
    """The device form of rule 'point'."""

    def decide(tree: BatchTree, depths: Tensor, out: Verdicts) -> None:
        children, block = next_power_of_2(max(2, shape.children)), tile(shape.vocab_size, shape.children)
        moved = row_bytes(tree, shape.levels + 1)
        launch_walk(walk_point_kernel, shape, tree, out, moved, CHILDREN=children, BLOCK=block, warps=8)

    return decide
