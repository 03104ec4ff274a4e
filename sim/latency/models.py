"""Latency models: what a target pass and a drafter pass cost, measured on a machine or bounded by its roofline."""

import json
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias

import numpy as np

from underpaint.algos.arrays import FloatArray, IntArray

Curve: TypeAlias = tuple[tuple[int, float], ...]
"""(nodes, ms), nodes rising."""
IN_GRID: Final = "in_grid"
"""Where the JSON of a cost curve holds passes over cells of a grid."""


class SizeMissing(ValueError):
    """A latency model was asked for a size that it does not answer for."""


class Costs(Protocol):
    """A latency model."""

    @property
    def name(self) -> str:
        """What it is of."""
        ...

    @property
    def overhead_ms(self) -> float:
        """What a cycle costs beyond its passes."""
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
            f"{', '.join(map(str, beyond))}; measure those sizes (benchmarks/cost_curve.py) or take smaller trees"
        )
    return np.interp(nodes, sizes, times)


@dataclass(frozen=True, slots=True)
class MeasuredCosts:
    """A measured cost curve. Between two measured sizes the line between them holds; beyond them nothing does.

    overhead_ms: host time of a cycle beyond the passes, >= 0. in_grid: target passes by the tokens that they are fed,
    inside loops that decide cells of a grid in any order; empty where they were not measured.
    """

    name: str
    verify: Curve
    draft: Curve
    overhead_ms: float = 0.0
    in_grid: Curve = ()

    def __post_init__(self) -> None:
        curves = [("verify_ms", self.verify), ("draft_ms", self.draft)]
        for what, curve in [*curves, (IN_GRID, self.in_grid)] if self.in_grid else curves:
            sizes = [nodes for nodes, _ in curve]
            if not sizes or sizes[0] != 1 or any(low >= high for low, high in pairwise(sizes)):
                raise ValueError(f"latency '{self.name}': {what} must name rising sizes from 1 node on, got {sizes}")
            if not all(np.isfinite(cost) and cost > 0.0 for _, cost in curve):
                raise ValueError(f"latency '{self.name}': {what} must hold positive times, got {curve}")
        if not (np.isfinite(self.overhead_ms) and self.overhead_ms >= 0.0):
            raise ValueError(f"latency '{self.name}': overhead_ms must be at least 0, got {self.overhead_ms!r}")

    def verify_ms(self, nodes: IntArray) -> FloatArray:
        return read_curve(self.verify, nodes, f"latency '{self.name}', target passes")

    def draft_ms(self, nodes: IntArray) -> FloatArray:
        return read_curve(self.draft, nodes, f"latency '{self.name}', drafter passes")

    def cells_ms(self, tokens: IntArray) -> FloatArray:
        """[K] ms of target passes fed `tokens` [K] inside ZipAR's and MuLo-SD's loops, or else repeated alone."""
        if not self.in_grid:
            return self.verify_ms(tokens)
        return read_curve(self.in_grid, tokens, f"latency '{self.name}', target passes inside grids")


def load_costs(path: Path) -> MeasuredCosts:
    """A cost curve from JSON with `verify_ms`, `draft_ms`, [[nodes, ms], ...], as benchmarks/cost_curve.py writes it.

    Raises ValueError where a part is missing or is something else, OSError where there is no file.
    """
    try:
        held: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        parts = (held["verify_ms"], held["draft_ms"], held[IN_GRID]["target_ms"] if IN_GRID in held else ())
        verify, draft, in_grid = (tuple((int(nodes), float(cost)) for nodes, cost in part) for part in parts)
        overhead = float(held.get("overhead_ms", 0.0))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{path}: expected JSON with verify_ms and draft_ms, each [[nodes, ms], ...] ({error!r}); write it with "
            "benchmarks/cost_curve.py --out"
        ) from error
    return MeasuredCosts(path.stem, verify, draft, overhead, in_grid)
