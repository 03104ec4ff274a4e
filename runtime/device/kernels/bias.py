"""The attention bias of a pass, for engines that read masks as numbers; see `kernels.attention` for what it means."""

from torch import Tensor

from underpaint.artifacts.decoder_graph import MASKED_SCORE
from underpaint.runtime.device.kernels.attention import Filled
from underpaint.runtime.device.language import kernel, launch, next_power_of_2, tl

TILE = 1024


@kernel
def bias_kernel(
    lengths,
    unseen,
    masks,
    filled,
    bounds,
    out,
    T,
    S,
    M,
    first,
    batch,
    masked,
    SPARSE: tl.constexpr,
    WORDS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """One program a (new position, row): the committed positions, then earlier slots, then the new positions."""
    turn, row = tl.program_id(0), tl.program_id(1)
    image = row % batch
    line = out + (row * T + turn).to(tl.int64) * (S + M + T)
    low, length = tl.load(unseen + row), tl.load(lengths + image)
    for start in range(0, S, BLOCK):
        place = start + tl.arange(0, BLOCK)
        sees = (place >= low) & (place < length)
        if SPARSE:
            there = tl.load(filled + image * S + place, place < S, other=0) == 1
            sees = sees & there & (place < tl.load(bounds + image * T + turn))
        tl.store(line + place, tl.where(sees, 0.0, masked), place < S)
    for start in range(0, M + T, BLOCK):
        place = start + tl.arange(0, BLOCK)
        inside = place < M + T
        new = place >= M
        slot = tl.where(new, first + place - M, place)
        word = tl.load(masks + (image * T + turn) * WORDS + slot // 64, inside, other=0)
        sees = ((word >> (slot % 64).to(tl.int64)) & 1) == 1
        # What lies in the slots that the new positions take is of the cycle before.
        stale = (slot >= first) & (slot < first + T) & (new == 0)
        tl.store(line + S + place, tl.where(sees & (stale == 0), 0.0, masked), inside)


def bias(
    lengths: Tensor,
    unseen: Tensor,
    masks: Tensor,
    out: Tensor,
    size: int,
    slots: int,
    first: int,
    filled: Filled | None = None,
) -> None:
    """Fill out [R, T, S + M + T] float32: 0 where a new position sees another, `MASKED_SCORE` where it does not.

    size: S; slots: M, of which the new positions take those from `first` on; 0 where no earlier slot is read, and then
    `first` is 0 too. The rest: see `kernels.attention.attention`.
    """
    rows, count, wide = out.shape
    assert wide == size + slots + count
    launch(
        bias_kernel,
        (count, rows),
        4 * out.numel(),
        lengths,
        unseen,
        masks,
        lengths if filled is None else filled.slots,
        lengths if filled is None else filled.bounds,
        out,
        count,
        size,
        slots,
        first,
        masks.shape[0],
        float(MASKED_SCORE),
        SPARSE=filled is not None,
        WORDS=masks.shape[2],
        BLOCK=min(1024, next_power_of_2(max(16, size))),
    )
