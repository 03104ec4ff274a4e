"""The few largest of many numbers, found by counting instead of sorting; used for the likeliest tokens of a row.

A search finds a bound that at least K keys reach, and no more keys than there is room for. These keys are packed side
by side, in their order, and only they are compared with each other.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from underpaint.runtime.device.kernels.probs import row_masses
from underpaint.runtime.device.launch import kernel, next_power_of_2, tl

GROUP = 16
"""Neighbouring tokens that their largest represents until the groups of the likeliest tokens are known."""
OCTAVE = tl.constexpr(1 << 23)
WIDE_OCTAVE = tl.constexpr(1 << 52)
"""How much the bits of a float32 and of a float64 change when the number is doubled."""


class RowScratch(NamedTuple):
    """Data that a level's programs hand to the last of them, and a count of these programs, 0 between launches.

    masses [B, W, V] and groups [B, W, groups of a row] float32, tops [B, W, lanes] int64: see `store_likeliest`.
    arrivals [B] int32.
    """

    masses: Tensor
    groups: Tensor
    tops: Tensor
    arrivals: Tensor

    @classmethod
    def of(cls, batch: int, width: int, vocab_size: int, lanes: int, device: torch.device) -> "RowScratch":
        """Allocate the scratch for the levels of a batch, at most `width` rows each."""
        return cls(
            torch.zeros(batch, width, vocab_size, device=device),
            torch.zeros(batch, width, next_power_of_2(vocab_size) // group_of(vocab_size), device=device),
            torch.zeros(batch, width, lanes, dtype=torch.int64, device=device),
            torch.zeros(batch, dtype=torch.int32, device=device),
        )


class FiniteMarks(NamedTuple):
    """Marks that are set to 0 if a row's logits are not finite, int32; the marks of images are `stride` apart."""

    marks: Tensor
    stride: int


def lanes_of(count: int) -> int:
    """Return the number of places for the `count` largest of a row, and for more that the search may find."""
    return next_power_of_2(max(2, count))


def group_of(vocab_size: int) -> int:
    """Return the number of tokens in a group."""
    return min(GROUP, next_power_of_2(vocab_size))


@kernel
def logarithm(count):
    """Return the bits of a count as a float32: about its base-2 logarithm times `OCTAVE`."""
    return count.to(tl.float32).to(tl.int32, bitcast=True)


@kernel
def between(low, high, reaching, above, K, MOST: tl.constexpr, turn):
    """Return a guess at the bound for the wanted count, if its logarithm falls evenly; every fourth time the middle.

    reaching, above: how many keys reach `low` and `high`.
    """
    log_k, room = logarithm(tl.full((), 0, tl.int32) + K), logarithm(tl.full((), 0, tl.int32) + MOST)
    goal = log_k + ((room - log_k) >> 1)
    below = (logarithm(reaching) - goal).to(tl.float32)
    share = below / (logarithm(reaching) - logarithm(tl.maximum(above, 1)) + OCTAVE).to(tl.float32)
    share = tl.where(turn % 4 == 3, 0.5, share)
    return low + ((high - low).to(tl.float32) * share).to(low.dtype)


@kernel
def narrowed(keys, low, high, reaching, above, middle, K):
    """Take one step of a search: `middle`, moved between the ends, replaces one. Return the ends and their counts."""
    middle = tl.minimum(tl.maximum(middle, low + 1), high - 1)
    count = tl.sum((keys >= middle).to(tl.int32), axis=0)
    enough = count >= K
    low, reaching = tl.where(enough, middle, low), tl.where(enough, count, reaching)
    return low, tl.where(enough, high, middle), reaching, tl.where(enough, above, count)


