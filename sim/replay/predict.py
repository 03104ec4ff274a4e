"""What a comparison should have measured: from a trace of plain decoding and a cost curve, on other prompts."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import hypot, sqrt
from typing import Any, NamedTuple

import numpy as np

from underpaint.algos.arrays import FloatArray
from underpaint.algos.registry import suggest
from underpaint.artifacts.cost_curve import InCycleCosts
from underpaint.sim.batched.decoding import Scheme, make_scheme, run_loop
from underpaint.sim.latency.models import MeasuredCosts
from underpaint.sim.latency.overhead import overhead_ms
from underpaint.sim.latency.run_times import InCycleTimes
from underpaint.sim.replay.comparison import Comparison, check_belong
from underpaint.sim.replay.predict_fronts import row_fronts
from underpaint.sim.replay.predict_rows import rows_for, run_rows
from underpaint.sim.replay.row_trace import drafting
from underpaint.sim.replay.trace import Trace, replay
from underpaint.sim.report.statistics import Estimate, Runs, mean_depth, ratio, times_faster, tokens_per_cycle
from underpaint.sim.synthetic.table_model import TableModel

PLAIN = "ar"
TOKENS_TOLERANCE = 0.05
SPEEDUP_TOLERANCE = 0.15


class Predicted(NamedTuple):
    """One method. measured_*: of the comparison; errors are predicted / measured - 1.

    A cycle is a draft and a target pass; where cells are decided in any order (ZipAR, MuLo-SD), it is a target pass, at
    a depth of as many passes of the low-resolution model, 0 where nothing is drafted.
    tokens_chance: half the 95 % interval of the error in tokens per cycle that prompts, which are others in trace and
    comparison, make by themselves. overhead_ms: of the host, a cycle.
    """

    method: str
    tokens_per_cycle: Estimate
    measured_tokens_per_cycle: float
    tokens_chance: float
    mean_depth: float
    measured_mean_depth: float
    speedup: Estimate
    measured_speedup: float
    overhead_ms: float

    @property
    def tokens_error(self) -> float:
        """Relative error of the predicted tokens per cycle."""
        return self.tokens_per_cycle.mean / self.measured_tokens_per_cycle - 1.0

    @property
    def speedup_error(self) -> float:
        """Relative error of the predicted speed-up."""
        return self.speedup.mean / self.measured_speedup - 1.0


def predict(
    trace: Trace,
    costs: MeasuredCosts,
    comparison: Comparison,
    seeds: int = 1,
    seed: int = 0,
    max_nodes: int = 64,
    in_cycle: InCycleCosts | None = None,
    methods: Sequence[str] | None = None,
    replayed: TableModel | None = None,
) -> tuple[Predicted, ...]:
    """Methods of a comparison; each by its own loop over the replayed trace.

    seeds: decodings of each recorded image. in_cycle: costs measured inside cycles of trees, which `costs` gives way to
    there. Without them, and always for ZipAR and MuLo-SD, the host's share of a cycle is timed here, on the machine
    that predicts, so that is the machine that the cost curve and the comparison should be of; a curve that holds an
    overhead keeps it.
    methods: None takes all that the trace says enough of. replayed: the trace's `replay`, where a caller has it.
    Raises ValueError where trace and comparison do not belong together, or on a method that cannot be predicted.
    """
    check_belong(trace, comparison)
    names = predicted(comparison, trace, methods)
    model = replayed or replay(trace)
    price = _Repeated(model, costs, max_nodes) if in_cycle is None else _Within(InCycleTimes(in_cycle))
    plain_ms = price.plain_ms
    found = []
    for name in names:
        recipe, row = comparison.methods[name], comparison.rows[name]
        if recipe.get("loop") == "zipar":
            found.append(_fronts(name, comparison, model, costs, plain_ms))
            continue
        if recipe.get("loop") == "mulo":
            found.append(_rows(name, comparison, trace, costs, plain_ms, seeds, seed))
            continue
        parts = (recipe["policy_settings"], recipe["rule_settings"])
        scheme = make_scheme(model, recipe["policy"], recipe["rule"], *parts)
        chains = in_cycle is not None and in_cycle.fuses_chains
        once = run_loop(model, scheme, model.images, seed, 0, max_nodes, chains)
        runs = once
        if seeds > 1:
            runs = runs.and_more(
                run_loop(model, scheme, (seeds - 1) * model.images, seed, model.images, max_nodes, chains)
            )
        runs = runs.pooled(model.images)
        image_ms, host_ms = price(scheme, runs)
        tokens = tokens_per_cycle(runs)
        alone = tokens_per_cycle(once).half_width * sqrt(model.images / len(comparison.prompts))
        found.append(
            Predicted(
                name,
                tokens,
                float(row["tokens_per_cycle"]),
                hypot(tokens.half_width, alone),
                mean_depth(runs).mean,
                float(row["mean_depth"]),
                times_faster(runs, image_ms, plain_ms),
                float(row["speedup"]),
                host_ms,
            )
        )
    return tuple(found)


class _Priced(NamedTuple):
    """[I] ms of images, and the host's ms of a mean cycle."""

    image_ms: FloatArray
    host_ms: float


