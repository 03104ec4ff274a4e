"""Earlier target distributions, and their lookup by the tokens next to a cell.

The reference is `jacobi_window.LookupTable`. Its dictionaries hold, for each pair of neighbours, the distribution of
the last decided cell with them, and for an undecided cell the distributions of all passes, by the token on its left.
Here, distributions are kept by cell and by pass, and neighbours are compared with the decided tokens. So sizes are
fixed, and everything that the reference would find is found. Every pass decides at least one cell, so a window of W
drafts sees a cell in at most W passes.
"""

from typing import NamedTuple

from torch import Tensor

from underpaint.runtime.device.kernels.layout import Progress
from underpaint.runtime.device.kernels.row_maths import NOTHING, PARTS, copy_row, place_of, scale_for
from underpaint.runtime.device.kernels.walk import BatchTree, Verdicts, tile
from underpaint.runtime.device.kernels.window import end_of_drafts
from underpaint.runtime.device.launch import kernel, launch, next_power_of_2, tl, wait_for_earlier_kernels

_LANES = tl.constexpr(512)
"""Cells compared at a time."""
_LEFT = tl.constexpr(1 << 28)
_BOTH = tl.constexpr(1 << 29)
"""Added to a cell's number if it has the wanted left neighbour, or both wanted ones; above every cell's number."""


class LookupBuffers(NamedTuple):
    """Distributions of each image, float32 as the target gave them. Parts that are not kept are small.

    Attributes:
        decided: Distributions of decided cells, [B, cells, V].
        scales: With `parts`, data to draw new cells from them, see `keep_parts`, [B, cells] float64.
        parts: [B, cells, PARTS] int64.
        seen: Distributions of undecided cells, by the cycle's number modulo W and the place in its window, from place 1
            on, [B, W, W, V].
        seen_cells: Their cells, or -1, [B, W, W] int64.
        seen_lefts: The tokens left of these cells, [B, W, W] int64.
        sources: Where the last pass looked up a draft's distribution, [B, W] int64: 0 nowhere, E + 1 in entry E of
            `seen`, -(C + 1) at decided cell C.
        weight: Weight of a decided cell's distribution, [1] float64.
        passes, beside: What is looked up, as in `algos.spatial.jacobi_window.JacobiWindow`.
        last_row: See `couple`.
        refills: Whether new cells are looked up.
    """

    decided: Tensor
    scales: Tensor
    parts: Tensor
    seen: Tensor
    seen_cells: Tensor
    seen_lefts: Tensor
    sources: Tensor
    weight: Tensor
    passes: bool
    beside: bool
    last_row: bool
    refills: bool


