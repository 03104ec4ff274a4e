"""Row fronts with a fixed window: the inputs of a pass over cells of several rows at once, and its decisions.

The reference is `algos.spatial.zipar.zipar` over `algos.spatial.canvas.Canvas`. With window w, cell (i, j) is decided
in step i w + j, so a step has the same rows for every image.
"""

from typing import NamedTuple

from torch import Tensor

from underpaint.algos.protocols import Grid
from underpaint.runtime.device.kernels.layout import Progress
from underpaint.runtime.device.kernels.row_maths import draw, row_argmax
from underpaint.runtime.device.kernels.walk import Verdicts, takes_part, tile
from underpaint.runtime.device.launch import kernel, launch, next_power_of_2, tl, wait_for_earlier_kernels


class FrontPass(NamedTuple):
    """A pass over T positions per image: one per front, and the proxy of a row that opens; [B, T] int64 unless noted.

    Attributes:
        tokens: The input tokens.
        positions: The input positions.
        masks: The new positions that each one sees.
        bounds: Each one sees the filled cache slots below its bound.
        places: The cache slot that keeps each one, -1 for none.
        settled: The cell that is decided from each one's output, -1 for none.
        extents: Cache slots in use, [B] int64.
        filled: 1 if a slot is filled, [B, S] int32.
    """

    tokens: Tensor
    positions: Tensor
    masks: Tensor
    bounds: Tensor
    places: Tensor
    settled: Tensor
    extents: Tensor
    filled: Tensor


@kernel
def lay_fronts_kernel(status, progress, out, T, H, W, w, RASTER: tl.constexpr, LANES: tl.constexpr) -> None:
    """One program per image; position f of the pass is the cell that the last step decided in the f-th open row."""
    wait_for_earlier_kernels()
    image = tl.program_id(0)
    step = tl.load(progress.cycles + image)
    prefix = tl.load(progress.prefixes + image)
    lane = tl.arange(0, LANES).to(tl.int64)
    going = tl.load(status + image) == 0
    row = tl.maximum((step - W + w - 1) // w, 0) + lane
    column = step - 1 - row * w
    fresh = (lane < T - 1) & (row < H) & (column >= tl.where(going, 0, W)) & (column < W)
    opened = step // w
    proxy = lane == tl.where(going & (step % w == 0) & (opened < H), T - 1, -1)
    if RASTER:
        proxy = lane < 0
    cell = tl.where(proxy, opened * W - 1, row * W + column)
    cell = tl.where(fresh | proxy, cell, 0)
    source = tl.where(proxy, (opened - 1) * W + w - 1, cell)
    inside = lane < T
    place = image * T + lane
    tl.store(out.tokens + place, tl.load(progress.decided + image * H * W + source, fresh | proxy, other=0), inside)
    tl.store(out.positions + place, cell, inside)
    own = tl.full((LANES,), 1, tl.int64) << lane
    seen = (cell[None, :] < cell[:, None]) & fresh[None, :]
    tl.store(out.masks + place, own | tl.sum(tl.where(seen, own[None, :], 0), axis=1), inside)
    tl.store(out.bounds + place, prefix + cell, inside)
    tl.store(out.places + place, tl.where(fresh, prefix + cell, -1), inside)
    follows = proxy | (fresh & (column + 1 < W))
    if RASTER:
        follows = fresh & ((column + 1 < W) | (row + 1 < H))
    tl.store(out.settled + place, tl.where(follows, cell + 1, -1), inside)
    rows = tl.where(step > 1, (step - 2) // w + 1, 0)
    tl.store(out.extents + image, prefix + tl.minimum(rows, H) * W)


def lay_fronts(status: Tensor, progress: Progress, out: FrontPass, grid: Grid, window: int) -> None:
    """Lay out step progress.cycles, from 1 on; the cells of the step before are decided in progress.decided."""
    batch, count = out.tokens.shape
    launch(
        lay_fronts_kernel,
        (batch,),
        8 * batch * 7 * count,
        status,
        progress,
        out,
        count,
        grid.height,
        grid.width,
        window,
        RASTER=window == grid.width,
        LANES=next_power_of_2(max(2, count)),
        warps=1,
    )


@kernel
def settle_kernel(
    probs,
    uniforms,
    settled,
    decided,
    verdicts,
    V,
    T,
    most,
    rows,
    GREEDY: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """One program per (position, image)."""
    wait_for_earlier_kernels()
    place, image = tl.program_id(0), tl.program_id(1)
    cell = tl.load(settled + image * T + place)
    if takes_part(verdicts.status, verdicts.finite, verdicts.taken, image, rows, ROWS) == 0:
        return
    if cell < 0:
        return
    row = probs + (image * T + place).to(tl.int64) * V
    if GREEDY:
        _, token = row_argmax(row, V, BLOCK)
    else:
        token = draw(row, V, tl.load(uniforms + image * T + place), BLOCK)
    if token < V:
        tl.store(decided + image * most + cell, token)
    else:
        tl.store(verdicts.status + image, 3)


def settle(
    probs: Tensor, uniforms: Tensor, out: FrontPass, progress: Progress, verdicts: Verdicts, greedy: bool = False
) -> None:
    """Decide the cells out.settled from probs [B, T, V] and uniforms [B, 1, T] float64; greedy: by likeliest token."""
    batch, count, vocab_size = probs.shape
    launch(
        settle_kernel,
        (count, batch),
        4 * probs.numel(),
        probs,
        uniforms,
        out.settled,
        progress.decided,
        verdicts,
        vocab_size,
        count,
        progress.decided.shape[1],
        verdicts.finite.shape[1],
        GREEDY=greedy,
        ROWS=next_power_of_2(verdicts.finite.shape[1]),
        BLOCK=tile(vocab_size),
        warps=8,
    )


@kernel
def advance_fronts_kernel(status, progress, out, T, S, most, LANES: tl.constexpr) -> None:
    """One program per image."""
    wait_for_earlier_kernels()
    image = tl.program_id(0)
    if tl.load(status + image) != 0:
        return
    lane = tl.arange(0, LANES)
    place = tl.load(out.places + image * T + lane, lane < T, other=-1)
    tl.store(out.filled + image * S + place, tl.full((LANES,), 1, tl.int32), place >= 0)
    known = tl.load(out.settled + image * T + lane, lane < T, other=-1) >= 0
    count = tl.load(progress.cells + image) + tl.sum(known.to(tl.int64), axis=0)
    tl.store(progress.cells + image, count)
    tl.store(progress.cycles + image, tl.load(progress.cycles + image) + 1)
    if count >= most:
        tl.store(status + image, 1)


def advance_fronts(out: FrontPass, progress: Progress, verdicts: Verdicts) -> None:
    """Count the decided cells, mark the kept slots as filled, and go to the next step."""
    batch, count = out.tokens.shape
    launch(
        advance_fronts_kernel,
        (batch,),
        8 * batch * (3 * count + 6),
        verdicts.status,
        progress,
        out,
        count,
        out.filled.shape[1],
        progress.decided.shape[1],
        LANES=next_power_of_2(max(2, count)),
        warps=1,
    )
