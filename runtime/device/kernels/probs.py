"""From logits to distributions: guidance, temperature, top-k with ties, top-p, softmax, as `algos.rows`."""

from torch import Tensor

from underpaint.algos.rows import SamplingParams
from underpaint.runtime.device.language import kernel, launch, next_power_of_2, tl

_TILE = 512
"""Numbers at a time. Sixteen thresholds are counted at once, so a tile is 8,192 comparisons."""


@kernel
def ordered(values):
    """float32 as int64 in the same order; both zeros are one number."""
    bits = tl.where(values == 0.0, 0.0, values).to(tl.int32, bitcast=True)
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits).to(tl.int64)


@kernel
def threshold(row, V, K, BLOCK: tl.constexpr):
    """The K-th largest number of `row` as `ordered` has it: four bits a pass, by counting above 16 thresholds."""
    low = tl.full((), -0x80000000, tl.int64)
    step = tl.full((), 1 << 28, tl.int64)
    for _ in range(8):
        edges = low + tl.arange(0, 16).to(tl.int64) * step
        counts = tl.zeros((16,), tl.int32)
        for start in range(0, V, BLOCK):
            place = start + tl.arange(0, BLOCK)
            keys = ordered(tl.load(row + place, place < V, other=0.0))
            above = (keys[None, :] >= edges[:, None]) & (place < V)[None, :]
            counts += tl.sum(above.to(tl.int32), axis=1)
        reached = tl.sum((counts >= K).to(tl.int64), axis=0)  # the first edge is always reached
        low += (reached - 1) * step
        step = step // 16
    return low


@kernel
def nucleus(row, V, wanted, BLOCK: tl.constexpr):
    """The least probability of the smallest set of mass `wanted`, as `ordered` has it.

    Masses are whole multiples of 2^-44, `wanted` among them, so their sum is the same in any order.
    """
    unit: tl.constexpr = 17592186044416.0
    low = tl.full((), 0, tl.int64)
    step = tl.full((), 1 << 28, tl.int64)
    for _ in range(8):
        edges = low + (tl.arange(0, 16).to(tl.int64) + 1) * step
        masses = tl.zeros((16,), tl.int64)
        for start in range(0, V, BLOCK):
            place = start + tl.arange(0, BLOCK)
            probs = tl.load(row + place, place < V, other=0.0)
            whole = (probs.to(tl.float64) * unit).to(tl.int64)
            masses += tl.sum(tl.where(ordered(probs)[None, :] >= edges[:, None], whole[None, :], 0), axis=1)
        low += tl.sum((masses >= wanted).to(tl.int64), axis=0) * step
        step = step // 16
    return low


