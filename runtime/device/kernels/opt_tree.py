"""OPT-Tree's levels: of all candidates so far the best are kept, and those of the last level are expanded.

The meaning is `algos.draft.opt`. A level adds its nodes' likeliest tokens to the T candidates that are kept. One that
falls out of the best T never comes back, as those before it stay. So the kept ones are the tree, and no more than a
level is ever ranked. They are kept in the order in which the reference finds candidates, which settles ties.
"""

from typing import NamedTuple

from torch import Tensor

from underpaint.algos.rows import SamplingParams
from underpaint.runtime.device.kernels.children import is_last
from underpaint.runtime.device.kernels.growth import ExpandedRows
from underpaint.runtime.device.kernels.likeliest import (
    WIDE_OCTAVE,
    FiniteMarks,
    RowScratch,
    few_largest,
    find_likeliest,
    group_of,
    score_of,
    token_of,
)
from underpaint.runtime.device.kernels.probs import sampler_values
from underpaint.runtime.device.kernels.tree_meta import TreePlaces, lay_out_tree
from underpaint.runtime.device.kernels.walk import BatchTree
from underpaint.runtime.device.language import kernel, launch, next_power_of_2, tl


class Pool(NamedTuple):
    """The kept candidates, [B, T]: tokens, parents (places among the kept; -1: the root) int64; scores float64.

    A score is 0 where there is none. found [B, lanes] int64: scratch.
    """

    tokens: Tensor
    parents: Tensor
    scores: Tensor
    found: Tensor


class Gains(NamedTuple):
    """Of each image. lengths [B] float64: the sum of the kept scores; threshold [1] float64: what a level must add.

    expanded [B] and rows [L + 1, B] int64: nodes expanded so far, and at each level but the root's.
    """

    lengths: Tensor
    threshold: Tensor
    expanded: Tensor
    rows: Tensor


