"""Grow a tree of the drafter's likeliest tokens level by level, and taking the best of all.

The meaning is `algos.draft.tree_builder`. Candidates are numbered level by level, W * C places a level whether they
are used or not: the order of those that are is the reference's, and so are its ties. A candidate that does not exist
has the score 0 and is never taken.
"""

from typing import NamedTuple

from torch import Tensor

from underpaint.runtime.device.kernels.children import best_of_tiles, is_last, store_top, tile_of
from underpaint.runtime.device.kernels.tree_meta import TreePlaces, lay_out_tree
from underpaint.runtime.device.kernels.walk import BatchTree
from underpaint.runtime.device.language import kernel, launch, next_power_of_2, tl

EIGHT_WARPS_FROM = 8192
"""Numbers of all tiles of an image from which its last program takes eight warps: four would spill."""


class ExpandedRows(NamedTuple):
    """What each level expands, [L, B, W]; level 0 expands the root alone, in row 0.

    tokens, candidates (their numbers), parents (rows of the level before that they stand behind): int64.
    scores: float64, 0 where a row expands nothing. masks [L, B, W, words] int64: the slots that a row sees, its own
    among them; level l's rows lie in the slots from (l - 1) * W on.
    """

    tokens: Tensor
    candidates: Tensor
    parents: Tensor
    scores: Tensor
    masks: Tensor

    def at(self, level: int) -> "ExpandedRows":
        """The rows of one level."""
        return ExpandedRows(*(part.select(0, level) for part in self))


class Candidates(NamedTuple):
    """All candidates, [B, M] with M = L * W * C: tokens, parents (numbers; -1: the root) int64; scores float64."""

    tokens: Tensor
    parents: Tensor
    scores: Tensor
    taken: Tensor
    places: Tensor


