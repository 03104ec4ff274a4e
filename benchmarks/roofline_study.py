"""Does choosing each draft tree by what it costs beat ADT-Tree's rule of thumb? Simulated on models and machines.

Run: python -m benchmarks.roofline_study [--seeds 3] [--images 12] [--rules point,lantern] [--jobs 2] [--out FILE]

Every rival is tuned in hindsight: of its grid of settings, the one of the highest speed-up on the very images that are
reported, for each model, rule and machine by itself. `roofline` runs with its default settings everywhere; all that it
is given is the machine's cost curve. ADT-Tree runs once more with as many nodes as roofline used on average ("adt,
equal nodes"). Times are modelled by the machine's costs: the shipped models' measured curve, and rooflines. Synthetic
models of several seeds differ in their distributions; all methods draw the same images of them. "sampled" trees keep
the draft distribution and
need another rule than trees of likeliest tokens: they stand beside the others, not among them. Under the exact rule
`roofline` runs with each of its parts left out too ("with replacement" is "no windows" with siblings drawn so), and a
Jacobi window alone beside it. The last line is JSON.
"""

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from benchmarks.report import at_least, finish, options, parse
from underpaint.algos.memory import usable_cores
from underpaint.artifacts.workers import local_workers
from underpaint.runtime.methods.registry import resolve
from underpaint.runtime.methods.trees.beside import DrawnSettings, window_plan
from underpaint.sim.batched.decoding import AlternativeDrafts, make_rule, make_scheme, run_lockstep, run_loop
from underpaint.sim.latency.models import Costs, SizeMissing
from underpaint.sim.latency.run_times import latency_model_of
from underpaint.sim.report.statistics import Estimate, Runs, mean_depth, ratio, speedup, tokens_per_cycle
from underpaint.sim.synthetic.field import make_synthetic_model
from underpaint.sim.synthetic.table_model import TableModel
from underpaint.sim.synthetic.windows import WindowRecipe, WindowScheme, make_window_scheme, run_windows

CURVE: Final = Path(__file__).with_name("costs128.json")
"""Measured on two cores of an Intel Xeon: a machine beside others, in which any curve would do."""
MACHINES: Final = (str(CURVE), "a100/llamagen-xl", "h100/llamagen-xl")
LARGEST: Final = 64
NEAR: Final = {"noise": 0.3, "context_loss": 0.1}
FAR: Final = {"noise": 1.0, "context_loss": 0.3, "drift": 0.15, "depth_known": 6}
KINDS: Final[Mapping[str, tuple[str, Mapping[str, float]]]] = {
    "sharp": ("sharp", {"sharpness": 14.0, "texture": 1.5}),
    "flat": ("flat", {"sharpness": 2.0}),
    "mixed": ("patchy", {"sharpness": 10.0, "contrast": 40.0, "texture": 1.5}),
}
SYNTHETIC_MODELS: Final = {
    f"{kind}, drafter {how}": (name, {**settings, **drafter})
    for kind, (name, settings) in KINDS.items()
    for how, drafter in (("near", NEAR), ("far", FAR))
}
RULES: Final[Mapping[str, Mapping[str, Any]]] = {"point": {}, "lantern": {"k": 8, "delta": 0.2}}

Settings = Mapping[str, Any]
PARTS: Final = {
    "roofline": ("windows", "siblings"),
    "no windows": ("siblings",),
    "with replacement": ("siblings", "replacement"),
    "no siblings": ("windows",),
    "points only": (),
}
"""What `roofline` may draft beside trees of likeliest tokens, under the exact rule; elsewhere nothing."""
ROOFLINES: Final = frozenset(PARTS)
WINDOW: Final = "jacobi-lookup"
WINDOWS: Final = [{"window": length} for length in (7, 14, 28, 56)]


def _grid(**axes: Sequence[Any]) -> list[Settings]:
    return [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]


_SIZES: Final = ((2, 3), (2, 6), (4, 15), (8, 59), (16, 59))
_WIDTHS: Final = ((2,), (4,), (2, 1), (2, 2, 1), (2, 2, 1, 1), (3, 4, 3, 2), (8, 16, 14, 11, 8), (32, 16, 8), (59,))
RIVALS: Final[Mapping[str, list[tuple[str, Settings]]]] = {
    "chain": [("chain_top1", {"length": length}) for length in (1, 2, 3, 4, 6)],
    "static tree": [("static_top_k", {"widths": widths}) for widths in _WIDTHS],
    "eagle2": [
        ("eagle2", {"depth": depth, "top_k": width, "total_tokens": total})
        for depth in (1, 2, 3, 4, 6)
        for width, total in _SIZES
    ],
    "adt": [
        ("adt", {"beta": beta, "start_width": width, "max_width": width + 2, "total_tokens": total})
        for beta in (0.2, 0.35, 0.5, 0.7)
        for width, total in ((1, 3), *_SIZES)
    ],
    "sampled": [
        *(("chain", {"length": length}) for length in (1, 2, 3, 4, 6)),
        *(("eagle1", {"widths": widths}) for widths in _WIDTHS),
    ],
}
SAMPLED_RULE: Final = {
    ("point", "chain"): "chain",
    ("point", "eagle1"): "without_replacement",
    ("lantern", "chain"): "lantern",
    ("lantern", "eagle1"): "lantern",
}


