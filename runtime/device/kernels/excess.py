"""What a distribution still owes once a token was offered from another one: a draw from it, with no scratch.

The reference is `algos.accept.walk.excess` and `algos.chance.index_of`.
"""

from underpaint.runtime.device.kernels.row_maths import scale_for
from underpaint.runtime.device.language import kernel, tl

EVENLY = tl.constexpr(0)
POINT = tl.constexpr(1)
DRAWN = tl.constexpr(2)
"""What a token was offered from: all tokens evenly, itself alone, or a row of weights."""


@kernel
def offered(row, kind, token, V):
    """The probability (float64) that `token` was offered with; row [V]: the weights, where there are any."""
    drawn = tl.load(row + token, kind == DRAWN, other=0.0).to(tl.float64)
    even = tl.full((), 1.0, tl.float64) / V
    point = tl.full((), 1.0, tl.float64)
    return tl.where(kind == EVENLY, even, tl.where(kind == POINT, point, drawn))


@kernel
def excess_at(target, row, kind, token, start, V, BLOCK: tl.constexpr):
    """What the row `target` [V] has above the offer, [BLOCK] float64 from `start` on; 0 past its end."""
    place = start + tl.arange(0, BLOCK)
    wanted = tl.load(target + place, place < V, other=0.0).to(tl.float64)
    drawn = tl.load(row + place, place < tl.where(kind == DRAWN, V, 0), other=0.0).to(tl.float64)
    even = tl.full((), 1.0, tl.float64) / V
    point = (place == token).to(tl.float64)
    return tl.maximum(wanted - tl.where(kind == EVENLY, even, tl.where(kind == POINT, point, drawn)), 0.0)


@kernel
def draw_excess(target, row, kind, token, V, uniform, BLOCK: tl.constexpr):
    """The index (int64) that `uniform` falls on in the cumulated excess, as `row_maths.draw`; V where there is none."""
    largest = tl.full((), 0.0, tl.float64)
    for start in range(0, V, BLOCK):
        largest = tl.maximum(largest, tl.max(excess_at(target, row, kind, token, start, V, BLOCK), axis=0))
    scale = scale_for(largest)
    total = tl.full((), 0, tl.int64)
    for start in range(0, V, BLOCK):
        total += tl.sum((excess_at(target, row, kind, token, start, V, BLOCK) * scale).to(tl.int64), axis=0)
    whole = (uniform * 9007199254740992.0).to(tl.int64).to(tl.uint64) << 11
    goal = tl.umulhi(whole, total.to(tl.uint64)).to(tl.int64)
    before = tl.full((), 0, tl.int64)
    found = tl.full((), 0, tl.int64)
    for start in range(0, V, BLOCK):
        masses = (excess_at(target, row, kind, token, start, V, BLOCK) * scale).to(tl.int64)
        inside = start + tl.arange(0, BLOCK) < V
        below = (before + tl.cumsum(masses, axis=0) <= goal) & inside
        found += tl.sum(below.to(tl.int64), axis=0)
        before += tl.sum(masses, axis=0)
    return found
