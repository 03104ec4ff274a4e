"""Predict the results of a comparison from a trace on other prompts and a cost curve."""

from collections.abc import Mapping, Sequence
from math import hypot, sqrt
from typing import Any, NamedTuple

import numpy as np

from underpaint.algos.registry import suggest
from underpaint.artifacts.cost_curve import IN_GRID, CostCurveFile, InGridCosts
from underpaint.sim.batched.decoding import make_scheme, run_loop
from underpaint.sim.latency.grid_costs import grid_times
from underpaint.sim.latency.run_times import run_times
from underpaint.sim.replay.comparison import Comparison, check_belong
from underpaint.sim.replay.drawn_trace import DrawnTrace, drawn_times, missing_costs
from underpaint.sim.replay.predict_rows import row_fronts, rows_for, run_rows
from underpaint.sim.replay.row_trace import drafting
from underpaint.sim.replay.trace import Trace, replay
from underpaint.sim.report.statistics import Estimate, ImageTimes, mean_depth, ratio, times_faster, tokens_per_cycle
from underpaint.sim.synthetic.table_model import TableModel

PLAIN = "ar"
TOKENS_TOLERANCE = 0.05
SPEEDUP_TOLERANCE = 0.15
_SHARES = ("target", "drafter", "resampler", "overhead")