@dataclass(frozen=True, slots=True)
class Task:
    """One scheme in the models of all seeds. machine: whose costs its settings are for; "" where for any."""

    model: str
    rule: str
    method: str
    policy: str
    settings: str
    machine: str
    seeds: int
    images: int
    beside: tuple[str, ...] = ()


class Ran(NamedTuple):
    task: Task
    runs: Runs


def largest(costs: Costs) -> int:
    """Nodes of the largest tree that a latency model answers for, LARGEST at most."""
    for nodes in range(LARGEST, 1, -1):
        try:
            costs.verify_ms(np.array([nodes]))
        except SizeMissing:
            continue
        return nodes
    return 1


def curve_settings(costs: Costs) -> Settings:
    """What `roofline` is told of a machine."""
    nodes = np.unique(np.geomspace(1, largest(costs), 24).round().astype(int))
    expanded = np.array([1, 2, 4, 8, 16])
    verify = costs.verify_ms(nodes) + costs.overhead_ms
    return {
        "verify_ms": tuple(zip(nodes.tolist(), verify.tolist(), strict=True)),
        "draft_ms": tuple(zip(expanded.tolist(), costs.draft_ms(expanded).tolist(), strict=True)),
    }


def models_of(name: str, seeds: int) -> Iterator[tuple[int, TableModel]]:
    kind, settings = SYNTHETIC_MODELS[name]
    for seed in range(seeds):
        yield seed, make_synthetic_model(kind, {**settings, "seed": seed})


def window_of(task: Task, model: TableModel) -> WindowScheme:
    """`jacobi-lookup` with a window of the task's length."""
    recorded = resolve(WINDOW, 1.0, settings=[f"window={json.loads(task.settings)['window']}"])
    return make_window_scheme(model, WindowRecipe.of(WINDOW, recorded.to_dict()))


def beside_of(task: Task, model: TableModel) -> AlternativeDrafts | None:
    """A window as `jacobi-lookup`'s, and rules for drawn siblings, as the method `roofline` has them."""
    if not task.beside:
        return None
    plan = window_plan({}, "point", make_rule(model, "point", {}))
    drawn = DrawnSettings("multi_round") if "replacement" in task.beside else DrawnSettings()
    return AlternativeDrafts(plan.window, plan.rule, drawn.rules() if "siblings" in task.beside else {})


def work(task: Task) -> Ran:
    rule = SAMPLED_RULE.get((task.rule, task.policy), task.rule)
    runs: Runs | None = None
    for seed, model in models_of(task.model, task.seeds):
        if task.method == WINDOW:
            more = run_windows(window_of(task, model), task.images, seed)
            runs = more if runs is None else runs.and_more(more)
            continue
        scheme = make_scheme(model, task.policy, rule, json.loads(task.settings), RULES.get(rule))
        if scheme.vectorised:
            more = run_lockstep(model, scheme, task.images, seed).runs
        else:
            most = largest(latency_model_of(task.machine)) if task.machine else LARGEST
            more = run_loop(model, scheme, task.images, seed, max_nodes=most, beside=beside_of(task, model))
        runs = more if runs is None else runs.and_more(more)
    assert runs is not None
    return Ran(task, runs)


def first_tasks(rules: Sequence[str], models: Sequence[str], seeds: int, images: int) -> list[Task]:
    """All rivals in all their settings, and roofline on every machine."""
    found = []
    for model, rule in itertools.product(models, rules):
        for method, grid in RIVALS.items():
            found += [Task(model, rule, method, policy, json.dumps(own), "", seeds, images) for policy, own in grid]
        if rule == "point":
            found += [Task(model, rule, WINDOW, WINDOW, json.dumps(own), "", seeds, images) for own in WINDOWS]
        for machine, (name, beside) in itertools.product(MACHINES, PARTS.items()):
            if rule != "point" and name != "roofline":
                continue
            own = dict(curve_settings(latency_model_of(machine)))
            own |= ({} if "windows" in beside else {"windows": 0}) | {"with_replacement": "replacement" in beside}
            beside = beside if rule == "point" else ()
            found.append(Task(model, rule, name, "roofline", json.dumps(own), machine, seeds, images, beside))
    return found


def nodes_of(runs: Runs) -> float:
    return ratio(runs.verify @ np.arange(runs.verify.shape[1]), runs.verify.sum(axis=1)).mean


def best_of(members: Sequence[Ran], costs: Costs) -> Ran | None:
    """The fastest on a machine, of those whose trees it answers for."""
    priced = []
    for place, one in enumerate(members):
        try:
            priced.append((speedup(one.runs, costs).mean, -place))
        except SizeMissing:
            continue
    return members[-max(priced)[1]] if priced else None


