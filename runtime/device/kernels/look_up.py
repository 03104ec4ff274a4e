"""Drafts whose left token has changed, from what the target said before beside the one that stands there now.

The reference is `algos.spatial.jacobi_window.HeldWindow.redraft`. A draft depends on the one before it, so this goes on
place by place, behind `couple`, which has drafted every place as if nothing was found: only where something was it is
drafted again.
"""

from underpaint.runtime.device.kernels.couple import redrawn
from underpaint.runtime.device.kernels.layout import Lengths, Progress
from underpaint.runtime.device.kernels.lookup_table import LookupBuffers, last_between, newest_seen
from underpaint.runtime.device.kernels.row_maths import copy_row, row_sum
from underpaint.runtime.device.kernels.walk import BatchTree, Verdicts, tile
from underpaint.runtime.device.kernels.window import WindowBuffers, end_of_drafts
from underpaint.runtime.device.language import kernel, launch, next_power_of_2, tl


@kernel
def mixed(said, row, weight, out, V, BLOCK: tl.constexpr) -> None:
    """`weight` of the distribution behind `said` and the rest of that behind `row`, [V] each, in `out`."""
    there_share, here_share = weight / row_sum(said, V, BLOCK), (1.0 - weight) / row_sum(row, V, BLOCK)
    for start in range(0, V, BLOCK):
        code = start + tl.arange(0, BLOCK)
        there = tl.load(said + code, code < V, other=0.0).to(tl.float64) * there_share
        here = tl.load(row + code, code < V, other=0.0).to(tl.float64) * here_share
        tl.store(out + code, there + here, code < V)


@kernel
def look_up_kernel(
    held,
    held_counts,
    uniforms,
    left,
    noise,
    nodes,
    confidence,
    kept,
    seen,
    seen_cells,
    seen_lefts,
    found,
    weights,
    tokens,
    probs,
    draft_probs,
    taken,
    levels,
    cells,
    cycles,
    roots,
    decided,
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
    """One program an image."""
    image = tl.program_id(0)
    done, last = tl.load(taken + image), tl.load(levels + image)
    if done == 0:
        return
    count = tl.load(cells + image)
    end = end_of_drafts(done, last, count, most, LAST)
    cycle = tl.load(cycles + image) - 1
    before = tl.load(roots + image)
    filled = tl.load(held_counts + image)
    lane = tl.arange(0, LANES)
    known = tl.load(held + image * W + lane, lane < end - done, other=0)
    for place in range(done, end):  # trips: W
        here = place - done
        cell = count + here
        node = image * N + tl.load(nodes + image * (W + 1) + place)
        row = probs + node * V
        out = draft_probs + (image * W + here).to(tl.int64) * V
        token = tl.sum(tl.where(lane == here, known, 0), axis=0)
        entry = tl.full((), -1, tl.int64)
        source = tl.full((), -1, tl.int64)
        if before != tl.load(tokens + node):
            if PASSES:
                own = image.to(tl.int64) * W * W
                entry = newest_seen(seen_cells + own, seen_lefts + own, cell, before, cycle, W)
            if (entry < 0) & (cell >= width) & (cell % width > 0) & (BESIDE == 1):
                over = cell - width
                drafted = tl.sum(tl.where(lane == over - count, known, 0), axis=0)
                above = tl.load(decided + image * most + over, over < count, other=0)
                above = tl.where(over < count, above, drafted)
                source = last_between(decided + image * most, count, before, above, width, True, True)
        tl.debug_barrier()
        looked = (entry >= 0) | (source >= 0)
        if looked:
            if entry >= 0:
                copy_row(seen + (image.to(tl.int64) * W * W + entry) * V, out, V, BLOCK)
            else:
                said = kept + (image.to(tl.int64) * most + source) * V
                mixed(said, row, tl.load(weights), out, V, BLOCK)
            tl.debug_barrier()
            stale = draft_probs + (image * W + place).to(tl.int64) * V
            behind = tl.load(held + image * W + place, (place >= last) & (place < filled), other=0)
            stood = tl.load(tokens + image * N + 1 + place, place < last, other=behind)
            is_held = (place < last) | (place < filled)
            own_noise = noise + (image.to(tl.int64) * raced + cell) * V
            rest = left + image.to(tl.int64) * W * V
            drawn = uniforms + image * 3 * U + place
            token = redrawn(out, stale, stood, is_held, drawn, own_noise, rest, confidence, U, V, KIND, BLOCK)
            tl.store(held + image * W + here, token)
        tl.store(found + image * W + here, looked.to(tl.int64))
        known = tl.where(lane == here, token, known)
        before = token


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
    """Draft again, by the coupling `kind`, where the left token has changed and something is found for the new one.

    To be launched behind `couple` and `keep`; fills `table.found` and the rows of tree.draft_probs that it names, in
    their new places. progress: after the pass; width: of the grid. An image's windows are as long as lengths.levels.
    """
    batch, drafts = window.tokens.shape
    vocab_size = tree.probs.shape[2]
    launch(
        look_up_kernel,
        (batch,),
        batch * drafts * vocab_size * (4 + 4 + 2 * tree.draft_probs.element_size()),
        window.tokens,
        window.counts,
        window.uniforms,
        window.left,
        window.noise,
        window.nodes,
        window.confidence,
        table.decided,
        table.seen,
        table.seen_cells,
        table.seen_lefts,
        table.found,
        table.weight,
        tree.tokens,
        tree.probs,
        tree.draft_probs,
        verdicts.taken,
        lengths.levels,
        progress.cells,
        progress.cycles,
        progress.roots,
        progress.decided,
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
        BLOCK=tile(vocab_size, wide=True),
        warps=8,
    )