def part_of(vocab_size: int) -> int:
    """Return the number of tokens in a part of a kept row."""
    return max(1, next_power_of_2(vocab_size) // int(PARTS.value))


@kernel
def last_beside(decided, count, left, above, width, ALONE: tl.constexpr):
    """Return the last of `count` decided cells (int64) right of token `left` and below token `above`; -1 for none.

    ALONE: if there is none, the last one right of `left`, or else below `above`. Pass -1 for a missing neighbour.
    """
    lane = tl.arange(0, _LANES)
    decided_cells = count.to(tl.int32)
    best = tl.full((_LANES,), -1, tl.int32)
    for start in range(0, count, _LANES):  # trips: most / 1024
        cell = (start + lane).to(tl.int32)
        there = cell < decided_cells
        beside = there & (cell % width > 0)
        behind = beside & (tl.load(decided + cell - 1, beside, other=-1) == left)
        lower = there & (cell >= width)
        below = lower & (tl.load(decided + cell - width, lower, other=-1) == above)
        if ALONE:
            rank = tl.where(behind, cell + tl.where(below, _BOTH, _LEFT), tl.where(below, cell, -1))
        else:
            rank = tl.where(behind & below, cell, -1)
        best = tl.maximum(best, rank)
    cell_rank = tl.max(best, axis=0)
    if ALONE:
        cell_rank -= tl.where(cell_rank >= _BOTH, _BOTH, tl.where(cell_rank >= _LEFT, _LEFT, 0))
    return cell_rank.to(tl.int64)


@kernel
def first_cells(seen_cells, W, LANES: tl.constexpr):
    """Return the cell of the first entry of each kept pass, [LANES] int64; far below 0 if there is no pass."""
    turn, firsts = tl.arange(0, LANES)[:, None], tl.full((LANES,), -(1 << 40), tl.int64)
    for start in range(0, W, 8):
        place = start + tl.arange(0, 8)[None, :]
        cells = tl.load(seen_cells + turn * W + place, (turn < W) & (place < W), other=-1)
        firsts = tl.maximum(firsts, tl.max(tl.where(cells >= 0, cells - place, -(1 << 40)), axis=1))
    return firsts


@kernel
def newest_seen(seen_cells, seen_lefts, firsts, ages, cell, left, W, LANES: tl.constexpr):
    """Return the entry (int64) of the newest pass that saw `cell` right of token `left`; -1 if none did.

    firsts: see `first_cells`. ages [LANES] int32: ages of the passes. A pass sees a cell once.
    """
    turn = tl.arange(0, LANES)
    place = cell - firsts
    entry = (turn * W + place).to(tl.int32)
    there = (turn < W) & (place >= 0) & (place < W)
    fits = there & (tl.load(seen_cells + entry, there, other=-1) == cell)
    fits = fits & (tl.load(seen_lefts + entry, there, other=-1) == left)
    newest = tl.min(tl.where(fits, ages * W * W + entry, 1 << 30), axis=0)
    return tl.where(newest < 1 << 30, newest % (W * W), -1).to(tl.int64)


@kernel
def keep_parts(row, scale, parts, V, PART: tl.constexpr, BLOCK: tl.constexpr) -> None:
    """Store what a row is drawn by, as in `row_maths.part_masses`: its `scale` and the masses of its parts."""
    largest = tl.full((), 0.0, tl.float32)
    for start in range(0, V, BLOCK):
        place = start + tl.arange(0, BLOCK)
        largest = tl.maximum(largest, tl.max(tl.load(row + place, place < V, other=0.0), axis=0))
    own = scale_for(largest.to(tl.float64))
    tl.store(scale, own)
    HELD: tl.constexpr = BLOCK // PART
    for start in range(0, V, BLOCK):
        place = start + tl.arange(0, BLOCK)
        masses = (tl.load(row + place, place < V, other=0.0).to(tl.float64) * own).to(tl.int64)
        tl.store(parts + start // PART + tl.arange(0, HELD), tl.sum(tl.reshape(masses, (HELD, PART)), axis=1))


@kernel
def draw_kept(row, scale, parts, V, uniform, PART: tl.constexpr):
    """Return the token (int64) that `uniform` falls on in the cumulated row, as `row_maths.draw`; see `keep_parts`."""
    lane = tl.arange(0, PARTS)
    sums = tl.load(parts + lane, lane * PART < V, other=0)
    return place_of(row, row, NOTHING, 0, V, uniform, tl.load(scale), sums, False, 2 * PART)


@kernel
def keep_kernel(
    table,
    nodes,
    tree,
    verdicts,
    levels,
    progress,
    W,
    V,
    N,
    most,
    DECIDED: tl.constexpr,
    DRAWN: tl.constexpr,
    PASSES: tl.constexpr,
    FOLLOWS: tl.constexpr,
    LAST: tl.constexpr,
    PART: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """One program per (place, image)."""
    wait_for_earlier_kernels()
    place, image = tl.program_id(0), tl.program_id(1)
    done, last = tl.load(verdicts.taken + image), tl.load(levels + image)
    if done == 0:
        return
    known = tl.load(progress.cells + image)
    cell = known - done + place
    if FOLLOWS:
        own = tl.load(verdicts.path + image * N + place - 1, (place > 0) & (place < done), other=0)
    else:
        own = tl.load(nodes + image * (W + 1) + place)
    node = image * N + own
    row = tree.probs + node * V
    if (place < done) & (DECIDED == 1):
        copy_row(row, table.decided + (image * most + cell) * V, V, BLOCK)
        if DRAWN:
            entry = image * most + cell
            keep_parts(row, table.scales + entry, table.parts + entry * PARTS, V, PART, BLOCK)
    if (place > 0) & (PASSES == 1):
        entry = (image * W + (tl.load(progress.cycles + image) - 1) % W) * W + place - 1
        here = (place >= done) & (place < end_of_drafts(done, last, known, most, LAST))
        tl.store(table.seen_cells + entry, tl.where(here, cell, -1))
        tl.store(table.seen_lefts + entry, tl.load(tree.tokens + node, here, other=-1))
        if here:
            copy_row(row, table.seen + entry * V, V, BLOCK)


def keep(
    table: LookupBuffers, nodes: Tensor | None, tree: BatchTree, verdicts: Verdicts, levels: Tensor, progress: Progress
) -> None:
    """Keep the distributions of a pass over windows of drafts, of decided and of undecided cells.

    The distribution kept for a decided cell is the one that it was drawn from.

    Args:
        table: Takes the distributions.
        nodes: See `WindowBuffers`; None after a pass over another tree, of which only the accepted nodes count.
        tree: The trees of the pass.
        verdicts: The verdicts on them.
        levels: Drafts of each window, [B] int64.
        progress: Progress after the pass.
    """
    batch, drafts = table.sources.shape
    vocab_size = tree.probs.shape[2]
    launch(
        keep_kernel,
        (drafts + 1, batch),
        2 * 4 * batch * (drafts + 1) * vocab_size,
        table,
        verdicts.path if nodes is None else nodes,
        tree,
        verdicts,
        levels,
        progress,
        drafts,
        vocab_size,
        tree.tokens.shape[1],
        progress.decided.shape[1],
        DECIDED=int(table.beside or table.refills),
        DRAWN=int(table.refills),
        PASSES=int(table.passes),
        FOLLOWS=int(nodes is None),
        LAST=int(table.last_row),
        PART=part_of(vocab_size),
        BLOCK=tile(vocab_size, wide=True),
    )
