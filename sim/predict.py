"""What a comparison should have measured: from a trace of plain decoding and a cost curve, on other prompts."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import hypot, sqrt
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from algos.arrays import FloatArray
from sim.cycle_costs import CycleCosts
from sim.fast import Scheme, make_scheme, run_loop
from sim.latency import MeasuredCosts
from sim.overhead import overhead_ms
from sim.predict_fronts import row_fronts
from sim.prices import InCyclePrices
from sim.statistics import Estimate, Runs, mean_depth, times_faster, tokens_per_cycle
from sim.table_world import TableWorld
from sim.trace import Trace, replay

PLAIN = "ar"
TOKENS_TOLERANCE = 0.05
SPEEDUP_TOLERANCE = 0.15


class Comparison(NamedTuple):
    """What a comparison's JSON says. methods: recipes by name; rows: measured figures by name."""

    methods: Mapping[str, Mapping[str, Any]]
    rows: Mapping[str, Mapping[str, Any]]
    prompts: frozenset[str]
    sampler: Mapping[str, Any]
    model: Mapping[str, Any]


class Predicted(NamedTuple):
    """One method. measured_*: of the comparison; errors are predicted / measured - 1.

    A cycle is a draft and a target pass; where nothing is drafted (ZipAR), it is a target pass, at depth 0.
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
        """Of the tokens per cycle."""
        return self.tokens_per_cycle.mean / self.measured_tokens_per_cycle - 1.0

    @property
    def speedup_error(self) -> float:
        """Of the speed-up."""
        return self.speedup.mean / self.measured_speedup - 1.0


def load_comparison(path: Path) -> Comparison:
    """The JSON of `underpaint compare`; ValueError where it is something else, OSError where there is none."""
    try:
        held = json.loads(path.read_text(encoding="utf-8"))
        settings = held["settings"]
        sampler = {name: settings[name] for name in ("guidance", "temperature", "top_k", "top_p")}
        rows = {row["method"]: row for row in held["rows"]}
        methods = {name: settings["methods"][name] for name in rows}
        for method, row in rows.items():
            drafting = ("tokens_per_cycle", "mean_depth") if "policy" in methods[method] else ()
            for name in ("target_nfe", "speedup", *drafting):
                float(row[name])
        return Comparison(methods, rows, frozenset(settings["prompts"]), sampler, held["model"])
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is no comparison ({error!r}); write one with `underpaint compare --json`") from error


def check_belong(trace: Trace, comparison: Comparison) -> None:
    """Raise ValueError unless both are of one model and sampler, and of different prompts."""
    about = trace.about
    model = about.get("model", {})
    for what in ("target", "drafter", "grid"):
        ours, theirs = model.get(what), comparison.model.get(what)
        if ours != theirs:
            raise ValueError(
                f"the trace is of another model than the comparison ({what}: {ours} and {theirs}); record one with "
                "`underpaint trace` at the comparison's resolution"
            )
    # A comparison may have opened more models than a trace: only those of the trace have to be the same.
    hashes, theirs = model.get("sha256", {}), comparison.model.get("sha256", {})
    differ = sorted(name for name, held in hashes.items() if held != theirs.get(name))
    if differ:
        raise ValueError(
            f"the trace is of another model than the comparison (another training of {', '.join(differ)}); record both "
            "again with the same models"
        )
    if about.get("sampler") != dict(comparison.sampler):
        raise ValueError(
            f"the trace was sampled with {about.get('sampler')}, the comparison with {dict(comparison.sampler)}; "
            "record a trace with the same options"
        )
    common = sorted(comparison.prompts & set(about.get("prompts", ())))
    if common:
        raise ValueError(f"the trace holds prompts of the comparison ({common[0]!r}, ...); record it on other prompts")


def check_curve(path: Path, comparison: Comparison) -> None:
    """Raise ValueError if the curve names other models than the comparison, or rows a pass unlike its guidance."""
    held = json.loads(path.read_text(encoding="utf-8")).get("model", {})
    guided = 2 if comparison.sampler["guidance"] != 1.0 else 1
    compared = {**{name: comparison.model.get(name) for name in ("target", "drafter")}, "rows": guided}
    for what, theirs in compared.items():
        if None not in (held.get(what), theirs) and held[what] != theirs:
            raise ValueError(
                f"{path} is the curve of another model than the comparison's ({what}: {held[what]} and {theirs}); "
                "measure one with benchmarks/cost_curve.py --target --drafter --guidance"
            )


def predict(
    trace: Trace,
    costs: MeasuredCosts,
    comparison: Comparison,
    seeds: int = 1,
    seed: int = 0,
    max_nodes: int = 64,
    in_cycle: CycleCosts | None = None,
) -> tuple[Predicted, ...]:
    """The methods of a comparison that `predictable` names; trees by the decoding loop over the replayed trace.

    seeds: decodings of each recorded image. in_cycle: costs measured inside cycles, which `costs` gives way to but for
    ZipAR. Without them the host's share of a cycle is timed here, on the machine that predicts, so that is the machine
    that the cost curve and the comparison should be of; a curve that holds an overhead keeps it.
    Raises ValueError where trace and comparison do not belong together.
    """
    check_belong(trace, comparison)
    world = replay(trace)
    price = _Repeated(world, costs, max_nodes) if in_cycle is None else _Within(InCyclePrices(in_cycle))
    plain_ms = price.plain_ms
    found = []
    for name in predictable(comparison):
        if "policy" not in comparison.methods[name]:
            found.append(_fronts(name, comparison, world, costs, plain_ms))
            continue
        recipe, row = comparison.methods[name], comparison.rows[name]
        parts = (recipe["policy_settings"], recipe["rule_settings"])
        scheme = make_scheme(world, recipe["policy"], recipe["rule"], *parts)
        chains = in_cycle is not None and in_cycle.chains
        once = run_loop(world, scheme, world.images, seed, 0, max_nodes, chains)
        runs = once
        if seeds > 1:
            runs = runs.and_more(
                run_loop(world, scheme, (seeds - 1) * world.images, seed, world.images, max_nodes, chains)
            )
        runs = runs.pooled(world.images)
        image_ms, host_ms = price(scheme, runs)
        tokens = tokens_per_cycle(runs)
        alone = tokens_per_cycle(once).half_width * sqrt(world.images / len(comparison.prompts))
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
    """Prices of passes and host as they are inside cycles."""

    prices: InCyclePrices

    @property
    def plain_ms(self) -> float:
        return self.prices.plain_ms

    def __call__(self, scheme: Scheme, runs: Runs) -> _Priced:
        return _Priced(self.prices.image_ms(scheme, runs), self.prices.host_ms(scheme, runs))


@dataclass(frozen=True, slots=True)
class _Repeated:
    """Prices of passes repeated alone; the host's share is the curve's, or is timed here."""

    world: TableWorld
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
        images = min(images, self.world.images)
        return overhead_ms(self.world, scheme, images, self.max_nodes) if timed else self.costs.overhead_ms


def predictable(comparison: Comparison) -> Sequence[str]:
    """Those of a comparison that a trace of target and drafter says all about: draft trees, and ZipAR's fixed window.

    Not plain autoregression, which they are measured against, nor what another model drafts.
    """
    return [name for name, recipe in comparison.methods.items() if name != PLAIN and _is_known(recipe)]


def _is_known(recipe: Mapping[str, Any]) -> bool:
    if "policy" in recipe:
        return True
    return recipe.get("loop") == "zipar" and not recipe["settings"]["adaptive"]


def _fronts(name: str, comparison: Comparison, world: TableWorld, costs: MeasuredCosts, one_ms: float) -> Predicted:
    """ZipAR with a fixed window; `one_ms`: a plain step."""
    grid, row = world.grid, comparison.rows[name]
    window = comparison.methods[name]["settings"]["window"]
    fronts = row_fronts(grid, world.vocab_size, grid.width if window is None else window)
    own = costs.overhead_ms or fronts.overhead_ms
    tokens = grid.cells / fronts.passes.size
    gain = grid.cells * one_ms / float(costs.verify_ms(fronts.passes).sum() + fronts.passes.size * own)
    exact = (Estimate(*(value,) * 3) for value in (tokens, gain))
    measured = grid.cells / float(row["target_nfe"])
    return Predicted(name, next(exact), measured, 0.0, 0.0, 0.0, next(exact), float(row["speedup"]), own)
