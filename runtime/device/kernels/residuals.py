"""The residual of a row after siblings were rejected, computed where it is needed and never stored in memory.

After a rejection the residual is [share * left - offer * line - even]_+, where `left` is the residual before it. Nested
positive parts are one positive part, so after any number of rejections it is [factor * row - taken * line - evenly]_+.
A rejected token has residual 0, because it was proposed with more than it had left. So later proposals may be
subtracted there too, although siblings without replacement cannot propose the token again.
"""

from underpaint.runtime.device.kernels.row_maths import PARTS, UNIT, add_parts, goal_of, part_at, scale_for
from underpaint.runtime.device.kernels.walk import lane_of
from underpaint.runtime.device.launch import kernel, tl

LEAST = tl.constexpr(2.0**-50)
"""Share of a row: a smaller sum of differences is taken for rounding."""


@kernel
def over(factor, offered):
    """Return [factor - offered]_+ (float64)."""
    left = factor - offered
    return tl.where(left > 0.0, left, 0.0)


@kernel
def left_at(row, line, place, factor, taken, evenly, V, OFFERED: tl.constexpr):
    """Return the residual (float64) at `place`, 0 past the row's end. `line` is read only if `taken` is above 0."""
    left = tl.load(row + place, place < V, other=0.0).to(tl.float64) * factor
    if OFFERED:
        drafted = tl.load(line + place, place < tl.where(taken > 0.0, V, 0), other=0.0).to(tl.float64)
        left = over(left, drafted * taken + evenly)
    return left


@kernel
def left_sum(row, line, factor, taken, evenly, V, BLOCK: tl.constexpr):
    """Return the sum of the residual (float64); 0 if it is only rounding."""
    totals = tl.zeros((BLOCK,), tl.float64)
    for start in range(0, V, BLOCK):
        totals += left_at(row, line, start + tl.arange(0, BLOCK), factor, taken, evenly, V, True)
    total = tl.sum(totals, axis=0)
    return tl.where(total > factor * LEAST, total, 0.0)


@kernel
def reject(row, line, factor, taken, evenly, excess, weights, share, offer, even, V, BLOCK: tl.constexpr):
    """Reject a child drawn from offer * line + even; return the residual's sum, factor, taken, evenly and excess.

    excess, weights [CHILDREN]: the residual, and the line's weights, at the children's tokens.
    """
    factor, taken, evenly = factor * share, taken * share + offer, evenly * share + even
    excess = over(excess * share, weights * offer + even)
    return left_sum(row, line, factor, taken, evenly, V, BLOCK), factor, taken, evenly, excess


@kernel
def untried_mass(line, tokens, tried, whole_mass, V, CHILDREN: tl.constexpr, BLOCK: tl.constexpr):
    """Return the mass (float64) of a row without the first `tried` of `tokens` [CHILDREN].

    whole_mass: that mass as an integer, see `row_maths.whole`. Below 2^-16 it is too coarse, and the row is summed
    again.
    """
    small = whole_mass < 17592186044416  # 2^-16 of a row
    mass = tl.where(small, 0.0, whole_mass.to(tl.float64) * (1.0 / UNIT))
    for start in range(0, tl.where(small, V, 0), BLOCK):  # trips: 0.01 * V / BLOCK
        place = start + tl.arange(0, BLOCK)
        here = tl.load(line + place, place < V, other=0.0).to(tl.float64)
        for turn in range(0, tried):  # trips: children
            here = tl.where(place == lane_of(tokens, tl.arange(0, CHILDREN), turn), 0.0, here)
        mass += tl.sum(here, axis=0)
    return mass


@kernel
def next_offer(remaining, untried):
    """Return `offer`, the factor on the remaining weights, and `even`, each untried token's chance if none remain."""
    there = remaining > 0.0
    offer = tl.where(there, 1.0 / tl.where(there, remaining, 1.0), 0.0)
    return offer, tl.where(there, 0.0, 1.0 / tl.maximum(untried, 1).to(tl.float64))


@kernel
def draw_left(
    row, line, gone, factor, taken, evenly, total, V, uniform,
    OFFERED: tl.constexpr, GONE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Draw an index (int64) from the residual, of sum `total`, by `uniform`; V if all of it is 0.

    OFFERED: the residual as above; otherwise the row without the tokens `gone` [GONE], where -1 is none. Weights are
    rounded down to integer multiples of 2^-60 of the total's power of two, as in `row_maths.part_masses`.
    """
    PART: tl.constexpr = min(1024, BLOCK)
    COUNT: tl.constexpr = BLOCK // PART
    turns, lane = tl.arange(0, GONE), tl.arange(0, PARTS)
    scale = scale_for(total) * 65536.0
    sums = tl.zeros((PARTS,), tl.int64)
    for start in range(0, V, BLOCK):
        here = left_at(row, line, start + tl.arange(0, BLOCK), factor, taken, evenly, V, OFFERED)
        part_sums = tl.sum(tl.reshape((here * scale).to(tl.int64), (COUNT, PART)), axis=1)
        sums = add_parts(sums, part_sums, start // PART, COUNT)
    if OFFERED == 0:
        again = (gone[:, None] == gone[None, :]) & (turns[None, :] < turns[:, None])
        gone = tl.where(tl.max(again.to(tl.int32), axis=1) == 0, gone, -1)
        own = tl.load(row + gone, gone >= 0, other=0.0).to(tl.float64) * factor
        masses = (own * scale).to(tl.int64)
        sums -= tl.sum(tl.where(lane[:, None] == (gone // PART)[None, :], masses[None, :], 0), axis=1)
    all_of_it = tl.sum(sums, axis=0)
    goal = goal_of(all_of_it, uniform)
    part, before = part_at(sums, goal)
    place = part * PART + tl.arange(0, PART)
    here = left_at(row, line, place, factor, taken, evenly, V, OFFERED)
    if OFFERED == 0:
        for turn in range(0, tl.max(tl.where(gone >= 0, turns + 1, 0), axis=0)):  # trips: children
            here = tl.where(place == lane_of(gone, turns, turn), 0.0, here)
    below = before + tl.cumsum((here * scale).to(tl.int64), axis=0) <= goal
    return tl.where(all_of_it > 0, part * PART + tl.sum(below.to(tl.int32), axis=0), V).to(tl.int64)
