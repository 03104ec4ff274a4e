"""Taking in a verdict: accepted keys, values and features, the tokens, and where each image stands."""

from torch import Tensor

from underpaint.runtime.device.kernels.layout import Progress
from underpaint.runtime.device.kernels.walk import BatchTree, Verdicts
from underpaint.runtime.device.language import kernel, launch, next_power_of_2, tl


@kernel
def commit_cache_kernel(
    cache,
    slots,
    path,
    counts,
    lengths,
    S,
    M,
    N,
    batch,
    heads,
    WALKED: tl.constexpr,
    D: tl.constexpr,
    COUNT: tl.constexpr,
    DBLOCK: tl.constexpr,
) -> None:
    """One program a (row and head, layer and kind): its accepted slots behind the live cache."""
    line, kind = tl.program_id(0), tl.program_id(1)
    image = (line // heads) % batch
    lane = tl.arange(0, COUNT)
    depth = tl.arange(0, DBLOCK)
    goes = lane < tl.load(counts + image)
    slot = lane.to(tl.int64)
    if WALKED:
        slot = tl.load(path + image * N + lane - 1, goes & (lane > 0), other=0)
    here = goes[:, None] & (depth < D)[None, :]
    own = kind.to(tl.int64) * tl.num_programs(0) + line
    moved = tl.load(slots + (own * M + slot[:, None]) * D + depth[None, :], here, other=0.0)
    place = tl.load(lengths + image) + lane
    tl.store(cache + (own * S + place[:, None]) * D + depth[None, :], moved, here)


def commit_cache(
    cache: Tensor, slots: Tensor, path: Tensor, counts: Tensor, lengths: Tensor, most: int, walked: bool
) -> None:
    """Copy slots [K, 2, R, H, M, D] of committed positions into cache [K, 2, R, H, S, D] from lengths [B] int64 on.

    Both may be parts of one tensor, see `forwards.Cache`.
    counts [B] int64: how many, at most `most`. walked: the root's slot 0, then those of path [B, N]; else the first
    ones.
    """
    layers, _, rows, heads, _, width = cache.shape
    launch(
        commit_cache_kernel,
        (rows * heads, 2 * layers),
        2 * cache.element_size() * 2 * layers * rows * heads * width * most,
        cache,
        slots,
        path,
        counts,
        lengths,
        cache.stride(3) // width,
        slots.stride(3) // width,
        path.shape[1],
        counts.shape[0],
        heads,
        WALKED=walked,
        D=width,
        COUNT=next_power_of_2(max(2, most)),
        DBLOCK=next_power_of_2(width),
        warps=4 if most <= 32 else 8,  # with fewer of them registers spill
    )


@kernel
def commit_features_kernel(
    features,
    pending,
    path,
    taken,
    T,
    N,
    P,
    D,
    batch,
    BLOCK: tl.constexpr,
) -> None:
    """One program a (pending position, row)."""
    turn, row = tl.program_id(0), tl.program_id(1)
    image = row % batch
    if turn >= tl.load(taken + image):
        return
    node = tl.full((), 0, tl.int64)
    if turn > 0:
        node = tl.load(path + image * N + turn - 1)
    for start in range(0, D, BLOCK):
        place = start + tl.arange(0, BLOCK)
        moved = tl.load(features + (row * T + node).to(tl.int64) * D + place, place < D, other=0.0)
        tl.store(pending + (row * P + turn).to(tl.int64) * D + place, moved, place < D)


def commit_features(features: Tensor, pending: Tensor, path: Tensor, taken: Tensor) -> None:
    """Fill pending [R, P, F] with the target's features [R, T, F] of the root and of the accepted path [B, N]."""
    rows, count, width = pending.shape
    launch(
        commit_features_kernel,
        (count, rows),
        2 * pending.numel() * pending.element_size(),
        features,
        pending,
        path,
        taken,
        features.shape[1],
        path.shape[1],
        count,
        width,
        taken.shape[0],
        BLOCK=min(1024, next_power_of_2(width)),
    )


@kernel
def advance_kernel(
    tokens,
    path,
    taken,
    extra,
    status,
    cells,
    cycles,
    roots,
    pending,
    pending_counts,
    decided,
    history,
    depths,
    counts,
    N,
    P,
    most,
    LANES: tl.constexpr,
    NODES: tl.constexpr,
) -> None:
    """One program an image; nothing changes where it did not take part."""
    image = tl.program_id(0)
    count = tl.load(taken + image)
    if count == 0:
        return
    lane = tl.arange(0, LANES)
    node = tl.load(path + image * N + lane, lane < count - 1, other=0)
    token = tl.load(tokens + image * N + node, lane < count - 1, other=0)
    last = tl.load(extra + image)
    token = tl.where(lane == count - 1, last, token)
    cell = tl.load(cells + image)
    inside = lane < count
    tl.store(decided + image * most + cell + lane, token, inside & (cell + lane < most))
    tl.store(pending + image * P + lane, token, inside & (lane < P))
    tl.store(pending_counts + image, count)
    tl.store(roots + image, last)
    tl.store(cells + image, cell + count)
    node = tl.arange(0, NODES)
    size = tl.load(counts + image)
    deepest = tl.max(tl.load(depths + image * N + node, node < size, other=0), axis=0)
    told = history + (image * most + tl.load(cycles + image)) * 3
    tl.store(told, count - 1)
    tl.store(told + 1, deepest)
    tl.store(told + 2, size - 1)
    tl.store(cycles + image, tl.load(cycles + image) + 1)
    if cell + count >= most:
        tl.store(status + image, 1)


def advance(tree: BatchTree, depths: Tensor, verdicts: Verdicts, progress: Progress) -> None:
    """Append the accepted tokens and the extra one, and move every image that took part to its next cycle."""
    batch, nodes = tree.tokens.shape
    width = progress.pending.shape[1]
    launch(
        advance_kernel,
        (batch,),
        8 * batch * (4 * width + nodes + 3),
        tree.tokens,
        verdicts.path,
        verdicts.taken,
        verdicts.token,
        verdicts.status,
        progress.cells,
        progress.cycles,
        progress.roots,
        progress.pending,
        progress.pending_counts,
        progress.decided,
        progress.history,
        depths,
        tree.counts,
        nodes,
        width,
        progress.decided.shape[1],
        LANES=next_power_of_2(max(2, width)),
        NODES=next_power_of_2(max(2, nodes)),
        warps=1,
    )


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
    layers, _, rows, heads, _, width = cache.shape
    batch, count = places.shape
    launch(
        commit_cells_kernel,
        (rows * heads, 2 * layers),
        2 * cache.element_size() * 2 * layers * rows * heads * width * count,
        cache,
        slots,
        places,
        cache.stride(3) // width,
        slots.stride(3) // width,
        count,
        batch,
        heads,
        D=width,
        COUNT=next_power_of_2(max(2, count)),
        DBLOCK=next_power_of_2(width),
        warps=8 if count > 32 else 4,
    )
