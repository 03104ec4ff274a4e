"""What verification of a drafted picture sends back, and its pieces: MuLo-SD's rejection islands.

The reference is `algos.spatial.mulo.verify_and_repair` with `algos.accept.mulo.passing_cells`,
`algos.spatial.neighbourhood` and `algos.spatial.islands`.
"""

from typing import NamedTuple

from torch import Tensor

from underpaint.algos.protocols import Grid
from underpaint.algos.rows import SamplingParams
from underpaint.algos.spatial.mulo import Repair
from underpaint.runtime.device.kernels.layout import Progress
from underpaint.runtime.device.kernels.probs import row_masses, sampler_values
from underpaint.runtime.device.kernels.walk import Verdicts
from underpaint.runtime.device.language import kernel, launch, next_power_of_2, tl


class IslandBuffers(NamedTuple):
    """A drafted picture of each image and what becomes of it, [B, N] for N cells where nothing else is said.

    drafts int64. rejected int32: 1 where the rule refused the draft. labels int32: of the cells that are redrawn, the
    first cell of their island; -1 elsewhere. waiting int32: 1 where a cell is not decided, nor being decided. ready
    int32: 1 where it is being decided in this step. first [B] int64: the first rejected cell, N for none. cursor [B]
    int64: the cell that the step goes on from, 0 where a step begins.
    """

    drafts: Tensor
    rejected: Tensor
    labels: Tensor
    waiting: Tensor
    ready: Tensor
    first: Tensor
    cursor: Tensor


