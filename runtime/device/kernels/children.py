"""The likeliest tokens of expanded nodes, which become their children."""

from torch import Tensor

from underpaint.runtime.device.kernels.static_shapes import LevelRows, ShapeLevel, lay_rows
from underpaint.runtime.device.launch import kernel, launch, next_power_of_2, tl, wait_for_earlier_kernels

TILE = 2048
"""Tokens in which one program finds the likeliest ones; the last program of an image merges the results."""


@kernel
def store_top(row, out, tile, V, COUNT: tl.constexpr, BLOCK: tl.constexpr):
    """Store at `out` the COUNT likeliest tokens of a tile of a distribution: descending, ties by ascending token.

    A token is stored as one int64: the bits of its probability in the upper half, 0x7FFFFFFF - token in the lower. If
    the tile has fewer tokens whose probability is a normal number, the other places become -1.
    """
    place = tile * BLOCK + tl.arange(0, BLOCK)
    given = tl.load(row + place, place < V, other=0.0)
    bits = given.to(tl.int32, bitcast=True).to(tl.int64)
    packed = tl.where(bits >= 0x00800000, (bits << 32) | (0x7FFFFFFF - place).to(tl.int64), -1)
    for turn in tl.static_range(COUNT):
        best = tl.max(packed, axis=0)
        tl.store(out + turn, best)
        packed = tl.where(packed == best, -1, packed)


@kernel
def best_of_tiles(tops, rows, entries, C: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, LANES: tl.constexpr):
    """Return [ROWS, COLUMNS]: the C likeliest tokens of each row of an image, from the tiles of `store_top`."""
    row, column, lane = tl.arange(0, ROWS), tl.arange(0, COLUMNS), tl.arange(0, LANES)
    inside = (row[:, None] < rows) & (lane[None, :] < entries)
    packed = tl.load(tops + row[:, None] * entries + lane[None, :], inside, other=-1, cache_modifier=".cg")
    best = tl.full((ROWS, COLUMNS), -1, tl.int64)
    for turn in range(C):  # trips: tops.shape[-1]
        top = tl.max(packed, axis=1)
        best = tl.where(column[None, :] == turn, top[:, None], best)
        packed = tl.where(packed == top[:, None], -1, packed)
    return best


@kernel
def is_last(arrivals, count):
    """Return whether this program is the last of `count` that arrive here, by an atomic add after a barrier.

    The last one may read what the others stored, with loads that bypass its own cache. So the launch that makes the
    parts of a row or image can also finish the whole. `arrivals` is 0 before and after.
    """
    tl.debug_barrier()
    last = tl.atomic_add(arrivals, 1, sem="acq_rel") == count - 1
    if last:
        tl.store(arrivals, 0)
    return last


def tiles_of(vocab_size: int) -> int:
    """Return the number of tiles that a row is cut into, each of `tile_of` tokens."""
    return -(-vocab_size // tile_of(vocab_size))


def tile_of(vocab_size: int) -> int:
    """Return the number of tokens of a tile, in which one program finds the likeliest ones."""
    return min(TILE, next_power_of_2(vocab_size))


@kernel
def take_children_kernel(
    probs,
    tops,
    arrivals,
    level,
    tokens,
    exists,
    levels,
    below,
    out,
    V,
    rows,
    tiles,
    nodes,
    next_rows,
    LAST: tl.constexpr,
    WORDS: tl.constexpr,
    MOST: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    HELD: tl.constexpr,
    NEXT_ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """One program per (tile, row, image); the last program of an image gives its nodes their children."""
    wait_for_earlier_kernels()
    tile, row, image = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    line = (image * rows + row).to(tl.int64)
    store_top(probs + line * V, tops + (line * tiles + tile) * MOST, tile, V, MOST, BLOCK)
    if is_last(arrivals + image, tiles * rows):
        entries = tiles * MOST
        best = best_of_tiles(tops + image * rows * entries, rows, entries, MOST, ROWS, COLUMNS, HELD)
        shape = tl.load(levels + image)
        lane, turns = tl.arange(0, ROWS), tl.arange(0, COLUMNS)
        here = tl.load(level.child_counts + shape * rows + lane, lane < rows, other=0)
        place = tl.load(level.firsts + shape) + tl.cumsum(here, axis=0) - here
        above = tl.load(level.places + shape * rows + lane, lane < rows, other=0)
        alive = tl.load(exists + image * nodes + above, lane < rows, other=0) == 1
        there = alive[:, None] & (best >= 0)
        target = image * nodes + place[:, None] + turns[None, :]
        inside = turns[None, :] < here[:, None]
        tl.store(tokens + target, tl.where(there, 0x7FFFFFFF - (best & 0x7FFFFFFF), 0), inside)
        tl.store(exists + target, there.to(tl.int64), inside)
        if LAST == 0:
            tl.debug_barrier()
            lay_rows(tokens + image * nodes, shape, image, below, out, next_rows, WORDS, NEXT_ROWS)


def take_children(
    probs: Tensor,
    tops: Tensor,
    arrivals: Tensor,
    level: ShapeLevel,
    tokens: Tensor,
    exists: Tensor,
    levels: Tensor,
    following: tuple[ShapeLevel, LevelRows] | None,
) -> None:
    """Give the nodes of one level of a static tree their likeliest tokens as children, and lay out the level below.

    Args:
        probs: Distributions of the nodes that the level expands, [B, F, V] float32.
        tops: Scratch for `most` children per node, [B, F, tiles, most] int64.
        arrivals: Counters for `is_last`, [B] int32; 0 before and after the launch.
        level: The level's tables.
        tokens, exists, levels, following: See `drawn_level.draw_level`.
    """
    batch, rows, tiles, most = tops.shape
    vocab_size = probs.shape[2]
    assert probs.is_contiguous()
    below, out = following or (level, LevelRows(level.places, level.above, level.masks))
    width, words = out.masks.shape[1:]
    launch(
        take_children_kernel,
        (tiles, rows, batch),
        4 * probs.numel() + 16 * tops.numel() + 8 * batch * width * (5 + 2 * words),
        probs,
        tops,
        arrivals,
        level,
        tokens,
        exists,
        levels,
        below,
        out,
        vocab_size,
        rows,
        tiles,
        tokens.shape[1],
        width,
        LAST=int(following is None),
        WORDS=words,
        MOST=most,
        ROWS=next_power_of_2(max(2, rows)),
        COLUMNS=next_power_of_2(max(2, most)),
        HELD=next_power_of_2(max(2, tiles * most)),
        NEXT_ROWS=next_power_of_2(width),
        BLOCK=tile_of(vocab_size),
        warps=8,
    )
