"""Samples of decoding loops, and the costs that are fitted to them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np

from underpaint.algos.arrays import FloatArray, IntArray
from underpaint.runtime.costs.loops import PLAIN
from underpaint.runtime.costs.passes import rising

FEWEST: Final = 5
"""Smallest number of samples for which a size counts."""
ENOUGH: Final = 200
"""Smallest number of samples for which a mean is used instead of the median."""
SLOWEST: Final = 95
"""Percentile of a size's samples; slower ones are left out."""
BANDWIDTH: Final = 0.35
"""Standard deviation of the Gaussian kernel over the logarithm of sizes."""
CHOOSING: Final = ("cost_aware", "cost_aware_chain")
"""Families whose policies choose by costs. Their cycles are not known beforehand, so few samples of a kind suffice."""
HOST_PARTS: Final = ("cycle", "level", "node", "pooled")


class CycleKind(NamedTuple):
    """A kind of cycle, whose cycles cost the host the same."""

    family: str
    levels: int
    nodes: int
    pooled: bool


PLAIN_STEP: Final = CycleKind(PLAIN.family, 0, 1, False)


class TreeCall(NamedTuple):
    """A kind of drafter call: trees with `levels` levels that expand `width` nodes in each level below the root's.

    Attributes:
        siblings: "sampled" or "ranked".
        levels: Number of levels; the first one expands only the root.
        width: Number of nodes that each further level expands.
    """

    siblings: str
    levels: int
    width: int


@dataclass(frozen=True, slots=True)
class CycleSamples:
    """Samples in ms: passes by "plain", "target", "window", "draft" or "chain" and size, trees drafted in one call, and
    host time by kind of cycle."""

    passes: defaultdict[tuple[str, int], list[float]] = field(default_factory=lambda: defaultdict(list))
    tree_calls: defaultdict[TreeCall, list[float]] = field(default_factory=lambda: defaultdict(list))
    host: defaultdict[CycleKind, list[float]] = field(default_factory=lambda: defaultdict(list))

    @property
    def plain_ms(self) -> float:
        """Time in ms of a step of plain autoregression."""
        return typical(self.passes["plain", 1]) + typical(self.host[PLAIN_STEP])

    def to_dict(self) -> dict[str, Any]:
        """The samples as JSON; see `from_dict`."""
        parts: dict[str, Mapping[Any, list[float]]]
        parts = {"passes": self.passes, "tree_calls": self.tree_calls, "host": self.host}
        return {name: [[*key, times] for key, times in part.items()] for name, part in parts.items()}

    @classmethod
    def from_dict(cls, stored: Mapping[str, Sequence[Any]]) -> CycleSamples:
        """The samples from `to_dict`; raises ValueError, TypeError or KeyError for other content."""
        samples = cls()
        for what, size, some in stored["passes"]:
            samples.passes[str(what), int(size)].extend(map(float, some))
        for siblings, levels, width, some in stored["tree_calls"]:
            samples.tree_calls[TreeCall(siblings, levels, width)].extend(map(float, some))
        for family, levels, nodes, pooled, some in stored["host"]:
            samples.host[CycleKind(family, levels, nodes, pooled)].extend(map(float, some))
        return samples


def at_mean_speed(bursts: Sequence[CycleSamples], plain_ms: float | None = None) -> CycleSamples:
    """Join all bursts, scaled to what they take where a plain step takes `plain_ms`, or its mean over all bursts.

    A burst is a few loops with an image of plain autoregression. Times are not in proportion to plain steps: two cores
    had minutes in which plain steps took 22 % longer and passes over 255 cells 17 % less. So each kind of sample is
    scaled by a line of its own through its mean times in the bursts, against their plain steps.
    """
    steps = [burst.plain_ms for burst in bursts]
    mean, whole = float(np.mean(steps)) if plain_ms is None else plain_ms, CycleSamples()
    for name in ("passes", "tree_calls", "host"):
        parts: list[Mapping[Any, list[float]]] = [getattr(burst, name) for burst in bursts]
        for kind in dict.fromkeys(kind for part in parts for kind in part):
            here = [(step, part[kind]) for step, part in zip(steps, parts, strict=True) if kind in part]
            factors = _factors(here, mean)
            for factor, (_, times) in zip(factors, here, strict=True):
                getattr(whole, name)[kind].extend([factor * ms for ms in times])
    return whole


