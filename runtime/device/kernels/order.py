"""The tokens before or after a given one in the order of a row's weights, found without sorting.

A pass over the row keeps each lane's nearest token. The nearest of all lanes is taken, and only its lane is searched
for the next one.
"""

from underpaint.runtime.device.launch import kernel, tl


@kernel
def ranks(weights, RISING: tl.constexpr):
    """Return the sort keys (float64) of tokens, smallest first; equal ones are ordered by token id."""
    return weights.to(tl.float64) if RISING else -weights.to(tl.float64)


@kernel
def is_past(here, place, rank, token, BEFORE: tl.constexpr):
    """Return whether tokens at `place` with key `here` are before (`BEFORE`) or after `token`; NaN is neither."""
    if BEFORE:
        past = (here < rank) | ((here == rank) & (place < token))
    else:
        past = (here > rank) | ((here == rank) & (place > token))
    return past


@kernel
def nearest_of(nearest, places, V, BEFORE: tl.constexpr):
    """Return the key of the nearest of some tokens, and the token; -1 if there is none. places: -1 for none."""
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
    """Return the key of each lane's token [BLOCK] right before (`BEFORE`) or after `token`, and the token; -1 for none.

    A lane has the tokens that are equal to it modulo BLOCK.
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
    """Return the nearest token (int64) of all lanes, -1 at the end of the order; and the lanes without this token.

    COLUMN: number of tokens of a lane, or more.
    """
    best, at = nearest_of(nearest, places, V, BEFORE)
    own = at & (BLOCK - 1)
    place = tl.arange(0, COLUMN) * BLOCK + own
    here = ranks(tl.load(row + place, place < tl.where(at >= 0, V, 0), other=float("nan")), RISING)
    past = is_past(here, place, best, at, BEFORE)
    keys = tl.where(past, here, float("-inf") if BEFORE else float("inf"))
    following, then = nearest_of(keys, tl.where(past, place, -1), V, BEFORE)
    here_too = tl.arange(0, BLOCK) == own
    return at.to(tl.int64), tl.where(here_too, following, nearest), tl.where(here_too, then, places)
