"""What an engine's passes cost."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, Literal, NamedTuple, TypeAlias

import numpy as np

from underpaint.algos.arrays import FloatArray
from underpaint.algos.draft.settings import at_least
from underpaint.algos.registry import Milliseconds, check_bounds

Between: TypeAlias = Literal["line", "bucket"]

DraftCosts: TypeAlias = float | tuple[tuple[int, float], ...]
"""ms of a drafter pass: the same whatever it expands, or (expanded nodes, ms) pairs, rising from 1 node."""

ChainCosts: TypeAlias = tuple[tuple[int, float], ...]
"""ms of one drafter call that drafts a whole chain: (levels, ms) pairs, rising from 1 level."""

_MARGIN: Final = 1e-9
"""Share of a rise that is left out, so that no rounding ends a search before its best."""

MEASURED_VERIFY_MS = ((1, 6.6), (8, 9.5), (16, 13.3), (32, 22.3), (64, 40.5))
"""ONNX Runtime, two CPU threads, 54.5M parameters (12 layers of 512, 16384 codes), 256 cached positions."""
MEASURED_DRAFT_MS = 0.6
"""One of those twelve layers and a share of the head."""


@dataclass(frozen=True, slots=True)
class CostCurve:
    """Milliseconds of a target pass by its number of nodes, as measured, and of one drafter pass.

    verify_ms: (nodes, ms) pairs, nodes rising from 1 (a plain step, the root alone), ms > 0. The largest size is the
        largest tree: nothing is extrapolated.
    draft_ms: one drafter pass (one level), >= 0.
    between: a size between two measured ones costs what the line between them says ("line"), or what the next larger
        one costs ("bucket": an engine of static shapes).
    """

    verify_ms: tuple[tuple[int, float], ...]
    draft_ms: Milliseconds
    between: Between = "line"

    def __post_init__(self) -> None:
        check_bounds("cost curve", self)
        sizes = [nodes for nodes, _ in self.verify_ms]
        if not sizes or sizes[0] != 1 or any(low >= high for low, high in pairwise(sizes)):
            raise ValueError(f"cost curve: verify_ms must name rising sizes from 1 node on, got {sizes}; measure them")
        for nodes, cost in self.verify_ms:
            if not 0 < cost < np.inf:
                raise ValueError(f"cost curve: verify_ms at {nodes} nodes must be positive, got {cost!r}")

    @property
    def max_nodes(self) -> int:
        """The largest measured size, the root included."""
        return self.verify_ms[-1][0]

    def table(self) -> FloatArray:
        """[max_nodes] float64: entry n is the cost in ms of a target pass over n + 1 nodes (n drafted ones)."""
        return _table(self.verify_ms, self.between)


class SizeCosts(NamedTuple):
    """What sizes cost, for searches of the size of most tokens per ms that need not try them all."""

    ms: list[float]
    """Of every size, from the smallest on, > 0."""
    slopes: list[float]
    """The least mean rise in ms per size from each size to any larger one; infinite at the largest.

    Where the best rate so far, times the rise, is no less than the tokens that the next size adds, and none adds more
    than the one before it, no larger size is better.
    """

    @classmethod
    def of(cls, ms: Sequence[float] | FloatArray) -> "SizeCosts":
        """The prices of sizes that cost `ms`."""
        costs = np.array(ms, dtype=np.float64)
        larger = [(costs[size + 1 :] - costs[size]) / np.arange(1, costs.size - size) for size in range(costs.size)]
        slopes = [float(rise.min(initial=np.inf)) for rise in larger]
        return cls(costs.tolist(), [rise - _MARGIN * abs(rise) if rise < np.inf else rise for rise in slopes])


def draft_table(draft_ms: DraftCosts, between: Between, most: int) -> FloatArray:
    """[<= most] float64: entry n is the cost in ms of a drafter pass that expands n + 1 nodes.

    Shorter than `most` where the largest measured size is: nothing is extrapolated. A single number holds for all.
    """
    if isinstance(draft_ms, int | float):
        at_least("cost curve", 0, draft_ms=draft_ms)
        return np.full(most, float(draft_ms))
    return _rising("draft_ms", "node", draft_ms, between)[:most]


def chain_table(chain_ms: ChainCosts, between: Between) -> FloatArray:
    """[largest measured] float64: entry n is the cost in ms of one call that drafts a chain of n + 1 levels."""
    return _rising("chain_ms", "level", chain_ms, between)


def _rising(what: str, unit: str, curve: tuple[tuple[int, float], ...], between: Between) -> FloatArray:
    pairs = tuple((int(size), float(cost)) for size, cost in curve)
    sizes = [size for size, _ in pairs]
    if not sizes or sizes[0] != 1 or any(low >= high for low, high in pairwise(sizes)):
        raise ValueError(f"cost curve: {what} must name rising sizes from 1 {unit} on, got {sizes}; measure them")
    at_least("cost curve", 0, **{f"{what} at {size} {unit}s": cost for size, cost in pairs})
    return _table(pairs, between)


def _table(curve: tuple[tuple[int, float], ...], between: Between) -> FloatArray:
    sizes, costs = (np.array(column, dtype=np.float64) for column in zip(*curve, strict=True))
    nodes = np.arange(1, int(sizes[-1]) + 1)
    if between == "line":
        return np.interp(nodes, sizes, costs)
    buckets: FloatArray = costs[np.searchsorted(sizes, nodes)]
    return buckets


def cost_curve(verify_ms: tuple[tuple[int, float], ...], draft_ms: float, between: Between) -> CostCurve:
    """A curve from settings that may have come as lists."""
    return CostCurve(tuple((int(nodes), float(cost)) for nodes, cost in verify_ms), draft_ms, between)
