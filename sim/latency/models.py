"""Latency models: what a target pass and a drafter pass cost, measured on a machine or by its roofline."""

from dataclasses import dataclass
from typing import Protocol, Self

import numpy as np

from underpaint.algos.arrays import FloatArray, IntArray
from underpaint.artifacts.cost_curve import CostCurveFile, Curve, check_curve


class SizeMissing(ValueError):
    """A latency model was asked for a size, or a part, that it was not measured for."""


class Costs(Protocol):
    """A latency model."""

    @property
    def name(self) -> str:
        """The model and the machine that it describes, as tables call them."""
        ...

    @property
    def overhead_ms(self) -> float:
        """What a cycle costs beyond its passes."""
        ...

    @property
    def step_overhead_ms(self) -> float:
        """What a step of plain autoregression costs beyond its pass."""
        ...

    @property
    def waits_for(self) -> int:
        """Images that start together and wait for the last of them; 1 where none waits."""
        ...

    def verify_ms(self, nodes: IntArray) -> FloatArray:
        """[K] ms of target passes over `nodes` [K] (root included); SizeMissing for sizes it does not answer for."""
        ...

    def draft_ms(self, nodes: IntArray) -> FloatArray:
        """[K] ms of drafter passes that expand `nodes` [K]; SizeMissing for sizes it does not answer for."""
        ...


def read_curve(curve: Curve, nodes: IntArray, what: str) -> FloatArray:
    """[K] ms on the line between the measured sizes; SizeMissing names those beyond them: none is extrapolated."""
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
    """A measured cost curve. Between two measured sizes the line between them holds; beyond them nothing does.

    overhead_ms: host time of a cycle beyond the passes, >= 0.
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
        """Passes repeated alone, as a cost curve's file has them."""
        return cls(curve.name, curve.verify_ms, curve.draft_ms, curve.overhead_ms)

    def verify_ms(self, nodes: IntArray) -> FloatArray:
        return read_curve(self.verify, nodes, f"latency '{self.name}', target passes")

    def draft_ms(self, nodes: IntArray) -> FloatArray:
        return read_curve(self.draft, nodes, f"latency '{self.name}', drafter passes")
