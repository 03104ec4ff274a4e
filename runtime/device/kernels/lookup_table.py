"""What the target said before, by the tokens beside its cells, and how it is found again.

The reference is `jacobi_window.LookupTable`, whose dictionaries hold, for each pair of neighbours, what was said
of the last decided cell between them, and for a cell not decided yet what each pass said of it, by the token on its
left. Here distributions are kept by cell and by pass, and neighbours are compared with the decided tokens: the sizes
are fixed, and nothing that the reference would find is missing. Every pass decides a cell at least, so a window of W
drafts sees a cell in W passes at most.
"""

from typing import NamedTuple

from torch import Tensor

from underpaint.runtime.device.kernels.layout import Progress
from underpaint.runtime.device.kernels.row_maths import NOTHING, PARTS, copy_row, place_of, scale_for
from underpaint.runtime.device.kernels.walk import BatchTree, Verdicts, tile
from underpaint.runtime.device.kernels.window import end_of_drafts
from underpaint.runtime.device.language import kernel, launch, next_power_of_2, tl

_LANES = tl.constexpr(512)
"""Cells compared at a time."""
_LEFT = tl.constexpr(1 << 28)
_BOTH = tl.constexpr(1 << 29)
"""Above every number of a cell: what a cell with the left neighbour asked for, or with both, is counted from."""


class LookupBuffers(NamedTuple):
    """The distributions of each image, float32 as the target gave them. A part that is not kept is of one number.

    decided [B, cells, V]: of decided cells; scales [B, cells] float64 and parts [B, cells, PARTS] int64: by which new
    cells are drawn from them, see `keep_parts`. seen [B, W, W, V]: of cells that were not decided, by the number of the
    cycle modulo W and the place in its window, from 1 on; seen_cells, seen_lefts [B, W, W] int64: which cell, or -1,
    behind which token. found [B, W] int64: where the distribution of a draft was looked up in the last pass: 0 nowhere,
    E + 1 in entry E of `seen`, -(C + 1) beside decided cell C. weight [1] float64: of what is found beside. passes,
    beside: what is looked up, as `algos.spatial.jacobi_window.JacobiWindow`; last_row: see `couple`; refills: whether
    new cells are looked up.
    """

    decided: Tensor
    scales: Tensor
    parts: Tensor
    seen: Tensor
    seen_cells: Tensor
    seen_lefts: Tensor
    found: Tensor
    weight: Tensor
    passes: bool
    beside: bool
    last_row: bool
    refills: bool


def part_of(vocab_size: int) -> int:
    """Tokens of a part of a row that is kept."""
    return max(1, next_power_of_2(vocab_size) // int(PARTS.value))


@kernel
def last_beside(decided, count, left, above, width, ALONE: tl.constexpr):
    """The last of `count` decided cells (int64) behind the token `left` and below `above`; -1 where there is none.

    ALONE: then the last one behind `left`, or else below `above`. -1 for a neighbour that is not there.
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
    found = tl.max(best, axis=0)
    if ALONE:
        found -= tl.where(found >= _BOTH, _BOTH, tl.where(found >= _LEFT, _LEFT, 0))
    return found.to(tl.int64)


@kernel
def first_cells(seen_cells, W, LANES: tl.constexpr):
    """The first cell behind the decided ones in each pass that was kept, [LANES] int64; far below 0 without a pass."""
    turn, firsts = tl.arange(0, LANES)[:, None], tl.full((LANES,), -(1 << 40), tl.int64)
    for start in range(0, W, 8):
        place = start + tl.arange(0, 8)[None, :]
        cells = tl.load(seen_cells + turn * W + place, (turn < W) & (place < W), other=-1)
        firsts = tl.maximum(firsts, tl.max(tl.where(cells >= 0, cells - place, -(1 << 40)), axis=1))
    return firsts


@kernel
def newest_seen(seen_cells, seen_lefts, firsts, ages, cell, left, W, LANES: tl.constexpr):
    """The entry (int64) of the newest pass that said something of `cell` behind the token `left`; -1: none did.

    firsts: see `first_cells`; ages [LANES] int32: of the passes. A pass sees a cell once.
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
    """What a row is drawn from by: its `scale`, and the masses of its parts; as `row_maths.part_masses`."""
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
    """The index (int64) that `uniform` falls on in the cumulated row, as `row_maths.draw`; see `keep_parts`."""
    lane = tl.arange(0, PARTS)
    sums = tl.load(parts + lane, lane * PART < V, other=0)
    return place_of(row, row, NOTHING, 0, V, uniform, tl.load(scale), sums, False, 2 * PART)


@kernel
def keep_kernel(
    kept,
    scales,
    parts,
    seen,
    seen_cells,
    seen_lefts,
    nodes,
    path,
    tokens,
    probs,
    taken,
    levels,
    cells,
    cycles,
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
    """One program a (place, image)."""
    place, image = tl.program_id(0), tl.program_id(1)
    done, last = tl.load(taken + image), tl.load(levels + image)
    if done == 0:
        return
    known = tl.load(cells + image)
    cell = known - done + place
    if FOLLOWS:
        own = tl.load(path + image * N + place - 1, (place > 0) & (place < done), other=0)
    else:
        own = tl.load(nodes + image * (W + 1) + place)
    node = image * N + own
    row = probs + node * V
    if (place < done) & (DECIDED == 1):
        copy_row(row, kept + (image * most + cell) * V, V, BLOCK)
        if DRAWN:
            entry = image * most + cell
            keep_parts(row, scales + entry, parts + entry * PARTS, V, PART, BLOCK)
    if (place > 0) & (PASSES == 1):
        entry = (image * W + (tl.load(cycles + image) - 1) % W) * W + place - 1
        here = (place >= done) & (place < end_of_drafts(done, last, known, most, LAST))
        tl.store(seen_cells + entry, tl.where(here, cell, -1))
        tl.store(seen_lefts + entry, tl.load(tokens + node, here, other=-1))
        if here:
            copy_row(row, seen + entry * V, V, BLOCK)


def keep(
    table: LookupBuffers, nodes: Tensor | None, tree: BatchTree, verdicts: Verdicts, levels: Tensor, progress: Progress
) -> None:
    """Keep what a pass over windows of `levels` [B] int64 drafts said: of what it decided, and of what it did not.

    nodes: see `WindowBuffers`; None behind a pass over another tree, whose accepted nodes alone say something.
    progress: after the pass. What was said of a decided cell is what it was drawn from.
    """
    batch, drafts = table.found.shape
    vocab_size = tree.probs.shape[2]
    launch(
        keep_kernel,
        (drafts + 1, batch),
        2 * 4 * batch * (drafts + 1) * vocab_size,
        table.decided,
        table.scales,
        table.parts,
        table.seen,
        table.seen_cells,
        table.seen_lefts,
        verdicts.path if nodes is None else nodes,
        verdicts.path,
        tree.tokens,
        tree.probs,
        verdicts.taken,
        levels,
        progress.cells,
        progress.cycles,
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
