"""Drafts of all open rows, and the target pass over them: parallel Jacobi row fronts (PJD, arXiv 2606.05703).

The reference is `algos.spatial.jacobi_front.jacobi_fronts` over `algos.spatial.canvas.Canvas`. A row drafts only in
columns that the row above has decided. So each column has at most one draft, and buffers are indexed by column.
"""

from typing import NamedTuple

from torch import Tensor

from underpaint.algos.chance import Role
from underpaint.algos.protocols import Grid
from underpaint.runtime.device.kernels.fronts import FrontPass
from underpaint.runtime.device.kernels.layout import Progress
from underpaint.runtime.device.kernels.row_maths import EVENLY, POINT
from underpaint.runtime.device.launch import kernel, launch, next_power_of_2, tl, wait_for_earlier_kernels

ROW_ROLES = (Role.REFILL, Role.ACCEPT, Role.RESIDUAL, Role.DRAFT)
"""Roles whose noise is drawn by cell, in the order of `RowDrafts.uniforms`."""


class RowDrafts(NamedTuple):
    """The progress of each image's rows, and their drafts; [B, W] int64 unless noted.

    Attributes:
        columns: Number of decided cells in each row, from the left, [B, H] int64.
        cells, tokens: The cell drafted in each column, and its draft token; -1 for none.
        kinds: The kind of distribution that each draft was drawn from, see `row_maths.offered`.
        verdicts: See `row_verdicts`.
        uniforms: The cells' noise by `ROW_ROLES`, [B, R, W] float64.
        cycles: The cycle number of the noise, [B] int64.
        probs: The distributions that drafts of kind DRAWN were drawn from, [B, W, V] float32.
    """

    columns: Tensor
    cells: Tensor
    tokens: Tensor
    kinds: Tensor
    verdicts: Tensor
    uniforms: Tensor
    cycles: Tensor
    probs: Tensor


@kernel
def span_rows_kernel(status, cycles, drafts, H, W, lead, most, ahead, ROWS: tl.constexpr, LANES: tl.constexpr) -> None:
    """One program per image, one lane per column."""
    wait_for_earlier_kernels()
    image = tl.program_id(0)
    going = tl.load(status + image) == 0
    lane = tl.arange(0, LANES).to(tl.int64)
    every = tl.arange(0, ROWS)
    reached = tl.load(drafts.columns + image * H + every, every < H, other=0)
    row = tl.sum((reached[None, :] > lane[:, None]).to(tl.int64), axis=1)
    inside = (lane < W) & (row < tl.where(going, H, 0))
    count = tl.load(drafts.columns + image * H + row, inside, other=0)
    above = tl.load(drafts.columns + image * H + row - 1, inside & (row > 0), other=0)
    drafted = inside & ((row == 0) | (above >= lead)) & (lane < count + most)
    tl.store(drafts.cells + image * W + lane, tl.where(drafted, row * W + lane, -1), lane < W)
    tl.store(drafts.cycles + image, tl.load(cycles + image) - ahead)


def span_rows(
    status: Tensor, progress: Progress, drafts: RowDrafts, grid: Grid, lead: int, window: int, ahead: int
) -> None:
    """Find the cells that rows draft: at most `window` per row, once the row above has at least `lead` cells.

    Args:
        status: Status of each image, [B] int64.
        progress: Progress of the images.
        drafts: Takes the cells in drafts.cells, and the cycle number of their noise in drafts.cycles.
        grid: The grid of the picture.
        lead: Least number of decided cells in the row above.
        window: Most drafts per row.
        ahead: Difference between a cycle's number in progress.cycles and the cycle number of its noise.
    """
    batch = status.shape[0]
    launch(
        span_rows_kernel,
        (batch,),
        8 * batch * (grid.height + grid.width + 3),
        status,
        progress.cycles,
        drafts,
        grid.height,
        grid.width,
        lead,
        window,
        ahead,
        ROWS=next_power_of_2(max(2, grid.height)),
        LANES=next_power_of_2(max(2, grid.width)),
    )


