"""A window's new cells, drawn from what the target said of the last decided cell with the same neighbours, or copied.

The reference is `algos.spatial.jacobi_window.HeldWindow.draft` and `algos.spatial.window_drafts.LookupTable.guess`.
"""

from underpaint.runtime.device.kernels.layout import Lengths, Progress
from underpaint.runtime.device.kernels.lookup_table import LookupBuffers, last_between
from underpaint.runtime.device.kernels.row_maths import copy_row, draw, one_hot
from underpaint.runtime.device.kernels.walk import BatchTree, tile
from underpaint.runtime.device.kernels.window import WindowBuffers
from underpaint.runtime.device.language import kernel, launch, next_power_of_2, tl


@kernel
def refill_lookup_kernel(
    held,
    held_counts,
    uniforms,
    kept,
    levels,
    cells,
    roots,
    decided,
    tokens,
    counts,
    draft_probs,
    W,
    V,
    N,
    U,
    most,
    width,
    LANES: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """One program an image: every new cell stands behind the one before it."""
    image = tl.program_id(0)
    wanted, filled = tl.load(levels + image), tl.load(held_counts + image)
    count, before = tl.load(cells + image), tl.load(roots + image)
    lane = tl.arange(0, LANES)
    known = tl.load(held + image * W + lane, lane < filled, other=0)
    if filled > 0:
        before = tl.sum(tl.where(lane == filled - 1, known, 0), axis=0)
    for place in range(filled, wanted):  # trips: W
        cell = count + place
        column = cell % width
        over = cell - width
        above = tl.load(decided + image * most + over, (over >= 0) & (over < count), other=-1)
        above = tl.where(over < count, above, tl.sum(tl.where(lane == over - count, known, 0), axis=0))
        own = decided + image * most
        source = tl.full((), -1, tl.int64)
        if (column > 0) & (over >= 0):
            source = last_between(own, count, before, above, width, True, True)
        if (source < 0) & (column > 0):
            source = last_between(own, count, before, above, width, True, False)
        if (source < 0) & (over >= 0):
            source = last_between(own, count, before, above, width, False, True)
        row = draft_probs + (image * W + place).to(tl.int64) * V
        token = tl.where((column == 0) & (over >= 0), above, before)
        if source >= 0:
            said = kept + (image.to(tl.int64) * most + source) * V
            token = draw(said, V, tl.load(uniforms + (image * 3 + 2) * U + place), BLOCK)
            copy_row(said, row, V, BLOCK)
        else:
            one_hot(token, row, V, BLOCK)
        known = tl.where(lane == place, token, known)
        before = token
    tl.store(counts + image, wanted + 1)
    tl.store(tokens + image * N, tl.load(roots + image))
    tl.store(tokens + image * N + 1 + lane, known, lane < wanted)


def refill_lookup(
    window: WindowBuffers, table: LookupBuffers, progress: Progress, lengths: Lengths, tree: BatchTree, width: int
) -> None:
    """Fill the tree's tokens, counts and, of new cells, drafter's distributions; lengths.levels drafts an image.

    table: keeps what was said of decided cells. width: of the grid. Where no decided cell has the same tokens on the
    left and above, one with the left token does, or one with that above; else the left token is copied, at the start of
    a row the one above.
    """
    batch, drafts = window.tokens.shape
    vocab_size = tree.probs.shape[2]
    launch(
        refill_lookup_kernel,
        (batch,),
        batch * (8 * (3 * drafts + 4) + (4 + tree.draft_probs.element_size()) * vocab_size),
        window.tokens,
        window.counts,
        window.uniforms,
        table.decided,
        lengths.levels,
        progress.cells,
        progress.roots,
        progress.decided,
        tree.tokens,
        tree.counts,
        tree.draft_probs,
        drafts,
        vocab_size,
        tree.tokens.shape[1],
        window.uniforms.shape[2],
        progress.decided.shape[1],
        width,
        LANES=next_power_of_2(max(2, drafts)),
        BLOCK=tile(vocab_size),
        warps=8,
    )
