"""From logits to distributions: guidance, temperature, top-k with ties, top-p, softmax, as `algos.rows`.

A program holds its row in registers: one read and one write.
"""

from statistics import NormalDist
from typing import Any, NamedTuple

import torch
from torch import Tensor

from underpaint.algos.rows import SamplingParams
from underpaint.runtime.device.kernels.row_maths import one_hot, row_argmax
from underpaint.runtime.device.kernels.walk import tile
from underpaint.runtime.device.language import kernel, launch, next_power_of_2, tl


@kernel
def kth_largest(values, largest, guess, width, K, V):
    """A number that exactly the K largest of `values` [BLOCK], and those equal to the last of them, are not below.

    The search starts at `guess` and goes down until K numbers are reached, `width` for each factor of e that the count
    is off. Then the counts' logarithms are interpolated, an end that stays counting half each time, and from the 12th
    step on the rest is bisected: until exactly K numbers are reached or no float lies in between, as where numbers are
    equal. Of normal rows of 8,192 to 65,536 numbers the average was below 7 steps; rows of rounded numbers took 21.
    """
    low = tl.full((), -3.4028234663852886e38, tl.float32)  # the least of all
    high = largest
    held = tl.full((), 0.0, tl.float32) + V
    above, below = tl.log2(held / K), tl.log2(2.0 * K + 0.0 * held)  # how far the counts at both ends are off
    rose, fell = tl.full((), 0, tl.int1), tl.full((), 0, tl.int1)
    turn = tl.full((), 0, tl.int32)
    middle = tl.where(guess < largest, guess, largest - 0.001 * (tl.abs(largest) + 1.0))
    while (held > K) & (low < middle) & (middle < high):  # trips: 7
        count = tl.sum(tl.where(values >= middle, 1.0, 0.0), axis=0)  # whole numbers; floats take fewer instructions
        enough = count >= K
        off = tl.abs(tl.log2(tl.maximum(count, 0.5) / K))
        above = tl.where(enough, off, tl.where(fell, 0.5 * above, above))
        below = tl.where(enough, tl.where(rose, 0.5 * below, below), off)
        rose, fell = enough, enough == 0
        low, held = tl.where(enough, middle, low), tl.where(enough, count, held)
        high = tl.where(enough, high, middle)
        turn += 1
        further = high - tl.maximum(0.7624619 * width * below, (largest - high) * (turn - 0.9375))  # 1.1 ln 2
        between = low + (high - low) * (above / tl.maximum(above + below, 1e-9))
        trial = tl.where(low > -3.4e38, between, further)
        usable = (trial > low) & (trial < high) & (turn < 12)
        middle = tl.where(usable, trial, 0.5 * low + 0.5 * high)
    return low


@kernel
def guided_values(given, row_stride, guidance, place, inside, GUIDED: tl.constexpr):
    """The logits at `place`, those of a pair mixed."""
    values = tl.load(given + place, inside, other=0.0)
    if GUIDED:
        without = tl.load(given + row_stride + place, inside, other=0.0)
        values = without + guidance * (values - without)
    return values


