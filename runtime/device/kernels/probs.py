"""Distributions from logits: guidance, temperature, top-k with ties, top-p and softmax, as in `algos.rows`.

A program holds its row in registers: it reads it once and writes it once.
"""

from statistics import NormalDist
from typing import Any, NamedTuple

import torch
from torch import Tensor

from underpaint.algos.rows import SamplingParams
from underpaint.runtime.device.kernels.row_maths import one_hot, row_argmax
from underpaint.runtime.device.kernels.walk import tile
from underpaint.runtime.device.launch import kernel, launch, next_power_of_2, tl, wait_for_earlier_kernels


@kernel
def kth_largest(values, largest, guess, width, K, V):
    """Return a bound that exactly the K largest of `values` [BLOCK], and those equal to the last of them, reach.

    The search starts at `guess` and moves by at least 1.2 * `width` * (error of the count) / K, until one end has too
    many numbers and the other too few. Then it interpolates the counts, halving the error of an end that stays. From
    the 12th step on, it bisects. It ends at K numbers, at K - 1 (one more pass finds the largest of the others), or if
    no float lies between the ends, as with equal numbers. On 512 rows of the shipped target and the share of 1,000 of
    16,384 codes, it took 4.94 steps on average, and 45 % of rows needed the last pass. Normal rows took 4.5 steps, rows
    rounded to bfloat16 took 19.
    """
    low = tl.full((), -3.4028234663852886e38, tl.float32)  # the lowest finite number
    high = largest
    rank = tl.full((), 0.0, tl.float32) + K
    low_count, high_count = (
        tl.full((), 0.0, tl.float32) + V,
        tl.full((), -1.0, tl.float32),
    )  # how many values reach each end
    goal = rank - 0.5  # between the two counts that end the search
    rate = 1.2 * width / goal
    above, below = tl.full((), 0.0, tl.float32), tl.full((), 0.0, tl.float32)  # errors of the counts at both ends
    rose, fell = tl.full((), 0, tl.int1), tl.full((), 0, tl.int1)
    turn = tl.full((), 0, tl.int32)
    middle = tl.where((low < guess) & (guess < largest), guess, largest - 0.001 * (tl.abs(largest) + 1.0))
    while (low_count > rank) & (high_count < rank - 1.0) & (low < middle) & (middle < high):  # trips: 4.94
        count = tl.sum(tl.where(values >= middle, 1.0, 0.0), axis=0)  # whole numbers; floats take fewer instructions
        enough = count >= rank
        off = tl.abs(count - goal)
        above = tl.where(enough, off, tl.where(fell, 0.5 * above, above))
        below = tl.where(enough, tl.where(rose, 0.5 * below, below), off)
        rose, fell = enough, enough == 0
        low, low_count = tl.where(enough, middle, low), tl.where(enough, count, low_count)
        high, high_count = tl.where(enough, high, middle), tl.where(enough, high_count, count)
        turn += 1
        step = tl.maximum(rate * off, 1.5 * tl.abs(middle - guess))
        further = tl.where(enough, middle + step, middle - step)
        between = low + (high - low) * (above / (above + below))
        trial = tl.where((low > -3.4e38) & (high_count >= 0.0), between, further)
        usable = (trial > low) & (trial < high) & (turn < 12)
        middle = tl.where(usable, trial, 0.5 * low + 0.5 * high)
    if (low_count > rank) & (high_count == rank - 1.0):
        low = tl.max(tl.where(values < high, values, float("-inf")), axis=0)
    return low


@kernel
def guided_values(logits, row_stride, guidance, place, inside, GUIDED: tl.constexpr):
    """Return the logits at `place`; those of a guidance pair are mixed."""
    values = tl.load(logits + place, inside, other=0.0)
    if GUIDED:
        without = tl.load(logits + row_stride + place, inside, other=0.0)
        values = without + guidance * (values - without)
    return values


