"""What cycles of decoding cost, measured inside decoding loops, the host's share of them included.

A pass takes longer inside a cycle than the same pass repeated alone: the drafter's passes and the host's work between
have emptied the caches.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import numpy as np

from underpaint.algos.accept import RULES
from underpaint.algos.arrays import FloatArray, IntArray
from underpaint.algos.draft import POLICIES
from underpaint.sim.batched.decoding import Scheme
from underpaint.sim.latency.models import Curve, read_curve
from underpaint.sim.report.statistics import Runs

Family: TypeAlias = Literal["one_call", "sampled", "ranked", "priced", "weighed"]
"""How the host drafts: a chain in one call of the drafter, a tree with drawn siblings, a tree with the likeliest ones
(both in one call where the drafter can), level by level with every level and node weighed by its cost, or, after
weighing both by their costs, a chain in one call or nothing."""
_GROWN: Final = ("sampled", "ranked")
"""Families whose trees one call grows, where the drafter can."""
KEY: Final = "in_cycle"
"""Where the JSON of a cost curve holds all this."""


class HostCosts(NamedTuple):
    """ms of the host: of a cycle, of each drafted level, of each scored node, and of a cycle whose rule pools codes."""

    cycle: float
    level: float
    node: float
    pooled: float


@dataclass(frozen=True, slots=True)
class CycleCosts:
    """ms of what happens inside decoding loops.

    plain_target_ms, plain_host_ms: of a pass of plain autoregression, and of the host around it.
    target: of a target pass by its nodes, in cycles that draft. draft: of a drafter pass by the nodes it expands.
    chain: of one call that drafts a chain, by levels; tree: of a level of a tree that one call grows, by the nodes it
    expands; empty where the drafter has none. All rise from size 1.
    host: by family.
    """

    plain_target_ms: float
    plain_host_ms: float
    target: Curve
    draft: Curve
    chain: Curve
    host: Mapping[Family, HostCosts]
    tree: Curve = ()

    def __post_init__(self) -> None:
        curves = [("target_ms", self.target), ("draft_ms", self.draft)]
        for what, curve in (*curves, *(one for one in (("chain_ms", self.chain), ("tree_ms", self.tree)) if one[1])):
            sizes = [size for size, _ in curve]
            if sizes[:1] != [1] or any(low >= high for low, high in pairwise(sizes)):
                raise ValueError(f"{KEY}: {what} must name rising sizes from 1 on, got {sizes}")
            if not all(np.isfinite(cost) and cost > 0.0 for _, cost in curve):
                raise ValueError(f"{KEY}: {what} must hold positive times, got {curve}")
        for name, parts in (("plain", (self.plain_target_ms, self.plain_host_ms)), *self.host.items()):
            if not all(np.isfinite(part) and part >= 0.0 for part in parts):
                raise ValueError(f"{KEY}: times of '{name}' must be at least 0, got {tuple(parts)}")

    @property
    def fuses_chains(self) -> bool:
        """Whether the measured drafter drafts a chain in one call."""
        return bool(self.chain)

    @property
    def plain_ms(self) -> float:
        """A step of plain autoregression."""
        return self.plain_target_ms + self.plain_host_ms

    def host_ms(self, runs: Runs, family: Family, pooled: bool) -> FloatArray:
        """[I] ms of the host, the first pass left out; ValueError where a family was not measured.

        Chains that came in one call are "one_call", other trees `family`, and a cycle over the root alone is a plain
        step, which is too cheap where a policy drafted and then verified nothing of it. Where a "priced" policy had
        the choice of a call, calls and plain steps are "weighed".
        """
        alone, calls = _alone(runs), runs.chained.sum(axis=1)
        chained = runs.chained @ np.arange(runs.chained.shape[1])
        levels, nodes = runs.draft.sum(axis=1), runs.verify[:, 2:] @ np.arange(2, runs.verify.shape[1])
        one_call: Family = "one_call"
        ms = alone * self.plain_host_ms
        if family == "priced":
            one_call = "weighed" if calls.any() else "priced"
            ms = self._host_ms(one_call, False, alone, np.zeros_like(alone), alone)
        ms += self._host_ms(one_call, pooled, calls, chained, calls + chained)
        trees = runs.cycles - alone - calls
        return ms + self._host_ms(family, pooled, trees, levels - chained, nodes - calls - chained)

    def _host_ms(self, family: Family, pooled: bool, cycles: IntArray, levels: IntArray, nodes: IntArray) -> FloatArray:
        if not (cycles.any() or levels.any()):
            return np.zeros(cycles.size)
        if family not in self.host:
            raise ValueError(
                f"{KEY}: the host was measured for {', '.join(self.host)}, not for '{family}'; record the curve again "
                "with benchmarks/cost_curve.py"
            )
        cost = self.host[family]
        ms: FloatArray = (cost.cycle + pooled * cost.pooled) * cycles + cost.level * levels + cost.node * nodes
        return ms

    def image_ms(self, runs: Runs, family: Family, pooled: bool) -> FloatArray:
        """[I] ms: what each image takes. The first pass, of the condition alone, is priced as a plain step.

        The target pass of a plain step costs what plain autoregression's does; between the drafts of a "priced" policy,
        what such a pass costs in cycles that draft.
        Raises ValueError where the family was not measured, SizeMissing for sizes beyond the measured ones.
        """
        levels = np.arange(runs.chained.shape[1])
        single = runs.draft.copy()
        single[:, 1] -= runs.chained @ levels
        drafted = runs.verify.copy()
        drafted[:, 1] = _alone(runs) if family == "priced" else 0
        plain = runs.verify[:, 1] - runs.decodings - drafted[:, 1]
        ms = self.host_ms(runs, family, pooled) + runs.decodings * self.plain_ms + plain * self.plain_target_ms
        for counts, curve, what in (
            (drafted, self.target, "target passes"),
            (single, self.tree if self.tree and family in _GROWN else self.draft, "drafter passes"),
            (runs.chained, self.chain, "chains in one call"),
        ):
            ms += _priced(counts, curve, what)
        return ms


def _alone(runs: Runs) -> IntArray:
    """[I] cycles over the root alone."""
    return runs.verify[:, 1] - runs.decodings


def _priced(counts: IntArray, curve: Curve, what: str) -> FloatArray:
    used = np.flatnonzero(counts.any(axis=0))
    if not used.size:
        return np.zeros(counts.shape[0])
    ms: FloatArray = counts[:, used] @ read_curve(curve, used, f"{KEY}, {what}")
    return ms


def family_of(scheme: Scheme) -> Family:
    """How the host drafts trees that are no chain in one call."""
    if POLICIES[scheme.policy_name].drawn != "top_k":
        return "sampled"
    if POLICIES[scheme.policy_name].cost_aware:
        return "priced"
    return "ranked"


def pools(scheme: Scheme) -> bool:
    """Whether the rule pools codes."""
    return RULES[scheme.rule_name].codebook


def load_cycle_costs(path: Path) -> CycleCosts | None:
    """The in-cycle part of a cost curve's JSON; None where the file holds none.

    Raises ValueError where it is something else, OSError where there is no file.
    """
    try:
        held: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        part = held.get(KEY)
        if part is None:
            return None
        host = {name: HostCosts(**{key: float(ms) for key, ms in one.items()}) for name, one in part["host_ms"].items()}
        return CycleCosts(
            float(part["plain"]["target_ms"]),
            float(part["plain"]["host_ms"]),
            _curve(part["target_ms"]),
            _curve(part["draft_ms"]),
            _curve(part["chain_ms"]),
            host,
            _curve(part.get("tree_ms", ())),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{path}: '{KEY}' is not as benchmarks/cost_curve.py writes it ({error}); record the curve again"
        ) from error


def _curve(pairs: Any) -> Curve:
    return tuple((int(size), float(cost)) for size, cost in pairs)
