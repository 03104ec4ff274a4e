"""What a comparison should have measured: from a trace of plain decoding and a cost curve, on other prompts."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from algos.arrays import FloatArray, IntArray
from algos.chance import sampling
from algos.draft.spec import Grid
from algos.step import Scored, decode
from algos.tree import DraftTree, Verdict
from sim.fast import Scheme, make_scheme, run_loop
from sim.latency import MeasuredCosts
from sim.predict_fronts import row_fronts
from sim.statistics import Estimate, mean_depth, speedup, tokens_per_cycle
from sim.table_world import TableDrafter, TableTarget, TableWorld
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
    """

    method: str
    tokens_per_cycle: Estimate
    measured_tokens_per_cycle: float
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
    # A comparison may have opened more models than a trace: only those of the trace have to be the same.
    hashes = model.get("sha256", {})
    same = {name: comparison.model.get("sha256", {}).get(name) for name in hashes}
    for what, ours, theirs in (
        *((name, model.get(name), comparison.model.get(name)) for name in ("target", "drafter", "grid")),
        ("sha256", hashes, same),
    ):
        if ours != theirs:
            raise ValueError(
                f"the trace is of another model than the comparison ({what}: {ours} and {theirs}); record one with "
                "`underpaint trace` at the comparison's resolution"
            )
    if about.get("sampler") != dict(comparison.sampler):
        raise ValueError(
            f"the trace was sampled with {about.get('sampler')}, the comparison with {dict(comparison.sampler)}; "
            "record a trace with the same options"
        )
    common = sorted(comparison.prompts & set(about.get("prompts", ())))
    if common:
        raise ValueError(f"the trace holds prompts of the comparison ({common[0]!r}, ...); record it on other prompts")


@dataclass(slots=True)
class _Watch:
    """Seconds spent inside the models."""

    seconds: float = 0.0


@dataclass(slots=True)
class _WatchedTarget:
    target: TableTarget
    watch: _Watch
    vocab_size: int = field(init=False)
    grid: Grid = field(init=False)

    def __post_init__(self) -> None:
        self.vocab_size, self.grid = self.target.vocab_size, self.target.grid

    def begin(self) -> Scored:
        started = perf_counter()
        scored = self.target.begin()
        self.watch.seconds += perf_counter() - started
        return scored

    def score(self, tree: DraftTree) -> Scored:
        started = perf_counter()
        scored = self.target.score(tree)
        self.watch.seconds += perf_counter() - started
        return scored

    def commit(self, tree: DraftTree, verdict: Verdict) -> None:
        started = perf_counter()
        self.target.commit(tree, verdict)
        self.watch.seconds += perf_counter() - started


@dataclass(slots=True)
class _WatchedDrafter:
    drafter: TableDrafter
    watch: _Watch
    vocab_size: int = field(init=False)

    def __post_init__(self) -> None:
        self.vocab_size = self.drafter.vocab_size

    def begin(self, scored: Scored) -> None:
        started = perf_counter()
        self.drafter.begin(scored)
        self.watch.seconds += perf_counter() - started

    def expand(self, tokens: IntArray, parents: IntArray) -> FloatArray:
        started = perf_counter()
        laws = self.drafter.expand(tokens, parents)
        self.watch.seconds += perf_counter() - started
        return laws

    def commit(self, tree: DraftTree, verdict: Verdict, scored: Scored) -> None:
        started = perf_counter()
        self.drafter.commit(tree, verdict, scored)
        self.watch.seconds += perf_counter() - started


def overhead_ms(world: TableWorld, scheme: Scheme | None, images: int, max_nodes: int) -> float:
    """What a cycle of the loop, the policy and the rule takes on this machine, the models' share left out.

    scheme: None for plain autoregression.
    """
    watch, cycles, started = _Watch(), 0, perf_counter()
    plain = scheme or make_scheme(world, "chain", "chain")
    for image in range(images):
        target, drafter = _WatchedTarget(TableTarget(world, image), watch), None
        if scheme is not None:
            drafter = _WatchedDrafter(TableDrafter(world, image), watch)
        decoded = decode(target, drafter, plain.policy, plain.rule, sampling(0, image), max_nodes)
        cycles += len(decoded.cycles)
    return 1e3 * (perf_counter() - started - watch.seconds) / cycles


def predict(
    trace: Trace, costs: MeasuredCosts, comparison: Comparison, seeds: int = 1, seed: int = 0, max_nodes: int = 64
) -> tuple[Predicted, ...]:
    """The methods of a comparison that `predictable` names; trees by the decoding loop over the replayed trace.

    seeds: decodings of each recorded image. The host's share of a cycle is timed here, on the machine that predicts, so
    that is the machine that the cost curve and the comparison should be of; a curve that holds an overhead keeps it.
    Raises ValueError where trace and comparison do not belong together.
    """
    check_belong(trace, comparison)
    world = replay(trace)
    images = world.images * seeds
    plain_ms = costs.overhead_ms or overhead_ms(world, None, min(2, world.images), max_nodes)
    one = float(costs.verify_ms(np.array([1]))[0]) + plain_ms
    found = []
    for name in predictable(comparison):
        if "policy" not in comparison.methods[name]:
            found.append(_fronts(name, comparison, world, costs, one))
            continue
        recipe, row = comparison.methods[name], comparison.rows[name]
        parts = (recipe["policy_settings"], recipe["rule_settings"])
        scheme = make_scheme(world, recipe["policy"], recipe["rule"], *parts)
        runs = run_loop(world, scheme, images, seed, max_nodes=max_nodes)
        own = costs.overhead_ms or overhead_ms(world, scheme, min(4, world.images), max_nodes)
        priced = dataclasses.replace(costs, overhead_ms=own)
        factor = one / (float(costs.verify_ms(np.array([1]))[0]) + own)
        gain = Estimate(*(factor * part for part in speedup(runs, priced)))
        found.append(
            Predicted(
                name,
                tokens_per_cycle(runs),
                float(row["tokens_per_cycle"]),
                mean_depth(runs).mean,
                float(row["mean_depth"]),
                gain,
                float(row["speedup"]),
                own,
            )
        )
    return tuple(found)


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
    return Predicted(name, next(exact), measured, 0.0, 0.0, next(exact), float(row["speedup"]), own)
