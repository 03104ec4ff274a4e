"""OPT-Tree's levels: of all candidates so far the best are kept, and those of the last level are expanded.

The meaning is `algos.draft.opt`. A level of W nodes with C children each adds W * C candidates to the T that are kept;
a candidate that falls out of the best T never comes back, as those before it stay. So the kept ones are the tree, and
no more than a level is ever ranked. Numbers are the order in which candidates are found, which settles ties.
"""

from typing import NamedTuple

from torch import Tensor

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

    expanded [B] and rows [L + 1, B] int64: nodes expanded so far, and at each level.
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
def tile_promising_kernel(
    probs,
    front_scores,
    floors,
    counts,
    out,
    V,
    rows,
    tiles,
    FIRST: tl.constexpr,
    COUNT: tl.constexpr,
    LANES: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """One program a (tile, row, image): as `tile_top_kernel`, but only tokens whose scores are above the floor."""
    tile, row, image = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    line = (image * rows + row).to(tl.int64)
    held = out + (line * tiles + tile) * COUNT
    lane = tl.arange(0, LANES)
    above = tl.full((), 1.0, tl.float64)
    floor = tl.full((), 0.0, tl.float64)
    if FIRST == 0:
        above = tl.load(front_scores + image * rows + row)
        floor = tl.load(floors + image)
    if row >= tl.load(counts + image):
        above = above * 0.0
    turn = tl.full((), 0, tl.int32)
    if above > floor:
        place = tile * BLOCK + tl.arange(0, BLOCK)
        given = tl.load(probs + line * V + place, place < V, other=0.0)
        bits = given.to(tl.int32, bitcast=True).to(tl.int64)
        packed = tl.where(bits >= 0x00800000, (bits << 32) | (0x7FFFFFFF - place).to(tl.int64), -1)
        best = tl.max(packed, axis=0)
        while (turn < COUNT) & (score_of(best, above) > floor):
            tl.store(held + turn, best)
            packed = tl.where(packed == best, -1, packed)
            best = tl.max(packed, axis=0)
            turn += 1
    tl.store(held + lane, tl.full((LANES,), -1, tl.int64), (lane >= turn) & (lane < COUNT))


def tile_promising(probs: Tensor, front_scores: Tensor, gains: Gains, level: int, out: Tensor) -> None:
    """Fill out [B, F, tiles, C] with the C likeliest tokens of each tile of probs [B, F, V] that may yet be kept.

    Packed as by `tile_top`. front_scores [B, F] float64: of the nodes. A token whose score is not above the floor is
    left out: that many found before it are no worse.
    """
    batch, rows, vocab_size = probs.shape
    tiles, count = out.shape[2:]
    launch(
        tile_promising_kernel,
        (tiles, rows, batch),
        4 * probs.numel() + 8 * out.numel(),
        probs,
        front_scores,
        gains.floors,
        gains.rows.select(0, level),
        out,
        vocab_size,
        rows,
        tiles,
        FIRST=int(level == 0),
        COUNT=count,
        LANES=next_power_of_2(count),
        BLOCK=min(2048, next_power_of_2(vocab_size)),
    )


@kernel
def add_candidates_kernel(
    tops,
    front_candidates,
    front_scores,
    counts,
    tokens,
    numbers,
    parents,
    scores,
    level,
    rows,
    held,
    T,
    W: tl.constexpr,
    C: tl.constexpr,
    FIRST: tl.constexpr,
    LANES: tl.constexpr,
    COLUMNS: tl.constexpr,
    HELD: tl.constexpr,
) -> None:
    """One program a (row, image): the likeliest of all tiles, one after another, as candidates."""
    row, image = tl.program_id(0), tl.program_id(1)
    M = T + W * C
    base = image * M + T + row * C
    column = tl.arange(0, COLUMNS)
    above = tl.full((), 1.0, tl.float64)
    number = tl.full((), -1, tl.int64)
    if FIRST == 0:
        above = tl.load(front_scores + image * W + row)
        number = tl.load(front_candidates + image * W + row)
    elif row == 0:
        lane = tl.arange(0, LANES)  # nothing is kept yet
        tl.store(scores + image * M + lane, tl.zeros((LANES,), tl.float64), lane < T)
    turn = tl.full((), 0, tl.int32)
    if row < tl.load(counts + image):
        lane = tl.arange(0, HELD)
        packed = tl.load(tops + (image * rows + row) * held + lane, lane < held, other=-1)
        best = tl.max(packed, axis=0)
        while (turn < C) & (best >= 0):
            tl.store(tokens + base + turn, 0x7FFFFFFF - (best & 0x7FFFFFFF))
            tl.store(scores + base + turn, score_of(best, above))
            packed = tl.where(packed == best, -1, packed)
            best = tl.max(packed, axis=0)
            turn += 1
    here = (row * C + column).to(tl.int64)
    tl.store(numbers + base + column, level * W * C + here, column < C)
    tl.store(parents + base + column, number + here * 0, column < C)
    tl.store(scores + base + column, tl.zeros((COLUMNS,), tl.float64), (column >= turn) & (column < C))


def add_candidates(tops: Tensor, front: ExpandedRows, gains: Gains, pool: Pool, kept: int, level: int) -> None:
    """Put the children of level `level` behind the `kept` best of `pool`, from tops [B, F, tiles, C]."""
    batch, rows, tiles, count = tops.shape
    width = front.tokens.shape[2]
    launch(
        add_candidates_kernel,
        (width, batch),
        8 * tops.numel() + 32 * batch * width * count,
        tops,
        front.candidates.select(0, level),
        front.scores.select(0, level),
        gains.rows.select(0, level),
        pool.tokens,
        pool.numbers,
        pool.parents,
        pool.scores,
        level,
        rows,
        tiles * count,
        kept,
        W=width,
        C=count,
        FIRST=int(level == 0),
        LANES=next_power_of_2(kept),
        COLUMNS=next_power_of_2(count),
        HELD=next_power_of_2(max(2, tiles * count)),
    )