class Predicted(NamedTuple):
    """The prediction for one method, with the comparison's values as `measured_*`.

    A cycle is a draft and a target pass. For methods that decide cells in any order (ZipAR, MuLo-SD), it is a target
    pass; its depth is then the number of passes of the low-resolution model, 0 if nothing is drafted.

    Attributes:
        method: Name of the method.
        tokens_per_cycle, measured_tokens_per_cycle: Mean tokens per cycle.
        tokens_chance: Half the 95 % interval of the error in tokens per cycle that is due to the prompts alone, which
            differ between trace and comparison.
        mean_depth, measured_mean_depth: Mean depth per cycle.
        speedup, measured_speedup: Speedup over plain autoregression.
        overhead_ms: Host time per cycle.
        parts, measured_parts: Time of an image in target passes, in drafting and on the host, in units of plain steps.
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
    parts: Mapping[str, float]
    measured_parts: Mapping[str, float]

    @property
    def tokens_error(self) -> float:
        """Relative error of the predicted tokens per cycle: predicted / measured - 1."""
        return self.tokens_per_cycle.mean / self.measured_tokens_per_cycle - 1.0

    @property
    def speedup_error(self) -> float:
        """Relative error of the predicted speedup: predicted / measured - 1."""
        return self.speedup.mean / self.measured_speedup - 1.0


def predict(
    trace: Trace,
    curve: CostCurveFile,
    comparison: Comparison,
    seeds: int = 1,
    seed: int = 0,
    max_nodes: int = 64,
    methods: Sequence[str] | None = None,
    replayed: TableModel | None = None,
) -> tuple[Predicted, ...]:
    """Predict methods of a comparison, by running their loops on the replayed trace or from images in the trace.

    Args:
        trace: A trace of the compared model, on other prompts.
        curve: The cost curve of the comparison's machine. Costs inside loops are used if the curve has them.
        comparison: The measured results.
        seeds: Number of decodings of each recorded image.
        seed: Seed of the noise.
        max_nodes: Largest number of nodes of a tree.
        methods: Names of methods; None selects all that the trace and the curve can predict.
        replayed: The trace's `replay`, if the caller already has it.

    Raises:
        ValueError: Trace and comparison do not match, or a method cannot be predicted.
    """
    check_belong(trace, comparison)
    names = predictable(comparison, trace, methods, curve)
    model, prices = replayed or replay(trace), run_times(curve)
    predictions = []
    for name in names:
        recipe, row = comparison.methods[name], comparison.rows[name]
        if not_replayed(recipe):
            predictions.append(_drawn(name, comparison, trace, curve))
            continue
        if "policy" not in recipe:
            assert curve.in_grid is not None
            price = _fronts if recipe["loop"] == "zipar" else _rows
            predictions.append(price(name, comparison, trace, curve.in_grid, prices.plain_ms, seeds, seed))
            continue
        parts = (recipe["policy_settings"], recipe["rule_settings"])
        scheme = make_scheme(model, recipe["policy"], recipe["rule"], *parts)
        chains = prices.fuses_chains
        once = run_loop(model, scheme, model.images, seed, 0, max_nodes, chains)
        runs = once
        if seeds > 1:
            runs = runs.and_more(
                run_loop(model, scheme, (seeds - 1) * model.images, seed, model.images, max_nodes, chains)
            )
        runs = runs.pooled(model.images)
        times = prices.times(scheme, runs)
        tokens = tokens_per_cycle(runs)
        alone = tokens_per_cycle(once).half_width * sqrt(model.images / len(comparison.prompts))
        predictions.append(
            Predicted(
                name,
                tokens,
                float(row["tokens_per_cycle"]),
                hypot(tokens.half_width, alone),
                mean_depth(runs).mean,
                float(row["mean_depth"]),
                times_faster(runs, times.total, prices.plain_ms),
                float(row["speedup"]),
                float(times.host.sum() / runs.cycles.sum()),
                _parts(times, prices.plain_ms, runs.decodings),
                measured_parts(row, trace.grid.cells),
            )
        )
    return tuple(predictions)


def _parts(times: ImageTimes, plain_ms: float, decodings: int) -> dict[str, float]:
    """Mean time of an image, by part, in units of plain steps."""
    by_name = {"target": times.target, "drafter": times.drafter, "host": times.host}
    return {name: float(ms.mean()) / decodings / plain_ms for name, ms in by_name.items()}


def measured_parts(row: Mapping[str, Any], cells: int) -> dict[str, float]:
    """The measured time of an image, as in `_parts`; empty if the row has no shares. A resampler counts as drafting."""
    steps, shares = cells / float(row["speedup"]), {name: row.get(f"{name}_share") for name in _SHARES}
    if None in shares.values():
        return {}
    times = {name: float(share) * steps for name, share in shares.items() if share is not None}
    return {
        "target": times["target"],
        "drafter": times["drafter"] + times["resampler"],
        "host": times["overhead"],
    }


def predictable(
    comparison: Comparison, trace: Trace, methods: Sequence[str] | None, curve: CostCurveFile
) -> tuple[str, ...]:
    """The requested methods, or all that can be predicted. ValueError if one is unknown or cannot be predicted."""
    reasons = unpredictable(comparison, trace, curve)
    if methods is None:
        return tuple(name for name in comparison.methods if name != PLAIN and name not in reasons)
    for name in methods:
        if name == PLAIN or name not in comparison.methods:
            others = tuple(other for other in comparison.methods if other != PLAIN)
            raise ValueError(f"the comparison holds no method '{name}' to predict; {suggest(name, others)}")
        if name in reasons:
            raise ValueError(f"'{name}' cannot be predicted: {reasons[name]}")
    return tuple(methods)


def unpredictable(comparison: Comparison, trace: Trace, curve: CostCurveFile) -> Mapping[str, str]:
    """Map each method of a comparison that the trace or the curve cannot predict to the reason."""
    reasons = {name: _reason(name, recipe, trace, curve) for name, recipe in comparison.methods.items()}
    return {name: reason for name, reason in reasons.items() if reason}


def not_replayed(recipe: Mapping[str, Any]) -> str:
    """The reason why a method with these settings cannot be replayed from plain autoregression; empty if it can be.

    Such a method is predicted from images that it drew, `Trace.drawn`.
    """
    if "skipping" in recipe:
        return "some of its cycles are not verified, and what the target says behind those tokens is in no trace"
    if "window" in recipe and recipe["policy_settings"].get("windows", 1):
        return "its Jacobi windows read the target behind tokens that no trace holds; windows=0 leaves them out"
    if "drawn" in recipe and recipe["policy_settings"].get("siblings", 1):
        return "no replay draws siblings beside trees of likeliest tokens; siblings=0 leaves them out"
    loop = recipe.get("loop")
    if "policy" not in recipe and loop not in ("zipar", "mulo"):
        return f"no replay has its loop, '{loop}'"
    if loop is not None and recipe.get("settings", {}).get("adaptive"):
        return "its adaptive window tests distributions that change as a row above grows, which no trace holds"
    return ""


def _drawings_of(trace: Trace, recipe: Mapping[str, Any]) -> DrawnTrace | None:
    return next((drawn_trace for drawn_trace in trace.drawn if drawn_trace.is_by(recipe)), None)


def _reason(name: str, recipe: Mapping[str, Any], trace: Trace, curve: CostCurveFile) -> str:
    """The reason why a method cannot be predicted; empty if it can be."""
    if name == PLAIN:
        return ""
    reason = not_replayed(recipe)
    if reason:
        drawn_trace = _drawings_of(trace, recipe)
        if drawn_trace is not None:
            return missing_costs(drawn_trace, curve)
        return (
            f"{reason}; record what it draws with `underpaint trace --methods {name.partition(' ')[0]}` and the "
            "comparison's own --set"
        )
    if "policy" in recipe:
        return ""
    loop, settings = recipe.get("loop"), recipe.get("settings", {})
    if loop == "mulo" and rows_for(trace, settings) is None:
        by = ", ".join(f"{setting} {value}" for setting, value in drafting(settings).items())
        return (
            f"the trace holds no rows drafted by its settings ({by}); record them with `underpaint trace --methods "
            f"{name}` and the comparison's own --set"
        )
    if curve.in_grid is None:
        return (
            f"{curve.name}.json holds no {IN_GRID}, what passes over cells cost; measure a whole curve with "
            "`underpaint costs --full`"
        )
    return ""


def _drawn(name: str, comparison: Comparison, trace: Trace, curve: CostCurveFile) -> Predicted:
    """Predict a method that cannot be replayed, from images that it drew."""
    recipe, row, cells = comparison.methods[name], comparison.rows[name], trace.grid.cells
    drawn_trace = _drawings_of(trace, recipe)
    assert drawn_trace is not None
    times, plain_ms = drawn_times(drawn_trace, curve, cells), run_times(curve).plain_ms
    whole = np.full(drawn_trace.images, cells)
    by_cycles, passes = bool(drawn_trace.cycles.any()), drawn_trace.passes
    per = drawn_trace.cycles if by_cycles else passes
    tokens = ratio(whole - int(by_cycles), per)
    measured = row["tokens_per_cycle"] if by_cycles else cells / float(row["target_nfe"])
    depth = row["mean_depth"] if by_cycles else 0.0
    return Predicted(
        name,
        tokens,
        float(measured),
        tokens.half_width * sqrt(1.0 + drawn_trace.images / len(comparison.prompts)),
        float(drawn_trace.levels.sum() / per.sum()),
        float(depth),
        ratio(whole * plain_ms, times.total),
        float(row["speedup"]),
        float(times.host.sum() / per.sum()),
        _parts(times, plain_ms, 1),
        measured_parts(row, cells),
    )


def _rows(
    name: str, comparison: Comparison, trace: Trace, costs: InGridCosts, plain_ms: float, seeds: int, seed: int
) -> Predicted:
    """Predict MuLo-SD."""
    settings, row = comparison.methods[name]["settings"], comparison.rows[name]
    drafted = rows_for(trace, settings)
    assert drafted is not None
    runs = run_rows(trace, drafted, settings, seeds, seed)
    passes, low_passes = runs.target.passes, runs.low.counts.passes
    cells, times = np.full(passes.size, runs.decodings * trace.grid.cells), runs.times(costs)
    tokens = ratio(cells, passes)
    nfe, low_nfe = float(row["target_nfe"]), float(row["drafter_nfe"])
    return Predicted(
        name,
        tokens,
        trace.grid.cells / nfe,
        tokens.half_width * sqrt(1.0 + cells.size / len(comparison.prompts)),
        float(low_passes.sum() / passes.sum()),
        low_nfe / nfe,
        ratio(cells * plain_ms, times.total),
        float(row["speedup"]),
        float(times.host.sum() / passes.sum()),
        _parts(times, plain_ms, runs.decodings),
        measured_parts(row, trace.grid.cells),
    )


def _fronts(
    name: str, comparison: Comparison, trace: Trace, costs: InGridCosts, plain_ms: float, seeds: int, seed: int
) -> Predicted:
    """Predict ZipAR with a fixed window; its number of passes does not depend on the noise."""
    grid, row = trace.grid, comparison.rows[name]
    window = comparison.methods[name]["settings"]["window"]
    counts = row_fronts(grid, grid.width if window is None else window)
    times, passes = grid_times(costs, counts), int(counts.passes[0])
    tokens, gain = (Estimate(*(value,) * 3) for value in (grid.cells / passes, grid.cells * plain_ms / times.total[0]))
    measured, host_ms = grid.cells / float(row["target_nfe"]), float(times.host[0]) / passes
    parts = _parts(times, plain_ms, 1), measured_parts(row, grid.cells)
    return Predicted(name, tokens, measured, 0.0, 0.0, 0.0, gain, float(row["speedup"]), host_ms, *parts)
