"""Attention of new positions to an image's live cache and to each other under ancestor masks, in one kernel."""

from typing import NamedTuple

from torch import Tensor

from underpaint.runtime.device.language import kernel, launch, next_power_of_2, tl

WORD = 64
"""New positions that one int64 of a mask names."""


class Filled(NamedTuple):
    """Which slots of a cache count, where cells are decided in any order.

    slots [B, S] int32: 1 where one is filled. bounds [B, T] int64: the slots that a new position sees lie below.
    """

    slots: Tensor
    bounds: Tensor


@kernel
def attended(q, keys, values, at, here, sees, scale, best, total, mixed):
    """One tile of an online softmax: the largest score, the sum of weights and the mixed values so far.

    at, here: where a tile's numbers [S, D] lie, and which are there. sees [T, S]: which positions a query sees.
    """
    k = tl.load(keys + at, here, other=0.0)
    v = tl.load(values + at, here, other=0.0)
    scores = tl.where(sees, tl.dot(q, tl.trans(k), input_precision="ieee") * scale, float("-inf"))
    most = tl.maximum(best, tl.max(scores, axis=1))
    safe = tl.where(most > float("-inf"), most, 0.0)
    share = tl.exp(scores - safe[:, None])
    shrink = tl.exp(best - safe)
    total = total * shrink + tl.sum(share, axis=1)
    mixed = mixed * shrink[:, None] + tl.dot(share.to(v.dtype), v, input_precision="ieee")
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
    out,
    T,
    S,
    M,
    batch,
    heads,
    kv_heads,
    rows,
    scale,
    SPARSE: tl.constexpr,
    D: tl.constexpr,
    WORDS: tl.constexpr,
    TBLOCK: tl.constexpr,
    SBLOCK: tl.constexpr,
    MBLOCK: tl.constexpr,
    DBLOCK: tl.constexpr,
) -> None:
    """One program a (head, row): online softmax over tiles of the live cache, then over the new positions."""
    head, row = tl.program_id(0), tl.program_id(1)
    image = row % batch
    asked = (row * heads + head).to(tl.int64)
    line = (row * kv_heads + head // (heads // kv_heads)).to(tl.int64)
    turn = tl.arange(0, TBLOCK)
    depth = tl.arange(0, DBLOCK)
    inner = depth < D
    asks = (turn[:, None] < T) & inner[None, :]
    q = tl.load(query + (asked * T + turn[:, None]) * D + depth[None, :], asks, other=0.0)
    length = tl.load(lengths + image)
    if SPARSE:
        bound = tl.load(bounds + image * T + turn, turn < T, other=0)
    best = tl.full((TBLOCK,), float("-inf"), tl.float32)
    total = tl.zeros((TBLOCK,), tl.float32)
    mixed = tl.zeros((TBLOCK, DBLOCK), tl.float32)
    values = (line * 0 + rows) * kv_heads * S * D
    for start in range(tl.load(unseen + row), length, SBLOCK):  # trips: live / SBLOCK
        place = start + tl.arange(0, SBLOCK)
        here = (place[:, None] < length) & inner[None, :]
        if SPARSE:
            there = tl.load(filled + image * S + place, place < length, other=0) == 1
            here = here & there[:, None]  # what an earlier batch left may be NaN, and no weight of 0 takes that away
        at = (line * S + place[:, None]) * D + depth[None, :]
        sees = (place[None, :] < length) & (turn[:, None] < TBLOCK)
        if SPARSE:
            sees = sees & there[None, :] & (place[None, :] < bound[:, None])
        best, total, mixed = attended(q, cache, cache + values, at, here, sees, scale, best, total, mixed)
    values = (line * 0 + rows) * kv_heads * M * D
    for start in range(0, M, MBLOCK):
        place = start + tl.arange(0, MBLOCK)
        here = (place[:, None] < M) & inner[None, :]
        at = (line * M + place[:, None]) * D + depth[None, :]
        seen = tl.load(masks + (image * T + turn) * WORDS + start // 64, turn < T, other=1)  # a tile lies in one word
        sees = ((seen[:, None] >> (place % 64)[None, :].to(tl.int64)) & 1) == 1
        sees = sees & (place[None, :] < M)
        best, total, mixed = attended(q, slots, slots + values, at, here, sees, scale, best, total, mixed)
    done = mixed / tl.where(total > 0.0, total, 1.0)[:, None]
    tl.store(out + ((row * T + turn[:, None]).to(tl.int64) * heads + head) * D + depth[None, :], done, asks)


def attention(
    query: Tensor,
    cache: Tensor,
    slots: Tensor,
    lengths: Tensor,
    unseen: Tensor,
    masks: Tensor,
    out: Tensor,
    live: int,
    filled: Filled | None = None,
) -> None:
    """Fill out [R, T, H * D] with softmax attention of query [R, H, T, D].

    cache [2, R, K, S, D]: keys and values, each for H / K heads of queries. Image b's rows see positions unseen[r] to
    lengths[b] - 1 of them (int64 [R] and [B]; row r is image r % B's). slots [2, R, K, M, D]: keys and values of this
    cycle's new positions.
    masks [B, T, words] int64: bit j of word w says that a query sees slot 64 w + j. A query sees at least one position.
    live: cached positions that the count of moved bytes assumes. filled: which of the cached positions count; None for
    all.
    """
    rows, heads, count, width = query.shape
    words = masks.shape[2]
    kv_heads, size, new = cache.shape[2], cache.shape[3], slots.shape[3]
    assert new <= words * WORD
    per_position = 2 * rows * kv_heads * width * cache.element_size()
    launch(
        attention_kernel,
        (heads, rows),
        per_position * (live + new + count),
        query,
        cache,
        slots,
        lengths,
        unseen,
        masks,
        lengths if filled is None else filled.slots,
        lengths if filled is None else filled.bounds,
        out,
        count,
        size,
        new,
        masks.shape[0],
        heads,
        kv_heads,
        rows,
        width**-0.5,
        SPARSE=filled is not None,
        D=width,
        WORDS=words,
        TBLOCK=max(16, next_power_of_2(count)),
        SBLOCK=16 if filled is not None and count > 32 else 32,  # on sm_80 more would not fit into registers
        MBLOCK=min(32, max(16, next_power_of_2(new))),
        DBLOCK=max(16, next_power_of_2(width)),
        warps=8 if count > 32 else 4,
        trips={"live": live},
    )
