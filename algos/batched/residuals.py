"""What is still to be emitted after siblings were rejected, for many nodes at once."""

from typing import NamedTuple

import numpy as np

from underpaint.algos.arrays import FloatArray, IntArray


class ResidualState(NamedTuple):
    """Where M nodes stand among their siblings.

    left: [M, V], the residual that is still to be emitted, of sum `mass` [M]. drafted: [M, V], what the next sibling is
    drawn from, of sum `draft_mass` [M].
    """

    left: FloatArray
    mass: FloatArray
    drafted: FloatArray
    draft_mass: FloatArray

    def at(self, nodes: IntArray) -> "ResidualState":
        """Those of some nodes."""
        return ResidualState(*(part[nodes] for part in self))

    def less(self, offered: FloatArray) -> "ResidualState":
        """[left - offered]_+, where `offered` [M, V] has the sums of `left` and is used up.

        Where nothing is left, all is: its sibling was certain to be kept, and only rounding said otherwise.
        """
        rest = np.subtract(self.left, offered, out=offered)
        np.maximum(rest, 0.0, out=rest)
        total = rest.sum(axis=1)
        if not total.all():
            none = np.flatnonzero(total == 0.0)
            rest[none], total[none] = self.left[none], self.mass[none]
        return self._replace(left=rest, mass=total)

    def offered(self) -> FloatArray:
        """[M, V] `drafted` with the sums of `left`."""
        scaled: FloatArray = self.drafted * (self.mass / self.draft_mass)[:, None]
        return scaled
