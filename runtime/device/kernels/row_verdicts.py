"""Judges the drafts of parallel Jacobi row fronts, and replaces those that are rejected.

The reference is `algos.spatial.jacobi_front.jacobi_fronts`. From the left, a row keeps its drafts up to the first
rejected one. If the row may, it redraws that one from the residual. All remaining cells are drafted again.
"""

from torch import Tensor

from underpaint.runtime.device.kernels.fronts import FrontPass
from underpaint.runtime.device.kernels.layout import Progress
from underpaint.runtime.device.kernels.row_drafts import ROW_ROLES, RowDrafts
from underpaint.runtime.device.kernels.row_maths import copy_row, draw, draw_excess, flip, offered
from underpaint.runtime.device.kernels.walk import Verdicts, takes_part, tile
from underpaint.runtime.device.launch import kernel, launch, next_power_of_2, tl, wait_for_earlier_kernels

KEPT = tl.constexpr(1)
REDRAWN = tl.constexpr(2)
ANEW = tl.constexpr(3)
"""Verdicts on a column's draft, or 0 if it has none. ANEW: the cell is drafted again."""


@kernel
def judge_drafts_kernel(
    probs,
    drafts,
    prefixes,
    verdicts,
    out,
    V,
    N,
    T,
    H,
    W,
    every,
    rows,
    ROLES: tl.constexpr,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
) -> None:
    """One program per image, one lane per column."""
    wait_for_earlier_kernels()
    image = tl.program_id(0)
    going = takes_part(verdicts.status, verdicts.finite, verdicts.taken, image, rows, ROWS)
    lane = tl.arange(0, WIDTH).to(tl.int64)
    inside = lane < W
    cell = tl.load(drafts.cells + image * W + lane, lane < W * going, other=-1)
    drafted = cell >= 0
    row = tl.where(drafted, cell // W, H)
    token = tl.load(drafts.tokens + image * W + lane, drafted, other=0)
    kind = tl.load(drafts.kinds + image * W + lane, drafted, other=0)
    chance = tl.load(probs + (image * N + lane) * V + token, drafted, other=0.0).to(tl.float64)
    offer = offered(drafts.probs + (image * W + tl.where(drafted, lane, 0)) * V, kind, token, V)
    own = tl.load(drafts.uniforms + (image * ROLES + 1) * W + lane, drafted, other=0.0)
    rejected = flip(own, chance, offer) == 0
    same = (row[None, :] == row[:, None]) & drafted[None, :]
    refused = same & (lane[None, :] < lane[:, None]) & rejected[None, :]
    reached = drafted & (tl.max(refused.to(tl.int32), axis=1) == 0)
    top = tl.min(row, axis=0)
    kept = reached & (rejected == 0)
    redrawn = reached & rejected & (row <= tl.where(every == 1, H, top))
    done = kept | redrawn
    verdict = tl.where(kept, KEPT, tl.where(redrawn, REDRAWN, tl.where(drafted, ANEW, 0)))
    tl.store(drafts.verdicts + image * W + lane, verdict.to(tl.int64), inside)
    tl.store(out.settled + image * T + lane, tl.where(done, cell, -1), inside)
    behind = same & (lane[None, :] > lane[:, None]) & done[None, :]
    tl.store(drafts.columns + image * H + row, lane + 1, done & (tl.max(behind.to(tl.int32), axis=1) == 0))
    fed = tl.load(drafts.cells + image * W + lane + 1, drafted & (lane + 1 < W), other=-1) == cell + 1
    tl.store(out.places + image * T + lane + 1, tl.load(prefixes + image) + cell, kept & fed)


def judge_drafts(
    probs: Tensor, drafts: RowDrafts, progress: Progress, verdicts: Verdicts, out: FrontPass, every: bool
) -> None:
    """Judge drafts column by column, and write the decided cells to out.settled.

    Keys of accepted drafts get cache slots.

    Args:
        probs: The target's distributions, [B, N, V].
        drafts: The drafts, which take the verdicts and the number of decided columns.
        progress: Progress of the images.
        verdicts: The status of the images, and the marks of finite logits.
        out: The pass.
        every: Whether all rows may redraw their first rejected token, not just the top.
    """
    batch, nodes, vocab_size = probs.shape
    width, rows = drafts.cells.shape[1], verdicts.finite.shape[1]
    launch(
        judge_drafts_kernel,
        (batch,),
        batch * (72 * width + 4 * rows),
        probs,
        drafts,
        progress.prefixes,
        verdicts,
        out,
        vocab_size,
        nodes,
        out.settled.shape[1],
        drafts.columns.shape[1],
        width,
        int(every),
        rows,
        ROLES=len(ROW_ROLES),
        ROWS=next_power_of_2(rows),
        WIDTH=next_power_of_2(max(2, width)),
        warps=8,
    )


@kernel
def settle_drafts_kernel(
    probs, drafts, progress, places, status, V, N, T, W, cells_count, ROLES: tl.constexpr, BLOCK: tl.constexpr
) -> None:
    """One program per (column, image)."""
    wait_for_earlier_kernels()
    lane, image = tl.program_id(0), tl.program_id(1)
    own = image * W + lane
    verdict = tl.load(drafts.verdicts + own)
    if verdict == 0:
        return
    cell = tl.load(drafts.cells + own)
    token = tl.load(drafts.tokens + own)
    tl.debug_barrier()  # all threads have read the token before one overwrites it
    row = probs + (image * N + lane).to(tl.int64) * V
    offer = drafts.probs + own.to(tl.int64) * V
    noise = drafts.uniforms + image * ROLES * W + lane
    if verdict == ANEW:
        anew = draw(row, V, tl.load(noise + 3 * W), BLOCK)
        tl.store(drafts.tokens + own, anew)
        tl.store(drafts.kinds + own, tl.full((), 2, tl.int64))
        copy_row(row, offer, V, BLOCK)
        if anew == V:
            tl.store(status + image, 3)
    else:
        if verdict == REDRAWN:
            other = draw_excess(row, offer, tl.load(drafts.kinds + own), token, V, tl.load(noise + 2 * W), BLOCK)
            if other < V:
                token = other
            else:  # only rounding made the flip fail, so the draft stays
                fed = tl.load(drafts.cells + own + 1, lane + 1 < W, other=-1) == cell + 1
                tl.store(places + image * T + lane + 1, tl.load(progress.prefixes + image) + cell, fed)
        tl.store(progress.decided + image * cells_count + cell, token)
        tl.store(drafts.tokens + own, tl.full((), -1, tl.int64))


def settle_drafts(probs: Tensor, drafts: RowDrafts, progress: Progress, verdicts: Verdicts, out: FrontPass) -> None:
    """Decide the cells that `judge_drafts` kept or lets redraw, and draft the others again from probs [B, N, V]."""
    batch, nodes, vocab_size = probs.shape
    width = drafts.cells.shape[1]
    launch(
        settle_drafts_kernel,
        (width, batch),
        12 * batch * width * vocab_size,
        probs,
        drafts,
        progress,
        out.places,
        verdicts.status,
        vocab_size,
        nodes,
        out.places.shape[1],
        width,
        progress.decided.shape[1],
        ROLES=len(ROW_ROLES),
        BLOCK=tile(vocab_size, wide=True),
        warps=4,
    )
