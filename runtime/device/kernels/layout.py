"""The progress of each image, and the layout of its next cycle."""

from typing import NamedTuple

from torch import Tensor

from underpaint.runtime.device.kernels.uniforms import UniformBuffers, draw_noise, quarters_of
from underpaint.runtime.device.launch import kernel, launch, next_power_of_2, tl, wait_for_earlier_kernels


class Progress(NamedTuple):
    """The progress of each image, [B] int64 unless noted.

    Attributes:
        cells: Number of decided tokens, which is also the raster index of the children of the next cycle's root.
        cycles: Number of the next cycle.
        roots: Last decided tokens.
        prefixes: Condition positions in the cache.
        pending: Tokens not yet fed to the drafter, the root last, [B, D + 1] int64.
        pending_counts: Number of these tokens.
        decided: Decided tokens, [B, cells] int64.
        history: For each cycle, the number of accepted draft tokens, of levels of its tree, and of its drafted nodes,
            [B, cells, 3] int64.
    """

    cells: Tensor
    cycles: Tensor
    roots: Tensor
    prefixes: Tensor
    pending: Tensor
    pending_counts: Tensor
    decided: Tensor
    history: Tensor


class Lengths(NamedTuple):
    """The layout of a cycle, [B] int64 unless noted.

    Attributes:
        target: Positions in the target's cache.
        draft_before: Positions in the drafter's cache before its pending tokens.
        draft: Positions in the drafter's cache after its pending tokens.
        last: Index of the root among the pending tokens.
        levels: Levels that the image grows.
        pending_positions: Cells of the pending tokens, [B, D + 1] int64.
        level_positions: Cells of each level, [L + 1, B, F] int64.
        level_rows: F for the levels that an unfinished image grows, else 0, [L + 1, B] int64.
    """

    target: Tensor
    draft_before: Tensor
    draft: Tensor
    last: Tensor
    levels: Tensor
    pending_positions: Tensor
    level_positions: Tensor
    level_rows: Tensor


@kernel
def prepare_kernel(
    status,
    progress,
    depths,
    totals,
    lengths,
    noise,
    tokens,
    most,
    batch,
    rows,
    P,
    L,
    nodes,
    ALONE: tl.constexpr,
    ROLES: tl.constexpr,
    QUARTERS: tl.constexpr,
    PENDING: tl.constexpr,
    LEVELS: tl.constexpr,
    WIDTH: tl.constexpr,
) -> None:
    """One program per (role, image) draws noise; one more per image lays out its cycle."""
    wait_for_earlier_kernels()
    turn, image = tl.program_id(0), tl.program_id(1)
    if turn < ROLES:
        draw_noise(noise, progress.cycles, turn, image, nodes, ROLES, QUARTERS)
        return
    cell = tl.load(progress.cells + image)
    if ALONE:
        tl.store(tokens + image, tl.load(progress.roots + image))
    count = tl.load(progress.pending_counts + image)
    deepest = tl.minimum(tl.load(depths + image), tl.load(totals + image))
    tl.store(lengths.target + image, tl.load(progress.prefixes + image) + cell - 1)
    tl.store(lengths.draft_before + image, cell - count)
    tl.store(lengths.draft + image, cell)
    tl.store(lengths.last + image, tl.maximum(count - 1, 0))
    deepest = tl.maximum(tl.minimum(deepest, most - cell), 0)
    tl.store(lengths.levels + image, deepest)
    lane = tl.arange(0, PENDING)
    tl.store(lengths.pending_positions + image * P + lane, tl.minimum(cell - count + lane, most), lane < P)
    lane = tl.arange(0, LEVELS)
    column = tl.arange(0, WIDTH)
    place = (lane[:, None] * batch + image) * rows + column[None, :]
    here = tl.minimum(cell - 1 + lane, most)
    inside = (lane < L)[:, None] & (column < rows)[None, :]
    tl.store(lengths.level_positions + place, here[:, None] + column[None, :] * 0, inside)
    going = tl.load(status + image) == 0
    tl.store(lengths.level_rows + lane * batch + image, tl.where(going & (lane < deepest), rows, 0), lane < L)


def prepare(
    status: Tensor,
    progress: Progress,
    depths: Tensor,
    totals: Tensor,
    lengths: Lengths,
    noise: UniformBuffers,
    tokens: Tensor | None,
) -> None:
    """Lay out a cycle, and draw its noise.

    No tree is deeper than `depths` or `totals` [B] int64, or runs past the picture. tokens [B, 1] int64: takes the
    roots, if there are no other nodes; None otherwise.
    """
    _, roles, nodes = noise.out.shape
    batch, positions = lengths.pending_positions.shape
    levels, _, rows = lengths.level_positions.shape
    launch(
        prepare_kernel,
        (roles + 1, batch),
        8 * batch * (10 + positions + levels * (rows + 1) + roles * nodes),
        status,
        progress,
        depths,
        totals,
        lengths,
        noise,
        progress.roots if tokens is None else tokens,
        progress.decided.shape[1] - 1,
        batch,
        rows,
        positions,
        levels,
        nodes,
        ALONE=tokens is not None,
        ROLES=roles,
        QUARTERS=quarters_of(nodes),
        PENDING=next_power_of_2(max(2, positions)),
        LEVELS=next_power_of_2(max(2, levels)),
        WIDTH=next_power_of_2(max(2, rows)),
        warps=1,
    )
