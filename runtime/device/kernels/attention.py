"""Attention of new positions to an image's live cache and to each other under ancestor masks, in one launch.

If heads and images alone would leave multiprocessors idle, several programs split the keys (flash-decoding,
https://pytorch.org/blog/flash-decoding). Each stores the largest score, the sum of weights and the weighted sum of
values of its own tiles. The last of them to finish combines these.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from underpaint.runtime.device.kernels.children import is_last
from underpaint.runtime.device.launch import (
    AHEAD,
    SECTOR,
    kernel,
    launch,
    next_power_of_2,
    prefetch,
    processors,
    tl,
    wait_for_earlier_kernels,
)

WORD = 64
"""New positions per int64 word of a mask."""
TILE = 64
"""Cached positions that a program reads at once."""
MOST_QUERIES = 32
"""Most queries of one program. With more, registers spill and multiprocessors are left idle."""
MOST_SPLITS = 8
FOLD = 128
"""Cached positions that take as many instructions as storing a part and combining all parts."""
MOVED = 3.0
"""Time to move a cached position with one multiprocessor's share of the bandwidth, relative to computing it."""


class Filled(NamedTuple):
    """The slots of a cache that are filled, for methods that decide cells in any order.

    slots [B, S] int32: 1 if the slot is filled. bounds [B, T] int64: a new position sees only slots below its bound.
    """

    slots: Tensor
    bounds: Tensor


@kernel
def attended(q, k, v, sees, scale, best, total, mixed):
    """Add one tile to an online softmax: the largest score, the sum of weights and the weighted sum of values so far.

    q [T, D], k and v [S, D]. sees [T, S]: the positions that each query sees.
    """
    scores = tl.where(sees, tl.dot(q, tl.trans(k), input_precision="ieee") * scale, float("-inf"))
    most = tl.maximum(best, tl.max(scores, axis=1))
    safe = tl.where(most > float("-inf"), most, 0.0)
    share = tl.exp(scores - safe[:, None])
    shrink = tl.exp(best - safe)
    total = total * shrink + tl.sum(share, axis=1)
    mixed = mixed * shrink[:, None] + tl.dot(share.to(v.dtype), v, input_precision="ieee")
    return most, total, mixed


@kernel
def attended_alone(q, k, v, sees, scale, best, total, mixed):
    """Add one tile for a single query [1, D]; each of L lanes keeps its own softmax, so no warp waits for another.

    k and v [steps, L, D]. sees [steps, L]: the positions that the query sees.
    """
    scores = tl.sum(k.to(tl.float32) * q.to(tl.float32), axis=2) * scale
    scores = tl.where(sees, scores, float("-inf"))
    most = tl.maximum(best, tl.max(scores, axis=0))
    safe = tl.where(most > float("-inf"), most, 0.0)
    share = tl.exp(scores - safe[None, :])
    shrink = tl.exp(best - safe)
    total = total * shrink + tl.sum(share, axis=0)
    mixed = mixed * shrink[:, None] + tl.sum(share[:, :, None] * v.to(tl.float32), axis=0)
    return most, total, mixed


