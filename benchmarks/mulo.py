"""The ablation of multi-scale drafting: what each part of MuLo-SD adds on the shipped models, in one table.

Run: python -m benchmarks.mulo [--models DIR] [--prompts-count 48] [--seeds 1] [--set tau=0.1] [--variants LABEL ...]
     [--out FILE]

Every variant draws the same prompts under the same seeds as AR, interleaved; a stopped run goes on where it was. Where
the table says "matched", tau was first chosen on prompts of its own, so that as large a share of the draft is kept
as by the group's reference. --set is for every variant of MuLo-SD, before what it changes itself. The
last line is JSON; --out holds it whole, with which of the paper's orderings (arXiv 2601.05149) came out here: quality
by differences on the same prompts and seeds, with 95 % intervals over prompts, of accuracy and of the log-probability
that the judge gives the prompt's attributes.
"""

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.mulo_variants import FASTER, ORDERINGS, TEMPERATURE, VARIANTS, Variant, chosen
from benchmarks.report import at_least, finish, models_option, options, parse, progress, refusing
from underpaint.algos.rows import SamplingParams
from underpaint.artifacts.files import check_folder_writable
from underpaint.artifacts.manifest import write_beside
from underpaint.runtime.drawing import Drawing, draw
from underpaint.runtime.evaluation.comparison import BASELINE, ComparisonPlan, read_conditions
from underpaint.runtime.evaluation.drawer import run
from underpaint.runtime.evaluation.drawing_log import DrawingKey
from underpaint.runtime.evaluation.picture_judge import judge_of
from underpaint.runtime.evaluation.picture_quality import PictureViews, picture_quality
from underpaint.runtime.evaluation.plan import RunPlan
from underpaint.runtime.evaluation.report_row import ReportRow, accepted_cells, report_rows
from underpaint.runtime.methods.method import DecodingMethod
from underpaint.runtime.methods.registry import build_method, resolve
from underpaint.runtime.methods.settings import overridden
from underpaint.runtime.pipeline import Pipeline

APART = 128
"""Prompts that the comparison may choose; thresholds are matched on the ones after them."""
MATCH_PROMPTS, ROUGH_PROMPTS = 48, 12
"""Pictures that a threshold is matched on, and how many of them tell where it lies roughly: by 6 the shares of the
comparison itself were up to 11 points apart."""
LEAST_TAU, MOST_TAU, HALVINGS = 1e-8, 1.0, 5


def available(
    pipeline: Pipeline, sampler: SamplingParams, asked: tuple[Variant, ...]
) -> tuple[list[Variant], dict[str, str]]:
    """The variants that the models of this folder can draw, and why not the others; ValueError where none can."""
    found, missing = [], {}
    for one in asked:
        try:
            built(pipeline, one).open(pipeline, read_conditions(pipeline, (), 1)[0], sampler)
            found.append(one)
        except ValueError as error:
            missing[one.label] = str(error)
    if all(one.label == BASELINE for one in found):
        raise ValueError("; ".join(dict.fromkeys(missing.values())) or "--variants: expected one beside ar")
    return found, missing


def built(pipeline: Pipeline, one: Variant, *more: str) -> DecodingMethod:
    config = resolve(one.method, TEMPERATURE, None, overridden(one.settings, more))
    return build_method(one.label, config, pipeline.tables)


def kept_share(
    pipeline: Pipeline, method: DecodingMethod, sampler: SamplingParams, prompts_count: int | None = None
) -> float:
    """Mean share of the draft that is kept, over the first of the matching prompts; None: all of them."""
    prompts = read_conditions(pipeline, (), prompts_count or MATCH_PROMPTS, APART)
    drawn = [draw(pipeline, method, sampler, prompt, 0) for prompt in prompts]
    return float(np.mean([accepted_cells(one, pipeline.grid) for one in drawn]))


def matched_tau(pipeline: Pipeline, one: Variant, wanted: float, sampler: SamplingParams) -> float:
    """The threshold at which `wanted` of the draft is kept: by bisection of its logarithm on a few prompts, then on a
    line through the shares that all prompts keep at the two ends; near the least where none keeps so much."""

    def kept(place: float, prompts_count: int | None = None) -> float:
        return kept_share(pipeline, built(pipeline, one, f"tau={np.exp(place)}"), sampler, prompts_count)

    least, most = np.log(LEAST_TAU), np.log(MOST_TAU)
    low, high = least, most
    for _ in range(HALVINGS):
        middle = 0.5 * (low + high)
        if kept(middle, min(ROUGH_PROMPTS, MATCH_PROMPTS)) > wanted:
            low = middle
        else:
            high = middle
    more, fewer, width = kept(low), kept(high), high - low
    if more <= fewer:
        return float(np.exp(0.5 * (low + high)))
    place = low + width * (more - wanted) / (more - fewer)
    return float(np.exp(np.clip(place, max(least, low - width), min(most, high + width))))


def matched(pipeline: Pipeline, asked: list[Variant], sampler: SamplingParams, memory: Path) -> dict[str, float]:
    """The thresholds of the variants that need one; kept in `memory` for a run that goes on."""
    known: dict[str, Any] = json.loads(memory.read_text()) if memory.exists() else {}
    asks = {
        "model": json.loads(json.dumps(dict(pipeline.fingerprint()))),
        "variants": [repr(one) for one in asked],
        "by": [MATCH_PROMPTS, ROUGH_PROMPTS, HALVINGS, LEAST_TAU, MOST_TAU],
    }
    if {name: known.get(name) for name in asks} != asks:
        known = {**asks, "taus": {}}
    by_label, kept = {one.label: one for one in asked}, dict[str, float]()
    for one in asked:
        if one.match is not None and one.label not in known["taus"]:
            if one.match not in kept:
                kept[one.match] = kept_share(pipeline, built(pipeline, by_label[one.match]), sampler)
            wanted = kept[one.match]
            known["taus"][one.label] = matched_tau(pipeline, one, wanted, sampler)
            print(f"{one.label}: tau {known['taus'][one.label]:.3g} to keep {wanted:.1%}", file=sys.stderr, flush=True)
            write_beside(memory, json.dumps(known).encode())
    taus: dict[str, float] = known["taus"]
    return taus


