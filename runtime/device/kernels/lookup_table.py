"""What the target said before, by the tokens beside its cells, and how it is found again.

The reference is `window_drafts.LookupTable`, whose dictionaries hold, for each pair of neighbours, what was said
of the last decided cell between them, and for a cell not decided yet what each pass said of it, by the token on its
left. Here distributions are kept by cell and by pass, and neighbours are compared with the decided tokens: the sizes
are fixed, and nothing that the reference would find is missing. Every pass decides a cell at least, so a window of W
drafts sees a cell in W passes at most.
"""

from typing import NamedTuple

from torch import Tensor

from underpaint.runtime.device.kernels.layout import Progress
from underpaint.runtime.device.kernels.row_maths import copy_row
from underpaint.runtime.device.kernels.walk import BatchTree, Verdicts, tile
from underpaint.runtime.device.kernels.window import end_of_drafts
from underpaint.runtime.device.language import kernel, launch, tl

_LANES = tl.constexpr(256)
"""Cells or entries compared at a time."""


class LookupBuffers(NamedTuple):
    """The distributions of each image, float32 as the target gave them. A part that is not kept is of one number.

    decided [B, cells, V]: of decided cells. seen [B, W, W, V]: of cells that were not, by the number of the cycle
    modulo W and the place in its window, from 1 on; seen_cells, seen_lefts [B, W, W] int64: which cell (-1: none),
    behind which token. found [B, W] int64: 1 where a draft's distribution was looked up in the last pass. weight [1]
    float64: of what is found beside. passes, beside: what is looked up, as `algos.spatial.jacobi_window.JacobiWindow`;
    last_row: see `couple`; refills: whether new cells are looked up.
    """

    decided: Tensor
    seen: Tensor
    seen_cells: Tensor
    seen_lefts: Tensor
    found: Tensor
    weight: Tensor
    passes: bool
    beside: bool
    last_row: bool
    refills: bool


@kernel
def last_between(decided, count, left, above, width, LEFT: tl.constexpr, ABOVE: tl.constexpr):
    """The last of `count` decided cells (int64) behind the token `left` and below `above`; -1 where there is none.

    LEFT, ABOVE: whether that neighbour is asked for.
    """
    found = tl.full((), -1, tl.int64)
    for start in range(0, count, _LANES):  # trips: most / 512
        cell = (start + tl.arange(0, _LANES)).to(tl.int64)
        fits = cell < count
        if LEFT:
            beside = fits & (cell % width > 0)
            fits = beside & (tl.load(decided + cell - 1, beside, other=-1) == left)
        if ABOVE:
            below = fits & (cell >= width)
            fits = below & (tl.load(decided + cell - width, below, other=-1) == above)
        found = tl.maximum(found, tl.max(tl.where(fits, cell, -1), axis=0))
    return found


@kernel
def newest_seen(seen_cells, seen_lefts, cell, left, cycle, W):
    """The entry (int64) of the newest pass that said something of `cell` behind the token `left`; -1: none did."""
    entries = W * W
    none = tl.full((), 1 << 62, tl.int64)
    best = none
    for start in range(0, entries, _LANES):  # trips: max(1, W * W / 256)
        entry = (start + tl.arange(0, _LANES)).to(tl.int64)
        fits = tl.load(seen_cells + entry, entry < entries, other=-1) == cell
        fits = fits & (tl.load(seen_lefts + entry, entry < entries, other=-1) == left)
        age = (cycle + W - entry // W) % W
        best = tl.minimum(best, tl.min(tl.where(fits, age * entries + entry, none), axis=0))
    return tl.where(best == none, -1, best % entries)


@kernel
def keep_kernel(
    kept,
    seen,
    seen_cells,
    seen_lefts,
    nodes,
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
    PASSES: tl.constexpr,
    LAST: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """One program a (place, image)."""
    place, image = tl.program_id(0), tl.program_id(1)
    done, last = tl.load(taken + image), tl.load(levels + image)
    if done == 0:
        return
    known = tl.load(cells + image)
    cell = known - done + place
    node = image * N + tl.load(nodes + image * (W + 1) + place)
    row = probs + node * V
    if (place < done) & (DECIDED == 1):
        copy_row(row, kept + (image * most + cell) * V, V, BLOCK)
    if (place > 0) & (PASSES == 1):
        entry = (image * W + (tl.load(cycles + image) - 1) % W) * W + place - 1
        here = (place >= done) & (place < end_of_drafts(done, last, known, most, LAST))
        tl.store(seen_cells + entry, tl.where(here, cell, -1))
        tl.store(seen_lefts + entry, tl.load(tokens + node, here, other=-1))
        if here:
            copy_row(row, seen + entry * V, V, BLOCK)


def keep(
    table: LookupBuffers, nodes: Tensor, tree: BatchTree, verdicts: Verdicts, levels: Tensor, progress: Progress
) -> None:
    """Keep what a pass over windows of `levels` [B] int64 drafts said: of what it decided, and of what it did not.

    nodes: see `WindowBuffers`. progress: after the pass. What was said of a decided
    cell is what it was drawn from.
    """
    batch, drafts = table.found.shape
    vocab_size = tree.probs.shape[2]
    launch(
        keep_kernel,
        (drafts + 1, batch),
        2 * 4 * batch * (drafts + 1) * vocab_size,
        table.decided,
        table.seen,
        table.seen_cells,
        table.seen_lefts,
        nodes,
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
        PASSES=int(table.passes),
        LAST=int(table.last_row),
        BLOCK=tile(vocab_size),
    )
