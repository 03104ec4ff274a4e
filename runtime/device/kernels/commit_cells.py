"""Keys and values of a pass into the slots of their cells, where cells are decided in any order."""

from torch import Tensor

from underpaint.runtime.device.language import kernel, launch, next_power_of_2, tl


@kernel
def commit_cells_kernel(
    cache, slots, places, S, M, T, batch, heads, D: tl.constexpr, COUNT: tl.constexpr, DBLOCK: tl.constexpr
) -> None:
    """One program a (row and head, layer and kind)."""
    line, kind = tl.program_id(0), tl.program_id(1)
    image = (line // heads) % batch
    lane = tl.arange(0, COUNT)
    depth = tl.arange(0, DBLOCK)
    place = tl.load(places + image * T + lane, lane < T, other=-1)
    here = (place >= 0)[:, None] & (depth < D)[None, :]
    own = kind.to(tl.int64) * tl.num_programs(0) + line
    moved = tl.load(slots + (own * M + lane[:, None]) * D + depth[None, :], here, other=0.0)
    tl.store(cache + (own * S + place[:, None]) * D + depth[None, :], moved, here)


def commit_cells(cache: Tensor, slots: Tensor, places: Tensor) -> None:
    """Copy the first T of slots [K, 2, R, H, M, D] into cache [K, 2, R, H, S, D] at places [B, T] int64; none at -1."""
    layers, _, rows, heads, size, width = cache.shape
    batch, count = places.shape
    launch(
        commit_cells_kernel,
        (rows * heads, 2 * layers),
        2 * cache.element_size() * 2 * layers * rows * heads * width * count,
        cache,
        slots,
        places,
        size,
        slots.shape[4],
        count,
        batch,
        heads,
        D=width,
        COUNT=next_power_of_2(max(2, count)),
        DBLOCK=next_power_of_2(width),
        warps=8 if count > 32 else 4,
    )
