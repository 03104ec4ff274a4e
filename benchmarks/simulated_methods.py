"""Every method that a synthetic model can run, tuned and as published, on the rooflines of an A100 and an H200.

Run: python -m benchmarks.simulated_methods [--images 12] [--model field,flat,patchy] [--methods a,b] [--jobs 2]
     [--out FILE]

The settings are those of `underpaint compare`: "tuned" was chosen on two cores of a processor, where nodes are dear;
"paper" is what the papers ran on a GPU. Temperature 1. Methods that choose by cost are given the roofline's own curve.
Times are modelled: the larger of bytes over bandwidth and operations over peak, and launches; no host. All methods draw
the same images. Left out: plain autoregression, which is 1; methods that skip verification or decide cells in another
order than the raster (`underpaint simulate predict` has those of a trace). The last line is JSON.
"""

import itertools
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from benchmarks.report import at_least, finish, options, parse
from underpaint.algos.accept.neighbours import nearest_codes, table_columns
from underpaint.algos.memory import usable_cores
from underpaint.artifacts.cost_curve import EngineCosts
from underpaint.artifacts.workers import local_workers
from underpaint.runtime.methods.method import ModelTables
from underpaint.runtime.methods.registry import METHODS, PRESETS, MethodConfig, resolve
from underpaint.runtime.methods.trees.method import NO_POLICY, TreeConfig
from underpaint.sim.batched.decoding import MOST_NODES, AlternativeDrafts, Scheme, run_loop
from underpaint.sim.latency.models import Costs
from underpaint.sim.latency.run_times import latency_model_of
from underpaint.sim.report.statistics import Runs, speedup, tokens_per_cycle
from underpaint.sim.synthetic.field import make_synthetic_model
from underpaint.sim.synthetic.table_model import TableModel
from underpaint.sim.synthetic.windows import LOOPS, WindowRecipe, make_window_scheme, run_windows

MACHINES: Final = ("a100/llamagen-xl", "h200/llamagen-xl")
MODELS: Final = ("field", "flat", "patchy")
SEED: Final = 0


@dataclass(frozen=True, slots=True)
class Task:
    """One method on one synthetic model. machine: whose costs it is told of; "" where it asks for none."""

    method: str
    preset: str
    model: str
    machine: str
    images: int


@dataclass(frozen=True, slots=True)
class Ran:
    """What a task drew; None where the model cannot run the method. reason: why."""

    task: Task
    runs: Runs | None
    reason: str = ""


def engine_costs(costs: Costs) -> EngineCosts:
    """What a cost-aware policy is told of a machine."""
    nodes = np.unique(np.geomspace(1, MOST_NODES, 40).round().astype(int))
    expanded = np.array([1, 2, 4, 8, 16])
    verify = costs.verify_ms(nodes) + costs.overhead_ms
    curve = tuple(zip(nodes.tolist(), verify.tolist(), strict=True))
    return EngineCosts(curve, tuple(zip(expanded.tolist(), costs.draft_ms(expanded).tolist(), strict=True)))


def can_run(config: MethodConfig) -> bool:
    """Whether a synthetic model has the method's loop."""
    if isinstance(config, TreeConfig):
        return config.policy != NO_POLICY and config.skipping is None
    return config.to_dict().get("loop") in LOOPS


def tree_runs(model: TableModel, config: TreeConfig, task: Task) -> Runs:
    """A method of the tree family, with whatever stands beside its trees."""
    neighbours = nearest_codes(model.codebook, table_columns(model.vocab_size))
    costs = engine_costs(latency_model_of(task.machine)) if task.machine else None
    made = config.build(task.method, ModelTables(neighbours, model.codebook, costs))
    scheme = Scheme(made.config.policy, made.config.rule, made.policy, made.rule, made.lossless, None, None)
    beside = None
    if made.window is not None:
        beside = AlternativeDrafts(made.window.window, made.window.rule, made.window.drawn_rules)
    return run_loop(model, scheme, task.images, SEED, beside=beside)


def work(task: Task) -> Ran:
    """Decode a task's images."""
    model, config = make_synthetic_model(task.model, {}), resolve(task.method, 1.0, preset=task.preset)
    try:
        if isinstance(config, TreeConfig):
            return Ran(task, tree_runs(model, config, task))
        scheme = make_window_scheme(model, WindowRecipe.of(task.method, config.to_dict()))
        return Ran(task, run_windows(scheme, task.images, SEED))
    except ValueError as error:
        return Ran(task, None, str(error))


def tasks(methods: list[str], models: list[str], images: int) -> list[Task]:
    """Both presets of each method, or one where they are the same; cost-aware ones for each machine."""
    found = []
    for method, model in itertools.product(methods, models):
        configs = {preset: resolve(method, 1.0, preset=preset) for preset in PRESETS}
        for preset, config in configs.items():
            if preset != PRESETS[0] and config == configs[PRESETS[0]]:
                continue
            machines = MACHINES if config.needs_costs else ("",)
            found += [Task(method, preset, model, machine, images) for machine in machines]
    return found


def row_of(ran: Ran, machine: str) -> dict[str, Any]:
    """A row of figures."""
    assert ran.runs is not None
    task, config = ran.task, resolve(ran.task.method, 1.0, preset=ran.task.preset)
    gain = speedup(ran.runs, latency_model_of(machine))
    return {
        **{"method": task.method, "preset": task.preset, "draws_by": config.draws_by},
        **{"model": task.model, "machine": machine, "speedup": gain.mean},
        **{"speedup_low": gain.low, "speedup_high": gain.high},
        "tokens_per_cycle": tokens_per_cycle(ran.runs).mean,
        "target_nfe": float(ran.runs.cycles.mean()) + 1.0,
    }


def main(arguments: list[str] | None = None) -> None:
    parser = options("simulated_methods", __doc__)
    known = [spec.name for spec in METHODS if can_run(spec.tuned.sampled)]
    parser.add_argument("--images", type=at_least(2), default=12, help="images of each model")
    parser.add_argument("--model", default=",".join(MODELS), help="synthetic models, with commas between")
    parser.add_argument("--methods", default=",".join(known), help="with commas between")
    parser.add_argument("--jobs", type=at_least(1), default=usable_cores(), help="processes")
    asked = parse(parser, arguments)
    methods, models = asked.methods.split(","), asked.model.split(",")
    if not set(methods) <= set(known) or not set(models) <= set(MODELS):
        parser.error(f"expected methods of {', '.join(known)} and models of {', '.join(MODELS)}")
    ran = sorted(
        local_workers(work, asked.jobs).run(tasks(methods, models, asked.images)),
        key=lambda one: (methods.index(one.task.method), one.task.preset, models.index(one.task.model)),
    )
    rows = [
        row_of(one, machine)
        for one in ran
        if one.runs is not None
        for machine in ([one.task.machine] if one.task.machine else MACHINES)
    ]
    left_out = {f"{one.task.method}, {one.task.preset}": one.reason for one in ran if one.runs is None}
    for row in rows:
        print(f"{row['method']} | {row['preset']} | {row['model']} | {row['machine']} | {row['speedup']:.2f}")
    finish({"benchmark": "simulated_methods", "images": asked.images, "rows": rows, "left_out": left_out}, asked.out)


if __name__ == "__main__":
    main()
