"""Queries, keys and values of a product: a kernel normalises, rotates and stores them.

The reference is `models.layers`: rotation in float32 of pairs half a head apart.
"""

from typing import NamedTuple

from torch import Tensor

from underpaint.runtime.device.launch import kernel, tl


@kernel
def normalised_heads(low, high, inside, half, EPS: tl.constexpr):
    """Return both halves [H, D / 2] of heads, each head shifted and scaled to mean 0 and deviation 1."""
    width = 2 * half
    mean = (tl.sum(low, axis=1) + tl.sum(high, axis=1)) / width
    low = tl.where(inside, low - mean[:, None], 0.0)
    high = tl.where(inside, high - mean[:, None], 0.0)
    deviation = tl.rsqrt((tl.sum(low * low, axis=1) + tl.sum(high * high, axis=1)) / width + EPS)[:, None]
    return low * deviation, high * deviation


class Heads(NamedTuple):
    """Outputs for the queries, keys and values of a product, and their rotation and scaling; see `forwards.Turns`.

    Attributes:
        query: The queries, [R, H, T, D].
        slots: The keys and values, [2, R, K, M, D], written from slot `first` on.
        table: Cosines and sines; a placeholder unless the launch uses it.
        scales: Scales and shifts of queries and keys; a placeholder unless the launch uses them.
        positions: Positions of the inputs, [B, T] int64; negative ones count from the end of the table.
        first: The first slot to write.
        new: New positions T.
        slot_count: Slots M.
        rows: Rows R.
        batch: Images B.
        places: Positions in the table.
        heads: Query heads H.
        shared: Key heads K.
        half: Half of a head's numbers, D / 2.
    """

    query: Tensor
    slots: Tensor
    table: Tensor
    scales: Tensor
    positions: Tensor
    first: int
    new: int
    slot_count: int
    rows: int
    batch: int
    places: int
    heads: int
    shared: int
    half: int


@kernel
def store_heads(to, low, high, head, line, lines, pair, TURNS: tl.constexpr, SCALES: tl.constexpr, EPS: tl.constexpr):
    """Store both halves [M, D / 2] of a head at positions `line`, normalised and rotated, as a query or into slots."""
    half, T, H, K = to.half, to.new, to.heads, to.shared
    kind = to.query.dtype.element_ty
    inside = (line < lines)[:, None] & (pair < half)[None, :]
    low, high = low.to(kind).to(tl.float32), high.to(kind).to(tl.float32)
    row, turn = (line // T).to(tl.int64), line % T
    if head < H + K:
        if SCALES:
            low, high = normalised_heads(low, high, inside, half, EPS)
            own = tl.where(head < H, head, H + head)
            scale = to.scales + own * 2 * half + pair
            shift = scale + tl.where(head < H, H, K) * 2 * half
            low = low * tl.load(scale, pair < half, other=0.0)[None, :]
            low += tl.load(shift, pair < half, other=0.0)[None, :]
            high = high * tl.load(scale + half, pair < half, other=0.0)[None, :]
            high += tl.load(shift + half, pair < half, other=0.0)[None, :]
        if TURNS:
            cell = tl.load(to.positions + (row % to.batch) * T + turn, line < lines, other=0)
            place = tl.where(cell < 0, cell + to.places, cell)
            at = to.table + 2 * place[:, None] * half + pair[None, :]
            cosine = tl.load(at, inside, other=0.0)
            sine = tl.load(at + half, inside, other=0.0)
            low, high = low * cosine - high * sine, high * cosine + low * sine
    if head < H:
        query = to.query + ((row * H + head) * T + turn)[:, None] * 2 * half + pair[None, :]
        tl.store(query, low, inside)
        tl.store(query + half, high, inside)
    else:
        plane = tl.where(head < H + K, head - H, to.rows * K + head - H - K)
        slot = to.slots + ((row * K + plane) * to.slot_count + to.first + turn)[:, None] * 2 * half + pair[None, :]
        tl.store(slot, low, inside)
        tl.store(slot + half, high, inside)
