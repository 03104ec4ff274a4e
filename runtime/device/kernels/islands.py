"""MuLo-SD's rejection islands: judge a drafted picture, and mark the cells to redraw and their islands.

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
from underpaint.runtime.device.launch import kernel, launch, next_power_of_2, tl, wait_for_earlier_kernels


class IslandBuffers(NamedTuple):
    """A drafted picture of each image and the state of its repair, [B, N] for N cells unless stated.

    drafts int64. rejected int32: 1 if the rule rejected the draft, 2 if the cell's logits are not finite. labels int32:
    of a cell to redraw, the first cell of its island; -1 for others. waiting int32: 1 if a cell is neither decided nor
    being decided. ready int32: 1 if it is being decided in this step. first [B] int64: the first rejected cell, N for
    none. cursor [B] int64: the cell from which the step continues, 0 at the start of a step.
    """

    drafts: Tensor
    rejected: Tensor
    labels: Tensor
    waiting: Tensor
    ready: Tensor
    first: Tensor
    cursor: Tensor


class StartRows(NamedTuple):
    """The target's output before it saw a picture: features [R, 1, F] and logits [R, B, 1, V] float32 of cell 0.

    preceding [R, 1, F]: `mark` fills it with the features that precede the first rejected cell.
    """

    features: Tensor
    logits: Tensor
    preceding: Tensor


@kernel
def judge_kernel(
    logits,
    known,
    drafts,
    near,
    tau,
    rejected,
    sampler,
    row_stride,
    known_stride,
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
    """One program per (cell, image), which holds the cell's distribution in registers."""
    wait_for_earlier_kernels()
    cell, image = tl.program_id(0), tl.program_id(1)
    place = image * N + cell
    given = tl.where(cell == 0, known + image.to(tl.int64) * V, logits + (place.to(tl.int64) - 1) * V)
    stride = tl.where(cell == 0, known_stride, row_stride)
    masses, scale, sound = row_masses(given, stride, sampler, V, GUIDED, GREEDY, WARM, CUT, NUCLEUS, SAMPLE, BLOCK)
    share = masses * scale
    if sound == 0:
        tl.store(rejected + place, 2)
        return
    token = tl.load(drafts + place)
    mass = tl.sum(tl.where(tl.arange(0, BLOCK) == token, share, 0.0), axis=0).to(tl.float64)
    for first in range(0, K, KBLOCK):
        column = first + tl.arange(0, KBLOCK)
        pooled = tl.load(near + token * K + column, column < K, other=0)
        mass += tl.sum(tl.where(column < K, tl.gather(share, pooled, axis=0), 0.0).to(tl.float64), axis=0)
    tl.store(rejected + place, (mass < tl.load(tau)).to(tl.int32))


def judge(
    logits: Tensor, start_logits: Tensor, sampler: SamplingParams, near: Tensor, tau: Tensor, out: IslandBuffers
) -> None:
    """Judge every draft and fill out.rejected.

    Args:
        logits: [R, B, N, V] float32, after each cell: those of the next cell. The last cell's are not read.
        start_logits: [R, B, 1, V] float32, logits of cell 0.
        sampler: Settings that turn logits into distributions.
        near: [V, K] int32, the codes pooled with each code.
        tau: [1] float64, the mass that a draft needs to be kept.
        out: Holds the drafts.
    """
    pair, batch, cells, vocab_size = logits.shape
    pooled = near.shape[1]
    values, constants = sampler_values(sampler, pair, vocab_size)
    launch(
        judge_kernel,
        (cells, batch),
        batch * cells * (4 * pair * vocab_size + 4 * pooled + 16),
        logits,
        start_logits,
        out.drafts,
        near if pooled else out.rejected,
        tau,
        out.rejected,
        values,
        batch * cells * vocab_size,
        batch * vocab_size,
        cells,
        pooled,
        KBLOCK=min(128, next_power_of_2(max(2, pooled))),
        **constants | {"warps": 8 if vocab_size <= 8192 else 16},  # eight warps need too many registers on sm_80
    )


@kernel
def join(labels, H, W, CELLS: tl.constexpr) -> None:
    """Give every cell [H * W] the least label around it, then that label's own label, until none changes."""
    cell = tl.arange(0, CELLS)
    inside = cell < H * W
    row, column = cell // W, cell % W
    changed = tl.full((), 1, tl.int32)
    while changed > 0:  # trips: max(H, W) / 2
        own = tl.load(labels + cell, inside, other=-1)
        least = own
        for turn in tl.static_range(9):
            above = row + turn // 3 - 1
            beside = column + turn % 3 - 1
            there = (own >= 0) & (above >= 0) & (above < H) & (beside >= 0) & (beside < W)
            label = tl.load(labels + above * W + beside, there, other=-1)
            least = tl.where(label >= 0, tl.minimum(least, label), least)
        least = tl.where(own >= 0, tl.load(labels + least, own >= 0, other=0), own)
        tl.debug_barrier()  # all threads have read before any of them writes
        tl.store(labels + cell, least, inside)
        tl.debug_barrier()
        changed = tl.sum((least != own).to(tl.int32), axis=0)


