"""The parts of a decoder layer around its attention: norms, matrix products and the gate.

The reference is `models.layers`: RMSNorm in float32, SwiGLU.
"""

from typing import NamedTuple

from torch import Tensor

from underpaint.artifacts.scaled_rows import group_size_of
from underpaint.models.layers import QK_NORM_EPS
from underpaint.runtime.device.kernels.heads import Heads, store_heads
from underpaint.runtime.device.launch import (
    AHEAD,
    PROCESSORS,
    SECTOR,
    kernel,
    launch,
    next_power_of_2,
    prefetch,
    tl,
    wait_for_earlier_kernels,
)

ADD = tl.constexpr(0)
GATE = tl.constexpr(1)
HEADS = tl.constexpr(2)
"""What happens to a product: it is added to the values that are there, gated by its own first half, or split into
queries, keys and values. The last two compute two tiles in each program."""
FEW = 16
"""Most positions for which this kernel also adds products, and takes small tiles. With more, PyTorch adds them."""


@kernel
def normalise_kernel(hidden, weight, out, D, eps, BLOCK: tl.constexpr) -> None:
    """One program per position."""
    wait_for_earlier_kernels()
    line = tl.program_id(0).to(tl.int64)
    place = tl.arange(0, BLOCK)
    inside = place < D
    values = tl.load(hidden + line * D + place, inside, other=0.0)
    wide = values.to(tl.float32)
    normed = (wide * tl.rsqrt(tl.sum(wide * wide, axis=0) / D + eps)).to(values.dtype)
    tl.store(out + line * D + place, normed * tl.load(weight + place, inside, other=0.0), inside)


def normalise(hidden: Tensor, weight: Tensor, out: Tensor, eps: float) -> None:
    """Compute out = RMSNorm(hidden) * weight; hidden and out are [R, T, F]."""
    width = hidden.shape[2]
    assert hidden.is_contiguous()
    launch(
        normalise_kernel,
        (hidden.shape[0] * hidden.shape[1],),
        hidden.numel() * hidden.element_size() * 2,
        hidden,
        weight,
        out,
        width,
        eps,
        BLOCK=next_power_of_2(width),
        warps=4 if width <= 2048 else 8,
    )