def orderings(
    rows: dict[str, ReportRow], drawings: dict[str, list[Drawing]], views: PictureViews
) -> list[dict[str, Any]]:
    """The paper's orderings, and whether they came out: quality picture by picture."""
    found: list[dict[str, Any]] = []
    for claim, better, worse in ORDERINGS:
        if not {better, worse} <= rows.keys():
            continue
        beside = picture_quality(drawings[better], drawings[worse], views)
        for figure, name in (
            ("prompt_accuracy", "accuracy_over_ar"),
            ("attribute_log_probability", "attribute_log_probability_over_ar"),
        ):
            if name in beside:
                told = {"claim": claim, "figure": figure, "better": better, "worse": worse}
                ends = {"low": beside[f"{name}_low"], "high": beside[f"{name}_high"]}
                found.append({**told, "difference": beside[name], **ends, "holds": beside[name] > 0})
    for claim, better, worse in FASTER:
        if better in rows and worse in rows:
            one, other = rows[better].speedup, rows[worse].speedup
            told = {"claim": claim, "figure": "speedup", "better": better, "worse": worse}
            found.append({**told, "found": [one, other], "holds": one > other})
    return found


def show(asked: list[Variant], rows: dict[str, ReportRow], taus: dict[str, float]) -> None:
    print(
        f"{'group':10s} {'variant':34s} {'tau':>7s} speed-up {'target':>7s} {'drafter':>7s} {'s':>6s}  kept refused"
        f"  host resample accuracy Fréchet (floor)"
    )
    for one in asked:
        row, tau = rows[one.label], taus.get(one.label)
        kept, refused = (
            "     -" if share is None else f"{share:6.1%}" for share in (row.kept_share, row.rejected_share)
        )
        print(
            f"{one.group:10s} {one.label:34s} {'' if tau is None else f'{tau:.2g}':>7s} {row.speedup:7.2f}x "
            f"{row.target_nfe:7.1f} {row.drafter_nfe:7.1f} {row.seconds_per_image:6.3f} {kept} {refused} "
            f"{row.overhead_share:5.0%} {row.resampler_share:8.0%} {row.prompt_accuracy:8.3f} "
            f"{row.frechet_distance:.1f} ({row.frechet_floor or float('nan'):.1f})"
        )


def main(arguments: list[str] | None = None) -> None:
    parser = options("mulo", __doc__)
    models_option(parser)
    parser.add_argument("--prompts-count", type=at_least(2), default=48)
    parser.add_argument("--seeds", type=at_least(1), default=1)
    parser.add_argument("--set", dest="settings", action="append", default=[], help="NAME=VALUE of all of MuLo-SD")
    parser.add_argument(
        "--variants", nargs="+", choices=[one.label for one in VARIANTS], help="all where none is named"
    )
    parser.add_argument("--folder", type=Path, default=Path("runs/mulo-ablation"), help="finished drawings")
    parser.add_argument("--fresh", action="store_true", help="discard the finished drawings")
    given = parse(parser, arguments)
    if given.prompts_count > APART:
        parser.error(f"--prompts-count: expected at most {APART}, got {given.prompts_count}")
    with refusing(parser):
        check_folder_writable(given.folder)
        pipeline = Pipeline.open(given.models, resolution=128)
        prompts = read_conditions(pipeline, (), given.prompts_count)
        sampler = pipeline.sampling
        asked, missing = available(pipeline, sampler, chosen(given.variants, given.settings))
    for label, why in missing.items():
        print(f"left out: {label}: {why}", file=sys.stderr)
    taus = matched(pipeline, asked, sampler, given.folder / "taus.json")
    methods = tuple(built(pipeline, one, *([f"tau={taus[one.label]}"] if one.label in taus else [])) for one in asked)
    plan = ComparisonPlan(methods, prompts, tuple(range(given.seeds)), sampler)
    whole = RunPlan.of(pipeline, plan, judge_of(pipeline))
    with refusing(parser):
        store = whole.open_log(given.folder, fresh=given.fresh)
    run(whole, store, progress)
    keys = [(one.caption(), seed) for seed in plan.seeds for one in plan.conditions]
    drawings = {method.name: [store.drawing(DrawingKey(method.name, *key)) for key in keys] for method in plan.methods}
    views = PictureViews(pipeline, whole.models[0].judge, plan.conditions, compared=True)
    rows = {row.method: row for row in report_rows(plan, drawings, pipeline.grid, views)}
    show(asked, rows, taus)
    claims = orderings(rows, drawings, views)
    found = {
        "settings": whole.models[0].settings(),
        "baseline": BASELINE,
        "left_out": missing,
        "matched_taus": taus,
        "rows": [{"group": one.group, **dataclasses.asdict(rows[one.label])} for one in asked],
        "orderings": claims,
    }
    for one in claims:
        figure = one.get("found") or (one["difference"], one["low"], one["high"])
        print(f"{'holds' if one['holds'] else 'fails'}: {one['claim']} ({one['figure']}: {figure})")
    finish(found, given.out)


if __name__ == "__main__":
    main()