@kernel
def mark_kernel(
    status,
    drafted,
    progress,
    filled,
    islands,
    features,
    known,
    H,
    W,
    S,
    F,
    pair,
    radius,
    RASTER: tl.constexpr,
    SERIAL: tl.constexpr,
    CELLS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """One program per image, one lane per cell."""
    wait_for_earlier_kernels()
    image = tl.program_id(0)
    most = H * W
    cell = tl.arange(0, CELLS)
    inside = cell < most
    here = image * most + cell
    judged = tl.load(islands.rejected + here, inside, other=0)
    refused = judged == 1
    begun = tl.min(tl.where(refused, cell, most), axis=0)
    again = inside
    if not RASTER:
        row, column = cell // W, cell % W
        again = cell < 0
        for turn in range(0, (2 * radius + 1) * (2 * radius + 1)):
            above = row + turn // (2 * radius + 1) - radius
            beside = column + turn % (2 * radius + 1) - radius
            there = inside & (above >= 0) & (above < H) & (beside >= 0) & (beside < W)
            again = again | (tl.load(islands.rejected + image * most + above * W + beside, there, other=0) == 1)
    again = again & (cell >= begun)
    count = tl.sum(again.to(tl.int32), axis=0)
    island = cell
    if SERIAL:
        island = cell * 0
    tl.store(islands.labels + here, tl.where(again, island, -1), inside)
    tl.store(islands.waiting + here, again.to(tl.int32), inside)
    tl.store(islands.ready + here, tl.zeros((CELLS,), tl.int32), inside)
    tl.store(progress.decided + here, tl.load(islands.drafts + here, inside, other=0), inside)
    tl.store(filled + image * S + tl.load(progress.prefixes + image) + cell, 1 - again.to(tl.int32), inside)
    tl.store(islands.first + image, begun.to(tl.int64))
    tl.store(islands.cursor + image, tl.full((), 0, tl.int64))
    tl.store(progress.cells + image, (most - count).to(tl.int64))
    cycle = tl.load(progress.cycles + image)
    tl.debug_barrier()  # all threads have read the old value before one writes the new one
    tl.store(progress.cycles + image, cycle + 1)
    own, others = tl.where(begun == 0, F, 0), tl.where((begun > 0) & (begun < most), F, 0)
    for line in range(image, pair * tl.num_programs(0), tl.num_programs(0)):  # trips: pair
        behind = features + (line * most + begun - 1).to(tl.int64) * F
        for start in range(0, F, BLOCK):
            lane = start + tl.arange(0, BLOCK)
            before = tl.load(known.features + line * F + lane, lane < own, other=0.0)
            preceding = tl.where(lane < others, tl.load(behind + lane, lane < others, other=0.0), before)
            tl.store(known.preceding + line * F + lane, preceding, lane < F)
    ended = tl.load(drafted + image)
    if tl.load(status + image) == 0:
        if ended > 1:
            tl.store(status + image, ended)
        elif tl.max(judged, axis=0) == 2:
            tl.store(status + image, 2)
        elif count == 0:
            tl.store(status + image, 1)
    if not SERIAL:
        tl.debug_barrier()
        join(islands.labels + image * most, H, W, CELLS)


def mark(
    out: IslandBuffers,
    progress: Progress,
    status: Tensor,
    drafted: Tensor,
    filled: Tensor,
    features: Tensor,
    start_rows: StartRows,
    grid: Grid,
    repair: Repair,
) -> None:
    """Mark the cells to redraw, from the first rejected one on: all (reject "raster"), or those near a rejected one.

    The others are kept. With `repair.order` "islands", the cells of each 8-connected component get one label, its
    first cell. Images with nothing to redraw are done.

    Args:
        out: Holds the drafts and the rejections; the rest is filled.
        progress: Progress of the images.
        status: [B] int64.
        drafted: [B] int64, the status with which each image's draft ended.
        filled: [B, S] int32, which slots of the target's cache hold keys; set for the picture, 1 for kept cells.
        features: [R, N, F], from the pass over the drafts, after each cell.
        start_rows: Features of cell 0, and the output for those that precede the first rejected cell.
        grid: Size of the picture.
        repair: Settings of the repair.
    """
    batch, cells = out.drafts.shape
    rows, _, width = features.shape
    launch(
        mark_kernel,
        (batch,),
        batch * 40 * cells + 2 * rows * width * features.element_size(),
        status,
        drafted,
        progress,
        filled,
        out,
        features,
        start_rows,
        grid.height,
        grid.width,
        filled.shape[1],
        width,
        rows // batch,
        repair.radius,
        RASTER=repair.reject == "raster",
        SERIAL=repair.order == "serial",
        CELLS=next_power_of_2(max(2, cells)),
        BLOCK=min(1024, next_power_of_2(width)),
        warps=8,
    )
