"""Row fronts with an adaptive window: a row's first token is held back, and tested as the row above grows.

The reference is `algos.spatial.settle.settle` with `algos.spatial.adaptive_window.AdaptiveWindow` over one front. Open
rows advance by one cell per step, so at most one row waits to open, below all of them. The step in which it opens
differs between images.
"""

from typing import NamedTuple

from torch import Tensor

from underpaint.algos.protocols import Grid
from underpaint.runtime.device.kernels.fronts import FrontPass
from underpaint.runtime.device.kernels.layout import Progress
from underpaint.runtime.device.kernels.row_maths import DRAWN, copy_row, draw, draw_excess, flip
from underpaint.runtime.device.kernels.walk import Verdicts, takes_part, tile
from underpaint.runtime.device.launch import kernel, launch, next_power_of_2, tl, wait_for_earlier_kernels


class OpeningRows(NamedTuple):
    """Progress of the rows, and the held-back first token of the row that opens next; [B] int64 unless noted.

    Attributes:
        columns: Number of decided cells of each row, from the left, [B, H] int64.
        missing: Undecided cells before the opening row.
        tests: Noise addresses of the held token's test, and of the draw after it, [B, 2] int64.
        uniforms: The noise at these addresses, [B, 1, 2] float64.
        token: The held-back token.
        lacked: `missing` at the token's last test; 0 if no token is held.
        probs: The distribution of that test, [B, 1, V] float32.
    """

    columns: Tensor
    missing: Tensor
    tests: Tensor
    uniforms: Tensor
    token: Tensor
    lacked: Tensor
    probs: Tensor


@kernel
def lay_adaptive_kernel(status, progress, rows, out, T, H, W, S, w, ROWS: tl.constexpr, LANES: tl.constexpr) -> None:
    """One program per image; the last position of the pass is the proxy of the row that opens."""
    wait_for_earlier_kernels()
    image = tl.program_id(0)
    prefix = tl.load(progress.prefixes + image)
    going = tl.load(status + image) == 0
    every = tl.arange(0, ROWS).to(tl.int64)
    reached = tl.load(rows.columns + image * H + every, every < H, other=0)
    ends = tl.load(out.filled + image * S + prefix + every * W + W - 1, every < H, other=0)
    first = tl.sum(ends.to(tl.int64), axis=0)
    opened = tl.sum((reached > 0).to(tl.int64), axis=0)
    above = tl.load(rows.columns + image * H + opened - 1, opened > 0, other=0)
    lane = tl.arange(0, LANES).to(tl.int64)
    row = first + lane
    inside = (lane < T - 1) & (row < tl.where(going, opened, 0))
    count = tl.load(rows.columns + image * H + row, inside, other=0)
    latest = row * W + count - 1
    fresh = inside & (tl.load(out.filled + image * S + prefix + latest, inside, other=1) == 0)
    waits = (opened < H) & (above >= w) & (above < W)
    proxy = lane == tl.where(going & waits, T - 1, -1)
    cell = tl.where(proxy, opened * W - 1, tl.where(fresh, latest, 0))
    source = tl.where(proxy, (opened - 1) * W + above - 1, cell)
    place = image * T + lane
    here = lane < T
    tl.store(out.tokens + place, tl.load(progress.decided + image * H * W + source, fresh | proxy, other=0), here)
    tl.store(out.positions + place, cell, here)
    own = tl.full((LANES,), 1, tl.int64) << lane
    seen = (cell[None, :] < cell[:, None]) & fresh[None, :]
    tl.store(out.masks + place, own | tl.sum(tl.where(seen, own[None, :], 0), axis=1), here)
    tl.store(out.bounds + place, prefix + cell, here)
    tl.store(out.places + place, tl.where(fresh, prefix + cell, -1), here)
    opens = (count == W) & (row == opened - 1) & (opened < H)
    follows = proxy | (fresh & ((count < W) | opens))
    tl.store(out.settled + place, tl.where(follows, cell + 1, -1), here)
    tl.store(out.extents + image, prefix + tl.max(cell, axis=0))
    lacking = opened * W - tl.sum(reached, axis=0)
    tl.store(rows.missing + image, lacking)
    address = 2 * (opened * W * H * W + lacking)
    tl.store(rows.tests + image * 2, address)
    tl.store(rows.tests + image * 2 + 1, address + 1)