def _factors(bursts: Sequence[tuple[float, list[float]]], plain_ms: float) -> list[float]:
    """Factors that scale the times of one kind to plain steps of `plain_ms`.

    bursts: The plain step and the times in each burst. Least squares give the line. The times are taken in proportion
    to plain steps instead if there are few bursts, or if the line falls to 0 within them.
    """
    steps, counts = (
        np.array(one, dtype=np.float64) for one in zip(*((step, len(ms)) for step, ms in bursts), strict=True)
    )
    times = np.array([np.mean(ms) for _, ms in bursts])
    middle, ms = np.average(steps, weights=counts), np.average(times, weights=counts)
    spread = float(counts @ (steps - middle) ** 2)
    if len(bursts) >= FEWEST and spread > 0.0:
        slope = float(counts @ ((steps - middle) * (times - ms))) / spread
        line, there = ms + slope * (steps - middle), float(ms + slope * (plain_ms - middle))
        if min(there, line.min()) > 0.0:
            return list((there / line).tolist())
    return list((plain_ms / steps).tolist())


def typical(samples: Sequence[float]) -> float:
    """The mean without the slowest samples; the median of few samples, where one disturbance would move the mean."""
    times = np.array(samples)
    if times.size < ENOUGH:
        return float(np.median(times))
    return float(times[times <= np.percentile(times, SLOWEST)].mean())


def nonnegative_fit(parts: FloatArray, samples: Sequence[Sequence[float]]) -> FloatArray:
    """Cost in ms of each part, [P]: least squares over K kinds with parts [K, P] and their samples, none below 0."""
    weights = np.sqrt([len(times) for times in samples])
    typical_ms = np.array([typical(times) for times in samples])
    costs, used = np.zeros(parts.shape[1]), np.arange(parts.shape[1])
    while used.size:
        fitted = np.linalg.lstsq(parts[:, used] * weights[:, None], typical_ms * weights, rcond=None)[0]
        if fitted.min() >= 0.0:
            costs[used] = fitted
            break
        used = np.delete(used, fitted.argmin())
    return costs


def curve(cycles: CycleSamples, what: str, alone: Sequence[Sequence[float]] = ()) -> list[list[float]]:
    """[[size, ms], ...] of sizes with enough samples, never falling with the size.

    Few loops make passes of any one size, and each only for a few moments of a machine whose speed changes. Where
    passes alone were timed too, their ratio to the loops' is therefore averaged over similar sizes.

    Args:
        cycles: The samples.
        what: The passes; see `CycleSamples`. A pass of "target" or "window" over the root alone is plain
            autoregression's where those loops lack it.
        alone: [[size, ms], ...] of such passes repeated alone, all sizes in turn; empty if they were not timed.
    """
    samples = {size: times for (kind, size), times in cycles.passes.items() if kind == what and len(times) >= FEWEST}
    sizes = np.array(sorted(samples))
    ms, counts = (np.array([figure(samples[size]) for size in sizes.tolist()]) for figure in (typical, len))
    if alone and sizes.size:
        ms = smoothed(sizes, ms, counts, alone)
    rows = [list(row) for row in zip(sizes.tolist(), ms.tolist(), strict=True)]
    weights = counts.tolist()
    if 1 not in samples and (what == "target" or (what == "window" and samples)):
        plain = cycles.passes["plain", 1]
        rows, weights = [[1, typical(plain)], *rows], [len(plain), *weights]
    return rising(rows, weights)


