"""OPT-Tree's levels: of all candidates so far the best are kept, and those of the last level are expanded.

The meaning is `algos.draft.opt`. A level of W nodes with C children each adds W * C candidates to the T that are kept;
a candidate that falls out of the best T never comes back, as those before it stay. So the kept ones are the tree, and
no more than a level is ever ranked. Numbers are the order in which candidates are found, which settles ties.
"""

from typing import NamedTuple

from torch import Tensor

from underpaint.runtime.device.kernels.children import is_last, tile_of
from underpaint.runtime.device.kernels.growth import ExpandedRows
from underpaint.runtime.device.language import kernel, launch, next_power_of_2, tl


class Pool(NamedTuple):
    """The T kept candidates and then the W * C of a level, [B, T + W * C]: int64, scores float64; 0: not there."""

    tokens: Tensor
    numbers: Tensor
    parents: Tensor
    """Numbers; -1: the root."""
    scores: Tensor
    taken: Tensor


class Gains(NamedTuple):
    """Of each image. lengths, floors [B] float64: the sum of the kept scores; the least of them, once there are T.

    expanded [B] and rows [L + 1, B] int64: nodes expanded so far, and at each level but the root's.
    """

    lengths: Tensor
    floors: Tensor
    expanded: Tensor
    rows: Tensor


@kernel
def score_of(packed, above):
    """A packed token's score under a node of score `above`; -1 for none."""
    prob = (packed >> 32).to(tl.int32).to(tl.float32, bitcast=True).to(tl.float64)
    return tl.where(packed >= 0, above * tl.minimum(prob, 1.0), -1.0)


@kernel
def store_promising(row, held, tile, above, floor, V, COUNT: tl.constexpr, LANES: tl.constexpr, BLOCK: tl.constexpr):
    """Store at `held` what `store_top` does, but only tokens whose scores are above the floor."""
    lane = tl.arange(0, LANES)
    turn = tl.full((), 0, tl.int32)
    if above > floor:
        place = tile * BLOCK + tl.arange(0, BLOCK)
        given = tl.load(row + place, place < V, other=0.0)
        bits = given.to(tl.int32, bitcast=True).to(tl.int64)
        packed = tl.where(bits >= 0x00800000, (bits << 32) | (0x7FFFFFFF - place).to(tl.int64), -1)
        best = tl.max(packed, axis=0)
        while (turn < COUNT) & (score_of(best, above) > floor):  # trips: C
            tl.store(held + turn, best)
            packed = tl.where(packed == best, -1, packed)
            best = tl.max(packed, axis=0)
            turn += 1
    tl.store(held + lane, tl.full((LANES,), -1, tl.int64), (lane >= turn) & (lane < COUNT))


@kernel
def add_candidates_kernel(
    probs,
    tops,
    arrivals,
    front,
    floors,
    counts,
    pool,
    level,
    V,
    rows,
    tiles,
    T,
    W: tl.constexpr,
    C: tl.constexpr,
    FIRST: tl.constexpr,
    POOL: tl.constexpr,
    LANES: tl.constexpr,
    HELD: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """One program a (tile, row, image); the last of a row adds its likeliest of all tiles as candidates."""
    tile, row, image = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    line = (image * rows + row).to(tl.int64)
    above = tl.full((), 1.0, tl.float64)
    floor = tl.full((), 0.0, tl.float64)
    number = tl.full((), -1, tl.int64)
    if FIRST == 0:
        above = tl.load(front.scores + image * W + row)
        floor = tl.load(floors + image)
        number = tl.load(front.candidates + image * W + row)
    grows = row < tl.load(counts + image)
    promise = tl.where(grows, above, 0.0)
    store_promising(probs + line * V, tops + (line * tiles + tile) * C, tile, promise, floor, V, C, LANES, BLOCK)
    if is_last(arrivals + line, tiles):
        M = T + W * C
        base = image * M + T + row * C
        if FIRST:  # nothing is kept yet, and other rows add nothing
            for start in range(0, M, POOL):  # trips: len(range(0, T + W * C, POOL))
                lane = start + tl.arange(0, POOL)
                tl.store(pool.scores + image * M + lane, tl.zeros((POOL,), tl.float64), lane < M)
            tl.debug_barrier()
        turn = tl.full((), 0, tl.int32)
        if grows:
            lane = tl.arange(0, HELD)
            held = tops + line * tiles * C + lane
            packed = tl.load(held, lane < tiles * C, other=-1, cache_modifier=".cg")
            best = tl.max(packed, axis=0)
            while (turn < C) & (best >= 0):  # trips: C
                tl.store(pool.tokens + base + turn, 0x7FFFFFFF - (best & 0x7FFFFFFF))
                tl.store(pool.scores + base + turn, score_of(best, above))
                packed = tl.where(packed == best, -1, packed)
                best = tl.max(packed, axis=0)
                turn += 1
        column = tl.arange(0, LANES)
        here = (row * C + column).to(tl.int64)
        tl.store(pool.numbers + base + column, level * W * C + here, column < C)
        tl.store(pool.parents + base + column, number + here * 0, column < C)
        tl.store(pool.scores + base + column, tl.zeros((LANES,), tl.float64), (column >= turn) & (column < C))


def add_candidates(
    probs: Tensor,
    counts: Tensor,
    tops: Tensor,
    arrivals: Tensor,
    front: ExpandedRows,
    gains: Gains,
    pool: Pool,
    kept: int,
    level: int,
    counted_rows: int,
) -> None:
    """Put the children of level `level` that may yet be kept behind the `kept` best of `pool`.

    probs [B, F, V] float32: of the nodes; counts [B] int64: how many of them an image has. A token whose score is not
    above the floor is left out: that many found before it are no worse. tops [B, F, tiles, C] int64: scratch; arrivals
    [B * F] int32: 0. counted_rows: that a level has on average at most, for the count of bytes.
    """
    batch, rows, tiles, count = tops.shape
    width, vocab_size = front.tokens.shape[2], probs.shape[2]
    assert probs.is_contiguous()
    launch(
        add_candidates_kernel,
        (tiles, rows, batch),
        batch * (min(rows, counted_rows) * (4 * vocab_size + 8 * tiles * count) + rows * count * (8 * tiles + 24)),
        probs,
        tops,
        arrivals,
        front.at(level),
        gains.floors,
        counts,
        pool,
        level,
        vocab_size,
        rows,
        tiles,
        kept,
        W=width,
        C=count,
        FIRST=int(level == 0),
        POOL=min(512, next_power_of_2(kept + width * count)),
        LANES=next_power_of_2(count),
        HELD=next_power_of_2(max(2, tiles * count)),
        BLOCK=tile_of(vocab_size),
    )
