"""An evaluation: what is missing is drawn by workers and stored, and what is stored becomes figures."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from underpaint.artifacts.results import merged, with_envelope
from underpaint.runtime.drawing import Drawing
from underpaint.runtime.evaluation.comparison import ComparisonProgress
from underpaint.runtime.evaluation.jobs.plan import EvaluationPlan, JobShare, ModelPlan
from underpaint.runtime.evaluation.jobs.shards import EvaluationFolder, ShardWriter, StoredJobs
from underpaint.runtime.evaluation.jobs.workers import WorkerPool
from underpaint.runtime.evaluation.machine import describe_machine
from underpaint.runtime.evaluation.picture_judge import Picture
from underpaint.runtime.evaluation.picture_quality import PictureViews
from underpaint.runtime.evaluation.report import ReportRow, comparison_values, report_rows

EVERYTHING: Final = JobShare()
"""The whole plan."""


def draw_missing(
    plan: EvaluationPlan,
    folder: EvaluationFolder,
    pool: WorkerPool,
    report: Callable[[ComparisonProgress], None],
    share: JobShare = EVERYTHING,
) -> None:
    """Draw the part of the plan that `folder` does not hold yet. A stop leaves every finished drawing in it.

    Raises ValueError where the folder has become another evaluation's, WorkerError where a job cannot be drawn.
    """
    stored = folder.stored_keys()
    mine = share.of(plan.jobs())
    missing = [job for job in mine if job.key not in stored]
    if not missing:
        return
    folder.claim()
    finished = len(mine) - len(missing)
    report(ComparisonProgress(finished, len(mine), None))
    with ShardWriter(folder.folder) as writer:
        for drawn in pool.run(missing):
            writer.add(drawn)
            finished += 1
            report(ComparisonProgress(finished, len(mine), drawn.drawing))


def count_missing(plan: EvaluationPlan, folder: EvaluationFolder) -> int:
    """Jobs of the plan that the folder does not hold."""
    stored = folder.stored_keys()
    return sum(job.key not in stored for job in plan.jobs())


def model_rows(model: ModelPlan, place: int, stored: StoredJobs) -> tuple[ReportRow, ...]:
    """A row for each method of one model; nothing in them but what a clock says depends on who drew what, or when.

    How likely the target holds the tokens is told where every job says so.
    """
    by_turn = {(job.method, job.prompt, job.seed): job.key for job in model.jobs(place)}
    plan = model.comparison
    drawings = {
        method.name: [
            stored.drawings[by_turn[method.name, condition.caption(), seed]]
            for seed in plan.seeds
            for condition in plan.conditions
        ]
        for method in plan.methods
    }
    keys = [key for key in by_turn.values() if key in stored.readings]
    readings = {stored.drawings[key].tokens: stored.readings[key] for key in keys}
    told = all(key in stored.log_likelihoods for key in by_turn.values())
    likely = {
        (one.prompt, one.tokens): stored.log_likelihoods[key]
        for key in (by_turn.values() if told else ())
        for one in [stored.drawings[key]]
    }

    def picture(drawing: Drawing) -> Picture | None:
        found = stored.pictures.get(by_turn[drawing.method, drawing.prompt, drawing.seed])
        return None if found is None else found.picture()

    views = PictureViews(
        model.pipeline,
        plan.conditions,
        readings,
        compared=True,
        likelihood=plan.sampling if told else None,
        likely=likely,
        stored=picture,
    )
    return report_rows(plan, drawings, model.pipeline.grid, views)


class EvaluationReport(NamedTuple):
    """The figures of a finished evaluation.

    rows: of each model. results: as `artifacts/results_schema.json` has them: kind "evaluate", or "merged" where there
    are several models. repeated, differing: see `StoredJobs`.
    """

    rows: tuple[tuple[ReportRow, ...], ...]
    results: dict[str, Any]
    repeated: int
    differing: int


def evaluation_report(plan: EvaluationPlan, folder: EvaluationFolder, command: str) -> EvaluationReport:
    """The figures of what a folder holds, which has to be every job of the plan. command: that made them."""
    stored = folder.read()
    machine = describe_machine()
    drawn = {"processors": stored.processors, "repeated": stored.repeated, "differing": stored.differing}
    found, every = [], []
    for place, model in enumerate(plan.models):
        source = {"prompts_file": dict(model.prompts_file)} if model.prompts_file else {}
        rows = model_rows(model, place, stored)
        values = comparison_values(model.pipeline, model.comparison, rows, source)
        values = {**values, "model": dict(model.fingerprint), "drawn": drawn}
        every.append(rows)
        found.append((model.task.spec.folder, with_envelope("evaluate", machine, command, values)))
    results = found[0][1] if len(found) == 1 else merged(found)
    return EvaluationReport(tuple(every), results, stored.repeated, stored.differing)
