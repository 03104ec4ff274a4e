"""What rules and policies may ask of a model's codebook."""

from typing import Final, NamedTuple

from algos.arrays import FloatArray, IntArray


class Codes(NamedTuple):
    """A model's codes. Settings of these names never come from a user."""

    neighbours: IntArray
    """[V, k] the nearest codes of each code, see `algos.accept.neighbours`."""
    codebook: FloatArray
    """[V, E]."""


FROM_ENGINE: Final = Codes._fields
