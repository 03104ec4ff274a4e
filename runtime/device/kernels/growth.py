"""Growth of a tree of the drafter's likeliest tokens, level by level, and the choice of the best candidates.

The reference is `algos.draft.tree_builder`. Candidates are numbered level by level, with W * C numbers per level, used
or not. The used ones have the reference's order, so ties are decided in the same way. A candidate that does not exist
has score 0 and is never taken.
"""

from typing import NamedTuple

from torch import Tensor

from underpaint.algos.rows import SamplingParams
from underpaint.runtime.device.kernels.children import is_last
from underpaint.runtime.device.kernels.likeliest import (
    WIDE_OCTAVE,
    FiniteMarks,
    RowScratch,
    few_largest,
    find_likeliest,
    group_of,
    lanes_of,
    score_of,
    token_of,
)
from underpaint.runtime.device.kernels.probs import sampler_values
from underpaint.runtime.device.kernels.tree_meta import TreePlaces, lay_out_tree
from underpaint.runtime.device.kernels.walk import BatchTree
from underpaint.runtime.device.launch import kernel, launch, next_power_of_2, tl, wait_for_earlier_kernels


class ExpandedRows(NamedTuple):
    """The nodes that each level expands, [L, B, W]; level 0 expands only the root, in row 0.

    Attributes:
        tokens: The nodes' tokens, int64.
        candidates: Their candidate numbers, int64.
        parents: Their parents' rows of the level before, int64.
        scores: Their scores, float64; 0 if a row expands nothing.
        masks: The slots that a row sees, its own included, [L, B, W, words] int64; the rows of level l take the slots
            from (l - 1) * W on.
    """

    tokens: Tensor
    candidates: Tensor
    parents: Tensor
    scores: Tensor
    masks: Tensor

    def at(self, level: int) -> "ExpandedRows":
        """Return the rows of one level."""
        return ExpandedRows(*(part.select(0, level) for part in self))


class Candidates(NamedTuple):
    """All candidates, [B, M] with M = L * W * C. tokens and parents (candidate numbers, -1 for the root) int64.

    scores float64. best_numbers [B, lanes] int64: scratch for the numbers of the best candidates.
    """

    tokens: Tensor
    parents: Tensor
    scores: Tensor
    best_numbers: Tensor


