"""Commit of a verdict: the accepted keys, values and features, the tokens, and the progress of each image."""

from typing import NamedTuple

from torch import Tensor

from underpaint.runtime.device.kernels.adapt import Adapting, adapt
from underpaint.runtime.device.kernels.layout import Progress
from underpaint.runtime.device.kernels.walk import BatchTree, Verdicts
from underpaint.runtime.device.launch import kernel, launch, next_power_of_2, tl, wait_for_earlier_kernels


class Handed(NamedTuple):
    """Features [R, positions, width] of new positions; out [R, width] takes each row's at index places [B] int64."""

    features: Tensor
    out: Tensor
    places: Tensor
    positions: int
    width: int


@kernel
def hand_over(handed, row, image, goes):
    """Copy a row's feature to `handed.out` if `goes`."""
    if goes:
        place = row * handed.positions + tl.load(handed.places + image)
        for start in range(0, handed.width, 1024):
            column = start + tl.arange(0, 1024)
            inside = column < handed.width
            moved = tl.load(handed.features + place * handed.width + column, inside, other=0.0)
            tl.store(handed.out + row * handed.width + column, moved, inside)


@kernel
def commit_cache_kernel(
    cache,
    slots,
    path,
    counts,
    lengths,
    handed,
    S,
    M,
    N,
    batch,
    heads,
    kinds,
    WALKED: tl.constexpr,
    HANDS: tl.constexpr,
    D: tl.constexpr,
    COUNT: tl.constexpr,
    DBLOCK: tl.constexpr,
) -> None:
    """One program per (row and head, layer and keys or values) copies its accepted slots behind the live cache.

    HANDS: after the last layer, one program per row copies the feature of its last position; see `Handed`.
    """
    wait_for_earlier_kernels()
    line, kind = tl.program_id(0), tl.program_id(1)
    image = (line // heads) % batch
    if HANDS:
        hand_over(handed, (line // heads).to(tl.int64), image, (kind == kinds) & (line % heads == 0))
    lane = tl.arange(0, COUNT)
    depth = tl.arange(0, DBLOCK)
    count = tl.load(counts + image)
    if HANDS:
        count = tl.where(kind < kinds, count, 0)
    goes = lane < count
    slot = lane.to(tl.int64)
    if WALKED:
        slot = tl.load(path + image * N + lane - 1, goes & (lane > 0), other=0)
    here = goes[:, None] & (depth < D)[None, :]
    own = kind.to(tl.int64) * tl.num_programs(0) + line
    moved = tl.load(slots + (own * M + slot[:, None]) * D + depth[None, :], here, other=0.0)
    place = tl.load(lengths + image) + lane
    tl.store(cache + (own * S + place[:, None]) * D + depth[None, :], moved, here)


def commit_cache(
    cache: Tensor,
    slots: Tensor,
    path: Tensor,
    counts: Tensor,
    lengths: Tensor,
    most: int,
    walked: bool,
    handed: Handed | None = None,
) -> None:
    """Copy the slots of committed positions into the cache, from `lengths` on.

    Args:
        cache: [K, 2, R, H, S, D]. It and `slots` may be parts of one tensor, see `forwards.Cache`.
        slots: Keys and values of the new positions, [K, 2, R, H, M, D].
        path: The slots to copy after the root's if `walked`, [B, N] int64.
        counts: Number of positions, [B] int64, at most `most`.
        lengths: The first cache position to fill, [B] int64.
        most: Largest number of positions.
        walked: Whether to copy the root's slot 0, then the slots of `path`; otherwise the first slots.
        handed: A feature of each row to copy in the same launch, or None.
    """
    layers, _, rows, heads, _, width = cache.shape
    moved = 0 if handed is None else 2 * handed.out.numel() * handed.out.element_size()
    launch(
        commit_cache_kernel,
        (rows * heads, 2 * layers + (handed is not None)),
        2 * cache.element_size() * 2 * layers * rows * heads * width * most + moved,
        cache,
        slots,
        path,
        counts,
        lengths,
        handed or Handed(cache, cache, lengths, 0, 0),
        cache.stride(3) // width,
        slots.stride(3) // width,
        path.shape[1],
        counts.shape[0],
        heads,
        2 * layers,
        WALKED=walked,
        HANDS=handed is not None,
        D=width,
        COUNT=next_power_of_2(max(2, most)),
        DBLOCK=next_power_of_2(width),
        warps=4 if most <= 32 else 8,  # with fewer warps registers spill
    )


@kernel
def advance_kernel(
    tree,
    depths,
    verdicts,
    progress,
    features,
    fed,
    adapting,
    N,
    T,
    P,
    D,
    most,
    batch,
    ADAPTS: tl.constexpr,
    LANES: tl.constexpr,
    NODES: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """One program per (pending position, row) copies its feature; an image's first one also updates its progress.

    Nothing changes for an image that did not take part.
    """
    wait_for_earlier_kernels()
    turn, row = tl.program_id(0), tl.program_id(1)
    image = row % batch
    count = tl.load(verdicts.taken + image)
    if turn >= count:
        return
    node = tl.full((), 0, tl.int64)
    if turn > 0:
        node = tl.load(verdicts.path + image * N + turn - 1)
    for start in range(0, D, BLOCK):
        place = start + tl.arange(0, BLOCK)
        moved = tl.load(features + (row * T + node).to(tl.int64) * D + place, place < D, other=0.0)
        tl.store(fed + (row * P + turn).to(tl.int64) * D + place, moved, place < D)
    if (turn > 0) | (row >= batch):
        return
    lane = tl.arange(0, LANES)
    node = tl.load(verdicts.path + image * N + lane, lane < count - 1, other=0)
    token = tl.load(tree.tokens + image * N + node, lane < count - 1, other=0)
    last = tl.load(verdicts.token + image)
    token = tl.where(lane == count - 1, last, token)
    cell, cycle = tl.load(progress.cells + image), tl.load(progress.cycles + image)
    inside = lane < count
    node = tl.arange(0, NODES)
    size = tl.load(tree.counts + image)
    deepest = tl.max(tl.load(depths + image * N + node, node < size, other=0), axis=0)
    tl.debug_barrier()  # all threads have read the values that one of them overwrites
    tl.store(progress.decided + image * most + cell + lane, token, inside & (cell + lane < most))
    tl.store(progress.pending + image * P + lane, token, inside & (lane < P))
    tl.store(progress.pending_counts + image, count)
    tl.store(progress.roots + image, last)
    tl.store(progress.cells + image, cell + count)
    entry = progress.history + (image * most + cycle) * 3
    tl.store(entry, count - 1)
    tl.store(entry + 1, deepest)
    tl.store(entry + 2, size - 1)
    tl.store(progress.cycles + image, cycle + 1)
    if cell + count >= most:
        tl.store(verdicts.status + image, 1)
    if ADAPTS:
        adapt(adapting, count - 1, cell + count, size, deepest, image, most, N - 1, LANES)


def advance(
    tree: BatchTree,
    depths: Tensor,
    verdicts: Verdicts,
    progress: Progress,
    features: Tensor,
    fed: Tensor,
    adapting: Adapting | None = None,
) -> None:
    """Append the accepted tokens and the extra one, and move every image that took part to its next cycle.

    Args:
        tree: The trees that were judged.
        depths: Depths of their nodes, [B, N] int64.
        verdicts: The verdicts; the status of a finished image becomes DONE.
        progress: Progress of the images, which is updated.
        features: The target's features, [R, T, F].
        fed: Takes the features of the root and of the accepted path, [R, P, F].
        adapting: An adaptation that learns from the verdicts, or None.
    """
    batch, nodes = tree.tokens.shape
    rows, width, size = fed.shape
    launch(
        advance_kernel,
        (width, rows),
        2 * fed.numel() * fed.element_size() + 8 * batch * (4 * width + nodes + 3),
        tree,
        depths,
        verdicts,
        progress,
        features,
        fed,
        adapting or progress,
        nodes,
        features.shape[1],
        width,
        size,
        progress.decided.shape[1],
        batch,
        ADAPTS=adapting is not None,
        LANES=next_power_of_2(max(2, width)),
        NODES=next_power_of_2(max(2, nodes)),
        BLOCK=min(1024, next_power_of_2(size)),
    )


@kernel
def commit_cells_kernel(
    cache, slots, places, S, M, T, batch, heads, D: tl.constexpr, COUNT: tl.constexpr, DBLOCK: tl.constexpr
) -> None:
    """One program per (row and head, layer and keys or values)."""
    wait_for_earlier_kernels()
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
    """Copy the first T of slots [K, 2, R, H, M, D] to places [B, T] int64 of cache [K, 2, R, H, S, D]; -1: no copy."""
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
