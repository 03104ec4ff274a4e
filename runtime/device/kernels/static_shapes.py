"""Static shapes: which places of its shape an image fills and expands, by how many levels it may grow.

A policy plans a shape for every number of levels (near the end of the picture there is room for few), so images of one
batch may fill different shapes in one cycle. Tables hold them all; an image's row is its number of levels.
"""

from typing import NamedTuple

from torch import Tensor

from underpaint.runtime.device.kernels.tree_meta import TreePlaces, lay_out_tree
from underpaint.runtime.device.kernels.walk import BatchTree
from underpaint.runtime.device.language import kernel, launch, next_power_of_2, tl


class ShapeLevel(NamedTuple):
    """One level of S shapes, int64. F: the most nodes that any of them expands there.

    places, wanted [S, F]: the places that are expanded and their numbers of children; 0 children: a row that is not
    used. most: the largest of these. firsts [S]: the place of the level's first child, the others behind it. before:
    the largest of those. above [S, F], masks [S, F, words]: parents and masks of `DraftPasses.level`.
    """

    places: Tensor
    wanted: Tensor
    most: int
    firsts: Tensor
    before: int
    above: Tensor
    masks: Tensor


class LevelRows(NamedTuple):
    """What the drafter is fed at one level, by image, int64: tokens, parents [B, F] and masks [B, F, words]."""

    tokens: Tensor
    parents: Tensor
    masks: Tensor


@kernel
def lay_rows(held, shape, image, level, out, F, WORDS: tl.constexpr, ROWS: tl.constexpr) -> None:
    """Fill an image's rows of a level, from its tokens by place."""
    lane = tl.arange(0, ROWS)
    inside = lane < F
    line = shape * F + lane
    place = tl.load(level.places + line, inside, other=0)
    row = image * F + lane
    tl.store(out.tokens + row, tl.load(held + place, inside, other=0, cache_modifier=".cg"), inside)
    tl.store(out.parents + row, tl.load(level.above + line, inside, other=0), inside)
    for word in tl.static_range(WORDS):
        seen = tl.load(level.masks + line * WORDS + word, inside, other=0)
        tl.store(out.masks + row * WORDS + word, seen, inside)


@kernel
def number_places_kernel(
    held, exists, levels, shapes, rows, roots, tree, layout, N, most, LEVELS: tl.constexpr, BLOCK: tl.constexpr
) -> None:
    """One program an image: the places of its shape that were filled, in their order, as a tree."""
    image = tl.program_id(0)
    lane = tl.arange(0, BLOCK)
    line = tl.load(levels + image) * N + lane
    above = tl.load(shapes + line, lane < N, other=-2)
    there = tl.load(exists + image * N + lane, lane < N, other=0)
    there = tl.where(above > -2, there, 0)
    number = tl.cumsum(there, axis=0) - 1
    parent = tl.sum(tl.where(above[:, None] == lane[None, :].to(tl.int64), number[None, :], 0), axis=1)
    goes = there == 1
    token = tl.where(lane == 0, tl.load(roots + image), tl.load(held + image * N + lane, lane < N, other=0))
    tl.store(tree.tokens + image * N + number, token, goes)
    tl.store(tree.parents + image * N + number, tl.where(lane == 0, -1, parent), goes)
    tl.store(tree.draft_rows + image * N + number, tl.load(rows + line, lane < N, other=-1), goes)
    tl.store(tree.counts + image, tl.sum(there, axis=0))
    tl.debug_barrier()
    meta = (layout.cells, layout.positions, layout.depths, tree.first, tree.sibling, tree.masks)
    lay_out_tree(tree.parents, tree.counts, *meta, image, N, most, LEVELS, BLOCK)


def number_places(
    held: Tensor,
    exists: Tensor,
    levels: Tensor,
    shapes: Tensor,
    rows: Tensor,
    roots: Tensor,
    tree: BatchTree,
    layout: TreePlaces,
    depth: int,
    most: int,
) -> None:
    """Fill a tree's tokens, parents, draft_rows [B, N] and counts [B] from the places of its shape.

    held, exists [B, N] int64: tokens by place, and whether one was drawn. shapes, rows [S, N] int64: each place's
    parent (-1: the root; -2: no place of this shape), and the row of the draft distributions that its children were
    drawn from (-1: none). layout, depth (the greatest) and most, and what else of the tree is filled: see `tree_meta`.
    """
    batch, nodes = tree.tokens.shape
    launch(
        number_places_kernel,
        (batch,),
        88 * tree.tokens.numel(),
        held,
        exists,
        levels,
        shapes,
        rows,
        roots,
        tree,
        layout,
        nodes,
        most,
        LEVELS=depth,
        BLOCK=next_power_of_2(nodes),
    )
