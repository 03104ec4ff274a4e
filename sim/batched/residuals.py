"""What is still to be emitted after siblings were rejected, for many nodes at once."""

from typing import NamedTuple

import numpy as np

from underpaint.algos.arrays import FloatArray, IntArray


class Owed(NamedTuple):
    """Where M nodes stand among their siblings: `left` [M, V] of sum `owing` [M] is still to be emitted, and the next
    sibling comes from `drafted` [M, V] of sum `offering` [M]."""

    left: FloatArray
    owing: FloatArray
    drafted: FloatArray
    offering: FloatArray

    def of(self, nodes: IntArray) -> "Owed":
        """Those of some nodes."""
        return Owed(*(part[nodes] for part in self))

    def less(self, offered: FloatArray) -> "Owed":
        """[left - offered]_+, where `offered` [M, V] has the sums of `left` and is used up.

        Where nothing is left, all is: its sibling was certain to be kept, and only rounding said otherwise.
        """
        rest = np.subtract(self.left, offered, out=offered)
        np.maximum(rest, 0.0, out=rest)
        total = rest.sum(axis=1)
        if not total.all():
            none = np.flatnonzero(total == 0.0)
            rest[none], total[none] = self.left[none], self.owing[none]
        return self._replace(left=rest, owing=total)

    def offered(self) -> FloatArray:
        """[M, V] `drafted` with the sums of `left`."""
        scaled: FloatArray = self.drafted * (self.owing / self.offering)[:, None]
        return scaled
