"""Does an evaluation that loses a worker half-way have the statistics of one that does not?

Run: python -m benchmarks.evaluate [--pictures 2000] [--workers 2] [--on ray] [--models DIR]
[--out benchmarks/results/evaluate.json]

The same plan is drawn twice by the models of 64 px, half of the pictures by plain AR and half by EAGLE-2: once
undisturbed, and once with a worker killed (SIGKILL) when half is done. Every figure that no clock takes has to be the
same, to the last digit; code 1 otherwise.
"""

import dataclasses
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.models import models_option
from benchmarks.report import at_least, finish, options, parse, progress, refusing
from underpaint.artifacts.workers import Processes, RayWorkers, Workers, load_ray
from underpaint.runtime.evaluation.comparison import ComparisonPlan, build_methods, read_conditions
from underpaint.runtime.evaluation.drawer import JobDrawer, RunProgress, draw_missing
from underpaint.runtime.evaluation.drawing_log import DrawingKey, DrawnJob
from underpaint.runtime.evaluation.plan import ModelPlan, ModelSpec, RunPlan
from underpaint.runtime.evaluation.report import TIMED, evaluation_report

Pool = Workers[DrawingKey, DrawnJob]

METHODS = ("ar", "eagle2")


def plan_of(pictures: int, folder: Path) -> RunPlan:
    """`pictures` in all: two methods, prompts by two seeds. folder: of the models."""
    spec = ModelSpec(str(folder), 64)
    pipeline = spec.open(own_threads=False)
    sampling = dataclasses.replace(pipeline.sampling, temperature=1.0)
    methods = build_methods(pipeline, METHODS, 1.0)
    plan = ComparisonPlan(methods, read_conditions(pipeline, (), pictures // 4), (0, 1), sampling)
    return RunPlan((ModelPlan.for_workers(spec, pipeline, plan, {}, {}),))


def drawn(
    plan: RunPlan, folder: Path, pool: Pool, report: Callable[[RunProgress], None]
) -> tuple[list[dict[str, Any]], float]:
    """The rows of a plan without what a clock says, and the seconds that drawing took."""
    held = plan.open_log(folder)
    started = time.perf_counter()
    draw_missing(plan.jobs(), held, pool, report)
    seconds = time.perf_counter() - started
    found = evaluation_report(plan, held, "")
    if found.repeated:
        raise RuntimeError(f"{found.repeated} jobs were stored twice")
    rows = [dataclasses.asdict(row) for row in found.rows[0]]
    return [{name: value for name, value in row.items() if name not in TIMED} for row in rows], seconds


def killing(pool: Pool, after: int, killed: list[int]) -> Callable[[RunProgress], None]:
    """Reports progress, and kills one worker when `after` jobs are done."""

    def report(state: RunProgress) -> None:
        progress(state)
        if state.finished == after:
            killed.append(pool.pids()[0])
            os.kill(killed[0], signal.SIGKILL)

    return report


def main(arguments: Sequence[str] | None = None) -> int:
    """Draw twice and compare."""
    parser = options("evaluate", __doc__)
    parser.add_argument("--pictures", type=at_least(4), default=2000)
    parser.add_argument("--workers", type=at_least(1), default=2)
    parser.add_argument("--on", choices=("ray", "local"), default="ray")
    models_option(parser)
    asked = parse(parser, arguments)
    with refusing(parser):
        if asked.on == "ray":
            load_ray()
        plan = plan_of(asked.pictures, asked.models)

    def pool() -> Pool:
        drawer = JobDrawer(plan.tasks())
        return RayWorkers(drawer, asked.workers) if asked.on == "ray" else Processes(drawer, asked.workers)

    folder = Path(tempfile.mkdtemp(prefix="underpaint-evaluate-"))
    try:
        whole, undisturbed_s = drawn(plan, folder / "whole", pool(), progress)
        killed: list[int] = []
        disturbed = pool()
        size = len(plan.jobs())
        survived, killed_s = drawn(plan, folder / "killed", disturbed, killing(disturbed, size // 2, killed))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    same = whole == survived
    print(f"{size} pictures; one of {asked.workers} workers killed after {size // 2}; statistics the same: {same}")
    rows = [{"run": run, **row} for run, found in (("undisturbed", whole), ("killed", survived)) for row in found]
    finish(
        {
            **{"benchmark": "evaluate", "pictures": size, "workers": asked.workers, "on": asked.on},
            **{"killed_after": size // 2, "killed": len(killed), "same": same},
            **{"undisturbed_s": undisturbed_s, "killed_s": killed_s, "rows": rows},
        },
        asked.out,
    )
    return 0 if same and killed else 1


if __name__ == "__main__":
    sys.exit(main())
