"""The time of decoding runs on a machine, from costs of passes alone or, if measured, from costs inside cycles."""

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
from underpaint.sim.report.statistics import ImageTimes, Runs, plain_ms

CURVE: Final = ".json"
"""Ending of the names of measured machines, which are paths of cost curves."""


class RunTimes(Protocol):
    """Prices of decoding runs on a machine."""

    @property
    def plain_ms(self) -> float:
        """Time of a step of plain autoregression, in ms."""
        ...

    @property
    def fuses_chains(self) -> bool:
        """Whether a chain that the drafter drafts in one call has its own price."""
        ...

    def times(self, scheme: Scheme, runs: Runs) -> ImageTimes:
        """Compute the time of each image; ValueError if the machine lacks a measurement that the runs need."""
        ...


@dataclass(frozen=True, slots=True)
class RepeatedTimes:
    """Prices from costs of passes measured alone, or from a roofline; host time per cycle is `costs.overhead_ms`."""

    costs: Costs
    fuses_chains: bool = False

    @property
    def plain_ms(self) -> float:
        return plain_ms(self.costs)

    def times(self, scheme: Scheme, runs: Runs) -> ImageTimes:
        return runs.times(self.costs)


@dataclass(frozen=True, slots=True)
class InCycleTimes:
    """Prices from costs of passes and of the host, measured inside decoding loops."""

    costs: InCycleCosts

    @property
    def plain_ms(self) -> float:
        return self.costs.plain_ms

    @property
    def fuses_chains(self) -> bool:
        return self.costs.fuses_chains

    def times(self, scheme: Scheme, runs: Runs) -> ImageTimes:
        actual_runs = self._as_executed(runs)
        return cycle_costs.times(self.costs, actual_runs, family_of(scheme), pools(scheme))

    def _as_executed(self, runs: Runs) -> Runs:
        """The runs as this drafter executes them: chains level by level if it cannot draft them in one call."""
        return runs if self.fuses_chains else replace(runs, chained=np.zeros_like(runs.chained))


def latency_model_of(machine: str) -> Costs:
    """Open a latency model of passes alone by "machine/model" or a cost curve's path; ValueError or OSError if none."""
    return MeasuredCosts.of(read_cost_curve(Path(machine))) if machine.endswith(CURVE) else roofline(machine)


def run_times_of(machine: str) -> RunTimes:
    """Open the prices of "machine/model" or of a cost curve's path, inside cycles if the curve has them.

    Raises ValueError or OSError if there is no such machine or file.
    """
    if not machine.endswith(CURVE):
        return RepeatedTimes(roofline(machine))
    return run_times(read_cost_curve(Path(machine)))


def run_times(curve: CostCurveFile) -> RunTimes:
    """The prices of a measured curve, inside cycles if it has them."""
    return RepeatedTimes(MeasuredCosts.of(curve)) if curve.in_cycle is None else InCycleTimes(curve.in_cycle)
