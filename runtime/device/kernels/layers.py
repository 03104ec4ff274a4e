"""What a decoder layer does between its matrix products, each in one kernel: norm, rotation, gate.

The meaning is `models.layers`: RMSNorm in float32, pairs half a head apart turned in float32, SwiGLU.
"""

from torch import Tensor

from underpaint.models.layers import QK_NORM_EPS
from underpaint.runtime.device.language import kernel, launch, next_power_of_2, tl


@kernel
def add_norm_kernel(hidden, added, weight, out, D, eps, ADDS: tl.constexpr, BLOCK: tl.constexpr) -> None:
    """One program a position."""
    line = tl.program_id(0).to(tl.int64)
    place = tl.arange(0, BLOCK)
    inside = place < D
    values = tl.load(hidden + line * D + place, inside, other=0.0)
    if ADDS:
        values += tl.load(added + line * D + place, inside, other=0.0)
        tl.store(hidden + line * D + place, values, inside)
    wide = values.to(tl.float32)
    mean = tl.sum(wide * wide, axis=0) / D
    normed = (wide * tl.rsqrt(mean + eps)).to(values.dtype)
    tl.store(out + line * D + place, normed * tl.load(weight + place, inside, other=0.0), inside)


def add_norm(hidden: Tensor, added: Tensor | None, weight: Tensor, out: Tensor, eps: float) -> None:
    """hidden += added, in place, and out = RMSNorm(hidden) * weight; hidden, added and out are [R, T, F]."""
    width = hidden.shape[2]
    assert hidden.is_contiguous()
    assert out.is_contiguous()
    launch(
        add_norm_kernel,
        (hidden.shape[0] * hidden.shape[1],),
        hidden.numel() * hidden.element_size() * (2 if added is None else 4),
        hidden,
        hidden if added is None else added,
        weight,
        out,
        width,
        eps,
        ADDS=added is not None,
        BLOCK=next_power_of_2(width),
        warps=4 if width <= 2048 else 8,
    )


@kernel
def normalised_heads(low, high, inside, half, EPS: tl.constexpr):
    """Both halves [H, D / 2] of heads, each head with mean 0 and deviation 1, scaled and shifted."""
    width = 2 * half
    mean = (tl.sum(low, axis=1) + tl.sum(high, axis=1)) / width
    low = tl.where(inside, low - mean[:, None], 0.0)
    high = tl.where(inside, high - mean[:, None], 0.0)
    deviation = tl.rsqrt((tl.sum(low * low, axis=1) + tl.sum(high * high, axis=1)) / width + EPS)[:, None]
    return low * deviation, high * deviation


@kernel
def turn_kernel(
    qkv,
    table,
    scales,
    positions,
    query,
    slots,
    T,
    M,
    first,
    batch,
    rows,
    places,
    H: tl.constexpr,
    K: tl.constexpr,
    D: tl.constexpr,
    TURNS: tl.constexpr,
    NORMS: tl.constexpr,
    EPS: tl.constexpr,
    HBLOCK: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """One program a (position, row): queries turned into place, keys and values into the slots."""
    turn, row = tl.program_id(0), tl.program_id(1)
    half: tl.constexpr = D // 2
    head = tl.arange(0, HBLOCK)[:, None]
    pair = tl.arange(0, BLOCK)[None, :]
    at = head * D + pair
    source = (row * T + turn).to(tl.int64) * (H + 2 * K) * D + at
    asked = ((row * H + head) * T + turn).to(tl.int64) * D + pair
    kept = ((row * K + head) * M + first + turn).to(tl.int64) * D + pair
    shared = (head < K) & (pair < half)
    for kind in tl.static_range(2):
        heads = H + kind * (K - H)
        inside = (head < heads) & (pair < half)
        low = tl.load(qkv + source, inside, other=0.0).to(tl.float32)
        high = tl.load(qkv + source + half, inside, other=0.0).to(tl.float32)
        if NORMS:
            low, high = normalised_heads(low, high, inside, half, EPS)
            scale = scales + 2 * kind * H * D + at
            shift = scale + heads * D
            low = low * tl.load(scale, inside, other=0.0) + tl.load(shift, inside, other=0.0)
            high = high * tl.load(scale + half, inside, other=0.0) + tl.load(shift + half, inside, other=0.0)
        if TURNS:
            cell = tl.load(positions + (row % batch) * T + turn)
            place = tl.where(cell < 0, cell + places, cell)
            cosine = tl.load(table + 2 * place * half + pair, pair < half, other=0.0)
            sine = tl.load(table + (2 * place + 1) * half + pair, pair < half, other=0.0)
            low, high = low * cosine - high * sine, high * cosine + low * sine
        if kind == 0:
            tl.store(query + asked, low, inside)
            tl.store(query + asked + half, high, inside)
        else:
            tl.store(slots + kept, low, inside)
            tl.store(slots + kept + half, high, inside)
        source += heads * D
    kept += (row.to(tl.int64) * 0 + rows) * K * M * D
    tl.store(slots + kept, tl.load(qkv + source, shared, other=0.0), shared)
    tl.store(slots + kept + half, tl.load(qkv + source + half, shared, other=0.0), shared)


def turn(
    qkv: Tensor,
    table: Tensor | None,
    scales: Tensor | None,
    positions: Tensor,
    query: Tensor,
    slots: Tensor,
    first: int,
) -> None:
    """Normalise and turn queries and keys of qkv [R, T, (H + 2 K) D] at positions [B, T]; see `forwards.Turns`.

    query [R, H, T, D] is filled, and slots [2, R, K, M, D] from slot `first` on.
    """
    rows, heads, count, width = query.shape
    launch(
        turn_kernel,
        (count, rows),
        2 * qkv.numel() * qkv.element_size(),
        qkv,
        qkv if table is None else table,
        qkv if scales is None else scales,
        positions,
        query,
        slots,
        count,
        slots.shape[3],
        first,
        positions.shape[0],
        rows,
        0 if table is None else table.shape[0],
        H=heads,
        K=slots.shape[2],
        D=width,
        TURNS=table is not None,
        NORMS=scales is not None,
        EPS=QK_NORM_EPS,
        HBLOCK=next_power_of_2(heads),
        BLOCK=next_power_of_2(width // 2),
        warps=8,
    )


@kernel
def gate_kernel(given, out, D, BLOCK: tl.constexpr) -> None:
    """One program a (tile, position)."""
    tile, line = tl.program_id(0), tl.program_id(1).to(tl.int64)
    place = tile * BLOCK + tl.arange(0, BLOCK)
    inside = place < D
    gated = tl.load(given + line * 2 * D + place, inside, other=0.0).to(tl.float32)
    passed = tl.load(given + line * 2 * D + D + place, inside, other=0.0)
    made = (gated / (1.0 + tl.exp(-gated))).to(passed.dtype)
    tl.store(out + line * D + place, made * passed, inside)


def gate(given: Tensor, out: Tensor) -> None:
    """out [R, T, D] = silu(given[..., :D]) * given[..., D:], given [R, T, 2 D]."""
    width = out.shape[2]
    block = min(1024, next_power_of_2(width))
    launch(
        gate_kernel,
        (-(-width // block), out.shape[0] * out.shape[1]),
        3 * out.numel() * out.element_size(),
        given,
        out,
        width,
        BLOCK=block,
    )
