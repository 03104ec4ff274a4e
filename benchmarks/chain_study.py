"""Does `roofline` beat ADT-Tree where the drafter drafts a chain in one call? Simulated at costs met inside cycles.

Run: python -m benchmarks.chain_study [--costs FILE] [--images 12] [--jobs 2] [--out FILE] [TRACE ...]

Models are those of `roofline_study`, or recorded traces (`underpaint trace`). The chain and ADT-Tree are tuned in
hindsight on the very images that are reported; ADT-Tree's trees are chains, as shipped, drafted in one call each.
`roofline` has its defaults. "without calls" is roofline without the cost of chains. A plain step, a chain in one call
and a level of a tree each cost what they did inside decoding loops, the host's share included. The last line is JSON.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.report import at_least, finish, options, parse, refusing
from benchmarks.roofline_study import CURVE, SYNTHETIC_MODELS
from underpaint.algos.arrays import FloatArray
from underpaint.algos.draft import POLICIES
from underpaint.artifacts.cost_curve import read_engine_costs
from underpaint.artifacts.workers import local_workers, usable_cores
from underpaint.sim.batched.decoding import make_scheme, run_loop
from underpaint.sim.latency.run_times import InCycleTimes, run_times_of
from underpaint.sim.replay.trace import load, replay
from underpaint.sim.report.statistics import Estimate, Runs, mean_depth, ratio, times_faster, tokens_per_cycle
from underpaint.sim.synthetic.field import make_synthetic_model
from underpaint.sim.synthetic.table_model import TableModel

MOST_NODES: Final = 64
CHAINS: Final = {"start_depth": 4, "max_depth": 12, "start_width": 1, "max_width": 1, "total_tokens": 12}
RIVALS: Final[Mapping[str, list[tuple[str, Mapping[str, Any]]]]] = {
    "chain": [("chain_top1", {"length": length}) for length in (1, 2, 3, 4, 6, 8)],
    "adt": [("adt", {**CHAINS, "beta": beta}) for beta in (0.35, 0.5, 0.7, 0.9)],
}


@dataclass(frozen=True, slots=True)
class Task:
    """One policy on one synthetic model. place: a model of `roofline_study`, or the path of a trace."""

    place: str
    method: str
    policy: str
    settings: Mapping[str, Any]
    costs: Path
    images: int


@dataclass(frozen=True, slots=True)
class Ran:
    """What came of it. image_ms: [I]."""

    task: Task
    runs: Runs
    image_ms: FloatArray
    plain_ms: float

    def speedup(self) -> Estimate:
        return times_faster(self.runs, self.image_ms, self.plain_ms)


def prices_at(path: Path) -> InCycleTimes:
    """ValueError where a curve holds nothing met inside cycles, or nothing of chains."""
    found = run_times_of(str(path))
    if not isinstance(found, InCycleTimes) or not found.fuses_chains:
        raise ValueError(
            f"{path}: expected costs in_cycle, with chain_ms; write them with `underpaint costs --full --export FILE`"
        )
    return found


def model_at(place: str) -> tuple[TableModel, str]:
    """The model, and the exact rule for trees of likeliest tokens at its temperature."""
    if place in SYNTHETIC_MODELS:
        kind, settings = SYNTHETIC_MODELS[place]
        return make_synthetic_model(kind, {**settings, "seed": 0}), "point"
    trace = load(Path(place))
    return replay(trace), "point" if trace.about["sampler"]["temperature"] else "greedy"


def work(task: Task) -> Ran:
    model, rule = model_at(task.place)
    scheme, prices = make_scheme(model, task.policy, rule, task.settings), prices_at(task.costs)
    runs = run_loop(model, scheme, task.images, 0, max_nodes=MOST_NODES, chains=True)
    return Ran(task, runs, prices.image_ms(scheme, runs), prices.plain_ms)


def tasks(places: Sequence[str], costs: Path, images: int) -> list[Task]:
    own = dict(read_engine_costs(costs).settings_for(POLICIES["roofline"]))
    asked = [(method, *one) for method, members in RIVALS.items() for one in members]
    asked += [("roofline", "roofline", own), ("without calls", "roofline", {**own, "chain_ms": None})]
    return [Task(place, *one, costs, images) for place in places for one in asked]


def row(place: str, ran: Sequence[Ran]) -> dict[str, Any]:
    best = {one.task.method: one for one in sorted(ran, key=lambda one: one.speedup().mean)}
    over = {name: ratio(best[name].image_ms, best["roofline"].image_ms) for name in (*RIVALS, "without calls")}
    found: dict[str, Any] = {
        "place": Path(place).stem,
        "methods": {
            name: {
                "speedup": [round(part, 4) for part in one.speedup()],
                "tokens_per_cycle": round(tokens_per_cycle(one.runs).mean, 4),
                "depth": round(mean_depth(one.runs).mean, 3),
                "calls_share": round(float(one.runs.chained.sum() / one.runs.cycles.sum()), 4),
                "plain_share": round(float((one.runs.verify[:, 1] - 1).sum() / one.runs.cycles.sum()), 4),
                "settings": dict(one.task.settings) if name in RIVALS else {},
            }
            for name, one in best.items()
        },
        "roofline_over": {name: [round(part, 4) for part in gain] for name, gain in over.items()},
    }
    shown = "  ".join(f"{name} {one.speedup().mean:.3f}" for name, one in best.items())
    low, high = found["roofline_over"]["adt"][1:]
    print(f"{found['place']} | {shown} | roofline over adt {over['adt'].mean:.3f} ({low:.3f} to {high:.3f})")
    return found


def main(arguments: list[str] | None = None) -> None:
    parser = options("chain_study", __doc__)
    parser.add_argument("traces", nargs="*", metavar="TRACE", help="recorded traces; default: the models")
    parser.add_argument("--costs", type=Path, default=CURVE, help="a curve that holds in_cycle")
    parser.add_argument("--images", type=at_least(2), default=12, help="images of each model")
    parser.add_argument("--jobs", type=at_least(1), default=usable_cores(), help="processes")
    asked = parse(parser, arguments)
    places = asked.traces or list(SYNTHETIC_MODELS)
    with refusing(parser):
        prices_at(asked.costs)
        for place in places:
            model_at(place)
    ran = list(local_workers(work, asked.jobs).run(tasks(places, asked.costs, asked.images)))
    rows = [row(place, [one for one in ran if one.task.place == place]) for place in places]
    finish({"benchmark": "chain_study", "images": asked.images, "costs": asked.costs.name, "rows": rows}, asked.out)


if __name__ == "__main__":
    main()
