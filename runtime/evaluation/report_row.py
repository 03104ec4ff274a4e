"""One row of a report: a method's figures over the drawings of a plan, compared with plain autoregression."""

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
    """One method's figures: means over images. Names give units; shares are in 0..1; None means not applicable.

    Attributes:
        tokens_per_cycle, mean_depth, mean_nodes: Over all cycles but the first, so without the first token (from the
            condition alone). mean_nodes counts drafted nodes.
        kept_share: Share of all cells that hold a drafted token.
        rejected_share: Share of all cells whose drafted token the rule rejected, if every cell is drafted.
        overhead_share: Share of the seconds outside the models: not in forward passes, nor between two resolutions.
        target_ms_per_cycle, drafter_ms_per_cycle, host_ms_per_cycle: Time in the target, in the drafter and outside the
            models, over the target passes (including the first, which has no draft).
        device_ms_per_cycle: Time in the one program that runs all models on a device (`runtime.device`). There,
            host_ms_per_cycle and overhead_share are the rest, and figures of target and drafter are None or 0.
        batch: Images drawn together; the seconds are divided among them.
        peak_bytes, loop: Peak use of the device's memory; see `Drawing` for the loop.
        speedup_over_eager: Over plain AR with the loop that papers time; `speedup` is over AR as one captured program.
        prompt_accuracy, attribute_accuracy: Like all figures derived from them, only if the folder has a judge and the
            conditions say what it may look for.
        accuracy_over_ar: Prompt accuracy minus the baseline's on the same prompts and seeds; interval over prompts.
        identical_to_ar, identical_share: At temperature 0, whether all images have AR's tokens, and the share that has.
        frechet_pictures: Pictures behind both Fréchet figures; equal pictures of one prompt count once.
        attribute_log_probability: The judge's mean log-probability of the prompt's attributes, in nats; over_ar is
            minus the baseline's, paired.
        auc: How well a classifier separates the method's pictures from the baseline's; 0.5: not at all (`two_sample`).
        log_likelihood: The target's mean log-probability of a token, in nats, if requested.
        token_bias: Total variation between the tokens' distribution and the target's: mean over recorded replays (see
            `token_bias.draw_watched`); 0 for a lossless method.
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
"""Figures of a row that come from a clock; all others repeat when a plan is drawn again on the same machine."""


def above_floor(distance: float | None, floor: float | None) -> bool:
    """Whether a Fréchet distance is meaningful: it exceeds its floor, the distance of as many real pictures."""
    return distance is not None and floor is not None and distance > floor


def accepted_cells(drawing: Drawing, grid: Grid) -> BoolArray:
    """Whether each cell's token was an accepted draft token, [height, width]; all False if it drafts nothing."""
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
    """Return one row for each method of a plan that has drawings.

    Args:
        plan: The methods, prompts and seeds.
        drawings: Drawings by method, seed after seed, each in the order of the prompts. The baseline has all drawings
            that other methods have.
        grid: The grid of image tokens.
        views: The pictures, with their readings and likelihoods.
        replays: See `make_report`.
        report: See `make_report`.
    """
    greedy = plan.sampling.temperature == 0
    baseline = {(one.prompt, one.seed): one for one in drawings[BASELINE]}
    rows = []
    for method in (one for one in plan.methods if one.name in drawings):
        method_drawings = drawings[method.name]
        row = _row(
            grid, method, method_drawings, [baseline[one.prompt, one.seed] for one in method_drawings], views, greedy
        )
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
    drawings: list[Drawing],
    baseline: list[Drawing],
    views: PictureViews,
    greedy: bool,
) -> ReportRow:
    seconds = sum(one.seconds for one in drawings)
    cells = len(drawings) * grid.cells
    accepted = sum(int(accepted_cells(one, grid).sum()) for one in drawings) / cells if method.drafts else None
    refused = [one.rejected for one in drawings if one.rejected is not None]
    lengths, depths, nodes = _per_cycle(drawings)
    gain = speedup([one.seconds for one in baseline], [one.seconds for one in drawings])
    target_share = sum(one.target_seconds for one in drawings) / seconds
    drafter_share = sum(one.drafter_seconds for one in drawings) / seconds
    resampler_share = sum(one.resampler_seconds for one in drawings) / seconds
    per_cycle = None if lengths is None else 1e3 * seconds / sum(one.target_nfe for one in drawings)
    inside = [one.device_seconds for one in drawings if one.device_seconds is not None]
    device_share = sum(inside) / seconds if inside else 0.0
    has_host_share = bool(inside) or drawings[0].method != EAGER
    host_share = 1.0 - target_share - drafter_share - resampler_share - device_share if has_host_share else None
    on_device = drawings[0].method == EAGER or bool(inside)
    same = [one.tokens == other.tokens for one, other in zip(drawings, baseline, strict=True)]
    return ReportRow(
        method=drawings[0].method,
        lossless=method.lossless,
        target_nfe=_mean([one.target_nfe for one in drawings]),
        drafter_nfe=_mean([one.drafter_nfe for one in drawings]),
        tokens_per_cycle=lengths,
        mean_depth=depths,
        mean_nodes=nodes,
        kept_share=accepted,
        rejected_share=sum(refused) / cells if refused else None,
        seconds_per_image=seconds / len(drawings),
        overhead_share=host_share,
        target_share=target_share,
        drafter_share=drafter_share,
        resampler_share=resampler_share,
        target_ms_per_cycle=None if per_cycle is None or on_device else target_share * per_cycle,
        drafter_ms_per_cycle=None if per_cycle is None or on_device else drafter_share * per_cycle,
        host_ms_per_cycle=None if per_cycle is None or host_share is None else host_share * per_cycle,
        identical_to_ar=all(same) if greedy else None,
        identical_share=sum(same) / len(same) if greedy else None,
        images=len(drawings),
        batch=max(one.batch for one in drawings),
        device_ms_per_cycle=device_share * per_cycle if inside and per_cycle is not None else None,
        peak_bytes=max((one.peak_bytes for one in drawings if one.peak_bytes is not None), default=None),
        loop=" and ".join(sorted({one.loop for one in drawings})),
        **cast("dict[str, Any]", gain.named("speedup")),
        **picture_quality(drawings, baseline, views),
    )


def _per_cycle(drawings: Sequence[Drawing]) -> tuple[float | None, float | None, float | None]:
    """Tokens, tree levels and drafted nodes per cycle after the first; None for methods without draft trees."""
    accepted = [count for one in drawings for count in one.accepted or ()]
    depths = [depth for one in drawings for depth in one.depths or ()]
    nodes = [count for one in drawings for count in one.nodes or ()]
    if not accepted:
        return None, None, None
    return float(np.mean(accepted)) + 1.0, float(np.mean(depths)), float(np.mean(nodes))


def _mean(values: Sequence[int]) -> float:
    return float(np.mean(values))
