"""What OPT-Tree keeps of a level's candidates: they are the tree so far, and the next level expands some of them."""

from torch import Tensor

from underpaint.runtime.device.kernels.children import is_last
from underpaint.runtime.device.kernels.growth import ExpandedRows, mark_best, ranked_block, ranked_rows
from underpaint.runtime.device.kernels.opt_candidates import Gains, Pool
from underpaint.runtime.device.kernels.walk import BatchTree
from underpaint.runtime.device.language import kernel, launch, next_power_of_2, tl


@kernel
def keep_best_kernel(
    pool,
    arrivals,
    gains,
    counts,
    levels,
    totals,
    roots,
    threshold,
    tree,
    front,
    following,
    next_counts,
    level,
    T,
    N,
    most,
    W: tl.constexpr,
    C: tl.constexpr,
    WORDS: tl.constexpr,
    FIRST: tl.constexpr,
    NODES: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    CBLOCK: tl.constexpr,
) -> None:
    """One program a (tile, image): marks the best; the last keeps them."""
    tile, image = tl.program_id(0), tl.program_id(1)
    M = T + W * C
    mark_best(pool.scores + image * M, tl.load(totals + image), pool.taken + image * M, tile, M, ROWS, CBLOCK)
    if is_last(arrivals + image, tl.num_programs(0)) == 0:
        return
    base = image * M
    size = tl.full((), 0, tl.int64)
    fresh = tl.full((), 0, tl.int64)
    length = tl.full((), 0.0, tl.float64)
    least = tl.full((), float("inf"), tl.float64)
    for start in range(0, M, BLOCK):  # nothing moves back, so a tile's places are read before they are written
        lane = start + tl.arange(0, BLOCK)
        chosen = tl.load(pool.taken + base + lane, lane < M, other=0, cache_modifier=".cg")
        place = size + tl.cumsum(chosen, axis=0) - 1
        goes = chosen == 1
        token = tl.load(pool.tokens + base + lane, goes, other=0)
        number = tl.load(pool.numbers + base + lane, goes, other=0)
        parent = tl.load(pool.parents + base + lane, goes, other=-1)
        score = tl.load(pool.scores + base + lane, goes, other=0.0)
        tl.debug_barrier()
        tl.store(pool.tokens + base + place, token, goes)
        tl.store(pool.numbers + base + place, number, goes)
        tl.store(pool.parents + base + place, parent, goes)
        tl.store(pool.scores + base + place, score, goes)
        tl.debug_barrier()
        size += tl.sum(chosen, axis=0)
        fresh += tl.sum(tl.where(lane >= T, chosen, 0), axis=0)
        length += tl.sum(score, axis=0)
        least = tl.minimum(least, tl.min(tl.where(goes, score, float("inf")), axis=0))
    node = tl.arange(0, NODES)
    tl.store(pool.scores + base + node, tl.zeros((NODES,), tl.float64), (node >= size) & (node < T))
    tl.debug_barrier()
    there = node < size
    token = tl.load(pool.tokens + base + node, there, other=0)
    number = tl.load(pool.numbers + base + node, there, other=0)
    parent = tl.load(pool.parents + base + node, there, other=-1)
    score = tl.load(pool.scores + base + node, there, other=0.0)
    above = tl.sum(((number[None, :] <= parent[:, None]) & there[None, :]).to(tl.int64), axis=1)
    tl.store(tree.tokens + image * N + 1 + node, token, there)
    tl.store(tree.parents + image * N + 1 + node, above, there)
    tl.store(tree.tokens + image * N, tl.load(roots + image))
    tl.store(tree.parents + image * N, tl.full((), -1, tl.int64))
    tl.store(tree.counts + image, size + 1)
    before = tl.full((), 0.0, tl.float64)
    spent = tl.full((), 0, tl.int64)
    if FIRST == 0:
        before = tl.load(gains.lengths + image)
        spent = tl.load(gains.expanded + image)
    spent += tl.minimum(tl.load(counts + image), 1 if FIRST else W)  # the first level has the root alone
    tl.debug_barrier()  # all threads have read the lengths before one writes them
    tl.store(gains.lengths + image, length)
    tl.store(gains.expanded + image, spent)
    tl.store(gains.floors + image, tl.where(size >= tl.load(totals + image), least, 0.0))
    goes_on = (length - before >= tl.load(threshold)) & (level + 1 < tl.load(levels + image))
    width = tl.where(goes_on, tl.maximum(tl.minimum(fresh, most - spent), 0), 0)
    tl.store(next_counts + image, width)
    own = number - level * W * C
    new = there & (own >= 0)
    better = (score[None, :] > score[:, None]) | ((score[None, :] == score[:, None]) & (node[None, :] < node[:, None]))
    row = tl.sum((better & new[None, :]).to(tl.int64), axis=1)
    turn = image * W + row
    goes = new & (row < width)
    tl.store(following.tokens + turn, token, goes)
    tl.store(following.candidates + turn, number, goes)
    tl.store(following.scores + turn, score, goes)
    held = own // C
    tl.store(following.parents + turn, held, goes)
    bit = level * W + row
    for word in tl.static_range(WORDS):
        seen = tl.load(front.masks + (image * W + held) * WORDS + word, goes, other=0)
        one = tl.where(bit // 64 == word, tl.full((NODES,), 1, tl.int64) << (bit % 64), 0)
        tl.store(following.masks + turn * WORDS + word, seen | one, goes)


def keep_best(
    pool: Pool,
    arrivals: Tensor,
    counts: Tensor,
    gains: Gains,
    levels: Tensor,
    totals: Tensor,
    roots: Tensor,
    threshold: Tensor,
    tree: BatchTree,
    front: ExpandedRows,
    level: int,
    most: int,
) -> None:
    """Keep the totals [B] int64 best candidates of `pool`, and settle which of them the next level expands.

    arrivals [B] int32: 0. counts [B] int64: nodes that the level expanded (level 0: at least 1 for one). tree: the
    tree so far, its tokens, parents and counts are written. levels [B] int64: of each image. threshold [1] float64:
    what a level must add. most: nodes that may be expanded in all. Row W of `front` and of `gains.rows` is written for
    level + 1, which there always is.
    """
    batch, count = pool.scores.shape
    width = front.tokens.shape[2]
    kept = tree.tokens.shape[1] - 1
    launch(
        keep_best_kernel,
        (-(-count // ranked_rows(count)), batch),
        56 * pool.scores.numel(),
        pool,
        arrivals,
        gains,
        counts,
        levels,
        totals,
        roots,
        threshold,
        tree,
        front.at(level),
        front.at(level + 1),
        gains.rows.select(0, level + 1),
        level,
        kept,
        tree.tokens.shape[1],
        most,
        W=width,
        C=(count - kept) // width,
        WORDS=front.masks.shape[3],
        FIRST=int(level == 0),
        NODES=next_power_of_2(max(2, kept)),
        BLOCK=min(512, next_power_of_2(count)),
        ROWS=ranked_rows(count),
        CBLOCK=ranked_block(count),
        warps=8,
        trips={"M": count},
    )