@kernel
def attention_kernel(
    query,
    cache,
    slots,
    lengths,
    unseen,
    masks,
    filled,
    bounds,
    parts,
    arrivals,
    out,
    T,
    S,
    M,
    batch,
    kv_heads,
    group,
    rows,
    scale,
    SPARSE: tl.constexpr,
    D: tl.constexpr,
    WORDS: tl.constexpr,
    SPLITS: tl.constexpr,
    TBLOCK: tl.constexpr,
    SBLOCK: tl.constexpr,
    MBLOCK: tl.constexpr,
    LANES: tl.constexpr,
    DBLOCK: tl.constexpr,
    SECTORS: tl.constexpr,
    STEP: tl.constexpr,
) -> None:
    """One program per (key head and block of its queries, row, split).

    It reads every SPLITS-th tile of the live cache, then every SPLITS-th tile of the new positions. Before it waits for
    its inputs, it prefetches the first tile of a row that sees every position, SECTORS sectors of STEP numbers each.
    """
    count = group * T
    chunks = tl.cdiv(count, TBLOCK)
    head, chunk = tl.program_id(0) // chunks, tl.program_id(0) % chunks  # programs of one head read its keys together
    row, split = tl.program_id(1), tl.program_id(2)
    image = row % batch
    line = (row * kv_heads + head).to(tl.int64)
    values = (line * 0 + rows) * kv_heads * S * D
    if SECTORS > 0:
        ahead = split * SBLOCK + tl.arange(0, SBLOCK)[:, None]
        keys = cache + (line * S + ahead) * D + (tl.arange(0, SECTORS) * STEP)[None, :]
        prefetch(keys, (ahead < S) & (chunk == 0))
        prefetch(keys + values, (ahead < S) & (chunk == 0))
    wait_for_earlier_kernels()
    ask = chunk * TBLOCK + tl.arange(0, TBLOCK)
    turn = ask % T
    depth = tl.arange(0, DBLOCK)
    inner = depth < D
    asks = (ask[:, None] < count) & inner[None, :]
    q = tl.load(query + (line * count + ask[:, None]) * D + depth[None, :], asks, other=0.0)
    length = tl.load(lengths + image)
    if SPARSE:
        bound = tl.load(bounds + image * T + turn)[:, None]
    lane = tl.arange(0, LANES)[None, :]
    old, new = tl.arange(0, SBLOCK), tl.arange(0, MBLOCK)
    if TBLOCK == 1:
        old = tl.arange(0, SBLOCK // LANES)[:, None] * LANES + lane  # [steps, L]
        new = tl.arange(0, MBLOCK // LANES)[:, None] * LANES + lane
    best = tl.full((LANES,), float("-inf"), tl.float32)
    total = tl.zeros((LANES,), tl.float32)
    mixed = tl.zeros((LANES, DBLOCK), tl.float32)
    first = tl.load(unseen + row) + split * SBLOCK
    for start in range(first, length, SPLITS * SBLOCK):  # trips: -(-live // (SPLITS * SBLOCK))
        place = start + old
        there = place < length
        if SPARSE:
            # An unfilled slot may hold NaN from an earlier batch, which a weight of 0 would not remove.
            there = there & (tl.load(filled + image * S + place, there, other=0) == 1)
        at = cache + (line * S + tl.expand_dims(place, -1)) * D + depth
        here = tl.expand_dims(there, -1) & inner
        k, v = tl.load(at, here, other=0.0), tl.load(at + values, here, other=0.0)
        if TBLOCK == 1:
            if SPARSE:
                there = there & (place < bound)
            best, total, mixed = attended_alone(q, k, v, there, scale, best, total, mixed)
        else:
            sees = there[None, :]
            if SPARSE:
                sees = sees & (place[None, :] < bound)
            best, total, mixed = attended(q, k, v, sees, scale, best, total, mixed)
    values = (line * 0 + rows) * kv_heads * M * D
    # The last splits have the fewest tiles of the cache.
    for start in range((SPLITS - 1 - split) * MBLOCK, M, SPLITS * MBLOCK):  # trips: -(-M // (SPLITS * MBLOCK))
        place = start + new
        at = slots + (line * M + tl.expand_dims(place, -1)) * D + depth
        here = tl.expand_dims(place < M, -1) & inner
        k, v = tl.load(at, here, other=0.0), tl.load(at + values, here, other=0.0)
        seen = tl.load(masks + (image * T + turn) * WORDS + start // 64)[:, None]  # a tile lies in one word
        if TBLOCK == 1:
            sees = (((seen >> (place % 64).to(tl.int64)) & 1) == 1) & (place < M)
            best, total, mixed = attended_alone(q, k, v, sees, scale, best, total, mixed)
        else:
            sees = ((seen >> (place % 64)[None, :].to(tl.int64)) & 1) == 1
            sees = sees & (place[None, :] < M)
            best, total, mixed = attended(q, k, v, sees, scale, best, total, mixed)
    if TBLOCK == 1:
        most = tl.max(best, axis=0, keep_dims=True)
        shrink = tl.exp(best - tl.where(most > float("-inf"), most, 0.0))
        total = tl.sum(total * shrink, axis=0, keep_dims=True)
        mixed = tl.sum(mixed * shrink[:, None], axis=0, keep_dims=True)
        best = most
    if SPLITS > 1:
        own = line * count + ask
        sums = parts + (line * 0 + rows) * kv_heads * count * SPLITS * D
        at = own * SPLITS + split
        tl.store(parts + at[:, None] * D + depth[None, :], mixed, asks)
        tl.store(sums + 2 * at, best, ask < count)
        tl.store(sums + 2 * at + 1, total, ask < count)
        if is_last(arrivals + row * tl.num_programs(0) + tl.program_id(0), SPLITS) == 0:
            return
        best = tl.full((TBLOCK,), float("-inf"), tl.float32)
        total = tl.zeros((TBLOCK,), tl.float32)
        mixed = tl.zeros((TBLOCK, DBLOCK), tl.float32)
        for part in tl.static_range(SPLITS):
            at = own * SPLITS + part
            part_values = tl.load(parts + at[:, None] * D + depth[None, :], asks, other=0.0, cache_modifier=".cg")
            largest = tl.load(sums + 2 * at, ask < count, other=float("-inf"), cache_modifier=".cg")
            summed = tl.load(sums + 2 * at + 1, ask < count, other=0.0, cache_modifier=".cg")
            most = tl.maximum(best, largest)
            safe = tl.where(most > float("-inf"), most, 0.0)
            shrink, share = tl.exp(best - safe), tl.exp(largest - safe)
            total = total * shrink + summed * share
            mixed = mixed * shrink[:, None] + part_values * share[:, None]
            best = most
    done = mixed / tl.where(total > 0.0, total, 1.0)[:, None]
    place = ((row * T + turn) * group * kv_heads + head * group + ask // T).to(tl.int64)
    tl.store(out + place[:, None] * D + depth[None, :], done, asks)


def most_programs(heads: int, kv_heads: int, positions: int) -> int:
    """Return the number of programs per row without a split, in a pass over at most `positions` new positions."""
    return kv_heads * -(-heads // kv_heads * positions // MOST_QUERIES)


def splits_of(programs: int, live: int, queries: int, device: torch.device) -> int:
    """Choose the number of parts of a split over the keys: more than one only if multiprocessors would be idle.

    Costs are in cached positions: what one program computes, or what all programs move if that takes longer. A part is
    written and read again, which with many queries costs as much as many positions. Costs that differ by less than a
    tile count as equal; then the split with less computation per program wins.

    Args:
        programs: Programs of a launch without a split.
        live: Cached positions per program.
        queries: Queries per program.
        device: Device that runs them.
    """
    at_once = processors(device) * (2 if queries == 1 else 1)  # a lone query waits for memory most of the time

    def cost(splits: int) -> tuple[int, float]:
        computed = live / splits + (FOLD if splits > 1 else 0)
        moved = MOVED * programs / processors(device) * (live + 2 * queries * splits)
        return int(max(computed, moved)) // TILE, computed

    return min(range(1, max(1, min(MOST_SPLITS, at_once // programs)) + 1), key=cost)


def attention(
    query: Tensor,
    cache: Tensor,
    slots: Tensor,
    lengths: Tensor,
    unseen: Tensor,
    masks: Tensor,
    out: Tensor,
    arrivals: Tensor,
    live: int,
    filled: Filled | None = None,
    splits: int | None = None,
) -> None:
    """Fill `out` with softmax attention of `query`; row r belongs to image r % B.

    Row r of image b sees the cached positions unseen[r] to lengths[b] - 1. A query sees at least one position.

    Args:
        query: [R, H, T, D].
        cache: Keys and values, [2, R, K, S, D]; each key head serves H / K query heads.
        slots: Keys and values of this cycle's new positions, [2, R, K, M, D].
        lengths: The end of each image's cached positions, [B] int64.
        unseen: The first cached position that each row sees, [R] int64.
        masks: [B, T, words] int64: bit j of word w is set if a query sees slot 64 w + j.
        out: [R, T, H * D].
        arrivals: [R, at least K * ceil(H / K * T / 32)] int32; 0 before and after the launch.
        live: Cached positions assumed by the count of moved bytes and the choice of the split.
        filled: The cached positions that are filled; None for all.
        splits: Number of parts of the keys; None to choose it.
    """
    rows, heads, positions, width = query.shape
    words = masks.shape[2]
    kv_heads, size, new = cache.shape[2], cache.shape[3], slots.shape[3]
    count = heads // kv_heads * positions
    assert new <= words * WORD
    depth = max(16, next_power_of_2(width))
    block = 1 if count == 1 else min(MOST_QUERIES, max(16, next_power_of_2(count)))
    lanes = min(WORD, max(1, 1024 // depth)) if count == 1 else block  # 1024: numbers that 4 warps load at once
    programs = most_programs(heads, kv_heads, positions)
    if splits is None:
        splits = splits_of(programs * rows, live, min(count, block), query.device)
    assert splits == 1 or (arrivals.is_contiguous() and arrivals.numel() >= programs * rows)
    parts = query.new_empty(rows * heads * positions * splits * (width + 2) if splits > 1 else 1, dtype=torch.float32)
    per_place, ahead = 2 * rows * kv_heads * width * query.element_size(), min(size, splits * TILE)
    sectors, rest = divmod(width * query.element_size(), SECTOR)
    if rest or sectors & (sectors - 1) or per_place * ahead > AHEAD:
        sectors = 0  # a kernel's blocks are powers of two
    moved = per_place * ((max(live, ahead) if sectors else live) + new) + 2 * query.numel() * query.element_size()
    launch(
        attention_kernel,
        (programs, rows, splits),
        moved + (2 * 4 * parts.numel() if splits > 1 else 0),
        query,
        cache,
        slots,
        lengths,
        unseen,
        masks,
        lengths if filled is None else filled.slots,
        lengths if filled is None else filled.bounds,
        parts,
        arrivals,
        out,
        positions,
        size,
        new,
        masks.shape[0],
        kv_heads,
        heads // kv_heads,
        rows,
        width**-0.5,
        SPARSE=filled is not None,
        D=width,
        WORDS=words,
        SPLITS=splits,
        TBLOCK=block,
        SBLOCK=TILE,
        MBLOCK=max(lanes, min(32, next_power_of_2(new))) if count == 1 else min(32, max(16, next_power_of_2(new))),
        LANES=lanes,
        DBLOCK=depth,
        SECTORS=sectors,
        STEP=SECTOR // query.element_size(),
        warps=8 if block > 1 and query.element_size() > 2 else 4,  # so that float32 fits in registers
        stages=2 if depth * query.element_size() > 256 else 3,  # and a wide head in the memory of an RTX or L4 card
        trips={"live": live},
        prefetched=per_place * ahead if sectors else 0,
    )
