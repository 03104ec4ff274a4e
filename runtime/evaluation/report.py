"""What a comparison found: one row per method, speed-ups with their intervals, and the maps behind the pictures."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, cast

import numpy as np

from underpaint.algos.arrays import BoolArray, FloatArray
from underpaint.algos.protocols import Grid
from underpaint.artifacts.cost_curve import CostCurveFile
from underpaint.artifacts.results import merged, with_envelope
from underpaint.runtime.drawing import Drawing
from underpaint.runtime.engines.images import Picture
from underpaint.runtime.evaluation.comparison import BASELINE, EAGER, ComparisonPlan
from underpaint.runtime.evaluation.drawing_log import DrawingKey, DrawingLog
from underpaint.runtime.evaluation.machine import describe_machine
from underpaint.runtime.evaluation.paired import FigureInterval, interval_ends, resampled
from underpaint.runtime.evaluation.picture_quality import PictureViews, picture_quality
from underpaint.runtime.evaluation.plan import ModelPlan, RunPlan
from underpaint.runtime.evaluation.replay import Replay, mean_token_bias
from underpaint.runtime.methods.method import DecodingMethod


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportRow:
    """One method's figures: means over images. Units in the names; shares in 0..1; None where it does not apply.

    tokens_per_cycle, mean_depth, mean_nodes: over cycles with a draft (mean_nodes: its drafted nodes), so the first
    token (from the condition alone) is left out.
    kept_share: of all cells, those that hold a drafted token. rejected_share: of all cells, those whose drafted token
    the rule refused, where every cell is drafted.
    overhead_share: of the seconds, what was spent outside the models: neither in the target's and the drafter's forward
    passes nor between two resolutions.
    target_ms_per_cycle, drafter_ms_per_cycle, host_ms_per_cycle: the seconds within the target, within the drafter and
    outside the models, over target passes (the first pass, which has no draft, among them).
    Drawn on a device (`runtime.device`), one program runs all models: device_ms_per_cycle is what it takes,
    host_ms_per_cycle and overhead_share are the rest, and the target's and the drafter's figures are None or 0. batch:
    images drawn together, among which the seconds are divided. peak_bytes: of the device's memory. speedup_over_eager:
    over plain AR by the loop that papers time; speedup is over AR as one captured program.
    prompt_accuracy, attribute_accuracy and what follows from them: where the folder holds a judge, and the conditions
    say what it may look for. accuracy_over_ar: prompt accuracy less the baseline's on the same prompts and seeds; the
    interval is over prompts.
    identical_to_ar: at temperature 0, whether every image's tokens are AR's; identical_share: of the images.
    frechet_pictures: pictures behind both Fréchet figures, equal pictures of one prompt counted once.
    attribute_log_probability: the judge's mean log-probability of the prompt's attributes, in nats; over_ar: less the
    baseline's, paired. auc: how well a classifier tells the method's pictures from the baseline's, 0.5 where it cannot
    (see `two_sample`). log_likelihood: the target's mean log-probability of a token, in nats, where it was asked for.
    token_bias: how far the tokens are from the target's distribution, as total variation: the mean over recorded
    replays (see `token_bias.draw_watched`); 0 where the method is lossless.
    """

    method: str
    lossless: bool
    target_nfe: float
    drafter_nfe: float
    tokens_per_cycle: float | None
    mean_depth: float | None
    mean_nodes: float | None
    kept_share: float | None
    rejected_share: float | None
    seconds_per_image: float
    speedup: float
    speedup_low: float | None
    speedup_high: float | None
    overhead_share: float | None
    target_share: float
    drafter_share: float
    resampler_share: float
    target_ms_per_cycle: float | None
    drafter_ms_per_cycle: float | None
    host_ms_per_cycle: float | None
    prompt_accuracy: float | None = None
    accuracy_over_ar: float | None = None
    accuracy_over_ar_low: float | None = None
    accuracy_over_ar_high: float | None = None
    attribute_accuracy: dict[str, float] = field(default_factory=dict)
    frechet_distance: float | None = None
    frechet_floor: float | None = None
    frechet_pictures: int = 0
    identical_to_ar: bool | None
    identical_share: float | None
    images: int
    attribute_log_probability: float | None = None
    attribute_log_probability_over_ar: float | None = None
    attribute_log_probability_over_ar_low: float | None = None
    attribute_log_probability_over_ar_high: float | None = None
    auc: float | None = None
    auc_low: float | None = None
    auc_high: float | None = None
    log_likelihood: float | None = None
    log_likelihood_over_ar: float | None = None
    log_likelihood_over_ar_low: float | None = None
    log_likelihood_over_ar_high: float | None = None
    token_bias: float | None = None
    token_bias_low: float | None = None
    token_bias_high: float | None = None
    batch: int = 1
    device_ms_per_cycle: float | None = None
    peak_bytes: int | None = None
    speedup_over_eager: float | None = None


TIMED: Final = frozenset(
    (
        *("seconds_per_image", "speedup", "speedup_low", "speedup_high", "overhead_share", "target_share"),
        *("drafter_share", "resampler_share", "target_ms_per_cycle", "drafter_ms_per_cycle", "host_ms_per_cycle"),
        *("device_ms_per_cycle", "speedup_over_eager"),
    )
)
"""Figures of a row that come from a clock; the others are the same however often a plan is drawn on one machine."""


class ComparisonReport(NamedTuple):
    """Everything that the pictures and the table show."""

    rows: tuple[ReportRow, ...]
    gallery: dict[str, list[Picture]]
    """Per method, the pictures of each prompt under the first seed; empty where nothing decodes pictures."""
    acceptance: dict[str, FloatArray]
    """Per method, [height, width]: the share of images in which this cell was an accepted draft."""

    def __repr__(self) -> str:
        return _as_text(self.rows)


def speedup(baseline: Sequence[float], method: Sequence[float]) -> FigureInterval:
    """The ratio of summed seconds of paired images, with a bootstrap interval over the pairs (95 %, percentiles)."""
    base, own = np.asarray(baseline, dtype=np.float64), np.asarray(method, dtype=np.float64)
    ratio = float(base.sum() / own.sum())
    if base.size < 2:
        return FigureInterval(ratio, None, None)
    chosen = resampled(base.size)
    return FigureInterval(ratio, *interval_ends(base[chosen].sum(axis=1) / own[chosen].sum(axis=1)))


def above_floor(distance: float | None, floor: float | None) -> bool:
    """Whether a Fréchet distance says something: it exceeds its floor, the distance of as many real pictures."""
    return distance is not None and floor is not None and distance > floor


def _as_text(rows: Sequence[ReportRow]) -> str:
    """The main figures as a table of plain text, a row a method."""
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


def accepted_cells(drawing: Drawing, grid: Grid) -> BoolArray:
    """[height, width] whether each cell's token was an accepted draft; nowhere by a method that drafts nothing."""
    cells = np.zeros(grid.cells, dtype=np.bool_)
    if drawing.kept_cells is not None:
        cells[list(drawing.kept_cells)] = True
    if drawing.accepted is None:
        return cells.reshape(grid)
    place = 1
    for count in drawing.accepted:
        cells[place : place + count] = True
        place += count + 1
    if place != grid.cells:
        raise ValueError(f"drawing: its cycles cover {place} cells, the grid has {grid.cells}; draw it again")
    return cells.reshape(grid)


