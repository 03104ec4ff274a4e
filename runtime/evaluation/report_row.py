"""A row of a report: one method's figures over the drawings of a plan, beside plain autoregression's."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, cast

import numpy as np

from underpaint.algos.arrays import BoolArray
from underpaint.algos.protocols import Grid
from underpaint.runtime.drawing import HOST, Drawing
from underpaint.runtime.evaluation.comparison import BASELINE, EAGER, ComparisonPlan
from underpaint.runtime.evaluation.paired import speedup
from underpaint.runtime.evaluation.picture_quality import PictureViews, picture_quality
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
    images drawn together, among which the seconds are divided. peak_bytes: of the device's memory. loop: see `Drawing`.
    speedup_over_eager:
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
    loop: str = HOST
    speedup_over_eager: float | None = None


TIMED: Final = frozenset(
    (
        *("seconds_per_image", "speedup", "speedup_low", "speedup_high", "overhead_share", "target_share"),
        *("drafter_share", "resampler_share", "target_ms_per_cycle", "drafter_ms_per_cycle", "host_ms_per_cycle"),
        *("device_ms_per_cycle", "speedup_over_eager"),
    )
)
"""Figures of a row that come from a clock; the others are the same however often a plan is drawn on one machine."""


def above_floor(distance: float | None, floor: float | None) -> bool:
    """Whether a Fréchet distance says something: it exceeds its floor, the distance of as many real pictures."""
    return distance is not None and floor is not None and distance > floor


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
    rows = []
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
        rows.append(row)
        if report is not None:
            report(len(rows), len(plan.methods))
    return tuple(rows)


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
        loop=" and ".join(sorted({one.loop for one in drawn})),
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