@kernel
def nucleus(probs, inside, wanted):
    """Which of `probs` [BLOCK] are in the smallest set of mass `wanted`, ties by token; at least one.

    Masses are whole multiples of 2^-44, `wanted` among them, so their sum is the same in any order.
    """
    unit: tl.constexpr = 17592186044416.0
    whole = (probs * unit).to(tl.int64)
    bits = probs.to(tl.int32, bitcast=True)
    floor = tl.full((), 0, tl.int32)
    for bit in range(30, -1, -1):
        trial = floor + (tl.full((), 1, tl.int32) << bit)
        reached = tl.sum(tl.where(bits >= trial, whole, 0), axis=0)
        floor = tl.where(reached >= wanted, trial, floor)
    # Of the tokens at the floor, those of the smallest ids that are needed to reach the mass.
    above = tl.sum(tl.where(bits > floor, whole, 0), axis=0)
    level = inside & (bits == floor)
    each = tl.maximum(tl.max(tl.where(level, whole, 0), axis=0), 1)
    room = tl.maximum((wanted - above + each - 1) // each, 1)
    return (bits > floor) | (level & (tl.cumsum(level.to(tl.int32), axis=0) <= room))


class SamplerValues(NamedTuple):
    """What logits are made distributions by: `SamplingParams`, and where its top-k's search begins, see `kth_largest`.

    wanted: the mass of top-p in multiples of 2^-44.
    """

    guidance: float
    temperature: float
    top_k: int
    reach: float
    thin: float
    wanted: int


def sampler_values(sampler: SamplingParams, rows: int, vocab_size: int) -> tuple[SamplerValues, dict[str, Any]]:
    """A sampler as kernels take it, and the constants of `share_of` for `rows` of logits: 2 for a guidance pair."""
    values = SamplerValues(
        float(sampler.guidance),
        float(sampler.temperature),
        sampler.top_k,
        *_tail(sampler.top_k / vocab_size),
        max(1, int(sampler.kept_mass * 2**44)),
    )
    constants = {
        "V": vocab_size,
        "GUIDED": rows == 2,
        "GREEDY": sampler.temperature == 0,
        "WARM": sampler.temperature not in (0, 1),
        "CUT": 0 < sampler.top_k < vocab_size,
        "NUCLEUS": sampler.top_p < 1,
        "SAMPLE": min(512, next_power_of_2(vocab_size) // 2),
        "BLOCK": next_power_of_2(vocab_size),
        "warps": 8 if vocab_size <= 16384 else 16,
    }
    return values, constants


@kernel
def share_of(
    values, given, row_stride, sampler, place, inside, V: tl.constexpr, GUIDED: tl.constexpr, GREEDY: tl.constexpr,
    WARM: tl.constexpr, CUT: tl.constexpr, NUCLEUS: tl.constexpr, SAMPLE: tl.constexpr,
):  # fmt: skip
    """The distribution [BLOCK] float32 behind a row's finite logits `values` [BLOCK], which `given` holds."""
    values = tl.where(inside, values, float("-inf"))
    largest = tl.max(values, axis=0)
    if GREEDY:
        share = (place == tl.min(tl.where(values == largest, place, V), axis=0)).to(tl.float32)
    else:
        kept = inside
        if CUT:
            # Where the K-th would be, were they normal: by a few of the row's numbers.
            few = tl.arange(0, SAMPLE)
            some = guided_values(given, row_stride, sampler.guidance, few * (V // SAMPLE), few < V, GUIDED)
            mean = tl.sum(some, axis=0) / SAMPLE
            spread = tl.sqrt(tl.sum((some - mean) * (some - mean), axis=0) / SAMPLE)
            guess, width = mean + sampler.reach * spread, sampler.thin * spread
            kept = inside & (values >= kth_largest(values, largest, guess, width, sampler.top_k, V))
        lowered = values - largest
        if WARM:
            lowered = tl.math.div_rn(lowered, sampler.temperature + tl.zeros_like(lowered))
        masses = tl.where(kept, tl.exp(lowered), 0.0)
        share = masses * (1.0 / tl.sum(masses.to(tl.float64), axis=0)).to(tl.float32)
        if NUCLEUS:
            share = tl.where(nucleus(share, inside, sampler.wanted), share, 0.0)
            share *= (1.0 / tl.sum(share.to(tl.float64), axis=0)).to(tl.float32)
    return share


@kernel
def is_finite(values):
    """Whether all of a row's logits (float32) are numbers: the bits of others have the highest exponent."""
    return tl.max(values.to(tl.int32, bitcast=True) & 0x7FFFFFFF, axis=0) < 0x7F800000


@kernel
def row_shares(
    given, row_stride, sampler, V: tl.constexpr, GUIDED: tl.constexpr, GREEDY: tl.constexpr, WARM: tl.constexpr,
    CUT: tl.constexpr, NUCLEUS: tl.constexpr, SAMPLE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The distribution [BLOCK] float32 behind the logits at `given`, 0 from V on; and whether every logit is finite.

    Where one is not, the distribution is 0.
    """
    place = tl.arange(0, BLOCK)
    inside = place < V
    values = guided_values(given, row_stride, sampler.guidance, place, inside, GUIDED)
    finite = is_finite(values)
    share = tl.zeros((BLOCK,), tl.float32)
    if finite:
        share = share_of(
            values, given, row_stride, sampler, place, inside, V, GUIDED, GREEDY, WARM, CUT, NUCLEUS, SAMPLE
        )
    return share, finite


@kernel
def probs_kernel(
    logits,
    out,
    support,
    finite,
    counts,
    row_stride,
    image_stride,
    out_stride,
    support_stride,
    finite_stride,
    sampler,
    V: tl.constexpr,
    GUIDED: tl.constexpr,
    GREEDY: tl.constexpr,
    WARM: tl.constexpr,
    CUT: tl.constexpr,
    NUCLEUS: tl.constexpr,
    SAMPLE: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """One program a (node, image)."""
    node, image = tl.program_id(0), tl.program_id(1)
    if node >= tl.load(counts + image):
        return
    given = logits + image.to(tl.int64) * image_stride + node.to(tl.int64) * V
    share, sound = row_shares(given, row_stride, sampler, V, GUIDED, GREEDY, WARM, CUT, NUCLEUS, SAMPLE, BLOCK)
    held = support + image * support_stride + node
    if sound == 0:
        tl.store(finite + image * finite_stride + node, 0)  # a later level clears nothing
        tl.store(held, 0)
        return
    place = tl.arange(0, BLOCK)
    tl.store(out + image.to(tl.int64) * out_stride + node.to(tl.int64) * V + place, share, place < V)
    tl.store(held, tl.sum(tl.where(share > 0.0, 1.0, 0.0), axis=0).to(tl.int32))


def probs(
    logits: Tensor, out: Tensor, support: Tensor, finite: Tensor, counts: Tensor, sampler: SamplingParams
) -> None:
    """Fill out [B, N, V] float32 with the distributions behind logits [R, B, N, V] float32, R = 1 or the guidance pair.

    Rows from counts[b] (int64 [B]) on are left as they are. support [B, N] int32: tokens of positive probability.
    finite [B, N] int32: set to 0 where a logit is NaN or infinite, else left as it is; that row then means nothing. All
    but the logits may be slices of larger buffers along their second axis.
    """
    rows, batch, nodes, vocab_size = logits.shape
    values, constants = sampler_values(sampler, rows, vocab_size)
    launch(
        probs_kernel,
        (nodes, batch),
        4 * (rows + 1) * batch * nodes * vocab_size,
        logits,
        out,
        support,
        finite,
        counts,
        batch * nodes * vocab_size,
        nodes * vocab_size,
        out.stride(0),
        support.stride(0),
        finite.stride(0),
        values,
        **constants,
    )


def _tail(share: float) -> tuple[float, float]:
    """Where the largest `share` of normal numbers begins, and how much lower e times as many of them begin."""
    if not 0.0 < share < 1.0:
        return 0.0, 0.0
    normal = NormalDist()
    reach = normal.inv_cdf(1.0 - share)
    return reach, share / normal.pdf(reach)


def sampled_probs(logits: Tensor, sampler: SamplingParams) -> Tensor:
    """Distributions [N, V] float32 of logits [R, N, V] float32; see `engines.torch_sampling.sampled_probs`."""
    rows, count, vocab_size = logits.shape
    device = logits.device
    out = torch.empty(1, count, vocab_size, device=device)
    support, finite = (torch.ones(1, count, dtype=torch.int32, device=device) for _ in range(2))
    counts = torch.full((1,), count, dtype=torch.int64, device=device)
    probs(logits.contiguous().view(rows, 1, count, vocab_size), out, support, finite, counts, sampler)
    return torch.where(finite[0, :, None] == 1, out[0], torch.nan)


@kernel
def likeliest_kernel(probs, out, counts, V, N, BLOCK: tl.constexpr) -> None:
    """One program a (node, image)."""
    node, image = tl.program_id(0), tl.program_id(1)
    if node >= tl.load(counts + image):
        return
    row = (image * N + node).to(tl.int64) * V
    _, token = row_argmax(probs + row, V, BLOCK)
    one_hot(token, out + row, V, BLOCK)


def likeliest(probs: Tensor, out: Tensor, counts: Tensor) -> None:
    """Fill out [B, N, V] float32 from probs of its size: 1 at the likeliest token (ties: the lower).

    counts [B] int64: rows of an image."""
    batch, nodes, vocab_size = probs.shape
    launch(
        likeliest_kernel,
        (nodes, batch),
        2 * 4 * probs.numel(),
        probs,
        out,
        counts,
        vocab_size,
        nodes,
        BLOCK=tile(vocab_size),
    )
