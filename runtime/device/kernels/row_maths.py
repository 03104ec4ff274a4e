"""Operations of kernels on one row [V] of weights: sum it, find its largest weight, draw from it.

Every function loops over tiles of BLOCK values. `walk.tile` gives one tile for a row that fits into registers.
"""

from underpaint.runtime.device.launch import kernel, tl

EVENLY = tl.constexpr(0)
POINT = tl.constexpr(1)
DRAWN = tl.constexpr(2)
NOTHING = tl.constexpr(3)
"""The proposal distribution of a token: uniform, one-hot at the token, a row of weights; or no proposal."""
PARTS = tl.constexpr(64)
"""Largest number of parts of a row, see `part_masses`."""
UNIT = tl.constexpr(2.0**60)
"""The integer that stands for probability 1, see `whole`."""


@kernel
def row_sum(row, V, BLOCK: tl.constexpr):
    """Return the sum of a row (float64)."""
    totals = tl.zeros((BLOCK,), tl.float64)
    for start in range(0, V, BLOCK):
        place = start + tl.arange(0, BLOCK)
        totals += tl.load(row + place, place < V, other=0.0).to(tl.float64)
    return tl.sum(totals, axis=0)


@kernel
def whole(probs):
    """Return probabilities (float32) rounded down to integer multiples (int64) of 2^-60.

    Their sums and differences are exact in any order. So a row is summed only once, and its sum without some tokens is
    never below 0. A row of V probabilities loses less than V * 2^-60 of its mass.
    """
    return (probs * UNIT).to(tl.int64)


@kernel
def whole_sum(row, V, BLOCK: tl.constexpr):
    """Return the sum (int64) of a row of probabilities in the units of `whole`."""
    LANES: tl.constexpr = BLOCK if BLOCK <= 2048 else 1  # partial sums that fit into registers
    totals = tl.zeros((LANES,), tl.int64)
    for start in range(0, V, BLOCK):
        place = start + tl.arange(0, BLOCK)
        here = whole(tl.load(row + place, place < V, other=0.0))
        if LANES == 1:
            here = tl.sum(here, axis=0, keep_dims=True)
        totals += here
    return tl.sum(totals, axis=0)


@kernel
def row_argmax(row, V, BLOCK: tl.constexpr):
    """Return the largest weight (float64) and the first index that has it (int64)."""
    best = tl.full((), -1.0, tl.float64)
    index = tl.full((), 0, tl.int64)
    for start in range(0, V, BLOCK):
        place = start + tl.arange(0, BLOCK)
        weights = tl.load(row + place, place < V, other=-1.0)
        here = tl.max(weights, axis=0)
        first = tl.min(tl.where(weights == here, place, V), axis=0)
        index = tl.where(here > best, first, index)
        best = tl.maximum(best, here.to(tl.float64))
    return best, index


@kernel
def scale_for(largest):
    """Return the power of two (float64) that scales `largest` > 0 to a number from 2^44 to 2^45."""
    biased = tl.maximum(largest.to(tl.int64, bitcast=True) >> 52, 64)
    return ((2090 - biased) << 52).to(tl.float64, bitcast=True)


@kernel
def offered(row, kind, token, V):
    """Return the probability (float64) with which `token` was proposed. row [V]: the weights, if kind is DRAWN."""
    drawn = tl.load(row + token, kind == DRAWN, other=0.0).to(tl.float64)
    even = tl.full((), 1.0, tl.float64) / V
    point = tl.full((), 1.0, tl.float64)
    return tl.where(kind == EVENLY, even, tl.where(kind == POINT, point, drawn))


@kernel
def excess_at(target, row, kind, token, start, V, OFFERED: tl.constexpr, BLOCK: tl.constexpr):
    """Return [target - proposal]_+ of the BLOCK tokens from `start` on, 0 past V; only the target unless OFFERED."""
    place = start + tl.arange(0, BLOCK)
    excess = tl.load(target + place, place < V, other=0.0)
    if OFFERED:
        drawn = tl.load(row + place, place < tl.where(kind == DRAWN, V, 0), other=0.0).to(tl.float64)
        even = tl.full((), 1.0, tl.float64) / V
        point = (place == token).to(tl.float64)
        offer = tl.where(kind == EVENLY, even, tl.where(kind == POINT, point, drawn))
        excess = tl.maximum(excess.to(tl.float64) - offer, 0.0)
    return excess


