"""Latency models: the times of target and drafter passes, measured on a machine or from its roofline."""

from dataclasses import dataclass
from typing import Protocol, Self

import numpy as np

from underpaint.algos.arrays import FloatArray, IntArray
from underpaint.artifacts.cost_curve import CostCurveFile, Curve, check_curve


class SizeMissing(ValueError):
    """A latency model has no measurement for a requested size or part."""


class Costs(Protocol):
    """A latency model: the times of target and drafter passes by their number of nodes."""

    @property
    def name(self) -> str:
        """The names of the model and the machine, for tables."""
        ...

    @property
    def overhead_ms(self) -> float:
        """Time of a cycle in addition to its passes, in ms."""
        ...

    @property
    def step_overhead_ms(self) -> float:
        """Time of a step of plain autoregression in addition to its pass, in ms."""
        ...

    @property
    def waits_for(self) -> int:
        """Number of images that start together and wait for the last of them; 1 if none waits."""
        ...

    def verify_ms(self, nodes: IntArray) -> FloatArray:
        """[K] ms of target passes over `nodes` [K] (including the root); SizeMissing for unknown sizes."""
        ...

    def draft_ms(self, nodes: IntArray) -> FloatArray:
        """[K] ms of drafter passes that expand `nodes` [K]; SizeMissing for unknown sizes."""
        ...


def read_curve(curve: Curve, nodes: IntArray, what: str) -> FloatArray:
    """[K] ms, interpolated linearly between measured sizes. Sizes outside raise SizeMissing: no extrapolation."""
    sizes, times = (np.array(column, dtype=np.float64) for column in zip(*curve, strict=True))
    beyond = np.unique(nodes[(nodes < sizes[0]) | (nodes > sizes[-1])]).tolist()
    if beyond:
        raise SizeMissing(
            f"{what}: measured from {int(sizes[0])} to {int(sizes[-1])} nodes, asked for "
            f"{', '.join(map(str, beyond))}; measure those sizes (`underpaint costs --full`) or take smaller trees"
        )
    return np.interp(nodes, sizes, times)


@dataclass(frozen=True, slots=True)
class MeasuredCosts:
    """A measured cost curve, with linear interpolation between measured sizes and no extrapolation.

    Attributes:
        name: Name of the curve.
        verify: Times of target passes in ms, by number of nodes.
        draft: Times of drafter passes in ms, by number of nodes.
        overhead_ms: Host time of a cycle in addition to its passes, >= 0.
    """

    name: str
    verify: Curve
    draft: Curve
    overhead_ms: float = 0.0

    def __post_init__(self) -> None:
        where = f"latency '{self.name}'"
        check_curve(where, "verify_ms", "node", self.verify)
        check_curve(where, "draft_ms", "node", self.draft)
        if not (np.isfinite(self.overhead_ms) and self.overhead_ms >= 0.0):
            raise ValueError(f"latency '{self.name}': overhead_ms must be at least 0, got {self.overhead_ms!r}")

    @property
    def step_overhead_ms(self) -> float:
        return self.overhead_ms

    @property
    def waits_for(self) -> int:
        return 1

    @classmethod
    def of(cls, curve: CostCurveFile) -> Self:
        """Read the costs of passes that were measured alone from a cost curve."""
        return cls(curve.name, curve.verify_ms, curve.draft_ms, curve.overhead_ms)

    def verify_ms(self, nodes: IntArray) -> FloatArray:
        return read_curve(self.verify, nodes, f"latency '{self.name}', target passes")

    def draft_ms(self, nodes: IntArray) -> FloatArray:
        return read_curve(self.draft, nodes, f"latency '{self.name}', drafter passes")