def smoothed(sizes: IntArray, ms: FloatArray, counts: IntArray, alone: Sequence[Sequence[float]]) -> FloatArray:
    """Average the ratio of passes in loops to passes alone over similar sizes (the Nadaraya-Watson estimate).

    Args:
        sizes: [K], ascending.
        ms: [K], of passes in loops.
        counts: [K], samples of each; more than `ENOUGH` count as that many.
        alone: [[size, ms], ...] of passes alone. Sizes beyond its largest keep their own ms.

    Returns:
        [K] ms.
    """
    alone_sizes, times = np.array(rising([[*pair] for pair in alone], [1] * len(alone))).T
    inside = sizes <= alone_sizes[-1]
    base = np.interp(sizes[inside], alone_sizes, times)
    apart = np.subtract.outer(np.log(sizes[inside]), np.log(sizes[inside])) / BANDWIDTH
    near = np.exp(-0.5 * apart**2) * np.minimum(counts[inside], ENOUGH)
    averaged: FloatArray = ms.copy()
    averaged[inside] = base * np.exp(near @ np.log(ms[inside] / base) / near.sum(axis=1))
    return averaged


def tree_costs(cycles: CycleSamples, siblings: str) -> dict[str, Any]:
    """{call, levels}: ms of a call, and [[expanded nodes, ms], ...] of each level in it, never falling with the nodes.

    Least squares over the kinds of calls give the cost of the call, and the extra cost per level of each width. The
    first level expands only the root.
    """
    kinds = {
        call: times for call, times in cycles.tree_calls.items() if call.siblings == siblings and len(times) >= FEWEST
    }
    if not kinds:
        raise ValueError(f"in_cycle: too few trees with {siblings} siblings were drafted in one call; take more rounds")
    widths = sorted({1, *(call.width for call in kinds)})
    parts = np.array(
        [[1.0, call.levels, *[(call.levels - 1.0) * (call.width >= width) for width in widths[1:]]] for call in kinds]
    )
    call, *added = nonnegative_fit(parts, list(kinds.values())).tolist()
    levels = [[width, round(ms, 5)] for width, ms in zip(widths, np.cumsum(added).tolist(), strict=True)]
    return {"call": round(call, 5), "levels": levels}


def host_costs(cycles: CycleSamples, family: str) -> dict[str, float]:
    """ms per cycle, level, node and pooling: least squares over the family's kinds of cycles, none below 0."""
    kinds = {kind: times for kind, times in cycles.host.items() if kind.family == family}
    if family not in CHOOSING:  # an image's last cell has nothing to draft
        kinds = {kind: times for kind, times in kinds.items() if kind.levels and len(times) >= FEWEST}
    if not kinds:
        raise ValueError(f"in_cycle: too few cycles of '{family}' were timed; take more rounds")
    parts = np.array([[1.0, kind.levels, kind.nodes, kind.pooled] for kind in kinds])
    costs = nonnegative_fit(parts, list(kinds.values())).tolist()
    return {part: round(cost, 5) for part, cost in zip(HOST_PARTS, costs, strict=True)}


def to_dict(cycles: CycleSamples, rounds: int, alone: Mapping[str, Any]) -> dict[str, Any]:
    """Return the samples as JSON, the `in_cycle` part of a cost curve.

    Args:
        cycles: The samples.
        rounds: Number of rounds of images.
        alone: The passes repeated alone; see `machine_curve.passes_alone`.
    """
    verify = alone["verify_ms"]
    repeated = {"target": verify, "window": verify, "draft": alone["draft_ms"], "chain": ()}
    families = dict.fromkeys(kind.family for kind in cycles.host if kind.family != PLAIN.family)
    return {
        "rounds": rounds,
        "plain": {
            "target_ms": round(typical(cycles.passes["plain", 1]), 4),
            "host_ms": round(typical(cycles.host[PLAIN_STEP]), 4),
        },
        **{f"{what}_ms": curve(cycles, what, points) for what, points in repeated.items()},
        "tree_ms": {name: tree_costs(cycles, name) for name in sorted({call.siblings for call in cycles.tree_calls})},
        "host_ms": {family: host_costs(cycles, family) for family in families},
    }
