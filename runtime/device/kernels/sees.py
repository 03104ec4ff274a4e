"""Writes which cache positions a pass sees, for graphs that store its keys and values; see `kernels.attention`."""

import torch
from torch import Tensor

from underpaint.runtime.device.kernels.attention import Filled
from underpaint.runtime.device.launch import kernel, launch, next_power_of_2, tl, wait_for_earlier_kernels


@kernel
def sees_kernel(
    lengths,
    unseen,
    masks,
    filled,
    bounds,
    sees,
    write_at,
    read_places,
    T,
    S,
    M,
    first,
    batch,
    SPARSE: tl.constexpr,
    WORDS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """One program per (new position, row) writes what it sees of the cycle's slots, then of committed positions."""
    wait_for_earlier_kernels()
    turn, row = tl.program_id(0), tl.program_id(1)
    image = row % batch
    line = sees + (row * T + turn).to(tl.int64) * (M + S)
    low, length = tl.load(unseen + row), tl.load(lengths + image)
    if turn == 0:
        tl.store(write_at + row, first)
        tl.store(read_places + row, M + (S if SPARSE else length))
    for start in range(0, M, BLOCK):
        slot = start + tl.arange(0, BLOCK)
        word = tl.load(masks + (image * T + turn) * WORDS + slot // 64, slot < M, other=0)
        tl.store(line + slot, (word >> (slot % 64).to(tl.int64)) & 1, slot < M)
    for start in range(0, S, BLOCK):
        place = start + tl.arange(0, BLOCK)
        seen = (place >= low) & (place < length)
        if SPARSE:
            there = tl.load(filled + image * S + place, place < S, other=0) == 1
            seen = seen & there & (place < tl.load(bounds + image * T + turn))
        tl.store(line + M + place, seen, place < S)


def write_sees(
    lengths: Tensor,
    unseen: Tensor,
    masks: Tensor,
    sees: Tensor,
    write_at: Tensor,
    read_places: Tensor,
    slots: int,
    first: int,
    filled: Filled | None = None,
) -> None:
    """Fill the inputs that a graph of `artifacts.device_graph` reads for a pass over a cache.

    Args:
        lengths, unseen, masks, filled: See `kernels.attention.attention`.
        sees: What each new position sees of the slots and of the cache, [R, 1, T, M + S] bool.
        write_at: The first slot to write, [R] int64.
        read_places: Number of slots and cache positions to read, [R] int64.
        slots: Slots M.
        first: The new positions use the slots from this one on.
    """
    rows, _, count, places = sees.shape
    size = places - slots
    launch(
        sees_kernel,
        (count, rows),
        sees.numel(),
        lengths,
        unseen,
        masks,
        lengths if filled is None else filled.slots,
        lengths if filled is None else filled.bounds,
        sees.view(torch.int8),
        write_at,
        read_places,
        count,
        size,
        slots,
        first,
        masks.shape[0],
        SPARSE=filled is not None,
        WORDS=masks.shape[2],
        BLOCK=min(1024, next_power_of_2(max(16, size))),
    )