@kernel
def grow_level_kernel(
    logits,
    scratch,
    finite,
    sampler,
    counts,
    widths,
    levels,
    totals,
    roots,
    front,
    candidates,
    tree,
    layout,
    level,
    L,
    batch,
    rows,
    row_stride,
    N,
    most,
    V: tl.constexpr,
    GUIDED: tl.constexpr,
    GREEDY: tl.constexpr,
    WARM: tl.constexpr,
    CUT: tl.constexpr,
    NUCLEUS: tl.constexpr,
    SAMPLE: tl.constexpr,
    W: tl.constexpr,
    C: tl.constexpr,
    WORDS: tl.constexpr,
    LAST: tl.constexpr,
    ROWS: tl.constexpr,
    LANES: tl.constexpr,
    TOTAL: tl.constexpr,
    NODES: tl.constexpr,
    LEVELS: tl.constexpr,
    GROUP: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """One program per (row, image). The last of an image finds the level's candidates, and the next level or tree."""
    wait_for_earlier_kernels()
    own, image = tl.program_id(0), tl.program_id(1)
    width = tl.load(widths + image)
    if own < tl.minimum(tl.load(counts + image), width):
        find_likeliest(
            logits, scratch, finite, sampler, own, image, rows, row_stride, C, 0, 0,
            V, GUIDED, GREEDY, WARM, CUT, NUCLEUS, SAMPLE, LANES, GROUP, False, BLOCK,
        )  # fmt: skip
    if is_last(scratch.arrivals + image, rows) == 0:
        return
    width = tl.where(level < tl.load(levels + image), width, 0)
    row, lane = tl.arange(0, ROWS), tl.arange(0, LANES)
    here = (level * batch + image) * W
    above = tl.load(front.scores + here + row, row < rows, other=0.0)
    number = tl.load(front.candidates + here + row, row < rows, other=-1)
    slots = (image * rows + row[:, None]) * LANES + lane[None, :]
    reaches = (row < rows) & (row < width)
    packed = tl.load(scratch.tops + slots, reaches[:, None] & (lane >= 0)[None, :], other=-1, cache_modifier=".cg")
    column = tl.zeros((ROWS, LANES), tl.int32)  # number of the row's tokens that are likelier
    for start in range(0, LANES, 4):
        other = start + tl.arange(0, 4)
        beside = (image * rows + row[:, None]) * LANES + other[None, :]
        shown = reaches[:, None] & (other < LANES)[None, :]
        theirs = tl.load(scratch.tops + beside, shown, other=-1, cache_modifier=".cg")
        equal = (theirs[:, None, :] == packed[:, :, None]) & (other[None, None, :] < lane[None, :, None])
        column += tl.sum(((theirs[:, None, :] > packed[:, :, None]) | equal).to(tl.int32), axis=2)
    scores = tl.where(column < width, score_of(packed, above[:, None]), 0.0)
    token = tl.where(scores > 0.0, token_of(packed), 0)
    place = row[:, None] * C + column
    inside = (row[:, None] < W) & (column < C)
    base = (image * L + level) * W * C
    tl.store(candidates.tokens + base + place, token, inside)
    tl.store(candidates.scores + base + place, scores, inside)
    tl.store(candidates.parents + base + place, number[:, None] + tl.zeros_like(place), inside)
    tl.debug_barrier()
    if LAST:
        take_best(candidates, totals, roots, tree, layout, image, L * W * C, N, most, TOTAL, NODES, LEVELS)
    else:
        following = here + batch * W
        # Every candidate counts those better than itself (ties: the one found first); the count is its row.
        flat: tl.constexpr = ROWS * LANES
        score = tl.reshape(tl.where(inside, scores, -1.0), (flat,))
        order = tl.reshape(place, (flat,))
        rank = tl.zeros((flat,), tl.int32)
        for start in range(0, W * C, 16):
            other = start + tl.arange(0, 16)
            theirs = tl.load(candidates.scores + base + other, other < W * C, other=-1.0)
            ties = (theirs[None, :] == score[:, None]) & (other[None, :] < order[:, None])
            rank += tl.sum(((theirs[None, :] > score[:, None]) | ties).to(tl.int32), axis=1)
        goes = (score > 0.0) & (rank < tl.minimum(width, W))
        behind = row < W
        tl.store(front.scores + following + row, tl.zeros((ROWS,), tl.float64), behind)
        tl.store(front.tokens + following + row, tl.zeros((ROWS,), tl.int64), behind)
        tl.store(front.parents + following + row, tl.zeros((ROWS,), tl.int64), behind)
        tl.debug_barrier()
        into = following + rank
        tl.store(front.scores + into, score, goes)
        tl.store(front.tokens + into, tl.reshape(token, (flat,)), goes)
        tl.store(front.candidates + into, level * W * C + order.to(tl.int64), goes)
        tl.store(front.parents + into, (order // C).to(tl.int64), goes)
        tl.debug_barrier()
        parent = tl.load(front.parents + following + row, behind, other=0)
        slot = level * W + row.to(tl.int64)
        for word in tl.static_range(WORDS):
            seen = tl.load(front.masks + (here + parent) * WORDS + word, behind, other=0)
            bit = tl.where(slot // 64 == word, tl.full((ROWS,), 1, tl.int64) << (slot % 64), 0)
            tl.store(front.masks + (following + row) * WORDS + word, tl.where(level > 0, seen, 0) | bit, behind)


@kernel
def take_best(
    candidates, totals, roots, tree, layout, image, M, N, most,
    TOTAL: tl.constexpr, NODES: tl.constexpr, LEVELS: tl.constexpr,
):  # fmt: skip
    """Store the root and an image's best candidates, in the order of their numbers, as its tree."""
    lane = tl.arange(0, TOTAL)
    base = image * M
    total = tl.minimum(tl.load(totals + image), N - 1)
    keys = tl.load(candidates.scores + base + lane, lane < M, other=0.0).to(tl.int64, bitcast=True)
    taken, place, size, _ = few_largest(keys, tl.full((), 1, tl.int64), total, NODES, WIDE_OCTAVE)
    numbers = candidates.best_numbers + image * NODES
    tl.store(numbers + place, lane.to(tl.int64), taken)
    tl.debug_barrier()
    turn = tl.arange(0, NODES)
    there = turn < size
    number = tl.load(numbers + turn, there, other=0)
    score = tl.load(candidates.scores + base + number, there, other=0.0)
    better = (score[None, :] > score[:, None]) | ((score[None, :] == score[:, None]) & (turn[None, :] < turn[:, None]))
    goes = there & (tl.sum((better & there[None, :]).to(tl.int32), axis=1) < total)
    node = tl.cumsum(goes.to(tl.int32), axis=0)  # the root is node 0
    parent = tl.load(candidates.parents + base + number, goes, other=-1)
    above = tl.sum(((number[None, :] <= parent[:, None]) & goes[None, :]).to(tl.int64), axis=1)
    tl.store(tree.tokens + image * N + node, tl.load(candidates.tokens + base + number, goes, other=0), goes)
    tl.store(tree.parents + image * N + node, above, goes)
    tl.store(tree.tokens + image * N, tl.load(roots + image))
    tl.store(tree.parents + image * N, tl.full((), -1, tl.int64))
    tl.store(tree.counts + image, 1 + tl.sum(goes.to(tl.int64), axis=0))
    tl.debug_barrier()
    lay_out_tree(tree, layout, image, N, most, LEVELS, NODES)


def grow_level(
    logits: Tensor,
    sampler: SamplingParams,
    scratch: RowScratch,
    finite: FiniteMarks,
    counts: Tensor,
    widths: Tensor,
    levels: Tensor,
    totals: Tensor,
    roots: Tensor,
    front: ExpandedRows,
    candidates: Candidates,
    tree: BatchTree,
    layout: TreePlaces,
    level: int,
    most: int,
) -> None:
    """Grow level `level` (from 0) of every image from logits [R, B, rows, V] float32; after the last, make the tree.

    Per image, [B] int64: counts, valid rows of logits; widths, nodes expanded per level and children of each; levels;
    totals, drafted nodes of the tree, below N; roots, the last committed tokens. Fills the tree's tokens, parents and
    counts, and, with `layout`, what `tree_meta` fills; no cell is above `most`.
    """
    pair, batch, rows, vocab_size = logits.shape
    depth, _, width = front.tokens.shape
    nodes, lanes, count = tree.tokens.shape[1], scratch.tops.shape[2], candidates.tokens.shape[1]
    values, constants = sampler_values(sampler, pair, vocab_size)
    assert logits.is_contiguous()
    launch(
        grow_level_kernel,
        (rows, batch),
        batch * (rows * (4 * (pair + 1) * vocab_size + 16 * lanes) + 24 * count),
        logits,
        scratch,
        finite,
        values,
        counts,
        widths,
        levels,
        totals,
        roots,
        front,
        candidates,
        tree,
        layout,
        level,
        depth,
        batch,
        rows,
        batch * rows * vocab_size,
        nodes,
        most,
        **constants,
        W=width,
        C=count // (depth * width),
        WORDS=front.masks.shape[3],
        LAST=int(level + 1 == depth),
        ROWS=next_power_of_2(max(2, width)),
        LANES=lanes,
        TOTAL=next_power_of_2(max(2, count)),
        NODES=lanes_of(nodes),
        LEVELS=depth,
        GROUP=group_of(vocab_size),
        trips={"narrowings": 1},
    )