@kernel
def nucleus(probs, inside, mass):
    """Return which of `probs` [BLOCK] are in the smallest set of the given `mass`, ties by token; at least one.

    All masses, `mass` included, are whole multiples of 2^-44, so their sum is the same in any order.
    """
    unit: tl.constexpr = 17592186044416.0
    whole = (probs * unit).to(tl.int64)
    bits = probs.to(tl.int32, bitcast=True)
    floor = tl.full((), 0, tl.int32)
    for bit in range(30, -1, -1):
        trial = floor + (tl.full((), 1, tl.int32) << bit)
        reached = tl.sum(tl.where(bits >= trial, whole, 0), axis=0)
        floor = tl.where(reached >= mass, trial, floor)
    # Of the tokens at the floor, take those with the lowest ids that are needed to reach the mass.
    above = tl.sum(tl.where(bits > floor, whole, 0), axis=0)
    level = inside & (bits == floor)
    each = tl.maximum(tl.max(tl.where(level, whole, 0), axis=0), 1)
    room = tl.maximum((mass - above + each - 1) // each, 1)
    return (bits > floor) | (level & (tl.cumsum(level.to(tl.int32), axis=0) <= room))


class SamplerValues(NamedTuple):
    """The numbers of `SamplingParams`, and where the search of its top-k begins, see `kth_largest`.

    Attributes:
        guidance, temperature, top_k: As in `SamplingParams`.
        reach: Where the top-k of normal logits begins, in deviations above the mean.
        thin: How much lower e times as many begin, in deviations.
        top_p_mass: The mass of top-p in multiples of 2^-44.
    """

    guidance: float
    temperature: float
    top_k: int
    reach: float
    thin: float
    top_p_mass: int


def sampler_values(sampler: SamplingParams, rows: int, vocab_size: int) -> tuple[SamplerValues, dict[str, Any]]:
    """Return a sampler's numbers for kernels, and the constants of `share_of` for `rows` of logits: 2 if guided."""
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
def masses_of(
    values, logits, row_stride, sampler, place, inside, V: tl.constexpr, GUIDED: tl.constexpr, GREEDY: tl.constexpr,
    WARM: tl.constexpr, CUT: tl.constexpr, NUCLEUS: tl.constexpr, SAMPLE: tl.constexpr,
):  # fmt: skip
    """Return the distribution of a row's finite logits `values` [BLOCK], which `logits` points to, as a product.

    The factors are masses [BLOCK] float32 and a scale.
    """
    values = tl.where(inside, values, float("-inf"))
    largest = tl.max(values, axis=0)
    if GREEDY:
        masses = (place == tl.min(tl.where(values == largest, place, V), axis=0)).to(tl.float32)
        scale = tl.full((), 1.0, tl.float32)
    else:
        least = largest
        if CUT:
            # Guess the K-th largest from a few of the row's numbers, as if they were normal.
            few = tl.arange(0, SAMPLE)
            some = guided_values(logits, row_stride, sampler.guidance, few * (V // SAMPLE), few < V, GUIDED)
            mean = tl.sum(some, axis=0) / SAMPLE
            spread = tl.sqrt(tl.sum((some - mean) * (some - mean), axis=0) / SAMPLE)
            guess, width = mean + sampler.reach * spread, sampler.thin * spread
            least = kth_largest(values, largest, guess, width, sampler.top_k, V)
        lowered = values - largest
        if WARM:
            lowered = tl.math.div_rn(lowered, sampler.temperature + tl.zeros_like(lowered))
        masses = tl.exp(lowered)
        if CUT:
            masses *= tl.where(values >= least, 1.0, 0.0)
        scale = (1.0 / tl.sum(masses.to(tl.float64), axis=0)).to(tl.float32)
        if NUCLEUS:
            masses *= scale
            masses = tl.where(nucleus(masses, inside, sampler.top_p_mass), masses, 0.0)
            scale = (1.0 / tl.sum(masses.to(tl.float64), axis=0)).to(tl.float32)
    return masses, scale


@kernel
def share_of(
    values, logits, row_stride, sampler, place, inside, V: tl.constexpr, GUIDED: tl.constexpr, GREEDY: tl.constexpr,
    WARM: tl.constexpr, CUT: tl.constexpr, NUCLEUS: tl.constexpr, SAMPLE: tl.constexpr,
):  # fmt: skip
    """Return the distribution [BLOCK] float32 of a row's finite logits, see `masses_of`."""
    masses, scale = masses_of(
        values, logits, row_stride, sampler, place, inside, V, GUIDED, GREEDY, WARM, CUT, NUCLEUS, SAMPLE
    )
    return masses * scale


@kernel
def is_finite(values):
    """Return whether all of a row's logits (float32) are finite: the bits of others have the highest exponent."""
    return tl.max(values.to(tl.int32, bitcast=True) & 0x7FFFFFFF, axis=0) < 0x7F800000


@kernel
def row_masses(
    logits, row_stride, sampler, V: tl.constexpr, GUIDED: tl.constexpr, GREEDY: tl.constexpr, WARM: tl.constexpr,
    CUT: tl.constexpr, NUCLEUS: tl.constexpr, SAMPLE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Return the masses (0 from V on) and scale of `masses_of` for the row at `logits`, and whether all are finite.

    If one is not finite, the masses have no meaning and the scale is 0.
    """
    place = tl.arange(0, BLOCK)
    inside = place < V
    values = guided_values(logits, row_stride, sampler.guidance, place, inside, GUIDED)
    finite = is_finite(values)
    masses, scale = values, tl.full((), 0.0, tl.float32)
    if finite:
        masses, scale = masses_of(
            values, logits, row_stride, sampler, place, inside, V, GUIDED, GREEDY, WARM, CUT, NUCLEUS, SAMPLE
        )
    return masses, scale, finite


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
    """One program per (node, image)."""
    wait_for_earlier_kernels()
    node, image = tl.program_id(0), tl.program_id(1)
    if node >= tl.load(counts + image):
        return
    given = logits + image.to(tl.int64) * image_stride + node.to(tl.int64) * V
    masses, scale, sound = row_masses(given, row_stride, sampler, V, GUIDED, GREEDY, WARM, CUT, NUCLEUS, SAMPLE, BLOCK)
    own_support = support + image * support_stride + node
    if sound == 0:
        tl.store(finite + image * finite_stride + node, 0)  # no later level resets it to 1
        tl.store(own_support, 0)
        return
    share, place = masses * scale, tl.arange(0, BLOCK)
    tl.store(out + image.to(tl.int64) * out_stride + node.to(tl.int64) * V + place, share, place < V)
    tl.store(own_support, tl.sum(tl.where(share > 0.0, 1.0, 0.0), axis=0).to(tl.int32))


def probs(
    logits: Tensor, out: Tensor, support: Tensor, finite: Tensor, counts: Tensor, sampler: SamplingParams
) -> None:
    """Fill out [B, N, V] float32 with the distributions of logits [R, B, N, V] float32; R = 1, or 2 for guidance pairs.

    Rows from counts[b] (int64 [B]) on are left as they are. support [B, N] int32: number of tokens with positive
    probability. finite [B, N] int32: set to 0 if a logit is NaN or infinite, else left as it is; that row of `out` then
    has no meaning. The outputs may be slices of larger buffers along their second axis.
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
    """Return where the largest `share` of normal numbers begins, and how much lower e times as many begin."""
    if not 0.0 < share < 1.0:
        return 0.0, 0.0
    normal = NormalDist()
    reach = normal.inv_cdf(1.0 - share)
    return reach, share / normal.pdf(reach)


def sampled_probs(logits: Tensor, sampler: SamplingParams) -> Tensor:
    """Return distributions [N, V] float32 of logits [R, N, V] float32; see `engines.torch_sampling.sampled_probs`."""
    rows, count, vocab_size = logits.shape
    device = logits.device
    out = torch.empty(1, count, vocab_size, device=device)
    support, finite = (torch.ones(1, count, dtype=torch.int32, device=device) for _ in range(2))
    counts = torch.full((1,), count, dtype=torch.int64, device=device)
    probs(logits.contiguous().view(rows, 1, count, vocab_size), out, support, finite, counts, sampler)
    return torch.where(finite[0, :, None] == 1, out[0], torch.nan)


@kernel
def likeliest_kernel(probs, out, counts, V, N, BLOCK: tl.constexpr) -> None:
    """One program per (node, image)."""
    wait_for_earlier_kernels()
    node, image = tl.program_id(0), tl.program_id(1)
    if node >= tl.load(counts + image):
        return
    row = (image * N + node).to(tl.int64) * V
    _, token = row_argmax(probs + row, V, BLOCK)
    one_hot(token, out + row, V, BLOCK)


def likeliest(probs: Tensor, out: Tensor, counts: Tensor) -> None:
    """Fill out [B, N, V] float32 from probs of the same shape: 1 at the likeliest token (ties: the lowest), else 0.

    counts [B] int64: number of rows of an image."""
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
