"""How siblings were drawn, as `algos.accept.walk.proposal_distributions` tells them apart."""

from underpaint.algos.tree import Drawn
from underpaint.runtime.device.language import tl

IID: tl.constexpr = tl.constexpr(0)
WITHOUT: tl.constexpr = tl.constexpr(1)
POINTS: tl.constexpr = tl.constexpr(2)
"""How siblings were drawn; points are one-hot, so nothing is kept of them."""


def kind_of(drawn: Drawn) -> int:
    """The kernels' number of a kind of tree."""
    kinds: dict[Drawn, int] = {"iid": IID.value, "without_replacement": WITHOUT.value, "top_k": POINTS.value}
    return kinds[drawn]