def make_report(
    plan: RunPlan,
    log: DrawingLog,
    replays: Sequence[Replay] = (),
    *,
    likelihood: bool = False,
    report: Callable[[int, int], None] | None = None,
) -> ComparisonReport:
    """The findings of a finished run of one model: pictures are decoded and judged here, where its folder can.

    replays: those recorded, for the bias of relaxed methods. likelihood: also how likely the target holds the tokens,
    a few passes for each different drawing. report: is told of methods done, of how many.
    """
    (model,) = plan.models
    rows, drawings, views = drawn_rows(plan, 0, log, replays, likelihood=likelihood, report=report)
    first, grid = len(model.comparison.conditions), model.pipeline.grid
    shown = {} if model.pipeline.decoder is None else drawings
    return ComparisonReport(
        rows,
        {name: [views.picture(drawing) for drawing in drawn[:first]] for name, drawn in shown.items()},
        {name: np.mean([accepted_cells(one, grid) for one in drawn], axis=0) for name, drawn in drawings.items()},
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
    """The rows of one model; nothing in them but what a clock says depends on who drew what, or when.

    What a worker told of a drawing is not made again: its picture, what the judge reads in it, its likelihood.

    Args:
        plan: The run.
        place: The model's place in it.
        log: The drawings. A method counts on the prompts that it and the baseline have all seeds of; one that has no
            such prompt gets no row.
        replays: See `make_report`.
        likelihood: See `make_report`.
        compared: Whether pictures are compared as sets too, which takes seconds a method.
        report: See `make_report`.

    Returns:
        The rows, the drawings behind them by method, and what was seen in their pictures.
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
            drawings[method.name] = [log.drawing(key) for key in keys]

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


def report_rows(
    plan: ComparisonPlan,
    drawings: Mapping[str, list[Drawing]],
    grid: Grid,
    views: PictureViews,
    replays: Sequence[Replay] = (),
    report: Callable[[int, int], None] | None = None,
) -> tuple[ReportRow, ...]:
    """A row for each method of a plan that has drawings.

    drawings: by method, seed after seed, each in the order of the prompts. The baseline has those of every other.
    replays, report: see `make_report`.
    """
    greedy = plan.sampling.temperature == 0
    baseline = {(one.prompt, one.seed): one for one in drawings[BASELINE]}
    found = []
    for method in (one for one in plan.methods if one.name in drawings):
        own = drawings[method.name]
        row = _row(grid, method, own, [baseline[one.prompt, one.seed] for one in own], views, greedy)
        eager = drawings.get(EAGER)
        if eager is not None:
            over = speedup([one.seconds for one in eager], [one.seconds for one in drawings[method.name]]).value
            row = dataclasses.replace(row, speedup_over_eager=over)
        bias = mean_token_bias(method.name, method.lossless, replays)
        if bias is not None:
            row = dataclasses.replace(row, **cast("dict[str, Any]", bias.named("token_bias")))
        found.append(row)
        if report is not None:
            report(len(found), len(plan.methods))
    return tuple(found)


def _row(
    grid: Grid,
    method: DecodingMethod,
    drawn: list[Drawing],
    baseline: list[Drawing],
    views: PictureViews,
    greedy: bool,
) -> ReportRow:
    seconds = sum(one.seconds for one in drawn)
    cells = len(drawn) * grid.cells
    accepted = sum(int(accepted_cells(one, grid).sum()) for one in drawn) / cells if method.drafts else None
    refused = [one.rejected for one in drawn if one.rejected is not None]
    lengths, depths, nodes = _per_cycle(drawn)
    gain = speedup([one.seconds for one in baseline], [one.seconds for one in drawn])
    target_share = sum(one.target_seconds for one in drawn) / seconds
    drafter_share = sum(one.drafter_seconds for one in drawn) / seconds
    resampler_share = sum(one.resampler_seconds for one in drawn) / seconds
    per_cycle = None if lengths is None else 1e3 * seconds / sum(one.target_nfe for one in drawn)
    inside = [one.device_seconds for one in drawn if one.device_seconds is not None]
    device_share = sum(inside) / seconds if inside else 0.0
    known = bool(inside) or drawn[0].method != EAGER
    host_share = 1.0 - target_share - drafter_share - resampler_share - device_share if known else None
    on_device = drawn[0].method == EAGER or bool(inside)
    same = [one.tokens == other.tokens for one, other in zip(drawn, baseline, strict=True)]
    return ReportRow(
        method=drawn[0].method,
        lossless=method.lossless,
        target_nfe=_mean([one.target_nfe for one in drawn]),
        drafter_nfe=_mean([one.drafter_nfe for one in drawn]),
        tokens_per_cycle=lengths,
        mean_depth=depths,
        mean_nodes=nodes,
        kept_share=accepted,
        rejected_share=sum(refused) / cells if refused else None,
        seconds_per_image=seconds / len(drawn),
        overhead_share=host_share,
        target_share=target_share,
        drafter_share=drafter_share,
        resampler_share=resampler_share,
        target_ms_per_cycle=None if per_cycle is None or on_device else target_share * per_cycle,
        drafter_ms_per_cycle=None if per_cycle is None or on_device else drafter_share * per_cycle,
        host_ms_per_cycle=None if per_cycle is None or host_share is None else host_share * per_cycle,
        identical_to_ar=all(same) if greedy else None,
        identical_share=sum(same) / len(same) if greedy else None,
        images=len(drawn),
        batch=max(one.batch for one in drawn),
        device_ms_per_cycle=device_share * per_cycle if inside and per_cycle is not None else None,
        peak_bytes=max((one.peak_bytes for one in drawn if one.peak_bytes is not None), default=None),
        **cast("dict[str, Any]", gain.named("speedup")),
        **picture_quality(drawn, baseline, views),
    )


def _per_cycle(drawn: Sequence[Drawing]) -> tuple[float | None, float | None, float | None]:
    """Tokens, levels and drafted nodes per cycle with a draft; None without such cycles."""
    accepted = [count for one in drawn for count in one.accepted or ()]
    depths = [depth for one in drawn for depth in one.depths or ()]
    nodes = [count for one in drawn for count in one.nodes or ()]
    if not accepted:
        return None, None, None
    return float(np.mean(accepted)) + 1.0, float(np.mean(depths)), float(np.mean(nodes))


def _mean(values: Sequence[int]) -> float:
    return float(np.mean(values))


def to_results(
    plan: RunPlan, report: ComparisonReport, command: str, curve: CostCurveFile | None = None
) -> dict[str, Any]:
    """The findings as the JSON file holds them, in the form of `artifacts/results_schema.json`, kind "compare".

    command: that made them. curve: of the machine that drew; None where it is not known.
    """
    maps = {name: np.round(cells, 4).tolist() for name, cells in report.acceptance.items()}
    told = None if curve is None else curve.told()
    values = {"cost_curve": told, **model_values(plan.models[0], report.rows), "acceptance_per_cell": maps}
    return with_envelope("compare", describe_machine(), command, values)


class EvaluationReport(NamedTuple):
    """The figures of a finished evaluation.

    rows: of each model. results: as `artifacts/results_schema.json` has them: kind "evaluate", or "merged" where there
    are several models. repeated: drawings that were drawn more than once; differing: of those, how many with other
    tokens.
    """

    rows: tuple[tuple[ReportRow, ...], ...]
    results: dict[str, Any]
    repeated: int
    differing: int


def evaluation_report(plan: RunPlan, log: DrawingLog, command: str) -> EvaluationReport:
    """The figures of what a log holds, which has to be every drawing of the plan. command: that made them."""
    differing = sum(log.drawing(key).tokens != job.drawing.tokens for key, job in log.repeated)
    processors = dict(Counter(job.processor for job in log))
    drawn = {"processors": processors, "repeated": len(log.repeated), "differing": differing}
    machine = describe_machine()
    found, every = [], []
    for place, model in enumerate(plan.models):
        task = model.task
        assert task is not None
        rows, _, _ = drawn_rows(plan, place, log, likelihood=task.likelihood)
        every.append(rows)
        values = {**model_values(model, rows), "drawn": drawn}
        found.append((task.spec.folder, with_envelope("evaluate", machine, command, values)))
    results = found[0][1] if len(found) == 1 else merged(found)
    return EvaluationReport(tuple(every), results, len(log.repeated), differing)


def model_values(model: ModelPlan, rows: Sequence[ReportRow]) -> dict[str, Any]:
    """Model, settings and rows as JSON holds them."""
    sizes = {"resolution": model.pipeline.resolution, "vocab_size": model.pipeline.tables.vocab_size}
    more: dict[str, Any] = {"prompts_file": dict(model.prompts_file)} if model.prompts_file else {}
    if model.device:
        more["device"] = dict(model.device)
    return {
        "model": dict(model.fingerprint),
        "settings": {**model.comparison.to_dict(), **sizes, **more},
        "rows": [dataclasses.asdict(row) for row in rows],
    }
