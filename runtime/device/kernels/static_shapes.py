"""Static tree shapes: which places of its shape an image fills and expands, given how many levels it may grow.

A policy plans one shape per number of levels, because few levels fit near the end of the picture. So images of one
batch may fill different shapes in the same cycle. Tables hold all shapes; the row of an image is its number of levels.
"""

from typing import NamedTuple

from torch import Tensor

from underpaint.runtime.device.kernels.tree_meta import TreePlaces, lay_out_tree
from underpaint.runtime.device.kernels.walk import BatchTree
from underpaint.runtime.device.launch import kernel, launch, next_power_of_2, tl, wait_for_earlier_kernels


class ShapeLevel(NamedTuple):
    """One level of S shapes, int64. F: the largest number of nodes that any of them expands there.

    Attributes:
        places, child_counts: The expanded places, and their numbers of children, [S, F]; 0 children for an unused row.
        most: The largest number of children.
        firsts: The place of the level's first child, [S]; the other children follow it.
        before: The largest of `firsts`.
        above, masks: The parents [S, F] and masks [S, F, words] for `DraftPasses.level`.
    """

    places: Tensor
    child_counts: Tensor
    most: int
    firsts: Tensor
    before: int
    above: Tensor
    masks: Tensor


class LevelRows(NamedTuple):
    """The drafter's inputs at one level, int64: tokens and parents [B, F], and masks [B, F, words]."""

    tokens: Tensor
    parents: Tensor
    masks: Tensor


@kernel
def lay_rows(tokens, shape, image, level, out, F, WORDS: tl.constexpr, ROWS: tl.constexpr) -> None:
    """Fill an image's rows of `LevelRows` at a level. tokens: the image's tokens by place."""
    lane = tl.arange(0, ROWS)
    inside = lane < F
    line = shape * F + lane
    place = tl.load(level.places + line, inside, other=0)
    row = image * F + lane
    tl.store(out.tokens + row, tl.load(tokens + place, inside, other=0, cache_modifier=".cg"), inside)
    tl.store(out.parents + row, tl.load(level.above + line, inside, other=0), inside)
    for word in tl.static_range(WORDS):
        seen = tl.load(level.masks + line * WORDS + word, inside, other=0)
        tl.store(out.masks + row * WORDS + word, seen, inside)


@kernel
def number_places_kernel(
    tokens, exists, levels, shapes, rows, roots, tree, layout, N, most, LEVELS: tl.constexpr, BLOCK: tl.constexpr
) -> None:
    """One program per image numbers the filled places of its shape, in order, as the nodes of a tree."""
    wait_for_earlier_kernels()
    image = tl.program_id(0)
    lane = tl.arange(0, BLOCK)
    line = tl.load(levels + image) * N + lane
    above = tl.load(shapes + line, lane < N, other=-2)
    there = tl.load(exists + image * N + lane, lane < N, other=0)
    there = tl.where(above > -2, there, 0)
    number = tl.cumsum(there, axis=0) - 1
    parent = tl.sum(tl.where(above[:, None] == lane[None, :].to(tl.int64), number[None, :], 0), axis=1)
    goes = there == 1
    token = tl.where(lane == 0, tl.load(roots + image), tl.load(tokens + image * N + lane, lane < N, other=0))
    tl.store(tree.tokens + image * N + number, token, goes)
    tl.store(tree.parents + image * N + number, tl.where(lane == 0, -1, parent), goes)
    tl.store(tree.draft_rows + image * N + number, tl.load(rows + line, lane < N, other=-1), goes)
    tl.store(tree.counts + image, tl.sum(there, axis=0))
    tl.debug_barrier()
    lay_out_tree(tree, layout, image, N, most, LEVELS, BLOCK)


def number_places(
    tokens: Tensor,
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

    tokens, exists [B, N] int64: tokens by place, and whether one was drawn. shapes, rows [S, N] int64: the parent of
    each place (-1: the root; -2: not in this shape), and the row of the draft distribution of its children (-1: none).
    layout, depth (the largest), most, and the other parts of the tree that are filled: see `tree_meta`.
    """
    batch, nodes = tree.tokens.shape
    launch(
        number_places_kernel,
        (batch,),
        88 * tree.tokens.numel(),
        tokens,
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
