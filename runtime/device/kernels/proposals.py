"""What each sibling was proposed from, as `algos.accept.walk.proposal_distributions`."""

from underpaint.algos.tree import Drawn
from underpaint.runtime.device.language import kernel, tl

IID: tl.constexpr = tl.constexpr(0)
WITHOUT: tl.constexpr = tl.constexpr(1)
POINTS: tl.constexpr = tl.constexpr(2)
"""How siblings were drawn; points are one-hot, so nothing is kept of them."""


def kind_of(drawn: Drawn) -> int:
    """The kernels' number of a kind of tree."""
    kinds: dict[Drawn, int] = {"iid": IID.value, "without_replacement": WITHOUT.value, "top_k": POINTS.value}
    return kinds[drawn]


@kernel
def offer_others(offered, gone, V, BLOCK: tl.constexpr) -> None:
    """`offered` [V] float64 with the tokens `gone` [G] at 0 and sum 1 again; where that leaves 0, even on the rest."""
    left = tl.full((), 0.0, tl.float64)
    untried = tl.full((), 0.0, tl.float64)
    for start in range(0, V, BLOCK):
        place = start + tl.arange(0, BLOCK)
        inside = place < V
        fresh = (tl.sum((place[:, None] == gone[None, :]).to(tl.int32), axis=1) == 0) & inside
        untried += tl.sum(fresh.to(tl.float64), axis=0)
        left += tl.sum(tl.where(fresh, tl.load(offered + place, inside, other=0.0), 0.0), axis=0)
    tl.debug_barrier()
    for start in range(0, V, BLOCK):
        place = start + tl.arange(0, BLOCK)
        inside = place < V
        fresh = (tl.sum((place[:, None] == gone[None, :]).to(tl.int32), axis=1) == 0) & inside
        here = tl.load(offered + place, inside, other=0.0)
        scaled = tl.where(left > 0.0, here / tl.where(left > 0.0, left, 1.0), 1.0 / tl.maximum(untried, 1.0))
        tl.store(offered + place, tl.where(fresh, scaled, 0.0), inside)


@kernel
def take_offer(rest, offered, token, weight, V, KIND: tl.constexpr, BLOCK: tl.constexpr):
    """`rest` [V] float64 becomes norm([weight * rest - offer]_+), unless that is empty; the mass of it, float64.

    offered [V] float64: what `token` was drawn from; of points nothing is read.
    """
    total = tl.full((), 0.0, tl.float64)
    for start in range(0, V, BLOCK):
        place = start + tl.arange(0, BLOCK)
        inside = place < V
        offer = tl.where(place == token, 1.0, 0.0).to(tl.float64)
        if KIND != POINTS:
            offer = tl.load(offered + place, inside, other=0.0)
        total += tl.sum(tl.maximum(weight * tl.load(rest + place, inside, other=0.0) - offer, 0.0), axis=0)
    tl.debug_barrier()
    if total > 0.0:
        for start in range(0, V, BLOCK):
            place = start + tl.arange(0, BLOCK)
            inside = place < V
            offer = tl.where(place == token, 1.0, 0.0).to(tl.float64)
            if KIND != POINTS:
                offer = tl.load(offered + place, inside, other=0.0)
            here = tl.maximum(weight * tl.load(rest + place, inside, other=0.0) - offer, 0.0)
            tl.store(rest + place, here / total, inside)
    tl.debug_barrier()
    return total