@kernel
def side_by_side(keys, low, reaching, above, MOST: tl.constexpr):
    """Return the results of `few_largest` for the keys that reach the lower end of its search."""
    full = reaching > MOST  # then all keys between the two ends are equal
    sure, level = keys >= tl.where(full, low + 1, low), keys == low
    run = tl.cumsum(tl.where(full, level.to(tl.int32), 0) + (sure.to(tl.int32) << 20), axis=0)
    room = MOST - above
    equal = run & 0xFFFFF
    taken = sure | (level & (equal <= room))
    return taken, (run >> 20) + tl.minimum(equal, room) - 1, tl.minimum(reaching, MOST), low


@kernel
def few_largest(keys, least, K, MOST: tl.constexpr, STEP: tl.constexpr):
    """Find the K largest of `keys` [n], and possibly more: at most MOST in all.

    Args:
        keys: [n] int32 or int64, n below 2^20. Keys below `least` are left out.
        least: Of the same type as the keys.
        K: Number of keys wanted; all keys if there are fewer.
        MOST: At least K.
        STEP: How far below the largest key the search begins. The search doubles the step until it reaches K keys, and
            continues between the two ends. It took 5 turns on average for groups of normal rows of 16,384 numbers, and
            7 for the scores of a tree.

    Returns:
        Which keys are taken [n]; their indices when packed side by side [n]; their number; and the least of them. If
        equal keys do not all fit, the first ones are taken.
    """
    top = tl.max(keys, axis=0)
    low, high = least, tl.maximum(top, least) + 1
    reaching, above = tl.sum((keys >= low).to(tl.int32), axis=0), tl.full((), 0, tl.int32)
    step = tl.full((), STEP, keys.dtype)
    falls = tl.full((), 1, tl.int1)
    turn = tl.full((), 0, tl.int32)
    while (reaching > MOST) & (high - low > 1):  # trips: 6
        further = tl.where(top - step > low, top - step, low + ((high - low) >> 1))
        middle = tl.where(falls, further, between(low, high, reaching, above, K, MOST, turn))
        known = low
        low, high, reaching, above = narrowed(keys, low, high, reaching, above, middle, K)
        falls = falls & (low == known)
        step = tl.minimum(step + step, top)
        turn += 1
    return side_by_side(keys, low, reaching, above, MOST)


@kernel
def fewer_largest(keys, least, K, MOST: tl.constexpr):
    """As `few_largest`, for int32 keys of which few more than MOST reach `least`; it took one turn on average."""
    low, high = least, tl.full((), 0x7FFFFFFF, tl.int32)
    reaching, above = tl.sum((keys >= low).to(tl.int32), axis=0), tl.full((), 0, tl.int32)
    turn = tl.full((), 0, tl.int32)
    while (reaching > MOST) & (high - low > 1):  # trips: narrowings
        high = tl.minimum(high, tl.max(keys, axis=0) + 1)
        middle = between(low, high, reaching, above, K, MOST, turn)
        low, high, reaching, above = narrowed(keys, low, high, reaching, above, middle, K)
        turn += 1
    return side_by_side(keys, low, reaching, above, MOST)


@kernel
def pack(share, token):
    """Return a token with its probability as one int64: larger for likelier tokens, and for the lower of equal ones.

    The upper half is the probability's bits, the lower 0x7FFFFFFF - token; -1 if the probability is no normal number.
    """
    bits = share.to(tl.int32, bitcast=True).to(tl.int64)
    return tl.where(bits >= 0x00800000, (bits << 32) | (0x7FFFFFFF - token).to(tl.int64), -1)


@kernel
def token_of(packed):
    """Return the token of a number from `pack`."""
    return 0x7FFFFFFF - (packed & 0x7FFFFFFF)


@kernel
def score_of(packed, above):
    """Return the score (float64) of a token from `pack` below a node with score `above`; 0 for none."""
    prob = (packed >> 32).to(tl.int32).to(tl.float32, bitcast=True)
    return tl.where(packed >= 0, above * tl.minimum(prob, 1.0).to(tl.float64), 0.0)


@kernel
def bits_above(share, above, least):
    """Return the bits of the probabilities whose score below a node with score `above` exceeds `least`; else 0."""
    score = above * tl.minimum(share, 1.0).to(tl.float64)
    return tl.where(score > least, share.to(tl.int32, bitcast=True), 0)