@kernel
def grow_level_kernel(
    probs,
    tops,
    arrivals,
    widths,
    levels,
    front,
    candidates,
    level,
    L,
    batch,
    V,
    rows,
    tiles,
    W: tl.constexpr,
    C: tl.constexpr,
    WORDS: tl.constexpr,
    LAST: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    HELD: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """One program a (tile, row, image); the last of an image finds its level's candidates, and the next level."""
    tile, own_row, image = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    line = (image * rows + own_row).to(tl.int64)
    store_top(probs + line * V, tops + (line * tiles + tile) * C, tile, V, C, BLOCK)
    if is_last(arrivals + image, tiles * rows) == 0:
        return
    best = best_of_tiles(tops + image * rows * tiles * C, rows, tiles * C, C, ROWS, COLUMNS, HELD)
    width = tl.load(widths + image)
    grows = level < tl.load(levels + image)
    row = tl.arange(0, ROWS)
    column = tl.arange(0, COLUMNS)
    here = (level * batch + image) * W
    above = tl.load(front.scores + here + row, row < rows, other=0.0)
    number = tl.load(front.candidates + here + row, row < rows, other=-1)
    probs = tl.minimum((best >> 32).to(tl.int32).to(tl.float32, bitcast=True).to(tl.float64), 1.0)
    token = 0x7FFFFFFF - (best & 0x7FFFFFFF)
    there = (best >= 0) & (column[None, :] < width) & (column[None, :] < C) & (row[:, None] < width) & grows
    found = tl.where(there, above[:, None] * probs, 0.0)
    place = row[:, None] * C + column[None, :]
    inside = (row[:, None] < W) & (column[None, :] < C)
    base = (image * L + level) * W * C
    tl.store(candidates.tokens + base + place, tl.where(there, token, 0), inside)
    tl.store(candidates.scores + base + place, found, inside)
    tl.store(candidates.parents + base + place, number[:, None] + tl.zeros_like(place), inside)
    if LAST == 0:
        following = here + batch * W
        # Every candidate counts those better than itself (ties: the one found first), and puts itself in that row.
        flat: tl.constexpr = ROWS * COLUMNS
        score = tl.reshape(tl.where(inside, found, -1.0), (flat,))
        order = tl.reshape(place, (flat,))
        rank = tl.zeros((flat,), tl.int32)
        tl.debug_barrier()
        for start in range(0, W * C, 16):
            other = start + tl.arange(0, 16)
            theirs = tl.load(candidates.scores + base + other, other < W * C, other=-1.0)
            ties = (theirs[None, :] == score[:, None]) & (other[None, :] < order[:, None])
            rank += tl.sum(((theirs[None, :] > score[:, None]) | ties).to(tl.int32), axis=1)
        goes = (score > 0.0) & (rank < tl.minimum(width, W))
        turn = tl.arange(0, ROWS)
        behind = turn < W
        tl.store(front.scores + following + turn, tl.zeros((ROWS,), tl.float64), behind)
        tl.store(front.tokens + following + turn, tl.zeros((ROWS,), tl.int64), behind)
        tl.store(front.parents + following + turn, tl.zeros((ROWS,), tl.int64), behind)
        tl.debug_barrier()
        own_row = following + rank
        tl.store(front.scores + own_row, score, goes)
        tl.store(front.tokens + own_row, tl.reshape(token, (flat,)), goes)
        tl.store(front.candidates + own_row, level * W * C + order.to(tl.int64), goes)
        tl.store(front.parents + own_row, (order // C).to(tl.int64), goes)
        tl.debug_barrier()
        parent = tl.load(front.parents + following + turn, behind, other=0)
        own = level * W + turn.to(tl.int64)
        for word in tl.static_range(WORDS):
            seen = tl.load(front.masks + (here + parent) * WORDS + word, behind, other=0)
            bit = tl.where(own // 64 == word, tl.full((ROWS,), 1, tl.int64) << (own % 64), 0)
            tl.store(front.masks + (following + turn) * WORDS + word, tl.where(level > 0, seen, 0) | bit, behind)


def grow_level(
    probs: Tensor,
    tops: Tensor,
    arrivals: Tensor,
    widths: Tensor,
    levels: Tensor,
    front: ExpandedRows,
    found: Candidates,
    level: int,
) -> None:
    """Make level `level` (from 0) of every image's tree from distributions probs [B, rows, V] float32.

    tops [B, rows, tiles, C] int64: scratch; arrivals [B] int32: 0. widths, levels [B] int64: nodes expanded a level and
    children of each, and levels, of each image.
    """
    batch, rows, tiles, count = tops.shape
    vocab_size = probs.shape[2]
    depth, _, width = front.tokens.shape
    assert probs.is_contiguous()
    launch(
        grow_level_kernel,
        (tiles, rows, batch),
        4 * probs.numel() + 16 * tops.numel() + 24 * batch * width * count,
        probs,
        tops,
        arrivals,
        widths,
        levels,
        front,
        found,
        level,
        depth,
        batch,
        vocab_size,
        rows,
        tiles,
        W=width,
        C=count,
        WORDS=front.masks.shape[3],
        LAST=int(level + 1 == depth),
        ROWS=next_power_of_2(max(2, width)),
        COLUMNS=next_power_of_2(max(2, count)),
        HELD=next_power_of_2(max(2, tiles * count)),
        BLOCK=tile_of(vocab_size),
        warps=4 if rows * tiles * count <= EIGHT_WARPS_FROM else 8,
    )


@kernel
def mark_best(scores, total, taken, tile, M, ROWS: tl.constexpr, CBLOCK: tl.constexpr):
    """Whether fewer than `total` of an image's M candidates are better than each of a tile (ties: the one found first).

    taken: 1 at the candidates of a score above 0 for which it is so, else 0.
    """
    own = tile * ROWS + tl.arange(0, ROWS)
    score = tl.load(scores + own, own < M, other=0.0)
    ahead = tl.zeros((ROWS,), tl.int32)
    for start in range(0, M, CBLOCK):
        other = start + tl.arange(0, CBLOCK)
        theirs = tl.load(scores + other, other < M, other=-1.0)
        better = (theirs[None, :] > score[:, None]) | (
            (theirs[None, :] == score[:, None]) & (other[None, :] < own[:, None])
        )
        ahead += tl.sum(better.to(tl.int32), axis=1)
    chosen = (score > 0.0) & (ahead < total)
    tl.store(taken + own, chosen.to(tl.int64), own < M)


def ranked_rows(count: int) -> int:
    """Candidates that one program of `mark_best` ranks."""
    return min(64, next_power_of_2(count))


def ranked_block(count: int) -> int:
    """Candidates that it compares them with at a time."""
    return min(128, next_power_of_2(count))


@kernel
def take_best_kernel(
    candidates,
    totals,
    arrivals,
    roots,
    tree,
    layout,
    M,
    N,
    most,
    ROWS: tl.constexpr,
    CBLOCK: tl.constexpr,
    LANES: tl.constexpr,
    LEVELS: tl.constexpr,
    NODES: tl.constexpr,
) -> None:
    """One program a (tile, image); the last puts the taken candidates behind the root, in their order, as a tree."""
    tile, image = tl.program_id(0), tl.program_id(1)
    mark_best(
        candidates.scores + image * M, tl.load(totals + image), candidates.taken + image * M, tile, M, ROWS, CBLOCK
    )
    if is_last(arrivals + image, tl.num_programs(0)):
        lane = tl.arange(0, LANES)
        inside = lane < M
        chosen = tl.load(candidates.taken + image * M + lane, inside, other=0, cache_modifier=".cg")
        place = tl.cumsum(chosen, axis=0)  # the root is node 0
        tl.store(candidates.places + image * M + lane, place, inside)
        tl.debug_barrier()
        above = tl.load(candidates.parents + image * M + lane, inside, other=-1)
        parent = tl.load(candidates.places + image * M + above, inside & (above >= 0), other=0)
        goes = inside & (chosen == 1)
        tl.store(tree.tokens + image * N + place, tl.load(candidates.tokens + image * M + lane, inside, other=0), goes)
        tl.store(tree.parents + image * N + place, parent, goes)
        tl.store(tree.tokens + image * N, tl.load(roots + image))
        tl.store(tree.parents + image * N, tl.full((), -1, tl.int64))
        tl.store(tree.counts + image, 1 + tl.sum(chosen, axis=0))
        tl.debug_barrier()
        meta = (layout.cells, layout.positions, layout.depths, tree.first, tree.sibling, tree.masks)
        lay_out_tree(tree.parents, tree.counts, *meta, image, N, most, LEVELS, NODES)


def take_best(
    found: Candidates,
    arrivals: Tensor,
    totals: Tensor,
    roots: Tensor,
    tree: BatchTree,
    layout: TreePlaces,
    levels: int,
    most: int,
) -> None:
    """Fill the tree's tokens, parents [B, N] and counts [B] with the trees of the totals [B] int64 best candidates.

    arrivals [B] int32: 0. roots [B] int64: the last committed tokens. Every total is below N. layout, levels and most,
    and what else of the tree is filled: see `tree_meta`.
    """
    batch, count = found.scores.shape
    rows = ranked_rows(count)
    launch(
        take_best_kernel,
        (-(-count // rows), batch),
        56 * found.scores.numel() + 48 * tree.tokens.numel(),
        found,
        totals,
        arrivals,
        roots,
        tree,
        layout,
        count,
        tree.tokens.shape[1],
        most,
        ROWS=rows,
        CBLOCK=ranked_block(count),
        LANES=next_power_of_2(count),
        LEVELS=levels,
        NODES=next_power_of_2(tree.tokens.shape[1]),
        warps=8,
    )
