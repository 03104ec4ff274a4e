"""Uniform numbers addressed by tree node or by cell: Philox 4x64-10, bit for bit as `algos.chance.Philox`."""

from typing import NamedTuple

from torch import Tensor

from underpaint.runtime.device.launch import kernel, launch, next_power_of_2, tl, wait_for_earlier_kernels

_BLOCK = 64
"""Nodes whose counters share all words but the lowest, as in `algos.chance`."""


@kernel
def philox(k0, k1, c0, c1, c2, c3):
    """Return the four words after ten rounds (Salmon et al., SC 2011). All arguments are uint64 of one shape."""
    m0 = tl.full(c0.shape, 0xD2E7470EE14C6C93, tl.uint64)
    m1 = tl.full(c0.shape, 0xCA5A826395121157, tl.uint64)
    w0 = tl.full(c0.shape, 0x9E3779B97F4A7C15, tl.uint64)
    w1 = tl.full(c0.shape, 0xBB67AE8584CAA73B, tl.uint64)
    for _ in tl.static_range(10):
        high0, low0 = tl.umulhi(c0, m0), c0 * m0
        high1, low1 = tl.umulhi(c2, m1), c2 * m1
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = k0 + w0, k1 + w1
    return c0, c1, c2, c3


@kernel
def unit(word):
    """Return the upper 53 bits of a word as a float64 in [0, 1)."""
    return (word >> 11).to(tl.float64) * (1.0 / 9007199254740992.0)


class UniformBuffers(NamedTuple):
    """The output and the keys of the uniforms of an image's cycle.

    out [B, R, N] float64: one number per role and node 0..N-1. seeds, images [B] int64, >= 0: the keys. roles [R]
    int64: values of `algos.chance.Role`.
    """

    out: Tensor
    seeds: Tensor
    images: Tensor
    roles: Tensor


@kernel
def draw_noise(noise, cycles, turn, image, nodes, ROLES: tl.constexpr, QUARTERS: tl.constexpr):
    """Write the uniforms of role number `turn` of an image. Each lane makes four numbers."""
    lane = tl.arange(0, QUARTERS)
    zero = (lane * 0).to(tl.uint64)
    key0 = zero + tl.load(noise.seeds + image).to(tl.uint64)
    key1 = zero + tl.load(noise.images + image).to(tl.uint64)
    cycle = zero + tl.load(cycles + image).to(tl.uint64)
    role = zero + tl.load(noise.roles + turn).to(tl.uint64)
    step = (lane % 16).to(tl.uint64) + 1
    block = (lane // 16).to(tl.uint64)
    c0, c1, c2, c3 = philox(key0, key1, step, block, role, cycle)
    place = lane * 4
    row = noise.out + (image * ROLES + turn) * nodes
    tl.store(row + place, unit(c0), place < nodes)
    tl.store(row + place + 1, unit(c1), place + 1 < nodes)
    tl.store(row + place + 2, unit(c2), place + 2 < nodes)
    tl.store(row + place + 3, unit(c3), place + 3 < nodes)


def quarters_of(nodes: int) -> int:
    """Return the number of lanes that make one role's uniforms for `nodes` nodes."""
    return next_power_of_2(-(-nodes // _BLOCK)) * _BLOCK // 4


@kernel
def cell_uniforms_kernel(
    out, seeds, images, cycles, cells, roles, W, ROLES: tl.constexpr, EACH: tl.constexpr, COUNT: tl.constexpr
) -> None:
    """One program per (role, image). Each lane makes four numbers, and keeps the one of its cell."""
    wait_for_earlier_kernels()
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
    """Fill `out` with the uniforms of W cells for each role, in each image's cycle.

    Args:
        out: [B, R, W] float64.
        seeds, images, cycles: The keys and the cycle, [B] int64, >= 0.
        cells: [B, W] int64, or [B] for W consecutive cells from that one on; a cell below 0 gets an arbitrary number.
        roles: Values of `algos.chance.Role`, [R] int64.
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