@kernel
def store_likeliest(
    masses, scale, row, groups, out, K, above, least, V: tl.constexpr, MOST: tl.constexpr, GROUP: tl.constexpr,
    BOUND: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Store at `out` [MOST] the K likeliest tokens of a distribution, and possibly more; return how many.

    The tokens are stored in ascending order, as numbers of `pack`; -1 for none. The distribution is masses [BLOCK]
    times scale, 0 from V on. row [V] and groups [BLOCK // GROUP]: scratch for the masses and for the largest of each
    group. They are read back, so each thread holds only a few, and only these are multiplied. BOUND: only tokens whose
    score below a node with score `above` exceeds `least` (pointers) are wanted; few do, so most rows need no search.
    """
    number = tl.arange(0, BLOCK // GROUP)
    tl.store(row + tl.arange(0, BLOCK), masses, tl.arange(0, BLOCK) < V)
    tl.store(groups + number, tl.max(tl.reshape(masses, (BLOCK // GROUP, GROUP)), axis=1))
    tl.debug_barrier()
    best = tl.where(scale > 0.0, tl.load(groups + number) * scale, 0.0)
    # The K likeliest tokens are in the K groups with the largest maxima; of equal groups, in the first.
    normal = tl.full((), 0x00800000, tl.int32)
    if BOUND:
        above, least = tl.load(above), tl.load(least)
        taken, place, size, low = fewer_largest(bits_above(best, above, least), normal, K, MOST)
    else:
        taken, place, size, low = few_largest(best.to(tl.int32, bitcast=True), normal, K, MOST, OCTAVE)
    tl.store(out + place, number.to(tl.int64), taken)
    tl.debug_barrier()
    lane = tl.arange(0, MOST)
    group = tl.load(out + lane, lane < size, other=0)
    tl.debug_barrier()
    token = tl.reshape(group[:, None] * GROUP + tl.arange(0, GROUP)[None, :], (MOST * GROUP,))
    there = tl.reshape((lane < size)[:, None] & (tl.arange(0, GROUP) >= 0)[None, :], (MOST * GROUP,))
    chance = tl.where(scale > 0.0, tl.load(row + token, there & (token < V), other=0.0) * scale, 0.0)
    keys = bits_above(chance, above, least) if BOUND else chance.to(tl.int32, bitcast=True)
    taken, place, size, _ = fewer_largest(keys, low, K, MOST)
    tl.store(out + place, pack(chance, token), taken)
    tl.store(out + lane, tl.full((MOST,), -1, tl.int64), lane >= size)
    return size


@kernel
def find_likeliest(
    logits,
    scratch,
    finite,
    sampler,
    row,
    image,
    rows,
    row_stride,
    K,
    above,
    least,
    V: tl.constexpr,
    GUIDED: tl.constexpr,
    GREEDY: tl.constexpr,
    WARM: tl.constexpr,
    CUT: tl.constexpr,
    NUCLEUS: tl.constexpr,
    SAMPLE: tl.constexpr,
    LANES: tl.constexpr,
    GROUP: tl.constexpr,
    BOUND: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Store the likeliest tokens of a row of logits [R, B, rows, V] in scratch.tops; none if it is not finite.

    Returns how many; see `store_likeliest`.
    """
    line = (image * rows + row).to(tl.int64)
    given = logits + line * V
    masses, scale, right = row_masses(given, row_stride, sampler, V, GUIDED, GREEDY, WARM, CUT, NUCLEUS, SAMPLE, BLOCK)
    if right == 0:
        tl.store(finite.marks + image * finite.stride + row, 0)  # no later level resets it to 1
    parts = (scratch.masses + line * V, scratch.groups + line * (BLOCK // GROUP), scratch.tops + line * LANES)
    return store_likeliest(masses, scale, *parts, K, above, least, V, LANES, GROUP, BOUND, BLOCK)
