"""What rules and policies may ask of a model: its codebook, and what its passes cost."""

from typing import Final, NamedTuple

from underpaint.algos.arrays import FloatArray, IntArray
from underpaint.runtime.engines.costs import EngineCosts


class Codes(NamedTuple):
    """A model's codes and costs. Rules' settings of these names never come from a user."""

    neighbours: IntArray
    """[V, k] the nearest codes of each code, see `algos.accept.neighbours`."""
    codebook: FloatArray
    """[V, E]."""
    costs: EngineCosts | None = None
    """As measured; None where they were not."""


FROM_ENGINE: Final = Codes._fields
