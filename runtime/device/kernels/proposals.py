"""What each sibling was proposed from, as `algos.accept.walk.proposal_distributions`."""

from underpaint.algos.tree import Drawn
from underpaint.runtime.device.kernels.row_maths import row_sum
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
    tl.debug_barrier()
    tl.store(offered + gone, tl.zeros_like(gone).to(tl.float64), gone >= 0)
    tl.debug_barrier()
    left = row_sum(offered, V, BLOCK)
    untried = V - tl.sum((gone >= 0).to(tl.int32), axis=0)
    share = tl.where(left > 0.0, 1.0 / tl.where(left > 0.0, left, 1.0), 0.0)
    even = tl.where(left > 0.0, 0.0, 1.0 / tl.maximum(untried, 1).to(tl.float64))
    for start in range(0, V, BLOCK):
        place = start + tl.arange(0, BLOCK)
        here = tl.load(offered + place, place < V, other=0.0)
        tl.store(offered + place, here * share + even, place < V)
    tl.debug_barrier()
    tl.store(offered + gone, tl.zeros_like(gone).to(tl.float64), gone >= 0)


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
        share = 1.0 / total
        for start in range(0, V, BLOCK):
            place = start + tl.arange(0, BLOCK)
            inside = place < V
            offer = tl.where(place == token, 1.0, 0.0).to(tl.float64)
            if KIND != POINTS:
                offer = tl.load(offered + place, inside, other=0.0)
            here = tl.maximum(weight * tl.load(rest + place, inside, other=0.0) - offer, 0.0)
            tl.store(rest + place, here * share, inside)
    tl.debug_barrier()
    return total
