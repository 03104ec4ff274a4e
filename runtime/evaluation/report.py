"""Results of a comparison: one row per method, speedups with intervals, and the maps for the pictures."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from underpaint.algos.arrays import FloatArray
from underpaint.artifacts.cost_curve import CostCurveFile
from underpaint.artifacts.results import merged, with_envelope
from underpaint.runtime.drawing import Drawing
from underpaint.runtime.engines.images import Picture
from underpaint.runtime.evaluation.comparison import BASELINE
from underpaint.runtime.evaluation.drawing_log import DrawingKey, DrawingLog
from underpaint.runtime.evaluation.machine import describe_machine
from underpaint.runtime.evaluation.picture_quality import PictureViews
from underpaint.runtime.evaluation.plan import ModelPlan, RunPlan
from underpaint.runtime.evaluation.replay import Replay
from underpaint.runtime.evaluation.report_row import ReportRow, accepted_cells, report_rows


class ComparisonReport(NamedTuple):
    """The contents of a comparison's table and pictures."""

    rows: tuple[ReportRow, ...]
    gallery: dict[str, list[Picture]]
    """Per method, the pictures of all prompts with the first seed; empty without a picture decoder."""
    acceptance: dict[str, FloatArray]
    """Per method, [height, width]: the share of images in which this cell was an accepted draft token."""

    def __repr__(self) -> str:
        return _as_text(self.rows)