@kernel
def opt_level_kernel(
    logits,
    scratch,
    finite,
    sampler,
    counts,
    levels,
    totals,
    roots,
    pool,
    gains,
    tree,
    layout,
    front,
    following,
    next_counts,
    level,
    rows,
    row_stride,
    T,
    most_rows,
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
    FIRST: tl.constexpr,
    LAST: tl.constexpr,
    ROWS: tl.constexpr,
    LANES: tl.constexpr,
    NODES: tl.constexpr,
    LEVELS: tl.constexpr,
    GROUP: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """One program a (row, image); the last of an image keeps the best, and says what the next level expands."""
    own, image = tl.program_id(0), tl.program_id(1)
    count = tl.minimum(tl.load(counts + image), rows)
    if own < count:
        find_likeliest(
            logits, scratch, finite, sampler, own, image, rows, row_stride, C,
            V, GUIDED, GREEDY, WARM, CUT, NUCLEUS, SAMPLE, LANES, GROUP, BLOCK,
        )  # fmt: skip
    if is_last(scratch.arrivals + image, rows) == 0:
        return
    # Row 0 holds what is kept so far, each further one the tokens behind a node: the order that settles ties.
    row, lane = tl.arange(0, ROWS) - 1, tl.arange(0, LANES)
    base, total = image * T, tl.load(totals + image)
    shown = (row >= 0) & (row < count)
    above = tl.full((ROWS,), 1.0, tl.float64)
    if FIRST == 0:
        above = tl.load(front.scores + image * W + row, shown, other=0.0)
    held = (image * rows + row[:, None]) * LANES + lane[None, :]
    packed = tl.load(scratch.tops + held, shown[:, None] & (lane >= 0)[None, :], other=-1, cache_modifier=".cg")
    scores = score_of(packed, above[:, None])
    if FIRST == 0:
        kept = tl.load(pool.scores + base + lane, lane < T, other=0.0)
        scores = tl.where(row[:, None] < 0, kept[None, :], scores)
    keys = tl.reshape(scores, (ROWS * LANES,)).to(tl.int64, bitcast=True)
    taken, place, size, _ = few_largest(keys, tl.full((), 1, tl.int64), total, LANES, WIDE_OCTAVE)
    tl.store(pool.found + image * LANES + place, tl.arange(0, ROWS * LANES).to(tl.int64), taken)
    tl.debug_barrier()
    there = lane < size
    found = tl.load(pool.found + image * LANES + lane, there, other=0).to(tl.int32)
    row, before = found // LANES - 1, found & (LANES - 1)
    fresh, old = there & (row >= 0), there & (row < 0)
    likely = tl.load(scratch.tops + (image * rows + row) * LANES + before, fresh, other=-1, cache_modifier=".cg")
    likely = tl.where(fresh, likely, (-1 - before).to(tl.int64))
    above = tl.full((LANES,), 1.0, tl.float64)
    parent = tl.full((LANES,), -1, tl.int32)
    if FIRST == 0:
        above = tl.load(front.scores + image * W + row, fresh, other=0.0)
        parent = tl.load(front.candidates + image * W + row, fresh, other=-1).to(tl.int32)
        parent = tl.where(old, tl.load(pool.parents + base + before, old, other=-1).to(tl.int32), parent)
    score = tl.where(fresh, score_of(likely, above), tl.load(pool.scores + base + before, old, other=0.0))
    token = tl.where(fresh, token_of(likely), tl.load(pool.tokens + base + before, old, other=0))
    # Which of two was found first, which are the best, where each of them stands, and where its parent.
    first = (row[None, :] < row[:, None]) | ((row[None, :] == row[:, None]) & (likely[None, :] > likely[:, None]))
    better = (score[None, :] > score[:, None]) | ((score[None, :] == score[:, None]) & first)
    stays = there & (tl.sum((better & there[None, :]).to(tl.int32), axis=1) < total)
    turn = tl.sum((first & stays[None, :]).to(tl.int32), axis=1)
    moved = (before[None, :] <= parent[:, None]) & (old & stays)[None, :]
    behind = tl.sum(moved.to(tl.int32), axis=1)  # 0: the root
    new = tl.sum((stays & fresh).to(tl.int32), axis=0)
    nodes = tl.sum(stays.to(tl.int32), axis=0)
    length = tl.sum(tl.where(stays, score, 0.0), axis=0)
    past = tl.full((), 0.0, tl.float64)
    spent = count
    if FIRST == 0:
        past = tl.load(gains.lengths + image)
        spent += tl.load(gains.expanded + image)
    tl.debug_barrier()  # all threads have read what is written now
    N = T + 1
    tl.store(pool.tokens + base + turn, token, stays)
    tl.store(pool.parents + base + turn, behind - 1, stays)
    tl.store(pool.scores + base + turn, score, stays)
    tl.store(pool.scores + base + lane, tl.zeros((LANES,), tl.float64), (lane >= nodes) & (lane < T))
    tl.store(tree.tokens + image * N + 1 + turn, token, stays)
    tl.store(tree.parents + image * N + 1 + turn, behind, stays)
    tl.store(tree.tokens + image * N, tl.load(roots + image))
    tl.store(tree.parents + image * N, tl.full((), -1, tl.int64))
    tl.store(tree.counts + image, nodes + 1)
    if LAST:
        tl.debug_barrier()
        meta = (layout.cells, layout.positions, layout.depths, tree.first, tree.sibling, tree.masks)
        lay_out_tree(tree.parents, tree.counts, *meta, image, N, most, LEVELS, NODES)
    else:
        tl.store(gains.lengths + image, length)
        tl.store(gains.expanded + image, spent)
        goes_on = (length - past >= tl.load(gains.threshold)) & (level + 1 < tl.load(levels + image))
        width = tl.where(goes_on, tl.maximum(tl.minimum(new, most_rows - spent), 0), 0)
        tl.store(next_counts + image, width)
        rank = tl.sum((better & (stays & fresh)[None, :]).to(tl.int32), axis=1)
        goes = stays & fresh & (rank < width)
        into = image * W + rank
        tl.store(following.tokens + into, token, goes)
        tl.store(following.candidates + into, turn, goes)
        tl.store(following.scores + into, score, goes)
        tl.store(following.parents + into, row, goes)
        slot = (level * W + rank).to(tl.int64)
        for word in tl.static_range(WORDS):
            seen = tl.load(front.masks + (image * W + row) * WORDS + word, goes, other=0)
            bit = tl.where(slot // 64 == word, tl.full((LANES,), 1, tl.int64) << (slot % 64), 0)
            tl.store(following.masks + into * WORDS + word, seen | bit, goes)


def grow_opt_level(
    logits: Tensor,
    sampler: SamplingParams,
    scratch: RowScratch,
    finite: FiniteMarks,
    counts: Tensor,
    levels: Tensor,
    totals: Tensor,
    roots: Tensor,
    pool: Pool,
    gains: Gains,
    tree: BatchTree,
    layout: TreePlaces,
    front: ExpandedRows,
    level: int,
    children: int,
    most_rows: int,
    most: int,
    counted_rows: int,
) -> None:
    """Make level `level` (from 0) of every image's tree from logits [R, B, rows, V] float32.

    The best so far are the tree; behind the last level it is laid out as `tree_meta` does, no cell above `most`. Else
    the level's row W of `front` and of `gains.rows` is written. Of each image, [B] int64: counts, nodes that the level
    expands (level 0: at least 1 for one); levels; totals, drafted nodes; roots, the last committed tokens. children: of
    a node. most_rows: nodes that may be expanded in all. counted_rows: that a level has on average at most, for the
    count of bytes.
    """
    pair, batch, rows, vocab_size = logits.shape
    lanes, kept, width = scratch.tops.shape[2], pool.scores.shape[1], front.tokens.shape[2]
    following = min(level + 1, front.tokens.shape[0] - 1)
    values, constants = sampler_values(sampler, pair, vocab_size)
    assert logits.is_contiguous()
    launch(
        opt_level_kernel,
        (rows, batch),
        batch * (min(rows, counted_rows) * (4 * (pair + 1) * vocab_size + 16 * lanes) + 100 * kept),
        logits,
        scratch,
        finite,
        values,
        counts,
        levels,
        totals,
        roots,
        pool,
        gains,
        tree,
        layout,
        front.at(level),
        front.at(following),
        gains.rows.select(0, following),
        level,
        rows,
        batch * rows * vocab_size,
        kept,
        most_rows,
        most,
        **constants,
        W=width,
        C=children,
        WORDS=front.masks.shape[3],
        FIRST=int(level == 0),
        LAST=int(level == following),
        ROWS=next_power_of_2(1 + rows),
        LANES=lanes,
        NODES=next_power_of_2(1 + kept),
        LEVELS=front.tokens.shape[0],
        GROUP=group_of(vocab_size),
    )
