"""What kernels do with one row [V] of weights: sum it, find its largest, draw from it.

Every function loops over tiles of BLOCK numbers, so that no row has to fit into registers. `gone` [G] int64 names
tokens that count as 0 (-1: none), so that a row can be drawn from again and again without being written to.
"""

from underpaint.runtime.device.language import kernel, tl


@kernel
def weights_at(row, start, V, gone, BLOCK: tl.constexpr):
    """The weights [BLOCK] float64 from `start` on; 0 past the row's end and at the tokens that are gone."""
    place = start + tl.arange(0, BLOCK)
    weights = tl.load(row + place, place < V, other=0.0).to(tl.float64)
    hit = tl.sum((place[:, None] == gone[None, :]).to(tl.int32), axis=1)
    return tl.where(hit > 0, 0.0, weights)


@kernel
def row_sum(row, V, gone, BLOCK: tl.constexpr):
    """The sum, float64."""
    total = tl.full((), 0.0, tl.float64)
    for start in range(0, V, BLOCK):
        total += tl.sum(weights_at(row, start, V, gone, BLOCK), axis=0)
    return total


@kernel
def row_argmax(row, V, BLOCK: tl.constexpr):
    """The largest weight (float64) and its first place (int64)."""
    best = tl.full((), -1.0, tl.float64)
    found = tl.full((), 0, tl.int64)
    for start in range(0, V, BLOCK):
        place = start + tl.arange(0, BLOCK)
        weights = tl.load(row + place, place < V, other=-1.0).to(tl.float64)
        here = tl.max(weights, axis=0)
        first = tl.min(tl.where(weights == here, place.to(tl.int64), V), axis=0)
        found = tl.where(here > best, first, found)
        best = tl.maximum(best, here)
    return best, found


@kernel
def scale_for(largest):
    """The power of two (float64) by which `largest` > 0 becomes a number from 2^44 to 2^45."""
    biased = tl.maximum(largest.to(tl.int64, bitcast=True) >> 52, 64)
    return ((2090 - biased) << 52).to(tl.float64, bitcast=True)


@kernel
def draw(row, V, uniform, gone, BLOCK: tl.constexpr):
    """The index (int64) that `uniform` falls on in the cumulated row, as `algos.chance.index_of`; V of an empty row.

    Weights are rounded down to whole multiples of 2^-44 of the largest one's power of two and summed as integers, so
    the sum is the same in whatever order a reduction takes it, and a weight of 0 is never drawn.
    """
    largest = tl.full((), 0.0, tl.float64)
    for start in range(0, V, BLOCK):
        largest = tl.maximum(largest, tl.max(weights_at(row, start, V, gone, BLOCK), axis=0))
    scale = scale_for(largest)
    total = tl.full((), 0, tl.int64)
    for start in range(0, V, BLOCK):
        total += tl.sum((weights_at(row, start, V, gone, BLOCK) * scale).to(tl.int64), axis=0)
    # floor(uniform * total): the upper half of a product of 64-bit words.
    whole = (uniform * 9007199254740992.0).to(tl.int64).to(tl.uint64) << 11
    target = tl.umulhi(whole, total.to(tl.uint64)).to(tl.int64)
    before = tl.full((), 0, tl.int64)
    found = tl.full((), 0, tl.int64)
    for start in range(0, V, BLOCK):
        masses = (weights_at(row, start, V, gone, BLOCK) * scale).to(tl.int64)
        inside = start + tl.arange(0, BLOCK) < V
        below = (before + tl.cumsum(masses, axis=0) <= target) & inside
        found += tl.sum(below.to(tl.int64), axis=0)
        before += tl.sum(masses, axis=0)
    return found


@kernel
def flip(uniform, chance_of, out_of):
    """As `algos.chance.FromUniforms.flip`: certain at `chance_of` >= `out_of`, never at 0, strict in between."""
    return tl.where(chance_of >= out_of, chance_of > 0.0, uniform * out_of < chance_of)


@kernel
def copy_row(row, out, V, BLOCK: tl.constexpr) -> None:
    """`row` [V] to `out` [V] float64."""
    for start in range(0, V, BLOCK):
        place = start + tl.arange(0, BLOCK)
        tl.store(out + place, tl.load(row + place, place < V, other=0.0).to(tl.float64), place < V)


@kernel
def normalised(row, out, V, BLOCK: tl.constexpr) -> None:
    """`row` [V] as float64 with sum 1, in `out`."""
    none = tl.full((2,), -1, tl.int64)
    total = row_sum(row, V, none, BLOCK)
    for start in range(0, V, BLOCK):
        place = start + tl.arange(0, BLOCK)
        tl.store(out + place, tl.load(row + place, place < V, other=0.0).to(tl.float64) / total, place < V)
