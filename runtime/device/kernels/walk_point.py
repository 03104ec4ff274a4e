"""The walk of `algos.accept.point`: proposals chosen deterministically, each kept with its target probability."""

import torch

from underpaint.algos.accept.point import PointProposals
from underpaint.runtime.device.kernels.row_maths import draw, flip, row_sum
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
from underpaint.runtime.device.language import kernel, launch, next_power_of_2, tl


@kernel
def walk_point_kernel(
    tokens,
    first,
    sibling,
    probs,
    uniforms,
    path,
    taken,
    token,
    status,
    finite,
    V,
    N,
    rows,
    ROLES: tl.constexpr,
    CHILDREN: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """One program an image. Rejected siblings are remembered in registers; no row is written to."""
    image = tl.program_id(0)
    if takes_part(status, finite, taken, image, rows, ROWS) == 0:
        return
    tree = image * N
    accept = uniforms + image * ROLES * N + N
    residual = accept + N
    bonus = residual + N
    turns = tl.arange(0, CHILDREN)
    gone = tl.full((CHILDREN,), -1, tl.int64)
    node = tl.full((), 0, tl.int64)
    length = tl.full((), 0, tl.int64)
    tried = tl.full((), 0, tl.int32)
    going = tl.full((), 1, tl.int32)
    while going == 1:
        row = probs + (tree + node) * V
        gone = tl.full((CHILDREN,), -1, tl.int64)
        tried = tl.full((), 0, tl.int32)
        kept = tl.full((), -1, tl.int64)
        child = tl.load(first + tree + node)
        while (child >= 0) & (kept < 0):
            proposed = tl.load(tokens + tree + child)
            own = tl.load(row + proposed).to(tl.float64)
            again = tl.sum((gone == proposed).to(tl.int32), axis=0)
            own = tl.where(again > 0, 0.0, own)
            if flip(tl.load(accept + child), own, row_sum(row, V, gone, BLOCK)):
                kept = child
            else:
                gone = tl.where(turns == tried, proposed, gone)
                tried += 1
                child = tl.load(sibling + tree + child)
        if kept >= 0:
            tl.store(path + tree + length, kept)
            length += 1
            node = kept
        else:
            going = tl.full((), 0, tl.int32)
    role = tl.where(tried > 0, residual, bonus)
    found = draw(probs + (tree + node) * V, V, tl.load(role + node), gone, BLOCK)
    conclude(status, taken, token, image, length, found, V)


def walk_point(tree: BatchTree, out: Verdicts, most_children: int, levels: int) -> None:
    """Decide every image's tree of point proposals. most_children: of one node; levels: the tree's greatest depth."""
    batch, nodes, vocab_size = tree.probs.shape
    launch(
        walk_point_kernel,
        (batch,),
        row_bytes(tree, levels + 1),
        tree.tokens,
        tree.first,
        tree.sibling,
        tree.probs,
        tree.uniforms,
        out.path,
        out.taken,
        out.token,
        out.status,
        out.finite,
        vocab_size,
        nodes,
        out.finite.shape[1],
        ROLES=tree.uniforms.shape[1],
        CHILDREN=next_power_of_2(max(2, most_children)),
        ROWS=next_power_of_2(out.finite.shape[1]),
        BLOCK=tile(vocab_size, most_children),
        warps=8,
    )


def point_walk(rule: PointProposals, shape: Shape, device: torch.device) -> Decide:
    """The device form of rule 'point'."""
    return lambda tree, depths, out: walk_point(tree, out, shape.children, shape.levels)