def chosen(ran: Sequence[Ran], model: str, rule: str, machine: str) -> dict[str, Ran]:
    """For each method its best settings on a machine."""
    costs, found = latency_model_of(machine), {}
    here = [one for one in ran if (one.task.model, one.task.rule) == (model, rule)]
    for method in dict.fromkeys(one.task.method for one in here):
        members = [one for one in here if one.task.method == method and one.task.machine in ("", machine)]
        best = best_of(members, costs)
        if best is not None:
            found[method] = best
    return found


def equal_nodes(ran: Sequence[Ran]) -> list[Task]:
    """ADT-Tree as tuned, but with the nodes that roofline used on average."""
    found = []
    for model, rule, machine in places(ran):
        best = chosen(ran, model, rule, machine)
        drafted = max(1, round(nodes_of(best["roofline"].runs) - 1.0))
        own = json.dumps({**json.loads(best["adt"].task.settings), "total_tokens": drafted})
        task = best["adt"].task
        found.append(Task(model, rule, "adt, equal nodes", "adt", own, machine, task.seeds, task.images))
    return found


def places(ran: Sequence[Ran]) -> list[tuple[str, str, str]]:
    here = dict.fromkeys((one.task.model, one.task.rule) for one in ran)
    return [(model, rule, machine) for model, rule in here for machine in MACHINES]


def plain(one: Ran, costs: Costs) -> dict[str, Any]:
    gain = speedup(one.runs, costs)
    return {
        "speedup": [round(part, 4) for part in gain],
        "tokens_per_cycle": round(tokens_per_cycle(one.runs).mean, 4),
        "depth": round(mean_depth(one.runs).mean, 3),
        "nodes_per_pass": round(nodes_of(one.runs), 3),
        "policy": one.task.policy,
        "settings": {} if one.task.method in ROOFLINES else json.loads(one.task.settings),
    }


def times_faster(one: Ran, other: Ran, costs: Costs) -> Estimate:
    """How many times faster `one` is than `other`, image by image."""
    return ratio(other.runs.image_ms(costs), one.runs.image_ms(costs))


def report(ran: Sequence[Ran]) -> list[dict[str, Any]]:
    rows = []
    for model, rule, machine in places(ran):
        costs, best = latency_model_of(machine), chosen(ran, model, rule, machine)
        methods = {method: plain(one, costs) for method, one in best.items()}
        rivals = [method for method in best if method not in {*ROOFLINES, "sampled"}]
        strongest = max(rivals, key=lambda method: float(methods[method]["speedup"][0]))
        over = {
            against: [round(part, 4) for part in times_faster(best["roofline"], best[against], costs)]
            for against in dict.fromkeys(("adt", "adt, equal nodes", "sampled", strongest))
        }
        name = Path(machine).stem if machine.endswith(".json") else machine
        rows.append(
            {
                **{"model": model, "rule": rule, "machine": name, "images": best["roofline"].runs.images},
                **{"methods": methods, "strongest_rival": strongest, "roofline_over": over},
            }
        )
        shown = "  ".join(f"{method} {figures['speedup'][0]:.3f}" for method, figures in methods.items())
        against = "  ".join(f"{name} {low:.3f}-{high:.3f}" for name, (_, low, high) in over.items())
        print(f"{model} | {rule} | {name} | {shown} | roofline over {against}")
    return rows


def main(arguments: list[str] | None = None) -> None:
    parser = options("roofline_study", __doc__)
    parser.add_argument(
        "--seeds", type=at_least(1), default=3, help="models of a kind, each with distributions of its own"
    )
    parser.add_argument("--images", type=at_least(2), default=12, help="images of each model")
    parser.add_argument("--rules", default=",".join(RULES), help=f"of {', '.join(RULES)}")
    parser.add_argument("--model", default=";".join(SYNTHETIC_MODELS), help="with semicolons between")
    parser.add_argument("--jobs", type=at_least(1), default=usable_cores(), help="processes")
    asked = parse(parser, arguments)
    rules, models = asked.rules.split(","), asked.model.split(";")
    if not set(rules) <= RULES.keys() or not set(models) <= SYNTHETIC_MODELS.keys():
        parser.error(f"expected rules of {', '.join(RULES)} and models of {'; '.join(SYNTHETIC_MODELS)}")
    where = local_workers(work, asked.jobs)
    ran = list(where.run(first_tasks(rules, models, asked.seeds, asked.images)))
    ran.sort(key=lambda one: (models.index(one.task.model), rules.index(one.task.rule), one.task.settings))
    ran += where.run(equal_nodes(ran))
    found = {
        **{"benchmark": "roofline_study", "seeds": asked.seeds, "images": asked.images},
        "models": {name: {"kind": SYNTHETIC_MODELS[name][0], "settings": SYNTHETIC_MODELS[name][1]} for name in models},
        "rows": report(ran),
    }
    finish(found, asked.out)


if __name__ == "__main__":
    main()
