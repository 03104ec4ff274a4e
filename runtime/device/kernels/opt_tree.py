"""OPT-Tree's levels: the best of all candidates so far are kept, and those of the last level are expanded.

The reference is `algos.draft.opt`. A level adds its nodes' likeliest tokens to the T kept candidates. A candidate that
drops out of the best T never comes back, because those before it stay. So the kept candidates are the tree, and only
one level is ranked at a time. They are kept in the order in which the reference finds them, which decides ties.

A new candidate that does not beat the lowest of T kept scores is never kept: the kept candidates were found before it,
so they win ties. Each row therefore hands over only the tokens that beat it, in a list shared by all rows of an image.
Most levels have fewer than T such tokens, and the last program of an image ranks them by comparing all pairs. Every
kept candidate knows how many kept ones are better, so it is compared only with the new ones. The order of the list has
no meaning: ties are decided by row and token. A level with a longer list is first reduced by a search over all rows.
That was necessary in 3 of 100 launches, in simulated trees of 50 nodes over 16,384 normal logits whose likeliest token
had a probability of 0.3.
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
from underpaint.runtime.device.launch import kernel, launch, next_power_of_2, tl, wait_for_earlier_kernels


class Pool(NamedTuple):
    """The kept candidates: scores [B, T] float64, and ranks [B, T] int32, the number of better kept ones.

    Their tokens and parents are those of the tree.
    """

    scores: Tensor
    ranks: Tensor


class Listed(NamedTuple):
    """The level's candidates that may be kept, in any order.

    names [B, W * lanes] int32: the parent's row (below 64), above 25 bits of the token. scores float64, of the same
    shape. counts [B] int32: number of candidates, 0 between launches.
    """

    names: Tensor
    scores: Tensor
    counts: Tensor


class Gains(NamedTuple):
    """Data of each image. lengths [B] float64: sum of the kept scores. threshold [1] float64: what a level must add.

    least [B] float64: the score that a candidate must beat, 0 while fewer are kept than wanted. expanded [B] and rows
    [L, B] int64: nodes expanded so far, and at each level; row 0, the root's, is not used.
    """

    lengths: Tensor
    threshold: Tensor
    least: Tensor
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
    listed,
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
    words,
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
    """One program per (row, image); the last of an image keeps the best, and sets what the next level expands."""
    wait_for_earlier_kernels()
    own, image = tl.program_id(0), tl.program_id(1)
    count = tl.minimum(tl.load(counts + image).to(tl.int32), rows)
    lane, places = tl.arange(0, LANES), image * rows * LANES
    if own < count:
        new_count = find_likeliest(
            logits, scratch, finite, sampler, own, image, rows, row_stride, C,
            front.scores + image * W + own, gains.least + image,
            V, GUIDED, GREEDY, WARM, CUT, NUCLEUS, SAMPLE, LANES, GROUP, FIRST == 0, BLOCK,
        )  # fmt: skip
        tl.debug_barrier()
        above = tl.full((), 1.0, tl.float64)
        if FIRST == 0:
            above = tl.load(front.scores + image * W + own)
        packed = tl.load(scratch.tops + places + own * LANES + lane)
        into = places + tl.atomic_add(listed.counts + image, new_count, sem="relaxed") + lane
        tl.store(listed.names + into, (own << 25) | token_of(packed).to(tl.int32), lane < new_count)
        tl.store(listed.scores + into, score_of(packed, above), lane < new_count)
    if is_last(scratch.arrivals + image, rows) == 0:
        return
    base, total, N = image * T, tl.load(totals + image).to(tl.int32), T + 1
    if FIRST == 0:
        while tl.load(listed.counts + image, cache_modifier=".cg") > LANES:  # trips: 0.03
            for start in range(0, ROWS * LANES, ROWS * LANES // 4):  # in parts, to use fewer registers
                at = start + tl.arange(0, ROWS * LANES // 4)
                shown = at < count * LANES
                above = tl.load(front.scores + image * W + at // LANES, shown, other=0.0)
                packed = tl.load(scratch.tops + places + at, shown, other=-1, cache_modifier=".cg")
                tl.store(listed.scores + places + at, score_of(packed, above), shown)
            tl.debug_barrier()
            at = tl.arange(0, ROWS * LANES)
            keys = tl.load(listed.scores + places + at, at < count * LANES, other=0.0).to(tl.int64, bitcast=True)
            taken, into, kept_count, _ = few_largest(keys, tl.full((), 1, tl.int64), total, LANES, WIDE_OCTAVE)
            tl.store(listed.names + places + into, at, taken)
            tl.debug_barrier()
            at = tl.load(listed.names + places + lane, lane < kept_count, other=0)
            packed = tl.load(scratch.tops + places + at, lane < kept_count, other=-1, cache_modifier=".cg")
            row, above = at // LANES, tl.load(front.scores + image * W + at // LANES)
            tl.debug_barrier()
            tl.store(listed.names + places + lane, (row << 25) | token_of(packed).to(tl.int32))
            tl.store(listed.scores + places + lane, score_of(packed, above))
            tl.store(listed.counts + image, kept_count)
            tl.debug_barrier()
    size = tl.load(listed.counts + image, cache_modifier=".cg")
    fresh = lane < size
    name = tl.load(listed.names + places + lane, fresh, other=0x7FFFFFFF, cache_modifier=".cg")
    score = tl.load(listed.scores + places + lane, fresh, other=0.0, cache_modifier=".cg")
    row = name >> 25
    # Of each pair of new ones: which is better, and which was found first. In a row, the better one is found first.
    ties = (score[None, :] == score[:, None]) & (name[None, :] < name[:, None])
    better = (score[None, :] > score[:, None]) | ties
    first = (row[None, :] < row[:, None]) | ((row[None, :] == row[:, None]) & better)
    ahead = tl.where(better, 1, 0) + tl.where(first, 1 << 20, 0)
    known, olds = tl.full((), 0, tl.int32), tl.full((), 0, tl.int32)
    length = tl.zeros((LANES,), tl.float64)
    if FIRST == 0:
        # The kept ones keep their order. A new one ranks behind all kept ones that are at least as good.
        known = tl.load(tree.counts + image).to(tl.int32) - 1
        kept = tl.load(pool.scores + base + lane, lane < known, other=0.0)
        ranks = tl.load(pool.ranks + base + lane, lane < known, other=0)
        token = tl.load(tree.tokens + image * N + 1 + lane, lane < known, other=0)
        parent = tl.load(tree.parents + image * N + 1 + lane, lane < known, other=0).to(tl.int32)
        behind = tl.where(kept[None, :] >= score[:, None], 1 << 10, 0)
        ahead += behind
        ranks += LANES - (tl.sum(behind, axis=0) >> 10)
        old = (lane < known) & (ranks < total)
        run = tl.cumsum(old.to(tl.int32), axis=0)
        olds = tl.sum(old.to(tl.int32), axis=0)
        length = tl.where(old, kept, 0.0)
    ahead = tl.sum(ahead, axis=1)  # ten bits each: better new ones, kept ones at least as good, new ones found before
    rank, order = ahead & 0x3FF, ahead >> 20
    standing = rank + ((ahead >> 10) & 0x3FF)
    stays = fresh & (standing < total)
    tl.store(scratch.tops + places + order, stays.to(tl.int64), fresh)  # the tops have been read
    tl.debug_barrier()
    turns = tl.cumsum(tl.load(scratch.tops + places + lane, fresh, other=0).to(tl.int32), axis=0)
    turn = olds + tl.gather(turns, order & (LANES - 1), axis=0) - 1
    nodes = tl.minimum(total, known + size)
    new = nodes - olds
    length = tl.sum(length + tl.where(stays, score, 0.0), axis=0)
    under, behind = tl.full((LANES,), -1, tl.int64), tl.zeros((LANES,), tl.int32)  # old and new parent; the root
    past = tl.full((), 0.0, tl.float64)
    spent = count
    if FIRST == 0:
        under = tl.load(front.candidates + image * W + row, stays, other=-1)
        behind = tl.where(under >= 0, tl.gather(run, tl.maximum(under, 0).to(tl.int32), axis=0), 0)
        past = tl.load(gains.lengths + image)
        spent += tl.load(gains.expanded + image)
    tl.debug_barrier()  # all threads have read what is overwritten now
    least = gains.least + image + tl.zeros((LANES,), tl.int32)
    if FIRST == 0:
        parent = tl.where(parent > 0, tl.gather(run, tl.maximum(parent - 1, 0), axis=0), 0)
        tl.store(pool.scores + base + run - 1, kept, old)
        tl.store(pool.ranks + base + run - 1, ranks, old)
        tl.store(tree.tokens + image * N + run, token, old)
        tl.store(tree.parents + image * N + run, parent, old)
        tl.store(least, kept, old & (ranks == total - 1))
    token = (name & 0x1FFFFFF).to(tl.int64)
    tl.store(pool.scores + base + turn, score, stays)
    tl.store(pool.ranks + base + turn, standing, stays)
    tl.store(tree.tokens + image * N + 1 + turn, token, stays)
    tl.store(tree.parents + image * N + 1 + turn, behind, stays)
    tl.store(least, score, stays & (standing == total - 1))
    tl.store(gains.least + image, 0.0, nodes < total)
    if FIRST:
        tl.store(tree.tokens + image * N, tl.load(roots + image))
        tl.store(tree.parents + image * N, tl.full((), -1, tl.int64))
    tl.store(tree.counts + image, nodes + 1)
    tl.store(listed.counts + image, 0)
    if LAST:
        tl.debug_barrier()
        lay_out_tree(tree, layout, image, N, most, LEVELS, NODES)
    else:
        tl.store(gains.lengths + image, length)
        tl.store(gains.expanded + image, spent)
        goes_on = (length - past >= tl.load(gains.threshold)) & (level + 1 < tl.load(levels + image))
        width = tl.where(goes_on, tl.maximum(tl.minimum(new, most_rows - spent), 0), 0)
        tl.store(next_counts + image, width)
        goes = stays & (rank < width)
        into = image * W + rank
        tl.store(following.tokens + into, token, goes)
        tl.store(following.candidates + into, turn, goes)
        tl.store(following.scores + into, score, goes)
        tl.store(following.parents + into, row, goes)
        slot, word = level * W + rank, tl.arange(0, WORDS)
        inside = goes[:, None] & (word < words)[None, :]
        seen = tl.load(front.masks + (image * W + row)[:, None] * words + word[None, :], inside, other=0)
        bit = tl.full((LANES,), 1, tl.int64) << (slot % 64).to(tl.int64)
        seen |= tl.where((slot // 64)[:, None] == word[None, :], bit[:, None], 0)
        tl.store(following.masks + into[:, None] * words + word[None, :], seen, inside)


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
    listed: Listed,
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
    """Grow level `level` of every image's tree.

    The best candidates so far are the tree. After the last level, it is laid out as by `tree_meta`; before, row
    level + 1 of `front` and of `gains.rows` is written.

    Args:
        logits: [R, B, rows, V] float32, of the nodes that the level expands.
        sampler: Settings that turn logits into distributions.
        scratch, finite, pool, listed, gains: See their classes.
        counts: Nodes that the level expands, [B] int64; at level 0, at least 1 stands for 1.
        levels: Levels of each image's tree, [B] int64.
        totals: Drafted nodes of each image's tree, [B] int64.
        roots: The last committed tokens, [B] int64.
        tree, layout: The trees, and their places in the picture, see `tree_meta`.
        front: The nodes that each level expands.
        level: The level's number, from 0.
        children: Children of a node.
        most_rows: Most nodes to expand in all.
        most: No cell of the layout is above it.
        counted_rows: Most nodes that a level expands on average, for the count of bytes.
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
        listed,
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
        front.masks.shape[3],
        **constants,
        W=width,
        C=children,
        WORDS=next_power_of_2(max(2, front.masks.shape[3])),
        FIRST=int(level == 0),
        LAST=int(level == following),
        ROWS=next_power_of_2(max(2, rows)),
        LANES=lanes,
        NODES=next_power_of_2(1 + kept),
        LEVELS=front.tokens.shape[0],
        GROUP=group_of(vocab_size),
        trips={"narrowings": 1 if level == 0 else 0.1},
    )