def _as_text(rows: Sequence[ReportRow]) -> str:
    """The main figures as a plain-text table with one row per method."""
    head = (
        "method",
        "lossless",
        "speedup (95 %)",
        "tokens/cycle",
        "target passes",
        "drafter passes",
        "s/image",
        "accuracy",
    )
    cells = [head]
    for row in rows:
        interval = "" if row.speedup_low is None else f" ({row.speedup_low:.2f} to {row.speedup_high:.2f})"
        cells.append(
            (
                row.method,
                "yes" if row.lossless else "no",
                f"{row.speedup:.2f}x{interval}",
                "-" if row.tokens_per_cycle is None else f"{row.tokens_per_cycle:.2f}",
                f"{row.target_nfe:.1f}",
                f"{row.drafter_nfe:.1f}",
                f"{row.seconds_per_image:.3f}",
                "-" if row.prompt_accuracy is None else f"{row.prompt_accuracy:.3f}",
            )
        )
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ["  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip() for line in cells]
    return "\n".join(lines)


def make_report(
    plan: RunPlan,
    log: DrawingLog,
    replays: Sequence[Replay] = (),
    *,
    likelihood: bool = False,
    report: Callable[[int, int], None] | None = None,
) -> ComparisonReport:
    """Return the results of a finished run of one model; decode and judge pictures if its folder can.

    Args:
        plan: The run.
        log: Its drawings.
        replays: Recorded replays, for the bias of relaxed methods.
        likelihood: Whether to compute the target's likelihood of the tokens, with a few passes per distinct drawing.
        report: Called with the number of methods done, and in total.
    """
    (model,) = plan.models
    rows, drawings, views = drawn_rows(plan, 0, log, replays, likelihood=likelihood, report=report)
    first, grid = len(model.comparison.conditions), model.pipeline.grid
    gallery = {} if model.pipeline.decoder is None else drawings
    return ComparisonReport(
        rows,
        {name: [views.picture(drawing) for drawing in group[:first]] for name, group in gallery.items()},
        {name: np.mean([accepted_cells(one, grid) for one in group], axis=0) for name, group in drawings.items()},
    )


def drawn_rows(
    plan: RunPlan,
    place: int,
    log: DrawingLog,
    replays: Sequence[Replay] = (),
    *,
    likelihood: bool = False,
    compared: bool = True,
    report: Callable[[int, int], None] | None = None,
) -> tuple[tuple[ReportRow, ...], dict[str, list[Drawing]], PictureViews]:
    """The rows of one model; apart from timings they do not depend on who drew what, or when.

    A worker's results for a drawing are reused: its picture, the judge's reading, and its likelihood.

    Args:
        plan: The run.
        place: The model's index in it.
        log: The drawings. A method is measured on the prompts with all seeds drawn by it and by the baseline; a method
            without such a prompt gets no row.
        replays: See `make_report`.
        likelihood: See `make_report`.
        compared: Whether to compare pictures as sets too, which takes seconds per method.
        report: See `make_report`.

    Returns:
        The rows, their drawings by method, and the cached views of the pictures.
    """
    model, jobs = plan.models[place], [job for job in log if job.model == place]
    comparison = model.comparison
    drawings = {}
    for method in comparison.methods:
        prompts = [
            caption
            for caption in (condition.caption() for condition in comparison.conditions)
            if all(
                DrawingKey(name, caption, seed, place) in log
                for name in (method.name, BASELINE)
                for seed in comparison.seeds
            )
        ]
        keys = [DrawingKey(method.name, caption, seed, place) for seed in comparison.seeds for caption in prompts]
        if keys:
            drawings[method.name] = [log.timed(key) for key in keys]

    def stored(drawing: Drawing) -> Picture | None:
        return log.picture(DrawingKey(drawing.method, drawing.prompt, drawing.seed, place))

    views = PictureViews(
        model.pipeline,
        model.judge,
        comparison.conditions,
        {job.drawing.tokens: job.reading for job in jobs if job.reading is not None},
        compared=compared,
        likelihood=comparison.sampling if likelihood else None,
        likely={
            (job.drawing.prompt, job.drawing.tokens): job.log_likelihood
            for job in jobs
            if job.log_likelihood is not None
        },
        stored=stored,
    )
    return report_rows(comparison, drawings, model.pipeline.grid, views, replays, report), drawings, views


def to_results(
    plan: RunPlan, report: ComparisonReport, command: str, curve: CostCurveFile | None = None
) -> dict[str, Any]:
    """Return the results as JSON of kind "compare", in the form of `artifacts/results_schema.json`.

    Args:
        plan: The run of one model.
        report: Its results.
        command: The command that made them.
        curve: Cost curve of the machine that drew; None if unknown.
    """
    maps = {name: np.round(cells, 4).tolist() for name, cells in report.acceptance.items()}
    measured_costs = None if curve is None else curve.to_record()
    values = {"cost_curve": measured_costs, **model_values(plan.models[0], report.rows), "acceptance_per_cell": maps}
    return with_envelope("compare", describe_machine(), command, values)


class EvaluationReport(NamedTuple):
    """The figures of a finished evaluation.

    Attributes:
        rows: The rows of each model.
        results: The results in the form of `artifacts/results_schema.json`, of kind "evaluate", or "merged" for several
            models.
        repeated: Number of drawings made more than once.
        differing: Number of those with different tokens.
    """

    rows: tuple[tuple[ReportRow, ...], ...]
    results: dict[str, Any]
    repeated: int
    differing: int


def evaluation_report(plan: RunPlan, log: DrawingLog, command: str) -> EvaluationReport:
    """Return the figures of a finished evaluation.

    Args:
        plan: The run; every model must have a task for workers.
        log: The drawings, which must include every drawing of the plan.
        command: The command that made them.
    """
    differing = sum(log.drawing(key).tokens != job.drawing.tokens for key, job in log.repeated)
    processors = dict(Counter(job.processor for job in log))
    drawing_counts = {"processors": processors, "repeated": len(log.repeated), "differing": differing}
    machine = describe_machine()
    runs, every = [], []
    for place, model in enumerate(plan.models):
        task = model.task
        assert task is not None
        rows, _, _ = drawn_rows(plan, place, log, likelihood=task.likelihood)
        every.append(rows)
        values = {**model_values(model, rows), "drawn": drawing_counts}
        runs.append((task.spec.folder, with_envelope("evaluate", machine, command, values)))
    results = runs[0][1] if len(runs) == 1 else merged(runs)
    return EvaluationReport(tuple(every), results, len(log.repeated), differing)


def model_values(model: ModelPlan, rows: Sequence[ReportRow]) -> dict[str, Any]:
    """Model, settings and rows as JSON."""
    sizes = {"resolution": model.pipeline.resolution, "vocab_size": model.pipeline.tables.vocab_size}
    more: dict[str, Any] = {"prompts_file": dict(model.prompts_file)} if model.prompts_file else {}
    if model.device:
        more["device"] = dict(model.device)
    return {
        "model": dict(model.fingerprint),
        "settings": {**model.comparison.to_dict(), **sizes, **more},
        "rows": [dataclasses.asdict(row) for row in rows],
    }
