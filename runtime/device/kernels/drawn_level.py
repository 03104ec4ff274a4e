"""A level of drawn siblings in one launch: the drafter's distributions, and the children drawn from them."""

from typing import NamedTuple, Self

import torch
from torch import Tensor

from underpaint.algos.rows import SamplingParams
from underpaint.runtime.device.kernels.children import is_last
from underpaint.runtime.device.kernels.probs import guided_values, is_finite, sampler_values, share_of
from underpaint.runtime.device.kernels.row_maths import PARTS, draw_several, whole_parts
from underpaint.runtime.device.kernels.static_shapes import LevelRows, ShapeLevel, lay_rows
from underpaint.runtime.device.kernels.walk import tile
from underpaint.runtime.device.launch import kernel, launch, next_power_of_2, tl, wait_for_earlier_kernels


class DrawnRows(NamedTuple):
    """Outputs for the distributions of a level.

    probs [B, F, V] float32. support [B, F] int32: number of tokens with positive probability. finite [B, F] int32: 0 if
    a logit was not finite. All may be slices of larger buffers along their second axis.
    """

    probs: Tensor
    support: Tensor
    finite: Tensor


class LevelSync(NamedTuple):
    """Counters by which the programs of a launch wait for each other, 0 before and after it.

    ready [B] int64: a bit per row with a stored support (at most 64 nodes). arrivals [B] int32: programs that ended.
    """

    ready: Tensor
    arrivals: Tensor

    @classmethod
    def allocate(cls, batch: int, device: torch.device) -> Self:
        return cls(*(torch.zeros(batch, dtype=kind, device=device) for kind in (torch.int64, torch.int32)))


@kernel
def children_before(level, exists, support, ready, shape, row, rows, ROWS: tl.constexpr, REPEATS: tl.constexpr):
    """Return the children that the rows before `row` draw and that it draws, and its places and those before them.

    Unless REPEATS, a row with fewer tokens than children draws fewer. So each row announces its support by an atomic
    or, and waits for the rows before it, whose programs started before its own.
    """
    lane = tl.arange(0, ROWS)
    above = tl.load(level.places + shape * rows + lane, lane < rows, other=0)
    want = tl.load(level.child_counts + shape * rows + lane, lane < rows, other=0)
    have = want * tl.load(exists + above, lane < rows, other=0)
    if REPEATS == 0:
        tl.debug_barrier()
        own = tl.full((), 1, tl.int64) << row.to(tl.int64)
        seen = tl.atomic_or(ready, own, sem="acq_rel")
        while (seen & (own - 1)) != own - 1:  # trips: 1
            seen = tl.atomic_or(ready, tl.zeros_like(own), sem="acq_rel")
        tl.debug_barrier()
        support_sizes = tl.load(support + lane, lane <= row, other=0, cache_modifier=".cg")
        have = tl.minimum(have, support_sizes.to(tl.int64))
    before = lane < row
    counted = tl.sum(tl.where(before, have, 0), axis=0)
    count, here = tl.sum(tl.where(lane == row, have, 0), axis=0), tl.sum(tl.where(lane == row, want, 0), axis=0)
    return counted, count, here, tl.sum(tl.where(before, want, 0), axis=0)