@kernel
def part_masses(target, row, kind, token, V, OFFERED: tl.constexpr, BLOCK: tl.constexpr):
    """Return a scale, and the masses (int64) of the parts [PARTS] of the row of `excess_at`, PART tokens each.

    Weights are rounded down to integer multiples of 2^-44 of the largest weight's power of two. Sums of integers do not
    depend on the order of a reduction, and a weight of 0 is never drawn.
    """
    highest = tl.zeros((BLOCK,), tl.float64)
    for start in range(0, V, BLOCK):
        here = excess_at(target, row, kind, token, start, V, OFFERED, BLOCK)
        highest = tl.maximum(highest, here.to(tl.float64))
    scale = scale_for(tl.max(highest, axis=0))
    PART: tl.constexpr = max(min(1024, BLOCK // 2), 1)
    COUNT: tl.constexpr = BLOCK // PART
    sums = tl.zeros((PARTS,), tl.int64)
    for start in range(0, V, BLOCK):
        here = excess_at(target, row, kind, token, start, V, OFFERED, BLOCK)
        masses = tl.sum(tl.reshape((here.to(tl.float64) * scale).to(tl.int64), (COUNT, PART)), axis=1)
        sums = add_parts(sums, masses, start // PART, COUNT)
    return scale, sums


@kernel
def place_of(target, row, kind, token, V, uniform, scale, sums, OFFERED: tl.constexpr, BLOCK: tl.constexpr):
    """Return the index (int64) that `uniform` selects in the cumulative masses of `part_masses`; V if all are 0."""
    PART: tl.constexpr = max(min(1024, BLOCK // 2), 1)
    total = tl.sum(sums, axis=0)
    goal = goal_of(total, uniform)
    part, before = part_at(sums, goal)
    here = excess_at(target, row, kind, token, part * PART, V, OFFERED, PART)
    below = before + tl.cumsum((here.to(tl.float64) * scale).to(tl.int64), axis=0) <= goal
    return tl.where(total > 0, part * PART + tl.sum(below.to(tl.int32), axis=0), V).to(tl.int64)


@kernel
def draw_excess(target, row, kind, token, V, uniform, BLOCK: tl.constexpr, OFFERED: tl.constexpr = True):
    """Draw an index (int64) from the row of `excess_at` by `uniform`, as `algos.chance.index_of`; V if it is all 0."""
    scale, sums = part_masses(target, row, kind, token, V, OFFERED, BLOCK)
    return place_of(target, row, kind, token, V, uniform, scale, sums, OFFERED, BLOCK)


@kernel
def draw(row, V, uniform, BLOCK: tl.constexpr):
    """Draw an index (int64) from a row by `uniform`, as `draw_excess` without a proposal; V if all of it is 0."""
    return draw_excess(row, row, NOTHING, 0, V, uniform, BLOCK, False)


@kernel
def goal_of(total, uniform):
    """Return floor(uniform * total) (int64): the cumulative mass that `uniform` selects."""
    # This is the upper half of a product of 64-bit words.
    bits = (uniform * 9007199254740992.0).to(tl.int64).to(tl.uint64) << 11
    return tl.umulhi(bits, total.to(tl.uint64)).to(tl.int64)


@kernel
def part_at(sums, goal):
    """Return the part of a row that holds mass `goal`, and the mass before it. sums [parts] int64: mass by part."""
    ends = tl.cumsum(sums, axis=0)
    part = tl.sum((ends <= goal).to(tl.int32), axis=0)
    return part, tl.max(tl.where(ends <= goal, ends, 0), axis=0)


@kernel
def add_parts(sums, masses, first, COUNT: tl.constexpr):
    """Return `sums` [PARTS] with `masses` [COUNT] added to the parts from `first` on."""
    lane, turn = tl.arange(0, PARTS), first + tl.arange(0, COUNT)
    return sums + tl.sum(tl.where(lane[:, None] == turn[None, :], masses[None, :], 0), axis=1)


@kernel
def whole_parts(sums, weights, start, PART: tl.constexpr, BLOCK: tl.constexpr):
    """Return `sums` [PARTS] plus the masses, in units of `whole`, of weights [BLOCK]: the tokens from `start` on."""
    COUNT: tl.constexpr = BLOCK // PART
    return add_parts(sums, tl.sum(tl.reshape(whole(weights), (COUNT, PART)), axis=1), start // PART, COUNT)


@kernel
def row_parts(row, V, BLOCK: tl.constexpr):
    """Return the masses [PARTS] of a row's parts in the units of `whole`."""
    PART: tl.constexpr = max(min(1024, BLOCK // 2), 1)
    sums = tl.zeros((PARTS,), tl.int64)
    for start in range(0, V, BLOCK):
        place = start + tl.arange(0, BLOCK)
        sums = whole_parts(sums, tl.load(row + place, place < V, other=0.0), start, PART, BLOCK)
    return sums


@kernel
def draw_while(
    row, V, uniforms, gone, weights, turn, count, scale, sums, least,
    MOST: tl.constexpr, REPEATS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Draw as in `draw_several`, from turn `turn` on, while more than `least` of the masses `sums` is left."""
    PART: tl.constexpr = max(min(1024, BLOCK // 2), 1)
    turns, lane = tl.arange(0, MOST), tl.arange(0, PARTS)
    total = tl.sum(sums, axis=0)
    while (turn < count) & (total > least):  # trips: MOST
        token = place_of(row, row, NOTHING, 0, V, tl.load(uniforms + turn), scale, sums, False, BLOCK)
        gone = tl.where(turns == turn, token, gone)
        if REPEATS == 0:
            weight = tl.load(row + token, token < V, other=0.0)
            mass = (weight.to(tl.float64) * scale).to(tl.int64)
            sums = tl.where(lane == token // PART, sums - mass, sums)
            total -= mass
            weights = tl.where(turns == turn, weight, weights)
            tl.debug_barrier()
            tl.store(row + token, tl.zeros_like(weight), token < V)
            tl.debug_barrier()
        turn += 1
    return gone, weights, turn


@kernel
def draw_several(row, V, uniforms, count, sums, MOST: tl.constexpr, REPEATS: tl.constexpr, BLOCK: tl.constexpr):
    """Draw `count` tokens one after another from a row; return them as [MOST] int64, padded with -1.

    uniforms: one per draw. sums [PARTS]: masses of the row's parts in the units of `whole`. REPEATS: each draw is from
    the whole row. Otherwise a drawn token's weight is 0 until all are drawn, and is restored then. If at most 2^-16 of
    the row, or a sixteenth of the last sum, is left, the rest is summed again with a scale of its own.
    """
    gone = tl.full((MOST,), -1, tl.int64)
    weights = tl.zeros((MOST,), row.dtype.element_ty)
    turn = tl.full((), 0, tl.int32)
    scale = tl.full((), UNIT, tl.float64)
    least = tl.full((), 1, tl.int64) << 44
    gone, weights, turn = draw_while(
        row, V, uniforms, gone, weights, turn, count, scale, sums, least, MOST, REPEATS, BLOCK
    )
    while turn < count:  # trips: 0.01
        scale, sums = part_masses(row, row, NOTHING, 0, V, False, BLOCK)
        total = tl.sum(sums, axis=0)
        least = tl.where(total > 0, total >> 4, -1)
        gone, weights, turn = draw_while(
            row, V, uniforms, gone, weights, turn, count, scale, sums, least, MOST, REPEATS, BLOCK
        )
    if REPEATS == 0:
        restore(row, gone, weights, (gone >= 0) & (gone < V))
    return gone


@kernel
def hide(row, tokens, mask):
    """Set the weights of `tokens` [G] in `mask` to 0 until `restore` puts them back; return the old weights."""
    weights = tl.load(row + tokens, mask, other=0.0)
    tl.debug_barrier()
    tl.store(row + tokens, tl.zeros_like(weights), mask)
    tl.debug_barrier()
    return weights


@kernel
def restore(row, tokens, weights, mask) -> None:
    """Put back the weights that `hide` returned."""
    tl.debug_barrier()
    tl.store(row + tokens, weights, mask)


@kernel
def flip(uniform, chance_of, out_of):
    """Flip as `algos.chance.FromUniforms`: False at 0, True from `out_of` on, else uniform * out_of < chance_of."""
    return tl.where(chance_of >= out_of, chance_of > 0.0, uniform * out_of < chance_of)


@kernel
def copy_row(row, out, V, BLOCK: tl.constexpr) -> None:
    """Copy `row` [V] to `out` [V], which may have another floating type."""
    for start in range(0, V, BLOCK):
        place = start + tl.arange(0, BLOCK)
        tl.store(out + place, tl.load(row + place, place < V, other=0.0), place < V)


@kernel
def one_hot(token, out, V, BLOCK: tl.constexpr) -> None:
    """Write a one-hot row to `out` [V]: 1 at `token`, 0 elsewhere."""
    for start in range(0, V, BLOCK):
        place = start + tl.arange(0, BLOCK)
        tl.store(out + place, tl.where(place == token, 1.0, 0.0), place < V)


@kernel
def scaled(row, out, share, V, BLOCK: tl.constexpr) -> None:
    """Write `row` [V] times `share` (float64) to `out` [V]."""
    for start in range(0, V, BLOCK):
        place = start + tl.arange(0, BLOCK)
        tl.store(out + place, tl.load(row + place, place < V, other=0.0).to(tl.float64) * share, place < V)
