"""Children of expanded nodes: the likeliest tokens, or tokens drawn one after another from what is left."""

from torch import Tensor

from underpaint.runtime.device.kernels.row_maths import draw
from underpaint.runtime.device.kernels.static_shapes import ShapeLevel
from underpaint.runtime.device.language import kernel, launch, next_power_of_2, tl

TILE = 2048
"""Tokens whose likeliest one program finds; the next kernel merges the tiles."""


@kernel
def tile_top_kernel(probs, out, V, rows, tiles, COUNT: tl.constexpr, BLOCK: tl.constexpr) -> None:
    """One program a (tile, row, image); a token is one int64: its probability's bits above its place from behind."""
    tile, row, image = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    line = (image * rows + row).to(tl.int64)
    place = tile * BLOCK + tl.arange(0, BLOCK)
    given = tl.load(probs + line * V + place, place < V, other=0.0)
    bits = given.to(tl.int32, bitcast=True).to(tl.int64)
    packed = tl.where(bits >= 0x00800000, (bits << 32) | (0x7FFFFFFF - place).to(tl.int64), -1)
    held = out + (line * tiles + tile) * COUNT
    for turn in tl.static_range(COUNT):
        best = tl.max(packed, axis=0)
        tl.store(held + turn, best)
        packed = tl.where(packed == best, -1, packed)