@kernel
def draw_level_kernel(
    logits,
    out,
    counts,
    sync,
    uniforms,
    level,
    tokens,
    exists,
    levels,
    below,
    fed,
    sampler,
    rows,
    row_stride,
    image_stride,
    probs_stride,
    support_stride,
    finite_stride,
    nodes,
    roles,
    next_rows,
    LAST: tl.constexpr,
    WORDS: tl.constexpr,
    ROWS: tl.constexpr,
    NEXT_ROWS: tl.constexpr,
    MOST: tl.constexpr,
    REPEATS: tl.constexpr,
    FIRST: tl.constexpr,
    DRAW_BLOCK: tl.constexpr,
    V: tl.constexpr,
    GUIDED: tl.constexpr,
    GREEDY: tl.constexpr,
    WARM: tl.constexpr,
    CUT: tl.constexpr,
    NUCLEUS: tl.constexpr,
    SAMPLE: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """One program per (row, image); the last program of an image lays out the level below.

    A node's number is the number of existing nodes before it, as in `algos.draft.shape`.
    """
    wait_for_earlier_kernels()
    row, image = tl.program_id(0), tl.program_id(1)
    given = logits + image.to(tl.int64) * image_stride + row.to(tl.int64) * V
    line = out.probs + image.to(tl.int64) * probs_stride + row.to(tl.int64) * V
    support = out.support + image * support_stride
    place = tl.arange(0, BLOCK)
    going = row < tl.load(counts + image)
    inside = place < tl.where(going, V, 0)
    values = guided_values(given, row_stride, sampler.guidance, place, inside, GUIDED)
    sound = is_finite(values)
    share = tl.zeros((BLOCK,), tl.float32)
    if going & sound:
        share = share_of(
            values, given, row_stride, sampler, place, place < V, V, GUIDED, GREEDY, WARM, CUT, NUCLEUS, SAMPLE
        )
        tl.store(line + place, share, inside)
    tl.store(out.finite + image * finite_stride + row, 0, sound == 0)  # no later level resets it to 1
    tl.store(support + row, tl.sum(tl.where(share > 0.0, 1.0, 0.0), axis=0).to(tl.int32))
    shape = tl.load(levels + image)
    first = tl.load(level.firsts + shape)
    ready, there = sync.ready + image, exists + image * nodes
    counted, count, here, before = children_before(level, there, support, ready, shape, row, rows, ROWS, REPEATS)
    lane, turn = tl.arange(0, FIRST), tl.arange(0, MOST)
    number = counted + tl.sum(tl.load(there + lane, lane < first, other=0), axis=0)
    target = image * nodes + first + before + turn
    count = tl.where(going & sound, count, 0)
    tl.store(exists + target, (turn < count).to(tl.int64), turn < here)
    PART: tl.constexpr = max(min(1024, DRAW_BLOCK // 2), 1)
    sums = whole_parts(tl.zeros((PARTS,), tl.int64), share, 0, PART, BLOCK)
    tl.debug_barrier()
    drawn = draw_several(line, V, uniforms + image * roles * nodes + number, count, sums, MOST, REPEATS, DRAW_BLOCK)
    tl.store(tokens + target, drawn, turn < count)
    if is_last(sync.arrivals + image, tl.num_programs(0)):
        tl.store(ready, 0)
        if LAST == 0:
            lay_rows(tokens + image * nodes, shape, image, below, fed, next_rows, WORDS, NEXT_ROWS)


def draw_level(
    logits: Tensor,
    out: DrawnRows,
    counts: Tensor,
    sync: LevelSync,
    uniforms: Tensor,
    level: ShapeLevel,
    tokens: Tensor,
    exists: Tensor,
    levels: Tensor,
    following: tuple[ShapeLevel, LevelRows] | None,
    repeats: bool,
    sampler: SamplingParams,
) -> None:
    """Draw the children of one level of a static tree with the noise of their numbers, and lay out the level below.

    Args:
        logits: [R, B, F, V] float32, of the nodes that the level expands; R = 1, or 2 for the guidance pair.
        out: Outputs for their distributions; rows of out.probs from `counts` on are left as they are.
        counts: [B] int64, number of valid rows.
        sync: From `LevelSync.allocate`.
        uniforms: [B, roles, N] float64, role DRAFT first.
        level: The level's tables.
        tokens: [B, N] int64, written where a child is drawn.
        exists: [B, N] int64, set to 1 for drawn children and to 0 at the other children's places; a row with fewer
            tokens than children draws fewer.
        levels: [B] int64, number of levels that an image may grow, which selects its shape.
        following: The level below and its rows to fill; None if there is none.
        repeats: Whether siblings are independent draws; otherwise each is drawn without those before it.
        sampler: Settings that turn logits into distributions.
    """
    pair, batch, rows, vocab_size = logits.shape
    below, fed = following or (level, LevelRows(level.places, level.above, level.masks))
    width, words = fed.masks.shape[1:]
    values, constants = sampler_values(sampler, pair, vocab_size)
    launch(
        draw_level_kernel,
        (rows, batch),
        4 * (pair + 1) * batch * rows * vocab_size + 8 * batch * width * (5 + 2 * words),
        logits,
        out,
        counts,
        sync,
        uniforms,
        level,
        tokens,
        exists,
        levels,
        below,
        fed,
        values,
        rows,
        batch * rows * vocab_size,
        rows * vocab_size,
        *(part.stride(0) for part in out),
        tokens.shape[1],
        uniforms.shape[1],
        width,
        LAST=int(following is None),
        WORDS=words,
        ROWS=next_power_of_2(rows),
        NEXT_ROWS=next_power_of_2(width),
        MOST=next_power_of_2(level.most),
        REPEATS=int(repeats),
        FIRST=next_power_of_2(level.before),
        DRAW_BLOCK=max(2, tile(vocab_size, wide=True) // 2),
        **constants | {"warps": 4 if vocab_size <= 8192 else constants["warps"]},  # eight warps spill on sm_80
    )
