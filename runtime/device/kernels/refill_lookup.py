"""Draws a window's new cells from the target's distribution of the last decided cell with equal neighbours, or copies.

The reference is `algos.spatial.jacobi.WindowState.draft` and `algos.spatial.jacobi_window.LookupTable.guess`.
"""

from underpaint.runtime.device.kernels.layout import Lengths, Progress
from underpaint.runtime.device.kernels.lookup_table import LookupBuffers, draw_kept, last_beside, part_of
from underpaint.runtime.device.kernels.refill import lay_alone, lay_node
from underpaint.runtime.device.kernels.row_maths import PARTS, copy_row, one_hot
from underpaint.runtime.device.kernels.tree_meta import TreePlaces
from underpaint.runtime.device.kernels.walk import BatchTree, lane_of, tile
from underpaint.runtime.device.kernels.window import WindowBuffers
from underpaint.runtime.device.launch import kernel, launch, next_power_of_2, tl, wait_for_earlier_kernels

REFILLED = 4
"""New cells per cycle, to count instructions; `jacobi-lookup` on the shipped target at 128 px has 2.0 on average."""


@kernel
def refill_lookup_kernel(
    window,
    table,
    progress,
    levels,
    tree,
    layout,
    W,
    V,
    N,
    U,
    most,
    width,
    LANES: tl.constexpr,
    PART: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """One program per (draft, image). A new cell depends on those before it, so each program computes those too."""
    wait_for_earlier_kernels()
    place, image = tl.program_id(0), tl.program_id(1)
    length, filled = tl.load(levels + image), tl.load(window.counts + image)
    count, before = tl.load(progress.cells + image), tl.load(progress.roots + image)
    if place == 0:
        tl.store(tree.counts + image, length + 1)
        lay_node(tree, layout, image, N, place, length, before, W, most)
    if place >= length:
        lay_alone(tree, layout, image, N, place + 1)
        return
    lane = tl.arange(0, LANES)
    known = tl.load(window.tokens + image * W + lane, lane < filled, other=0)
    token = lane_of(known, lane, place)
    if place >= filled:
        if filled > 0:
            before = lane_of(known, lane, filled - 1)
        own = progress.decided + image * most
        source = tl.full((), -1, tl.int64)
        for turn in range(filled, place + 1):  # trips: min(W, refilled)
            cell = count + turn
            column = cell % width
            over = cell - width
            above = tl.load(own + over, (over >= 0) & (over < count), other=-1)
            above = tl.where(over < count, above, lane_of(known, lane, over - count))
            source = last_beside(own, count, tl.where(column > 0, before, -1), above, width, True)
            token = tl.where((column == 0) & (over >= 0), above, before)
            if source >= 0:
                said = image.to(tl.int64) * most + source
                uniform = tl.load(window.uniforms + (image * 3 + 2) * U + turn)
                parts = table.parts + said * PARTS
                token = draw_kept(table.decided + said * V, table.scales + said, parts, V, uniform, PART)
            known = tl.where(lane == turn, token, known)
            before = token
        row = tree.draft_probs + (image * W + place).to(tl.int64) * V
        if source >= 0:
            copy_row(table.decided + (image.to(tl.int64) * most + source) * V, row, V, BLOCK)
        else:
            one_hot(token, row, V, BLOCK)
    lay_node(tree, layout, image, N, place + 1, length, token, W, most)


def refill_lookup(
    window: WindowBuffers,
    table: LookupBuffers,
    progress: Progress,
    lengths: Lengths,
    tree: BatchTree,
    layout: TreePlaces,
    width: int,
) -> None:
    """Lay out a chain of lengths.levels drafts for each image, and fill in the draft distributions of new cells.

    A new cell uses the last decided cell with the same tokens to the left and above, else with the same left token,
    else with the same token above. Without any, it copies the token to the left, or at the start of a row the token
    above.

    Args:
        window: Buffers of the window.
        table: The target's distributions of decided cells.
        progress: Progress of the images.
        lengths: The lengths of the chains are lengths.levels.
        tree: Takes the chains.
        layout: Takes the depths and positions of their nodes.
        width: Columns of the grid.
    """
    batch, drafts = window.tokens.shape
    vocab_size = tree.probs.shape[2]
    launch(
        refill_lookup_kernel,
        (drafts, batch),
        batch * (8 * (3 * drafts + 4) + (4 + tree.draft_probs.element_size()) * vocab_size),
        window,
        table,
        progress,
        lengths.levels,
        tree,
        layout,
        drafts,
        vocab_size,
        tree.tokens.shape[1],
        window.uniforms.shape[2],
        progress.decided.shape[1],
        width,
        LANES=next_power_of_2(max(2, drafts)),
        PART=part_of(vocab_size),
        BLOCK=tile(vocab_size),
        trips={"refilled": REFILLED},
    )
