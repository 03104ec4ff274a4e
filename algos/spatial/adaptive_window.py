"""ZipAR's adaptive window (arXiv 2412.04062): a row opens once its first token passes a test as the row above grows.

The exact distribution of a decoded cell: let p_1, p_2, ... be the distributions of a row's first cell while the row
above grows. A token x_1 ~ p_1 is held back. At step k it is kept with probability min(1, p_k(x) / p_{k-1}(x)), or else
replaced by a draw from r_k = norm([p_k - p_{k-1}]_+) and held again. With the first test alone, the cell would have the
distribution p_2. But a token that passes has the distribution of min(p_1, p_2), and held tokens enter the next test,
relative to p_2, with the distribution r_2 instead of p_2. So the cell's distribution is the sum over k of P(stopped at
k) times a distribution that differs from p_k, unless all p_k are equal.
A kept token was tested against the second-to-last window of the row above, not against the whole row.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from underpaint.algos.accept.walk import excess
from underpaint.algos.arrays import FloatArray
from underpaint.algos.chance import At, Chance, Role
from underpaint.algos.spatial.row_front import RowFront


class PendingToken(NamedTuple):
    """A token held back, the distribution [V] of its last test, and the number of cells that were missing then."""

    token: int
    distribution: FloatArray
    missing: int


@dataclass(slots=True)
class AdaptiveWindow:
    """A `Choose` for one image: holds back and tests the cells that open a row, and draws other cells at once.

    A pending token is tested whenever the front has decided more of the cells before it. The test is against the
    distribution of the token's last test. Once no cell before it is missing, the token is kept in any case.

    Draws are at the address (`role`, cell), tests at (WINDOW, 2 (cell * cells + missing)), and redraws after a failed
    test at the next node.
    """

    chance: Chance
    role: Role = Role.CELL
    _pending: dict[int, PendingToken] = field(default_factory=dict)

    def __call__(self, front: RowFront, cell: int, distribution: FloatArray) -> int | None:
        missing = front.missing_before(cell)
        pending = self._pending.pop(cell, None)
        if pending is None:
            token = self.chance.draw(distribution, At(self.role, cell))
            if missing and front.opens_row(cell):
                self._pending[cell] = PendingToken(token, np.array(distribution), missing)
                return None
            return token
        if missing == pending.missing:
            self._pending[cell] = pending
            return None
        token, accepted = self._test(pending, distribution, 2 * (cell * front.region.size + missing))
        if accepted or not missing:
            return token
        self._pending[cell] = PendingToken(token, np.array(distribution), missing)
        return None

    def _test(self, pending: PendingToken, distribution: FloatArray, node: int) -> tuple[int, bool]:
        if self.chance.flip(
            float(distribution[pending.token]), At(Role.WINDOW, node), out_of=float(pending.distribution[pending.token])
        ):
            return pending.token, True
        rest = excess(distribution, pending.distribution)
        if not rest.any():  # the distributions differ only by rounding
            return pending.token, True
        return self.chance.draw(rest, At(Role.WINDOW, node + 1)), False
