"""Kinds of sibling draws, as distinguished by `algos.accept.walk.proposal_distributions`."""

from underpaint.algos.tree import Drawn
from underpaint.runtime.device.launch import tl

IID: tl.constexpr = tl.constexpr(0)
WITHOUT: tl.constexpr = tl.constexpr(1)
POINTS: tl.constexpr = tl.constexpr(2)
"""How siblings were drawn. POINTS are one-hot proposals, so no distribution is kept for them."""


def kind_of(drawn: Drawn) -> int:
    """Return the kernels' number for a kind of sibling draw."""
    kinds: dict[Drawn, int] = {"iid": IID.value, "without_replacement": WITHOUT.value, "top_k": POINTS.value}
    return kinds[drawn]