@kernel
def lay_drafts_kernel(
    progress,
    drafts,
    out,
    T,
    H,
    W,
    V,
    S,
    copies,
    ROLES: tl.constexpr,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
    LANES: tl.constexpr,
) -> None:
    """One program per image. Position k < W feeds the cell before column k's draft; the others feed waiting rows."""
    wait_for_earlier_kernels()
    image = tl.program_id(0)
    prefix = tl.load(progress.prefixes + image)
    lane = tl.arange(0, WIDTH).to(tl.int64)
    inside = lane < W
    cell = tl.load(drafts.cells + image * W + lane, inside, other=-1)
    drafted = cell >= 0
    row = tl.where(drafted, cell // W, H)
    count = tl.load(drafts.columns + image * H + row, drafted, other=0)
    # The last decided cell before the row's first draft: in its own row, or the last one of the row above.
    behind = tl.where(count > 0, row, row - 1)
    known = drafted & (behind >= 0)
    before = behind * W + tl.load(drafts.columns + image * H + behind, known, other=0) - 1
    base = tl.load(progress.decided + image * H * W + before, known, other=0)
    tokens = tl.load(drafts.tokens + image * W + lane, drafted, other=-1)
    to_left = (row[None, :] == row[:, None]) & (lane[None, :] <= lane[:, None]) & (tokens[None, :] >= 0)
    nearest = tl.max(tl.where(to_left, lane[None, :], -1), axis=1)
    beside = tl.load(drafts.tokens + image * W + nearest, drafted & (nearest >= 0), other=0)
    whole = (tl.load(drafts.uniforms + image * ROLES * W + lane, inside, other=0.0) * 9007199254740992.0).to(tl.int64)
    even = tl.umulhi(whole.to(tl.uint64) << 11, (lane * 0 + V).to(tl.uint64)).to(tl.int64)
    begun = tl.sum(tl.where(lane == 0, even, 0), axis=0)
    copied = tl.where(nearest >= 0, beside, tl.where(known, base, begun))
    # The first cell of the picture has no decided cell to copy.
    copying = (copies == 1) & (known | (lane > count))
    token = tl.where(tokens >= 0, tokens, tl.where(copying, copied, even))
    tl.debug_barrier()
    tl.store(drafts.tokens + image * W + lane, token, drafted)
    tl.store(drafts.kinds + image * W + lane, tl.where(copying, POINT, EVENLY).to(tl.int64), drafted & (tokens < 0))
    tl.debug_barrier()
    follows = drafted & (lane > count)
    fed = tl.where(drafted, tl.maximum(cell - 1, 0), 0)
    own = known & (count >= lane) & (before == cell - 1)
    fresh = own & (tl.load(out.filled + image * S + prefix + fed, own, other=1) == 0)
    place = image * T + lane
    fed_token = tl.load(drafts.tokens + image * W + lane - 1, follows, other=0) + tl.where(follows, 0, base)
    tl.store(out.tokens + place, fed_token, inside)
    tl.store(out.positions + place, fed, inside)
    tl.store(out.places + place, tl.where(fresh, prefix + fed, -1), inside)
    tl.store(out.settled + place, cell, inside)
    last = tl.max(cell, axis=0)
    every = tl.arange(0, ROWS).to(tl.int64)
    there = every < H - 1
    reached = tl.load(drafts.columns + image * H + every, there, other=0)
    latest = every * W + reached - 1
    idle = there & (reached > 0)
    idle = idle & (tl.load(drafts.cells + image * W + (latest + 1) % W, idle, other=0) != latest + 1) & (latest < last)
    idle = idle & (tl.load(out.filled + image * S + prefix + latest, idle, other=1) == 0)
    place = image * T + W + every
    tl.store(out.tokens + place, tl.load(progress.decided + image * H * W + latest, idle, other=0), there)
    tl.store(out.positions + place, tl.where(idle, latest, 0), there)
    tl.store(out.places + place, tl.where(idle, prefix + latest, -1), there)
    tl.store(out.settled + place, tl.full((ROWS,), -1, tl.int64), there)
    tl.debug_barrier()
    turn = tl.arange(0, LANES).to(tl.int64)
    place = image * T + turn
    at = tl.load(out.positions + place, turn < T, other=0)
    keeps = tl.load(out.places + place, turn < T, other=-1) >= 0
    cells = tl.load(drafts.cells + image * W + turn, turn < W, other=-1)
    group = tl.where(cells >= 0, cells // W, -1)
    group = tl.where(turn > tl.load(drafts.columns + image * H + group, group >= 0, other=0), group, -1)
    bit = tl.full((LANES,), 1, tl.int64) << turn
    sees = keeps[None, :] | ((group[None, :] >= 0) & (group[None, :] == group[:, None]))
    sees = sees & (at[None, :] < at[:, None])
    tl.store(out.masks + place, bit | tl.sum(tl.where(sees, bit[None, :], 0), axis=1), turn < T)
    tl.store(out.bounds + place, prefix + at, turn < T)
    tl.store(out.extents + image, prefix + tl.max(at, axis=0))


def lay_drafts(progress: Progress, drafts: RowDrafts, out: FrontPass, grid: Grid, copies: bool) -> None:
    """Draft the cells in drafts.cells that have no draft yet, and lay out the pass over them for every running image.

    Positions 0..W-1 belong to columns. Then comes one position per row but the last, for rows without drafts whose last
    key is not cached yet.

    Args:
        progress: Progress of the images.
        drafts: The drafts, which are completed.
        out: Takes the pass.
        grid: The grid of the picture.
        copies: Whether new drafts copy the token before them in the row; otherwise they are uniform draws.
    """
    batch, count = out.tokens.shape
    launch(
        lay_drafts_kernel,
        (batch,),
        8 * batch * (9 * count + 6 * grid.width + grid.height),
        progress,
        drafts,
        out,
        count,
        grid.height,
        grid.width,
        drafts.probs.shape[2],
        out.filled.shape[1],
        int(copies),
        ROLES=len(ROW_ROLES),
        ROWS=next_power_of_2(max(2, grid.height)),
        WIDTH=next_power_of_2(max(2, grid.width)),
        LANES=next_power_of_2(max(2, count)),
        warps=8,
    )