@kernel
def widened(part, like, scale, column, in_columns, place, inside, groups, GROUP_SIZE: tl.constexpr):
    """Return a tile of weights [K, N] in the type of `like`, with the scales of groups if there are any.

    8-bit values are exact in every type of `like`. A channel's scale is applied to the sums instead, because scaled
    weights may not be exact.
    """
    if GROUP_SIZE > 0:
        at = scale + column[None, :] * groups + (place // GROUP_SIZE)[:, None]
        part = part.to(tl.float32) * tl.load(at, in_columns & inside[:, None], other=0.0)
    return part.to(like.dtype)


@kernel
def product_kernel(
    hidden,
    norm,
    weight,
    scale,
    bias,
    out,
    to,
    after,
    M,
    N,
    K,
    groups,
    eps,
    GROUP_SIZE: tl.constexpr,
    NORMS: tl.constexpr,
    BIASED: tl.constexpr,
    KIND: tl.constexpr,
    TURNS: tl.constexpr,
    SCALES: tl.constexpr,
    EPS: tl.constexpr,
    SECTORS: tl.constexpr,
    STEP: tl.constexpr,
    AFTER_ROWS: tl.constexpr,
    AFTER_SECTORS: tl.constexpr,
    AFTER_STEP: tl.constexpr,
    MBLOCK: tl.constexpr,
    NBLOCK: tl.constexpr,
    KBLOCK: tl.constexpr,
) -> None:
    """One program per (tile of columns, tile of positions), which first computes the norm of its positions.

    Before it waits for its inputs, it prefetches the first SECTORS sectors of each row of its weights, of STEP numbers
    each, and then AFTER_SECTORS sectors of AFTER_ROWS rows of the weights `after`. GROUP_SIZE: numbers of a row of
    weights that share a scale; -1 for all of them, 0 for no scales.
    """
    column = tl.program_id(0) * NBLOCK + tl.arange(0, NBLOCK)
    second = N  # where the other half's columns begin
    if KIND == HEADS:
        parts = tl.cdiv(to.half, NBLOCK)
        head = tl.program_id(0) // parts
        pair = tl.program_id(0) % parts * NBLOCK + tl.arange(0, NBLOCK)
        column, second = head * 2 * to.half + pair, to.half
    line = tl.program_id(1) * MBLOCK + tl.arange(0, MBLOCK)
    lane = tl.arange(0, KBLOCK)
    there, in_columns = line[:, None] < M, column[None, :] < N
    if KIND == HEADS:
        in_columns = (pair < to.half)[None, :]
    given = hidden + line[:, None].to(tl.int64) * K
    rows = weight + column[None, :].to(tl.int64) * K
    first = tl.program_id(1) == 0  # programs of other positions read the same weights
    if SECTORS > 0:
        ahead = (tl.arange(0, SECTORS) * STEP)[:, None]
        prefetch(rows + ahead, in_columns & (ahead < K) & first)
        if KIND != ADD:
            prefetch(rows + (second * K + ahead), in_columns & (ahead < K) & first)
    if AFTER_SECTORS > 0:
        row = tl.program_id(0) * AFTER_ROWS + tl.arange(0, AFTER_ROWS)[:, None].to(tl.int64)
        ahead = after.first + (tl.arange(0, AFTER_SECTORS) * AFTER_STEP)[None, :]
        prefetch(after.weight + row * after.width + ahead, (row < after.rows) & (ahead < after.width) & first)
    wait_for_earlier_kernels()
    share = tl.full((MBLOCK,), 1.0, tl.float32)
    if NORMS:
        squares = tl.zeros((MBLOCK, KBLOCK), tl.float32)
        for start in range(0, K, KBLOCK):
            place = start + lane
            wide = tl.load(given + place[None, :], there & (place < K)[None, :], other=0.0).to(tl.float32)
            squares += wide * wide
        share = tl.rsqrt(tl.sum(squares, axis=1) / K + eps)
    sums = tl.zeros((MBLOCK, NBLOCK), tl.float32)
    passed = tl.zeros((MBLOCK, NBLOCK), tl.float32)
    for start in range(0, K, KBLOCK):
        place = start + lane
        inside = place < K
        here = tl.load(given + place[None, :], there & inside[None, :], other=0.0)
        if NORMS:
            factor = tl.load(norm + place, inside, other=0.0)
            here = (here.to(tl.float32) * share[:, None]).to(here.dtype) * factor[None, :]
        part = tl.load(rows + place[:, None], in_columns & inside[:, None], other=0.0)
        part = widened(part, here, scale, column, in_columns, place, inside, groups, GROUP_SIZE)
        sums = tl.dot(here, part, sums, input_precision="ieee")
        if KIND != ADD:
            part = tl.load(rows + (second * K + place)[:, None], in_columns & inside[:, None], other=0.0)
            part = widened(part, here, scale, second + column, in_columns, place, inside, groups, GROUP_SIZE)
            passed = tl.dot(here, part, passed, input_precision="ieee")
    if GROUP_SIZE == -1:
        sums *= tl.load(scale + column[None, :], in_columns, other=0.0)
        if KIND != ADD:
            passed *= tl.load(scale + second + column[None, :], in_columns, other=0.0)
    if BIASED:
        sums += tl.load(bias + column[None, :], in_columns, other=0.0).to(tl.float32)
        if KIND != ADD:
            passed += tl.load(bias + second + column[None, :], in_columns, other=0.0).to(tl.float32)
    if KIND == HEADS:
        store_heads(to, sums, passed, head, line, M, pair, TURNS, SCALES, EPS)
    else:
        if KIND == GATE:
            kind = out.dtype.element_ty
            gate = sums.to(kind).to(tl.float32)
            sums = ((gate / (1.0 + tl.exp(-gate))).to(kind) * passed.to(kind)).to(tl.float32)
        at = out + line[:, None].to(tl.int64) * N + column[None, :]
        if KIND == ADD:
            sums += tl.load(at, there & in_columns, other=0.0).to(tl.float32)
        tl.store(at, sums, there & in_columns)


class Tiles(NamedTuple):
    """How a product is divided: `blocks` blocks of `block` positions by `number` tiles of `width` columns."""

    block: int
    blocks: int
    width: int
    number: int


def tiles_of(lines: int, columns: int, kind: int, size: int, half: int, whole_heads: bool) -> Tiles:
    """Choose the tiles of a product; a half-filled block issues as many instructions as a full one.

    Args:
        lines: Positions.
        columns: Columns of the product; for GATE, of one half.
        kind: ADD, GATE or HEADS.
        size: Bytes of a number.
        half: Half of a head's numbers, for HEADS.
        whole_heads: Whether tiles hold whole halves, to normalise heads.
    """
    few, block = lines <= FEW, 32 if lines <= 64 else 64
    if few:  # two tiles of a few positions issue fewest without padding, one tile with 16 positions
        block = max(16, next_power_of_2(lines)) if kind == ADD.value else next_power_of_2(lines)
    blocks, width = -(-lines // block), 16 if few and kind == ADD.value else 32
    if not few and size <= 2 and -(-columns // width) * blocks > PROCESSORS:  # one larger tile takes less than two
        width = 64
    if kind != HEADS.value:
        return Tiles(block, blocks, width, -(-columns // width))
    most = max(16, next_power_of_2(half))
    width = most if whole_heads else min(most, 16 if few else width)
    return Tiles(block, blocks, width, columns // (2 * half) * -(-half // width))


class After(NamedTuple):
    """The weights [rows, width] of the next product, and the first number of a row that it does not prefetch itself."""

    weight: Tensor
    rows: int
    width: int
    first: int


def sectors_ahead(weight: Tensor) -> int:
    """Return how many sectors of each row [N, K] a product prefetches: 0 or a power of two, at least the row's last."""
    rows, size = weight.shape[0], weight.element_size()
    return power_of_2_within(min(AHEAD // (rows * SECTOR), next_power_of_2(-(-weight.shape[1] * size // SECTOR))))


def power_of_2_within(most: int) -> int:
    """Return the largest power of two that is at most `most` (>= 0), or 0."""
    return 1 << most.bit_length() >> 1


def product(
    hidden: Tensor,
    norm: tuple[Tensor, float] | None,
    weight: Tensor,
    bias: Tensor | None,
    out: Tensor | Heads,
    kind: int,
    turns: bool = False,
    scales: bool = False,
    after: Tensor | None = None,
    weight_scale: Tensor | None = None,
) -> None:
    """Compute RMSNorm(hidden) @ weight.T + bias, and add, gate or split the product.

    Args:
        hidden: The inputs, [R, T, K].
        norm: Weight and epsilon of the norm; None for none.
        weight: [N, K], or [2 N, K] for GATE.
        bias: Added to the product; None for none.
        out: [R, T, N], or the outputs of HEADS.
        kind: ADD adds the product to `out`. GATE stores silu(first half of the product) * second half. HEADS stores
            queries, keys and values as `Heads` says.
        turns, scales: Whether `Heads` has a table, and whether it has scales.
        after: Weights of the next product, prefetched as far as those of this one leave room; None for none.
        weight_scale: float32 factors of int8, float8_e4m3fn or other weights, [N, 1] for channels or [N, G] for
            groups (2 N for GATE); None for none.
    """
    lines, width = hidden.shape[0] * hidden.shape[1], hidden.shape[2]
    out_tensor = hidden if isinstance(out, Heads) else out
    assert hidden.is_contiguous()
    assert weight.is_contiguous()
    assert out_tensor.is_contiguous()
    to = out if isinstance(out, Heads) else Heads(*(hidden,) * 5, *(1,) * 9)
    columns = weight.shape[0] // (2 if kind == GATE.value else 1)
    size, few = hidden.element_size(), lines <= FEW
    tiles = tiles_of(lines, columns, kind, size, to.half, scales)
    wide = tiles.width * (1 if kind == ADD.value else 2)
    depth = 64 if not few else 256 if wide <= 64 else 128
    if size > 2:  # narrow weights take more registers
        depth = 32 if few or weight.element_size() == size else 16
    depth = min(depth, max(16, next_power_of_2(width)))
    # Three buffers of a stage, and one of `hidden` to convert: RTX and L4 cards have 101,376 bytes of shared memory.
    stages = 4 if (3 * (tiles.block + wide) + tiles.block) * depth * size < 100_000 else 3
    warps = 8 if size > 2 or (scales and tiles.block == 64) else 4  # so that its data fits in registers
    # With fewer values than threads, threads would share values: one could add to what another has stored.
    assert kind != ADD.value or tiles.block * tiles.width >= 32 * warps
    sectors, step = sectors_ahead(weight), SECTOR // weight.element_size()
    prefetched = min(width, sectors * step) * weight.element_size() * weight.shape[0]
    following, after_step, after_sectors, prefetched_next = After(weight, 1, 1, 0), step, 0, 0
    if after is not None:
        after_step = SECTOR // after.element_size()
        following = After(after, after.shape[0], after.shape[1], sectors_ahead(after) * after_step)
        left = max(0, following.width - following.first)
        missing = next_power_of_2(-(-left // after_step)) if left else 0
        after_sectors = power_of_2_within(min((AHEAD - prefetched) // (following.rows * SECTOR), missing))
        prefetched_next = min(left, after_sectors * after_step) * after.element_size() * following.rows
    groups = 0 if weight_scale is None else weight_scale.shape[1]
    moved = weight.numel() * weight.element_size() + (hidden.numel() + lines * columns) * size
    launch(
        product_kernel,
        (tiles.number, tiles.blocks),
        moved + (0 if weight_scale is None else weight_scale.numel() * weight_scale.element_size()),
        hidden,
        hidden if norm is None else norm[0],
        weight,
        weight if weight_scale is None else weight_scale,
        weight if bias is None else bias,
        out_tensor,
        to,
        following,
        lines,
        columns,
        width,
        groups,
        0.0 if norm is None else norm[1],
        GROUP_SIZE=group_size_of(width, groups) if groups > 1 else -groups,
        NORMS=norm is not None,
        BIASED=bias is not None,
        KIND=kind,
        TURNS=turns,
        SCALES=scales,
        EPS=QK_NORM_EPS,
        SECTORS=sectors,
        STEP=step,
        AFTER_ROWS=next_power_of_2(-(-following.rows // tiles.number)),
        AFTER_SECTORS=after_sectors,
        AFTER_STEP=after_step,
        MBLOCK=tiles.block,
        NBLOCK=tiles.width,
        KBLOCK=depth,
        warps=warps,
        stages=stages,
        prefetched=prefetched,
        prefetched_next=prefetched_next,
    )
