"""What decoding runs take on a machine: by passes repeated alone, or, where they were measured, inside cycles."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Protocol

import numpy as np

from underpaint.artifacts.cost_curve import CostCurveFile, InCycleCosts, read_cost_curve
from underpaint.sim.batched.decoding import Scheme
from underpaint.sim.latency import cycle_costs
from underpaint.sim.latency.cycle_costs import family_of, pools
from underpaint.sim.latency.machines import roofline
from underpaint.sim.latency.models import Costs, MeasuredCosts
from underpaint.sim.report.statistics import Estimate, ImageTimes, Runs, plain_ms, times_faster

CURVE: Final = ".json"
"""How the names of measured machines end: paths of cost curves."""


class RunTimes(Protocol):
    """The time of runs."""

    @property
    def plain_ms(self) -> float:
        """A step of plain autoregression."""
        ...

    @property
    def fuses_chains(self) -> bool:
        """Whether a chain in one call of the drafter has a price of its own."""
        ...

    def times(self, scheme: Scheme, runs: Runs) -> ImageTimes:
        """What each image takes; ValueError where the machine was not measured for what the runs hold."""
        ...


@dataclass(frozen=True, slots=True)
class RepeatedTimes:
    """Passes cost what they do when repeated alone, or at least; the host's share is `costs.overhead_ms`."""

    costs: Costs
    fuses_chains: bool = False

    @property
    def plain_ms(self) -> float:
        return plain_ms(self.costs)

    def times(self, scheme: Scheme, runs: Runs) -> ImageTimes:
        return runs.times(self.costs)


@dataclass(frozen=True, slots=True)
class InCycleTimes:
    """Passes and host cost what they do inside decoding loops."""

    costs: InCycleCosts

    @property
    def plain_ms(self) -> float:
        return self.costs.plain_ms

    @property
    def fuses_chains(self) -> bool:
        return self.costs.fuses_chains

    def times(self, scheme: Scheme, runs: Runs) -> ImageTimes:
        known = self._known(runs)
        return cycle_costs.times(self.costs, known, family_of(scheme), pools(scheme))

    def _known(self, runs: Runs) -> Runs:
        """The runs as this drafter makes them: level by level where it has no calls for chains."""
        return runs if self.fuses_chains else replace(runs, chained=np.zeros_like(runs.chained))


def speedup(prices: RunTimes, scheme: Scheme, runs: Runs) -> Estimate:
    """How many times faster than plain autoregression at the same prices."""
    return times_faster(runs, prices.times(scheme, runs).total, prices.plain_ms)


def latency_model_of(machine: str) -> Costs:
    """Passes alone by "machine/model" or the path of a cost curve; ValueError or OSError where there is none."""
    return MeasuredCosts.of(read_cost_curve(Path(machine))) if machine.endswith(CURVE) else roofline(machine)


def run_times_of(machine: str) -> RunTimes:
    """The prices by "machine/model" or the path of a cost curve, inside cycles where it holds them.

    ValueError or OSError where there is none.
    """
    if not machine.endswith(CURVE):
        return RepeatedTimes(roofline(machine))
    return run_times(read_cost_curve(Path(machine)))


def run_times(curve: CostCurveFile) -> RunTimes:
    """The prices of a measured curve, inside cycles where it holds them."""
    return RepeatedTimes(MeasuredCosts.of(curve)) if curve.in_cycle is None else InCycleTimes(curve.in_cycle)