def tile_top(probs: Tensor, out: Tensor) -> None:
    """Fill out [B, F, tiles, C] int64 with the C likeliest tokens of each tile of probs [B, F, V] float32.

    Falling; ties by rising token; -1 where the tile has fewer that have probability (a normal number).
    """
    batch, rows, vocab_size = probs.shape
    tiles, count = out.shape[2:]
    block = min(TILE, next_power_of_2(vocab_size))
    assert tiles == -(-vocab_size // block)
    assert probs.is_contiguous()
    launch(
        tile_top_kernel,
        (tiles, rows, batch),
        4 * probs.numel() + 8 * out.numel(),
        probs,
        out,
        vocab_size,
        rows,
        tiles,
        COUNT=count,
        BLOCK=block,
    )


def tiles_of(vocab_size: int) -> int:
    """Tiles that `tile_top` cuts a row into."""
    return -(-vocab_size // min(TILE, next_power_of_2(vocab_size)))


@kernel
def draw_children_kernel(
    probs,
    support,
    uniforms,
    places,
    wanted,
    tokens,
    exists,
    firsts,
    levels,
    V,
    rows,
    probs_stride,
    support_stride,
    nodes,
    roles,
    ROWS: tl.constexpr,
    MOST: tl.constexpr,
    FIRST: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """One program a (row, image). A node's number counts those before it that there are, as in `algos.draft.shape`."""
    row, image = tl.program_id(0), tl.program_id(1)
    shape = tl.load(levels + image)
    first = tl.load(firsts + shape)
    lane = tl.arange(0, ROWS)
    above = tl.load(places + shape * rows + lane, lane < rows, other=0)
    want = tl.load(wanted + shape * rows + lane, lane < rows, other=0)
    alive = tl.load(exists + image * nodes + above, lane < rows, other=0)
    held = tl.load(support + image * support_stride + lane, lane < rows, other=0)
    have = tl.minimum(want, held.to(tl.int64)) * alive
    before = tl.arange(0, FIRST)
    number = tl.sum(tl.load(exists + image * nodes + before, before < first, other=0), axis=0)
    number += tl.sum(tl.where(lane < row, have, 0), axis=0)
    place = first + tl.sum(tl.where(lane < row, want, 0), axis=0)
    count = tl.sum(tl.where(lane == row, have, 0), axis=0)
    line = probs + image.to(tl.int64) * probs_stride + row.to(tl.int64) * V
    gone = tl.full((MOST,), -1, tl.int64)
    turns = tl.arange(0, MOST)
    here = tl.sum(tl.where(lane == row, want, 0), axis=0)
    tl.store(exists + image * nodes + place + turns, (turns < count).to(tl.int64), turns < here)
    for turn in range(0, count):
        uniform = tl.load(uniforms + image * roles * nodes + number + turn)
        token = draw(line, V, uniform, gone, BLOCK)
        gone = tl.where(turns == turn, token, gone)
        tl.store(tokens + image * nodes + place + turn, token)


def draw_children(
    probs: Tensor,
    support: Tensor,
    uniforms: Tensor,
    level: ShapeLevel,
    tokens: Tensor,
    exists: Tensor,
    levels: Tensor,
    most: int,
) -> None:
    """Draw the children of one level of a static tree, without replacement, by the noise of their numbers.

    probs [B, F, V] float32 and support [B, F] int32: of the nodes that the level expands. uniforms [B, R, N] float64,
    role DRAFT first. tokens [B, N] int64: written where a child is drawn. exists [B, N] int64: 1 there, 0 at the other
    children's places; a row with fewer tokens than children yields fewer.
    levels [B] int64: levels that an image may grow, which name its shape. most: children of a node.
    """
    batch, rows, vocab_size = probs.shape
    launch(
        draw_children_kernel,
        (rows, batch),
        4 * batch * rows * vocab_size,
        probs,
        support,
        uniforms,
        level.places,
        level.wanted,
        tokens,
        exists,
        level.firsts,
        levels,
        vocab_size,
        rows,
        probs.stride(0),
        support.stride(0),
        tokens.shape[1],
        uniforms.shape[1],
        ROWS=next_power_of_2(rows),
        MOST=next_power_of_2(most),
        FIRST=next_power_of_2(level.before),
        BLOCK=min(1024, next_power_of_2(vocab_size)),
        warps=8,
    )


@kernel
def take_children_kernel(
    tops,
    places,
    wanted,
    tokens,
    exists,
    firsts,
    levels,
    rows,
    held,
    nodes,
    ROWS: tl.constexpr,
    MOST: tl.constexpr,
    HELD: tl.constexpr,
) -> None:
    """One program a (row, image): the likeliest of all tiles, one after another."""
    row, image = tl.program_id(0), tl.program_id(1)
    shape = tl.load(levels + image)
    lane = tl.arange(0, ROWS)
    want = tl.load(wanted + shape * rows + lane, lane < rows, other=0)
    place = tl.load(firsts + shape) + tl.sum(tl.where(lane < row, want, 0), axis=0)
    here = tl.sum(tl.where(lane == row, want, 0), axis=0)
    alive = tl.load(exists + image * nodes + tl.load(places + shape * rows + row)) == 1
    column = tl.arange(0, HELD)
    packed = tl.load(tops + (image * rows + row) * held + column, column < held, other=-1)
    turns = tl.arange(0, MOST)
    best = tl.full((MOST,), -1, tl.int64)
    for turn in range(MOST):
        top = tl.max(packed, axis=0)
        best = tl.where(turns == turn, top, best)
        packed = tl.where(packed == top, -1, packed)
    there = alive & (best >= 0)
    target = image * nodes + place + turns
    tl.store(tokens + target, tl.where(there, 0x7FFFFFFF - (best & 0x7FFFFFFF), 0), turns < here)
    tl.store(exists + target, there.to(tl.int64), turns < here)


def take_children(
    tops: Tensor,
    level: ShapeLevel,
    tokens: Tensor,
    exists: Tensor,
    levels: Tensor,
    most: int,
) -> None:
    """Give the nodes of one level of a static tree their likeliest tokens, of tops [B, F, tiles, most]: see `tile_top`.

    All else as in `draw_children`.
    """
    batch, rows, tiles, count = tops.shape
    launch(
        take_children_kernel,
        (rows, batch),
        8 * tops.numel(),
        tops,
        level.places,
        level.wanted,
        tokens,
        exists,
        level.firsts,
        levels,
        rows,
        tiles * count,
        tokens.shape[1],
        ROWS=next_power_of_2(rows),
        MOST=next_power_of_2(most),
        HELD=next_power_of_2(max(2, tiles * count)),
    )
