"""Latency models: what a target pass and a drafter pass cost, measured on a machine or bounded by its roofline."""

import json
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import numpy as np

from algos.arrays import FloatArray, IntArray

Curve: TypeAlias = tuple[tuple[int, float], ...]
"""(nodes, ms), nodes rising."""


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

    overhead_ms: host time of a cycle beyond the passes, >= 0.
    """

    name: str
    verify: Curve
    draft: Curve
    overhead_ms: float = 0.0

    def __post_init__(self) -> None:
        for what, curve in (("verify_ms", self.verify), ("draft_ms", self.draft)):
            sizes = [nodes for nodes, _ in curve]
            if not sizes or sizes[0] != 1 or any(low >= high for low, high in pairwise(sizes)):
                raise ValueError(f"latency '{self.name}': {what} must name rising sizes from 1 node on, got {sizes}")
            if not all(np.isfinite(cost) and cost > 0.0 for _, cost in curve):
                raise ValueError(f"latency '{self.name}': {what} must hold positive times, got {curve}")
        if not (np.isfinite(self.overhead_ms) and self.overhead_ms >= 0.0):
            raise ValueError(f"latency '{self.name}': overhead_ms must be at least 0, got {self.overhead_ms!r}")

    def verify_ms(self, nodes: IntArray) -> FloatArray:
        """See `Costs`."""
        return read_curve(self.verify, nodes, f"latency '{self.name}', target passes")

    def draft_ms(self, nodes: IntArray) -> FloatArray:
        """See `Costs`."""
        return read_curve(self.draft, nodes, f"latency '{self.name}', drafter passes")


@dataclass(frozen=True, slots=True)
class RatioCosts:
    """Papers' own terms: a target pass costs 1 whatever its nodes, a drafter pass `draft`, a cycle `overhead_ms`."""

    name: str
    draft: float
    overhead_ms: float = 0.0

    def verify_ms(self, nodes: IntArray) -> FloatArray:
        """See `Costs`."""
        return np.ones(nodes.size)

    def draft_ms(self, nodes: IntArray) -> FloatArray:
        """See `Costs`."""
        return np.full(nodes.size, self.draft)


def load_costs(path: Path) -> MeasuredCosts:
    """A cost curve from JSON with `verify_ms` and `draft_ms`, [[nodes, ms], ...], as benchmarks/cost_curve.py does.

    Raises ValueError where a part is missing or is something else, OSError where there is no file.
    """
    try:
        held: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        curves = [tuple((int(nodes), float(cost)) for nodes, cost in held[part]) for part in ("verify_ms", "draft_ms")]
        overhead = float(held.get("overhead_ms", 0.0))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{path}: expected JSON with verify_ms and draft_ms, each [[nodes, ms], ...] ({error!r}); write it with "
            "benchmarks/cost_curve.py --out"
        ) from error
    return MeasuredCosts(path.stem, curves[0], curves[1], overhead)
