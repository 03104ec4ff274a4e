"""Addressed uniforms of cells: a Jacobi window's noise is by the cell it is for, not by the place in the window."""

from torch import Tensor

from underpaint.runtime.device.kernels.uniforms import philox, unit
from underpaint.runtime.device.language import kernel, launch, next_power_of_2, tl


@kernel
def cell_uniforms_kernel(
    out, seeds, images, cycles, cells, roles, W, ROLES: tl.constexpr, EACH: tl.constexpr, COUNT: tl.constexpr
) -> None:
    """One program a (role, image); a lane makes the four numbers of its cell's word, and keeps one."""
    turn, image = tl.program_id(0), tl.program_id(1)
    lane = tl.arange(0, COUNT)
    zero = (lane * 0).to(tl.uint64)
    key0 = zero + tl.load(seeds + image).to(tl.uint64)
    key1 = zero + tl.load(images + image).to(tl.uint64)
    cycle = zero + tl.load(cycles + image).to(tl.uint64)
    role = zero + tl.load(roles + turn).to(tl.uint64)
    if EACH:
        cell = tl.maximum(tl.load(cells + image * W + lane, lane < W, other=0), 0)
    else:
        cell = tl.load(cells + image) + lane
    step = (cell % 64 // 4).to(tl.uint64) + 1
    c0, c1, c2, c3 = philox(key0, key1, step, (cell // 64).to(tl.uint64), role, cycle)
    which = cell % 4
    word = tl.where(which < 2, tl.where(which == 0, c0, c1), tl.where(which == 2, c2, c3))
    tl.store(out + (image * ROLES + turn) * W + lane, unit(word), lane < W)


def cell_uniforms(out: Tensor, seeds: Tensor, images: Tensor, cycles: Tensor, cells: Tensor, roles: Tensor) -> None:
    """Fill out [B, R, W] float64: the uniforms of W cells of each role, in each image's cycle.

    cells [B, W] int64, or [B]: the first of W cells one after another; below 0: any number. seeds, images, cycles: [B]
    int64, >= 0; roles: [R] int64, values of `algos.chance.Role`.
    """
    batch, count, width = out.shape
    launch(
        cell_uniforms_kernel,
        (count, batch),
        out.numel() * 8,
        out,
        seeds,
        images,
        cycles,
        cells,
        roles,
        width,
        ROLES=count,
        EACH=cells.dim() == 2,
        COUNT=next_power_of_2(max(2, width)),
        warps=1,
    )