@dataclass(frozen=True, slots=True)
class _Within:
    """RunTimes of passes and host as they are inside cycles."""

    prices: InCycleTimes

    @property
    def plain_ms(self) -> float:
        return self.prices.plain_ms

    def __call__(self, scheme: Scheme, runs: Runs) -> _Priced:
        return _Priced(self.prices.times(scheme, runs).total, self.prices.host_ms(scheme, runs))


@dataclass(frozen=True, slots=True)
class _Repeated:
    """RunTimes of passes repeated alone; the host's share is the curve's, or is timed here."""

    model: TableModel
    costs: MeasuredCosts
    max_nodes: int

    @property
    def plain_ms(self) -> float:
        return float(self.costs.verify_ms(np.array([1]))[0]) + self._host_ms(None, 2)

    def __call__(self, scheme: Scheme, runs: Runs) -> _Priced:
        host_ms = self._host_ms(scheme, 4)
        return _Priced(runs.image_ms(dataclasses.replace(self.costs, overhead_ms=host_ms)), host_ms)

    def _host_ms(self, scheme: Scheme | None, images: int) -> float:
        timed = self.costs.overhead_ms == 0.0
        images = min(images, self.model.images)
        return overhead_ms(self.model, scheme, images, self.max_nodes) if timed else self.costs.overhead_ms


def predicted(comparison: Comparison, trace: Trace, methods: Sequence[str] | None) -> tuple[str, ...]:
    """Those asked for, or all that the trace says enough of; ValueError where one is not there, or says why not."""
    reasons = unpredictable(comparison, trace)
    if methods is None:
        return tuple(name for name in comparison.methods if name != PLAIN and name not in reasons)
    for name in methods:
        if name == PLAIN or name not in comparison.methods:
            others = tuple(other for other in comparison.methods if other != PLAIN)
            raise ValueError(f"the comparison holds no method '{name}' to predict; {suggest(name, others)}")
        if name in reasons:
            raise ValueError(f"'{name}' cannot be predicted: {reasons[name]}")
    return tuple(methods)


def unpredictable(comparison: Comparison, trace: Trace) -> Mapping[str, str]:
    """The methods of a comparison that the trace does not say enough of, and why."""
    reasons = {name: _reason(name, recipe, trace) for name, recipe in comparison.methods.items()}
    return {name: reason for name, reason in reasons.items() if reason}


def _reason(name: str, recipe: Mapping[str, Any], trace: Trace) -> str:
    """Empty where there is none."""
    if "skipping" in recipe:
        return "some of its cycles are not verified, and what the target says behind those tokens is in no trace"
    if "window" in recipe and recipe["policy_settings"].get("windows", 1):
        return "its Jacobi windows read the target behind tokens that no trace holds; windows=0 leaves them out"
    if "drawn" in recipe and recipe["policy_settings"].get("siblings", 1):
        return "no replay draws siblings beside trees of likeliest tokens; siblings=0 leaves them out"
    if "policy" in recipe:
        return ""
    loop, settings = recipe.get("loop"), recipe.get("settings", {})
    if loop not in ("zipar", "mulo"):
        return f"no replay has its loop, '{loop}'"
    if settings["adaptive"]:
        return "its adaptive window tests distributions that change as a row above grows, which no trace holds"
    if loop == "mulo" and rows_for(trace, settings) is None:
        by = ", ".join(f"{setting} {value}" for setting, value in drafting(settings).items())
        return (
            f"the trace holds no rows drafted by its settings ({by}); record them with `underpaint trace --methods "
            f"{name}` and the comparison's own --set"
        )
    return ""


def _rows(
    name: str, comparison: Comparison, trace: Trace, costs: MeasuredCosts, one_ms: float, seeds: int, seed: int
) -> Predicted:
    """MuLo-SD; `one_ms`: a plain step."""
    settings, row = comparison.methods[name]["settings"], comparison.rows[name]
    drafted = rows_for(trace, settings)
    assert drafted is not None
    runs = run_rows(trace, drafted, settings, seeds, seed)
    cells = np.full(runs.passes.size, runs.decodings * trace.grid.cells)
    tokens = ratio(cells, runs.passes)
    nfe, low_nfe = float(row["target_nfe"]), float(row["drafter_nfe"])
    return Predicted(
        name,
        tokens,
        trace.grid.cells / nfe,
        tokens.half_width * sqrt(1.0 + cells.size / len(comparison.prompts)),
        float(runs.low_passes.sum() / runs.passes.sum()),
        low_nfe / nfe,
        ratio(cells * one_ms, runs.image_ms(costs)),
        float(row["speedup"]),
        costs.overhead_ms or runs.host_ms,
    )


def _fronts(name: str, comparison: Comparison, model: TableModel, costs: MeasuredCosts, one_ms: float) -> Predicted:
    """ZipAR with a fixed window; `one_ms`: a plain step."""
    grid, row = model.grid, comparison.rows[name]
    window = comparison.methods[name]["settings"]["window"]
    fronts = row_fronts(grid, model.vocab_size, grid.width if window is None else window)
    own = costs.overhead_ms or fronts.overhead_ms
    tokens = grid.cells / fronts.passes.size
    gain = grid.cells * one_ms / float(costs.cells_ms(fronts.passes).sum() + fronts.passes.size * own)
    exact = (Estimate(*(value,) * 3) for value in (tokens, gain))
    measured = grid.cells / float(row["target_nfe"])
    return Predicted(name, next(exact), measured, 0.0, 0.0, 0.0, next(exact), float(row["speedup"]), own)