@kernel
def judge_kernel(
    logits,
    finite,
    drafts,
    near,
    tau,
    rejected,
    sampler,
    row_stride,
    image_stride,
    finite_stride,
    start,
    N,
    K,
    KBLOCK: tl.constexpr,
    V: tl.constexpr,
    GUIDED: tl.constexpr,
    GREEDY: tl.constexpr,
    WARM: tl.constexpr,
    CUT: tl.constexpr,
    NUCLEUS: tl.constexpr,
    SAMPLE: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """One program a (row of this part, image), which holds the row's distribution in registers."""
    turn, image = tl.program_id(0), tl.program_id(1)
    place = image * N + start + turn
    given = logits + image.to(tl.int64) * image_stride + turn.to(tl.int64) * V
    masses, scale, sound = row_masses(given, row_stride, sampler, V, GUIDED, GREEDY, WARM, CUT, NUCLEUS, SAMPLE, BLOCK)
    share = masses * scale
    if sound == 0:
        tl.store(finite + image * finite_stride + turn, 0)
        return
    token = tl.load(drafts + place)
    mass = tl.sum(tl.where(tl.arange(0, BLOCK) == token, share, 0.0), axis=0).to(tl.float64)
    for first in range(0, K, KBLOCK):
        column = first + tl.arange(0, KBLOCK)
        pooled = tl.load(near + token * K + column, column < K, other=0)
        mass += tl.sum(tl.where(column < K, tl.gather(share, pooled, axis=0), 0.0).to(tl.float64), axis=0)
    tl.store(rejected + place, (mass < tl.load(tau)).to(tl.int32))


def judge(
    logits: Tensor, finite: Tensor, sampler: SamplingParams, start: int, near: Tensor, tau: Tensor, out: IslandBuffers
) -> None:
    """Judge the drafts of cells from `start` on by the distributions behind logits [R, B, T, V] float32.

    finite [B, T] int32: as in `probs`. near [V, K] int32: the codes pooled with each. tau [1] float64: the mass that a
    draft needs to stay.
    """
    pair, batch, rows, vocab_size = logits.shape
    pooled = near.shape[1]
    values, constants = sampler_values(sampler, pair, vocab_size)
    launch(
        judge_kernel,
        (rows, batch),
        batch * rows * (4 * pair * vocab_size + 4 * pooled + 16),
        logits,
        finite,
        out.drafts,
        near if pooled else out.rejected,
        tau,
        out.rejected,
        values,
        batch * rows * vocab_size,
        rows * vocab_size,
        finite.stride(0),
        start,
        out.drafts.shape[1],
        pooled,
        KBLOCK=min(128, next_power_of_2(max(2, pooled))),
        **constants | {"warps": 8 if vocab_size <= 8192 else 16},  # eight take too many registers on sm_80
    )


@kernel
def mark_kernel(
    status,
    drafted,
    finite,
    prefixes,
    decided,
    cells,
    cycles,
    filled,
    drafts,
    rejected,
    labels,
    waiting,
    ready,
    first,
    cursor,
    H,
    W,
    S,
    rows,
    radius,
    RASTER: tl.constexpr,
    SERIAL: tl.constexpr,
    ROWS: tl.constexpr,
    CELLS: tl.constexpr,
) -> None:
    """One program an image; a lane a cell."""
    image = tl.program_id(0)
    most = H * W
    cell = tl.arange(0, CELLS)
    inside = cell < most
    here = image * most + cell
    refused = tl.load(rejected + here, inside, other=0) == 1
    begun = tl.min(tl.where(refused, cell, most), axis=0)
    again = inside
    if not RASTER:
        row, column = cell // W, cell % W
        again = cell < 0
        for turn in range(0, (2 * radius + 1) * (2 * radius + 1)):
            above = row + turn // (2 * radius + 1) - radius
            beside = column + turn % (2 * radius + 1) - radius
            there = inside & (above >= 0) & (above < H) & (beside >= 0) & (beside < W)
            again = again | (tl.load(rejected + image * most + above * W + beside, there, other=0) == 1)
    again = again & (cell >= begun)
    count = tl.sum(again.to(tl.int32), axis=0)
    island = cell
    if SERIAL:
        island = cell * 0
    tl.store(labels + here, tl.where(again, island, -1), inside)
    tl.store(waiting + here, again.to(tl.int32), inside)
    tl.store(ready + here, tl.zeros((CELLS,), tl.int32), inside)
    tl.store(decided + here, tl.load(drafts + here, inside, other=0), inside)
    tl.store(filled + image * S + tl.load(prefixes + image) + cell, 1 - again.to(tl.int32), inside)
    tl.store(first + image, begun.to(tl.int64))
    tl.store(cursor + image, tl.full((), 0, tl.int64))
    tl.store(cells + image, (most - count).to(tl.int64))
    cycle = tl.load(cycles + image)
    tl.debug_barrier()  # all threads have read it before one writes another
    tl.store(cycles + image, cycle + 1)
    lane = tl.arange(0, ROWS)
    sound = tl.min(tl.load(finite + image * rows + lane, lane < rows, other=1), axis=0)
    ended = tl.load(drafted + image)
    if tl.load(status + image) == 0:
        if ended > 1:
            tl.store(status + image, ended)
        elif sound == 0:
            tl.store(status + image, 2)
        elif count == 0:
            tl.store(status + image, 1)


def mark(
    out: IslandBuffers,
    progress: Progress,
    verdicts: Verdicts,
    drafted: Tensor,
    filled: Tensor,
    grid: Grid,
    repair: Repair,
) -> None:
    """Keep what was not rejected, nor lies near it, and open the rest to be redrawn.

    drafted [B] int64: the status that each image's draft ended with. filled [B, S] int32: which slots of the target's
    cache hold keys; those of the kept cells do. Images with nothing to redraw are done. With `repair.order` "islands"
    every cell begins as its own island, for `label`.
    """
    batch, cells = out.drafts.shape
    rows = verdicts.finite.shape[1]
    launch(
        mark_kernel,
        (batch,),
        batch * (40 * cells + 4 * rows),
        verdicts.status,
        drafted,
        verdicts.finite,
        progress.prefixes,
        progress.decided,
        progress.cells,
        progress.cycles,
        filled,
        *out,
        grid.height,
        grid.width,
        filled.shape[1],
        rows,
        repair.radius,
        RASTER=repair.reject == "raster",
        SERIAL=repair.order == "serial",
        ROWS=next_power_of_2(max(2, rows)),
        CELLS=next_power_of_2(max(2, cells)),
        warps=8,
    )


@kernel
def label_kernel(labels, H, W, CELLS: tl.constexpr) -> None:
    """One program an image: every cell takes the least label around it, and that label's own, until none changes."""
    image = tl.program_id(0)
    cell = tl.arange(0, CELLS)
    inside = cell < H * W
    row, column = cell // W, cell % W
    mine = labels + image * H * W
    changed = tl.full((), 1, tl.int32)
    while changed > 0:  # trips: max(H, W) / 2
        own = tl.load(mine + cell, inside, other=-1)
        least = own
        for turn in tl.static_range(9):
            above = row + turn // 3 - 1
            beside = column + turn % 3 - 1
            there = (own >= 0) & (above >= 0) & (above < H) & (beside >= 0) & (beside < W)
            label = tl.load(mine + above * W + beside, there, other=-1)
            least = tl.where(label >= 0, tl.minimum(least, label), least)
        least = tl.where(own >= 0, tl.load(mine + least, own >= 0, other=0), own)
        tl.debug_barrier()  # all have read before any writes
        tl.store(mine + cell, least, inside)
        tl.debug_barrier()
        changed = tl.sum((least != own).to(tl.int32), axis=0)


def label(out: IslandBuffers, grid: Grid) -> None:
    """Give the cells of each 8-connected piece one label, its first cell."""
    batch, cells = out.labels.shape
    launch(
        label_kernel,
        (batch,),
        8 * batch * cells,
        out.labels,
        grid.height,
        grid.width,
        CELLS=next_power_of_2(max(2, cells)),
        warps=8,
    )
