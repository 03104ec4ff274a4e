"""Lays out the passes that redraw cells, given any decided cells: row front by row front inside every island.

The reference is `algos.spatial.settle.settle` over `algos.spatial.canvas.Canvas`. A step decides every cell that waits
for no other cell. If its positions do not fit into one pass, the next passes feed the rest in raster order, because no
position sees a later one.
"""

from torch import Tensor

from underpaint.algos.protocols import Grid
from underpaint.runtime.device.kernels.fronts import FrontPass
from underpaint.runtime.device.kernels.islands import IslandBuffers
from underpaint.runtime.device.kernels.layout import Progress
from underpaint.runtime.device.launch import kernel, launch, next_power_of_2, tl, wait_for_earlier_kernels

_TILE = 64
"""Cells per program, and cells that these are compared with at a time."""


@kernel
def ready_kernel(status, islands, H, W, w, TILE: tl.constexpr) -> None:
    """One program per (tile of cells, image). A cell waits for waiting cells of its island before it in the fronts."""
    wait_for_earlier_kernels()
    tile, image = tl.program_id(0), tl.program_id(1)
    if tl.load(status + image) != 0:
        return
    if tl.load(islands.cursor + image) != 0:
        return
    most = H * W
    cell = tile * TILE + tl.arange(0, TILE)
    inside = cell < most
    island = tl.load(islands.labels + image * most + cell, inside, other=-1)
    reach = cell % W + cell // W * (w - 1)
    waits = tl.zeros((TILE,), tl.int32)
    for start in range(0, tl.minimum((tile + 1) * TILE, most), TILE):  # trips: H * W / TILE
        other = start + tl.arange(0, TILE)
        there = tl.load(islands.waiting + image * most + other, other < most, other=0) == 1
        whose = tl.load(islands.labels + image * most + other, other < most, other=-2)
        before = there[None, :] & (whose[None, :] == island[:, None]) & (other[None, :] < cell[:, None])
        before = before & ((other % W + other // W * (w - 1))[None, :] <= reach[:, None])
        waits = tl.maximum(waits, tl.max(before.to(tl.int32), axis=1))
    mine = tl.load(islands.waiting + image * most + cell, inside, other=0)
    tl.store(islands.ready + image * most + cell, mine * (1 - waits), inside)


def find_ready(status: Tensor, out: IslandBuffers, grid: Grid, window: int) -> None:
    """At the start of a step, fill out.ready: the cells that row fronts with `window` may decide now."""
    batch, cells = out.waiting.shape
    tiles = -(-cells // _TILE)
    launch(
        ready_kernel,
        (tiles, batch),
        8 * batch * cells * (tiles + 1) // 2,
        status,
        out,
        grid.height,
        grid.width,
        window,
        TILE=_TILE,
    )


@kernel
def lay_repair_kernel(
    status, progress, islands, out, T, N, S, TILE: tl.constexpr, LANES: tl.constexpr, CELLS: tl.constexpr
) -> None:
    """One program per image. Positions go to cells in raster order; a cell's position feeds the cell before it."""
    wait_for_earlier_kernels()
    image = tl.program_id(0)
    going = tl.load(status + image) == 0
    prefix = tl.load(progress.prefixes + image)
    start = tl.where(going, tl.load(islands.cursor + image), N)
    cell = tl.arange(0, CELLS)
    inside = cell < N
    mine = image * N
    now = tl.load(islands.ready + mine + cell, inside, other=0)
    later = tl.load(islands.waiting + mine + cell, inside, other=0)
    settles = now == 1
    fed = tl.maximum(cell - 1, 0)
    known = tl.load(islands.waiting + mine + fed, inside, other=1) == 0
    known = known & (tl.load(islands.ready + mine + fed, inside, other=1) == 0)
    last = tl.max(tl.where(settles, cell, 0), axis=0)
    kept = tl.load(out.filled + image * S + prefix + fed, inside, other=1)
    fresh = inside & (cell > 0) & (cell <= last) & known & (kept == 0)
    goes = (settles | fresh) & (cell >= start)
    rank = tl.cumsum(goes.to(tl.int32), axis=0) - 1
    lane = tl.arange(0, LANES)
    row = image * T
    tl.store(out.positions + row + lane, tl.zeros((LANES,), tl.int64), lane < T)
    tl.store(out.places + row + lane, tl.full((LANES,), -1, tl.int64), lane < T)
    tl.store(out.settled + row + lane, tl.full((LANES,), -1, tl.int64), lane < T)
    tl.debug_barrier()
    here = goes & (rank < T)
    tl.store(out.positions + row + rank, fed.to(tl.int64), here)
    tl.store(out.places + row + rank, tl.where(fresh, prefix + fed, -1), here)
    tl.store(out.settled + row + rank, tl.where(settles, cell, -1).to(tl.int64), here)
    tl.debug_barrier()
    at = tl.load(out.positions + row + lane, lane < T, other=0)
    keeps = tl.load(out.places + row + lane, lane < T, other=-1) >= 0
    source = tl.full((LANES,), -1, tl.int64)
    for first in range(0, N, TILE):
        other = first + tl.arange(0, TILE)
        there = tl.load(islands.waiting + mine + other, other < N, other=1) == 0
        there = there & (tl.load(islands.ready + mine + other, other < N, other=1) == 0)
        behind = there[None, :] & (other[None, :] <= at[:, None])
        source = tl.maximum(source, tl.max(tl.where(behind, other[None, :], -1), axis=1).to(tl.int64))
    tl.store(out.tokens + row + lane, tl.load(progress.decided + mine + source, source >= 0, other=0), lane < T)
    own = tl.full((LANES,), 1, tl.int64) << lane
    seen = (at[None, :] < at[:, None]) & keeps[None, :]
    tl.store(out.masks + row + lane, own | tl.sum(tl.where(seen, own[None, :], 0), axis=1), lane < T)
    tl.store(out.bounds + row + lane, prefix + at, lane < T)
    tl.store(out.extents + image, prefix + tl.max(at, axis=0))
    tl.debug_barrier()
    tl.store(islands.waiting + mine + cell, later * (1 - now), inside)
    rest = tl.min(tl.where(goes & (rank >= T), cell, N), axis=0).to(tl.int64)
    tl.store(islands.cursor + image, tl.where(rest < N, rest, 0))


def lay_repair(status: Tensor, progress: Progress, islands: IslandBuffers, out: FrontPass) -> None:
    """Lay out the next pass of every image that still runs.

    It feeds the cell before each ready cell, with a proxy token if that one is undecided. It also feeds every decided
    cell before the last ready one whose keys are not in the cache yet.
    """
    batch, count = out.tokens.shape
    cells = islands.waiting.shape[1]
    launch(
        lay_repair_kernel,
        (batch,),
        batch * (64 * count + 20 * cells),
        status,
        progress,
        islands,
        out,
        count,
        cells,
        out.filled.shape[1],
        TILE=_TILE,
        LANES=next_power_of_2(max(2, count)),
        CELLS=next_power_of_2(max(2, cells)),
        warps=8,
    )
