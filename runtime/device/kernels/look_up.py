"""New drafts where the left token has changed, from an earlier distribution for the token that is there now.

The reference is `algos.spatial.jacobi.WindowState.redraft`. A draft depends on the one before it, so this goes place by
place. It runs after `couple`, which has drafted every place as if nothing were found, so only places for which a
distribution is found are drafted again. The findings are noted for `shift`, which moves all distributions at once.
"""

from underpaint.runtime.device.kernels.couple import redrawn
from underpaint.runtime.device.kernels.layout import Lengths, Progress
from underpaint.runtime.device.kernels.lookup_table import LookupBuffers, first_cells, last_beside, newest_seen
from underpaint.runtime.device.kernels.row_maths import row_sum
from underpaint.runtime.device.kernels.walk import BatchTree, Verdicts, lane_of, tile
from underpaint.runtime.device.kernels.window import WindowBuffers, end_of_drafts
from underpaint.runtime.device.launch import kernel, launch, next_power_of_2, tl, wait_for_earlier_kernels

_TILE = 1024
"""Numbers of a row read at once: with few warps, these wait less for each other during the lookup, and hold less."""
CHANGED = 4
FOUND = 1
"""Drafts per cycle whose left token has changed, and those of them for which something is found. `jacobi-lookup` on the
shipped target at 128 px has 3.8 and 0.1."""


@kernel
def look_up_kernel(
    window,
    table,
    tree,
    taken,
    levels,
    progress,
    W,
    V,
    N,
    U,
    raced,
    most,
    width,
    KIND: tl.constexpr,
    PASSES: tl.constexpr,
    BESIDE: tl.constexpr,
    LAST: tl.constexpr,
    LANES: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """One program per image. Each turn of the outer loop goes to the next draft for which something is found."""
    wait_for_earlier_kernels()
    image = tl.program_id(0)
    done, last = tl.load(taken + image), tl.load(levels + image)
    if done == 0:
        return
    count = tl.load(progress.cells + image)
    end = end_of_drafts(done, last, count, most, LAST)
    filled = tl.load(window.counts + image)
    lane = tl.arange(0, LANES)
    inside = lane < end - done
    known = tl.load(window.tokens + image * W + lane, inside, other=0)
    notes = tl.zeros((LANES,), tl.int64)
    passes = image.to(tl.int64) * W * W
    seen_cells, seen_lefts = table.seen_cells + passes, table.seen_lefts + passes
    own = progress.decided + image * most
    if PASSES:
        firsts = first_cells(seen_cells, W, LANES)
        ages = ((tl.load(progress.cycles + image) - 1 + W - lane) % W).to(tl.int32)
    # The tokens left of the drafts now, and those that were there in the pass.
    node = tl.load(window.nodes + image * (W + 1) + done + lane, inside, other=0)
    stale_before = tl.load(tree.tokens + image * N + node, inside, other=0)
    before = tl.load(window.tokens + image * W + lane - 1, inside & (lane > 0), other=0)
    before = tl.where(lane == 0, tl.load(progress.roots + image), before)
    here = tl.min(tl.where(inside & (before != stale_before), lane, LANES), axis=0)
    while here < LANES:  # trips: found
        entry = tl.full((), -1, tl.int64)
        source = tl.full((), -1, tl.int64)
        while (here < LANES) & (entry < 0) & (source < 0):  # trips: changed / found
            cell = count + here
            left = lane_of(before, lane, here)
            if PASSES:
                entry = newest_seen(seen_cells, seen_lefts, firsts, ages, cell, left, W, LANES)
            if (entry < 0) & (cell >= width) & (cell % width > 0) & (BESIDE == 1):
                over = cell - width
                above = tl.load(own + over, over < count, other=0)
                above = tl.where(over < count, above, lane_of(known, lane, over - count))
                source = last_beside(own, count, left, above, width, False)
            if (entry < 0) & (source < 0):
                here = tl.min(tl.where(inside & (before != stale_before) & (lane > here), lane, LANES), axis=0)
        if here < LANES:
            place = done + here
            row = tree.probs + (image * N + tl.load(window.nodes + image * (W + 1) + place)) * V
            said = table.seen + (passes + entry) * V
            weight = tl.full((), 1.0, tl.float64)
            if entry < 0:
                said = table.decided + (image.to(tl.int64) * most + source) * V
                weight = tl.load(table.weight)
            row_total = tl.full((), 1.0, tl.float64)
            if entry < 0:
                row_total = row_sum(row, V, BLOCK)
            stale = tree.draft_probs + (image * W + place).to(tl.int64) * V
            behind = tl.load(window.tokens + image * W + place, (place >= last) & (place < filled), other=0)
            stood = tl.load(tree.tokens + image * N + 1 + place, place < last, other=behind)
            is_held = (place < last) | (place < filled)
            own_noise = window.noise + (image.to(tl.int64) * raced + count + here) * V
            drawn = window.uniforms + image * 3 * U + place
            token = redrawn(
                said, row_sum(said, V, BLOCK), row, row_total, weight, stale, stood, is_held, drawn, own_noise,
                window.confidence, U, V, KIND, BESIDE, BLOCK,
            )  # fmt: skip
            known = tl.where(lane == here, token, known)
            notes = tl.where(lane == here, tl.where(entry >= 0, entry + 1, -source - 1), notes)
            before = tl.where(lane == here + 1, token, before)
            here = tl.min(tl.where(inside & (before != stale_before) & (lane > here), lane, LANES), axis=0)
    tl.debug_barrier()
    tl.store(window.tokens + image * W + lane, known, inside)
    tl.store(table.sources + image * W + lane, notes, inside)


def look_up(
    window: WindowBuffers,
    table: LookupBuffers,
    tree: BatchTree,
    verdicts: Verdicts,
    lengths: Lengths,
    progress: Progress,
    kind: int,
    width: int,
) -> None:
    """Draft again, with the coupling `kind`, where the left token has changed and something is found for the new one.

    Launch this after `couple` and `keep`, and before `shift`, which reads the `table.sources` filled here.

    Args:
        window: Buffers of the window.
        table: Earlier distributions.
        tree: The trees of the pass.
        verdicts: The verdicts on them.
        lengths: The lengths of the windows are lengths.levels.
        progress: Progress after the pass.
        kind: See `couple`.
        width: Width of the grid.
    """
    batch, drafts = window.tokens.shape
    vocab_size = tree.probs.shape[2]
    launch(
        look_up_kernel,
        (batch,),
        batch * FOUND * vocab_size * (4 + 4 + tree.draft_probs.element_size()),
        window,
        table,
        tree,
        verdicts.taken,
        lengths.levels,
        progress,
        drafts,
        vocab_size,
        tree.tokens.shape[1],
        window.uniforms.shape[2],
        window.noise.shape[1],
        progress.decided.shape[1],
        width,
        KIND=kind,
        PASSES=int(table.passes),
        BESIDE=int(table.beside),
        LAST=int(table.last_row),
        LANES=next_power_of_2(max(2, drafts)),
        BLOCK=min(_TILE, tile(vocab_size, wide=True)),
        trips={"changed": CHANGED, "found": FOUND},
    )