def lay_adaptive(
    status: Tensor, progress: Progress, rows: OpeningRows, out: FrontPass, grid: Grid, window: int
) -> None:
    """Lay out the next step of every unfinished image, whose first cell is already decided in progress.decided.

    The pass feeds the cells that the last step decided. It also feeds a proxy of the row that opens, from `window`
    decided cells of the row above until that row is complete.
    """
    batch, count = out.tokens.shape
    launch(
        lay_adaptive_kernel,
        (batch,),
        8 * batch * (8 * count + 2 * grid.height),
        status,
        progress,
        rows,
        out,
        count,
        grid.height,
        grid.width,
        out.filled.shape[1],
        window,
        ROWS=next_power_of_2(max(2, grid.height)),
        LANES=next_power_of_2(max(2, count)),
        warps=1 if count <= 16 else 8,
    )


@kernel
def settle_adaptive_kernel(
    probs, uniforms, rows, settled, decided, verdicts, V, N, T, H, W, M, ROWS: tl.constexpr, BLOCK: tl.constexpr
) -> None:
    """One program per (position, image); only the opening row's program reads and writes the held-back token."""
    wait_for_earlier_kernels()
    place, image = tl.program_id(0), tl.program_id(1)
    cell = tl.load(settled + image * T + place)
    if cell < 0:
        return
    if takes_part(verdicts.status, verdicts.finite, verdicts.taken, image, M, ROWS) == 0:
        return
    row = probs + (image * N + place).to(tl.int64) * V
    offer = rows.probs + image.to(tl.int64) * V
    opening = cell % W == 0
    lacking = tl.load(rows.missing + image)
    before = tl.load(rows.lacked + image, opening, other=0)
    token = tl.load(rows.token + image, opening, other=0)
    kept = tl.full((), 1, tl.int1)
    if before > 0:
        kept = kept & (lacking != before)
        if kept:
            chance = tl.load(row + token).to(tl.float64)
            if flip(tl.load(rows.uniforms + image * 2), chance, tl.load(offer + token).to(tl.float64)) == 0:
                redrawn = draw_excess(row, offer, DRAWN, token, V, tl.load(rows.uniforms + image * 2 + 1), BLOCK)
                kept = (lacking == 0) | (redrawn == V)  # V: the distributions differ only by rounding
                token = tl.where(redrawn < V, redrawn, token)
    else:
        token = draw(row, V, tl.load(uniforms + image * T + place), BLOCK)
        kept = (opening & (lacking > 0)) == 0
    tl.debug_barrier()  # all threads have read the held-back token before any thread writes it
    if token == V:
        tl.store(verdicts.status + image, 3)
        return
    if kept:
        line = image * H + cell // W
        tl.store(decided + image * H * W + cell, token)
        tl.store(rows.columns + line, cell % W + 1)
        if opening:
            tl.store(rows.lacked + image, tl.full((), 0, tl.int64))
    else:
        tl.store(settled + image * T + place, tl.full((), -1, tl.int64))
        tl.store(rows.token + image, token)
        tl.store(rows.lacked + image, lacking)
        if lacking != before:
            copy_row(row, offer, V, BLOCK)


def settle_adaptive(
    probs: Tensor,
    uniforms: Tensor,
    rows: OpeningRows,
    out: FrontPass,
    progress: Progress,
    verdicts: Verdicts,
    width: int,
) -> None:
    """Decide the cells out.settled from a pass's distributions.

    The opening row's token may be held back; out.settled then becomes -1.

    Args:
        probs: The distributions, [B, N, V].
        uniforms: The noise of the positions, [B, 1, T] float64.
        rows: Progress of the rows, and the held-back token.
        out: The pass.
        progress: Takes the tokens in progress.decided.
        verdicts: The status of the images, and the marks of finite logits.
        width: Width of the grid.
    """
    batch, nodes, vocab_size = probs.shape
    count = out.settled.shape[1]
    launch(
        settle_adaptive_kernel,
        (count, batch),
        4 * batch * vocab_size * (count + 2),
        probs,
        uniforms,
        rows,
        out.settled,
        progress.decided,
        verdicts,
        vocab_size,
        nodes,
        count,
        rows.columns.shape[1],
        width,
        verdicts.finite.shape[1],
        ROWS=next_power_of_2(verdicts.finite.shape[1]),
        BLOCK=tile(vocab_size),
        warps=8,
    )