@kernel
def probs_kernel(
    logits,
    out,
    support,
    finite,
    counts,
    V,
    row_stride,
    image_stride,
    out_stride,
    support_stride,
    finite_stride,
    guidance,
    temperature,
    K,
    wanted,
    GUIDED: tl.constexpr,
    GREEDY: tl.constexpr,
    WARM: tl.constexpr,
    CUT: tl.constexpr,
    NUCLEUS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """One program a (node, image). The row's guided logits are kept in `out` until its probabilities replace them."""
    node, image = tl.program_id(0), tl.program_id(1)
    if node >= tl.load(counts + image):
        return
    given = logits + image.to(tl.int64) * image_stride + node.to(tl.int64) * V
    row = out + image.to(tl.int64) * out_stride + node.to(tl.int64) * V
    largest = tl.full((), float("-inf"), tl.float32)
    first = tl.full((), 0, tl.int32)
    sound = tl.full((), 1, tl.int32)
    for start in range(0, V, BLOCK):
        place = start + tl.arange(0, BLOCK)
        inside = place < V
        values = tl.load(given + place, inside, other=0.0)
        if GUIDED:
            without = tl.load(given + row_stride + place, inside, other=0.0)
            values = without + guidance * (values - without)
        number = tl.abs(values) < float("inf")
        sound = tl.minimum(sound, tl.min(number.to(tl.int32), axis=0))
        values = tl.where(number, values, 0.0)
        tl.store(row + place, values, inside)
        values = tl.where(inside, values, float("-inf"))
        here = tl.max(values, axis=0)
        first = tl.where(here > largest, tl.min(tl.where(values == here, place, V), axis=0), first)
        largest = tl.maximum(largest, here)
    told = finite + image * finite_stride + node
    tl.store(told, tl.minimum(sound, tl.load(told)))  # a later level clears nothing
    tl.debug_barrier()
    total = tl.full((), 0.0, tl.float64)
    held = tl.full((), 0, tl.int32)
    if GREEDY:
        for start in range(0, V, BLOCK):
            place = start + tl.arange(0, BLOCK)
            tl.store(row + place, (place == first).to(tl.float32), place < V)
        held += 1
    else:
        floor = tl.full((), -0x80000000, tl.int64)
        if CUT:
            floor = threshold(row, V, K, BLOCK)
        for start in range(0, V, BLOCK):
            place = start + tl.arange(0, BLOCK)
            inside = place < V
            values = tl.load(row + place, inside, other=0.0)
            lowered = values - largest
            if WARM:
                lowered = tl.math.div_rn(lowered, temperature + tl.zeros_like(lowered))
            masses = tl.where(inside & (ordered(values) >= floor), tl.exp(lowered), 0.0)
            total += tl.sum(masses.to(tl.float64), axis=0)
        for start in range(0, V, BLOCK):
            place = start + tl.arange(0, BLOCK)
            inside = place < V
            values = tl.load(row + place, inside, other=0.0)
            lowered = values - largest
            if WARM:
                lowered = tl.math.div_rn(lowered, temperature + tl.zeros_like(lowered))
            masses = tl.where(inside & (ordered(values) >= floor), tl.exp(lowered), 0.0)
            share = tl.math.div_rn(masses, total.to(tl.float32) + tl.zeros_like(masses))
            held += tl.sum((share > 0.0).to(tl.int32), axis=0)
            tl.store(row + place, share, inside)
        if NUCLEUS:
            tl.debug_barrier()
            floor = nucleus(row, V, wanted, BLOCK)
            # Of the tokens at the floor, those of the smallest ids that are needed to reach the mass.
            unit: tl.constexpr = 17592186044416.0
            above = tl.full((), 0, tl.int64)
            each = tl.full((), 1, tl.int64)
            for start in range(0, V, BLOCK):
                place = start + tl.arange(0, BLOCK)
                probs = tl.load(row + place, place < V, other=0.0)
                whole = (probs.to(tl.float64) * unit).to(tl.int64)
                above += tl.sum(tl.where(ordered(probs) > floor, whole, 0), axis=0)
                each = tl.maximum(each, tl.max(tl.where(ordered(probs) == floor, whole, 0), axis=0))
            room = tl.maximum((wanted - above + each - 1) // each, 1)
            total = tl.full((), 0.0, tl.float64)
            held = tl.full((), 0, tl.int32)
            seen = tl.full((), 0, tl.int64)
            for start in range(0, V, BLOCK):
                place = start + tl.arange(0, BLOCK)
                probs = tl.load(row + place, place < V, other=0.0)
                level = ((ordered(probs) == floor) & (place < V)).to(tl.int64)
                first = (level > 0) & (seen + tl.cumsum(level, axis=0) <= room)
                seen += tl.sum(level, axis=0)
                kept = tl.where((ordered(probs) > floor) | first, probs, 0.0)
                total += tl.sum(kept.to(tl.float64), axis=0)
                held += tl.sum((kept > 0.0).to(tl.int32), axis=0)
                tl.store(row + place, kept, place < V)
            tl.debug_barrier()
            for start in range(0, V, BLOCK):
                place = start + tl.arange(0, BLOCK)
                kept = tl.load(row + place, place < V, other=0.0)
                tl.store(row + place, tl.math.div_rn(kept, total.to(tl.float32) + tl.zeros_like(kept)), place < V)
    tl.store(support + image * support_stride + node, held)


def probs(
    logits: Tensor,
    out: Tensor,
    support: Tensor,
    finite: Tensor,
    counts: Tensor,
    sampler: SamplingParams,
    counted_rows: int | None = None,
) -> None:
    """Fill out [B, N, V] float32 with the distributions behind logits [R, B, N, V] float32, R = 1 or the guidance pair.

    Rows from counts[b] (int64 [B]) on are left as they are. support [B, N] int32: tokens of positive probability.
    finite [B, N] int32: set to 0 where a logit is NaN or infinite, else left as it is; that row then means nothing. All
    but the logits may be slices of larger buffers along their second axis. counted_rows: of an image on average, for
    the count of bytes, where counts are known to be smaller than N.
    """
    rows, batch, nodes, vocab_size = logits.shape
    launch(
        probs_kernel,
        (nodes, batch),
        4 * (rows + 1) * batch * min(nodes, counted_rows or nodes) * vocab_size,
        logits,
        out,
        support,
        finite,
        counts,
        vocab_size,
        batch * nodes * vocab_size,
        nodes * vocab_size,
        out.stride(0),
        support.stride(0),
        finite.stride(0),
        float(sampler.guidance),
        float(sampler.temperature),
        sampler.top_k,
        max(1, int(sampler.kept_mass * 2**44)),
        GUIDED=rows == 2,
        GREEDY=sampler.temperature == 0,
        WARM=sampler.temperature not in (0, 1),
        CUT=0 < sampler.top_k < vocab_size,
        NUCLEUS=sampler.top_p < 1,
        BLOCK=min(_TILE, next_power_of_2(vocab_size)),
        warps=8,
    )
