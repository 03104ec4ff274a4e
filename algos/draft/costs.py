"""The costs of an engine's passes, in milliseconds, and the settings that cost-aware policies take from them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple, TypeAlias, get_type_hints

import numpy as np

from underpaint.algos.arrays import FloatArray
from underpaint.algos.draft.settings import at_least
from underpaint.algos.draft.spec import PolicySpec
from underpaint.algos.registry import Milliseconds, check_bounds, settings_fields

Between: TypeAlias = Literal["line", "bucket"]

DraftCosts: TypeAlias = float | tuple[tuple[int, float], ...]
"""ms of a drafter pass: one number for any size, or (expanded nodes, ms) pairs, rising from 1 node."""

ChainCosts: TypeAlias = tuple[tuple[int, float], ...]
"""ms of a drafter call that drafts a whole chain: (levels, ms) pairs, rising from 1 level."""

_MARGIN: Final = 1e-9
"""Relative margin on slopes, so that rounding cannot end a search before its best size."""

MEASURED_VERIFY_MS = ((1, 6.6), (8, 9.5), (16, 13.3), (32, 22.3), (64, 40.5))
"""Measured: ONNX Runtime, two CPU threads, 54.5M parameters (12 layers of 512, 16384 codes), 256 cached positions."""
MEASURED_DRAFT_MS = 0.6
"""One of these twelve layers and a share of the head."""


@dataclass(frozen=True, slots=True)
class CostCurve:
    """Milliseconds of a target pass by number of nodes, as measured, and of one drafter pass.

    Attributes:
        verify_ms: (nodes, ms) pairs, nodes rising from 1 (a plain step, only the root), ms > 0. The largest size is the
            largest allowed tree: nothing is extrapolated.
        draft_ms: One drafter pass (one level), >= 0.
        between: The cost of a size between two measured sizes: linear interpolation ("line"), or the cost of the next
            larger one ("bucket", for an engine with static shapes).
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
        """The largest measured size, including the root."""
        return self.verify_ms[-1][0]

    def table(self) -> FloatArray:
        """Return [max_nodes] float64: entry n is the cost in ms of a target pass over n + 1 nodes (n draft nodes)."""
        return _table(self.verify_ms, self.between)


class SizeCosts(NamedTuple):
    """Costs of sizes, for searches of the size with the most tokens per ms that need not try all sizes."""

    ms: list[float]
    """The cost of every size, > 0, from the smallest size on."""
    slopes: list[float]
    """For each size, the smallest mean rise in ms per size to any larger size; infinite at the largest.

    A search may stop at a size if the best rate so far, times this rise, is at least the tokens that the next size
    adds, provided that no size adds more than the one before it. Then no larger size is better.
    """

    @classmethod
    def of(cls, ms: Sequence[float] | FloatArray) -> "SizeCosts":
        """Return the costs for sizes that cost `ms`, from the smallest size on."""
        costs = np.array(ms, dtype=np.float64)
        larger = [(costs[size + 1 :] - costs[size]) / np.arange(1, costs.size - size) for size in range(costs.size)]
        slopes = [float(rise.min(initial=np.inf)) for rise in larger]
        return cls(costs.tolist(), [rise - _MARGIN * abs(rise) if rise < np.inf else rise for rise in slopes])


def draft_table(draft_ms: DraftCosts, between: Between, most: int) -> FloatArray:
    """Return [<= most] float64: entry n is the cost in ms of a drafter pass that expands n + 1 nodes.

    It is shorter than `most` if fewer sizes were measured: nothing is extrapolated. A single number applies to all.
    """
    if isinstance(draft_ms, int | float):
        at_least("cost curve", 0, draft_ms=draft_ms)
        return np.full(most, float(draft_ms))
    return _rising("draft_ms", "node", draft_ms, between)[:most]


def chain_table(chain_ms: ChainCosts, between: Between) -> FloatArray:
    """Return [largest measured] float64: entry n is the cost in ms of a call that drafts n + 1 levels of a chain."""
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
    """Return a curve from settings that may be lists instead of tuples."""
    return CostCurve(tuple((int(nodes), float(cost)) for nodes, cost in verify_ms), draft_ms, between)


class TreeCosts(NamedTuple):
    """Costs of trees drafted in one call, including the host's share: target passes by nodes, the call, each level."""

    verify_ms: tuple[tuple[int, float], ...]
    call_ms: float
    draft_ms: float


class EngineCosts(NamedTuple):
    """The costs that a cost-aware policy takes from a curve.

    Attributes:
        verify_ms: ms of a target pass by its nodes.
        draft_ms: ms of a drafter pass by the nodes it expands.
        chain_ms: ms of a chain drafted in one call, by levels; None if unknown, or if the drafter cannot do this.
        plain_ms: ms of a cycle without a draft; None if not known separately from a one-node target pass.
        fingerprint: The fingerprint of the curve's file, or "".
        trees: Costs of static trees drafted in one call, by how siblings are chosen ("sampled" and "ranked"); empty if
            the drafter cannot do this.
    """

    verify_ms: tuple[tuple[int, float], ...]
    draft_ms: tuple[tuple[int, float], ...]
    chain_ms: ChainCosts | None = None
    plain_ms: float | None = None
    fingerprint: str = ""
    trees: Mapping[str, TreeCosts] = MappingProxyType({})

    def settings_for(self, spec: PolicySpec) -> dict[str, Any]:
        """The settings of a cost-aware policy. If `draft_ms` is a single number, it is the cost of a one-node pass.

        A policy with a setting `call_ms` drafts a whole tree in one call, and gets the prices of such trees. A policy
        with a setting `tree_ms` may draft such a tree with drawn siblings: it gets the price of the call, including
        extra host work in such a cycle, and of each level.
        """
        fields = settings_fields(spec.make)
        call = self.trees.get("ranked" if spec.drawn == "top_k" else "sampled")
        if "call_ms" in fields and call is not None:
            return call._asdict()
        settings: dict[str, Any] = {"verify_ms": self.verify_ms, "draft_ms": self.draft_ms}
        if get_type_hints(spec.make)["draft_ms"] is float:
            settings["draft_ms"] = self.draft_ms[0][1]
        sampled_costs = self.trees.get("sampled")
        if "tree_ms" in fields and sampled_costs is not None:
            more = max(0.0, sampled_costs.verify_ms[0][1] - self.verify_ms[0][1])
            settings["tree_ms"] = (sampled_costs.call_ms + more, sampled_costs.draft_ms)
        return {**settings, **{name: getattr(self, name) for name in ("chain_ms", "plain_ms") if name in fields}}
