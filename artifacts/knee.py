"""The knee of a cost curve: the number of nodes up to which a target pass costs about as much as a one-node pass."""

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

_LEAST_RISE: Final = 1.15
"""A curve whose largest pass costs less than this factor times its floor has no knee among its sizes."""
_STEPS: Final = 400
"""Number of knees that are tried, from one node to the largest size."""


class Knee(NamedTuple):
    """A pass costs `floor_ms` up to `nodes`, and `node_ms` more for every node beyond.

    Attributes:
        nodes: The knee; None if no pass up to the largest measured size costs much more than a one-node pass.
        floor_ms: Time in ms of a pass up to the knee.
        node_ms: Time in ms of each further node; 0 without a knee.
        largest: Largest measured size, in nodes.
    """

    nodes: float | None
    floor_ms: float
    node_ms: float
    largest: int

    def describe(self) -> str:
        """Describe the knee in words."""
        if self.nodes is None:
            return f"a target pass costs {self.floor_ms:.2f} ms up to {self.largest} nodes at least: no knee was found"
        if self.nodes < 1.5:
            more = f"{self.node_ms:.2f} ms more for every node but the first"
            return f"a target pass costs {self.floor_ms:.2f} ms, and {more}"
        return (
            f"a target pass costs {self.floor_ms:.2f} ms up to about {self.nodes:.0f} nodes, and "
            f"{self.node_ms:.2f} ms more for every node beyond"
        )


def find_knee(verify_ms: Sequence[tuple[int, float]]) -> Knee:
    """Fit floor, knee and slope to (size, ms) pairs, with least squares of the relative errors.

    Sizes rise from 1. Among equally good knees, the first is taken.
    """
    sizes, times = (np.array(column, dtype=np.float64) for column in zip(*verify_ms, strict=True))
    largest = int(sizes[-1])
    best: tuple[float, float, float, float] = (np.inf, 1.0, float(times.mean()), 0.0)
    for knee in np.linspace(1.0, sizes[-1], _STEPS)[:-1] if sizes.size > 1 else ():
        beyond = np.maximum(0.0, sizes - knee)
        parts = np.stack([np.ones_like(sizes), beyond], axis=1) / times[:, None]
        (floor, slope), *_ = np.linalg.lstsq(parts, np.ones_like(times), rcond=None)
        error = float(np.square(parts @ (floor, slope) - 1.0).sum())
        if slope >= 0.0 and error < best[0] - 1e-12:
            best = (error, float(knee), float(floor), float(slope))
    _, nodes, floor, slope = best
    if floor + slope * max(0.0, largest - nodes) < _LEAST_RISE * floor:
        return Knee(None, float(times.mean()), 0.0, largest)
    return Knee(nodes, floor, slope, largest)
