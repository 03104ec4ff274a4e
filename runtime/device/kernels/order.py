"""The tokens next to one in the order of a row's weights, found without a sort.

A pass over the row keeps each lane's nearest token; the nearest of all lanes is taken, and its lane alone is looked
through for the next one.
"""

from underpaint.runtime.device.language import kernel, tl


@kernel
def ranks(weights, RISING: tl.constexpr):
    """What tokens are sorted by (float64), smallest first; equal ones stand by token id."""
    return weights.to(tl.float64) if RISING else -weights.to(tl.float64)


@kernel
def is_past(here, place, rank, token, BEFORE: tl.constexpr):
    """Whether tokens at `place` of rank `here` are before (`BEFORE`) or behind `token`; NaN is neither."""
    if BEFORE:
        past = (here < rank) | ((here == rank) & (place < token))
    else:
        past = (here > rank) | ((here == rank) & (place > token))
    return past


@kernel
def nearest_of(nearest, places, V, BEFORE: tl.constexpr):
    """The nearest of some tokens, and its rank; -1 where there is none. places: -1 for none."""
    if BEFORE:
        best = tl.max(nearest, axis=0)
        at = tl.max(tl.where(nearest == best, places, -1), axis=0)
    else:
        best = tl.min(nearest, axis=0)
        at = tl.min(tl.where((nearest == best) & (places >= 0), places, V), axis=0)
        at = tl.where(at < V, at, -1)
    return best, at


@kernel
def nearest_by_lane(row, V, token, rank, BEFORE: tl.constexpr, RISING: tl.constexpr, BLOCK: tl.constexpr):
    """Each lane's token [BLOCK] right before (`BEFORE`) or behind `token` in that order, and its rank; -1 for none.

    A lane has the tokens that equal it modulo BLOCK.
    """
    nearest = tl.full((BLOCK,), float("-inf") if BEFORE else float("inf"), tl.float64)
    places = tl.full((BLOCK,), -1, tl.int32)
    for start in range(0, V, BLOCK):
        place = start + tl.arange(0, BLOCK)
        here = ranks(tl.load(row + place, place < V, other=float("nan")), RISING)
        better = is_past(here, place, rank, token, BEFORE) & ((here >= nearest) if BEFORE else (here < nearest))
        nearest = tl.where(better, here, nearest)
        places = tl.where(better, place, places)
    return nearest, places


@kernel
def take_nearest(
    row, V, nearest, places, BEFORE: tl.constexpr, RISING: tl.constexpr, BLOCK: tl.constexpr, COLUMN: tl.constexpr
):
    """The nearest token (int64) of all lanes, -1 at the order's end; and the lanes without it.

    COLUMN: tokens of a lane, or more.
    """
    best, at = nearest_of(nearest, places, V, BEFORE)
    own = at & (BLOCK - 1)
    place = tl.arange(0, COLUMN) * BLOCK + own
    here = ranks(tl.load(row + place, place < tl.where(at >= 0, V, 0), other=float("nan")), RISING)
    past = is_past(here, place, best, at, BEFORE)
    held = tl.where(past, here, float("-inf") if BEFORE else float("inf"))
    following, then = nearest_of(held, tl.where(past, place, -1), V, BEFORE)
    here_too = tl.arange(0, BLOCK) == own
    return at.to(tl.int64), tl.where(here_too, following, nearest), tl.where(here_too, then, places)
