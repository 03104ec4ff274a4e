"""The ablation of multi-scale drafting: what each part of MuLo-SD adds on the shipped models, in one table.

Run: python -m benchmarks.mulo [--engines DIR] [--prompts-count 48] [--seeds 1] [--out FILE]

Every variant draws the same prompts under the same seeds as AR, interleaved; a stopped run goes on where it was. Where
the table says "matched", tau was first found by bisection on prompts of its own, so that as large a share of the
draft is kept as by the group's reference. The last line is JSON; --out holds it whole, with which of the paper's
orderings (arXiv 2601.05149) came out here.
"""

import dataclasses
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.models import engines_option, open_models
from benchmarks.report import at_least, finish, options, parse, progress, refusing
from underpaint.algos.rows import SamplingParams
from underpaint.artifacts.manifest import write_beside
from underpaint.runtime.drawing import draw
from underpaint.runtime.evaluation.comparison import BASELINE, ComparisonPlan, log_settings, read_conditions, run
from underpaint.runtime.evaluation.drawing_log import DrawingLog
from underpaint.runtime.evaluation.report import ReportRow, accepted_cells, make_report
from underpaint.runtime.files import check_folder_writable
from underpaint.runtime.methods.method import DecodingMethod
from underpaint.runtime.methods.registry import build_method, resolve
from underpaint.runtime.pipeline import Pipeline
from underpaint.runtime.resampling.pixels import FILTERS
from underpaint.runtime.resampling.registry import SUPER_RESOLUTION

APART = 128
"""Prompts that the comparison may choose; thresholds are matched on the ones after them."""
MATCH_PROMPTS = 6
LEAST_TAU, MOST_TAU, HALVINGS = 1e-4, 1.0, 8
TEMPERATURE = 1.0


@dataclass(frozen=True)
class Variant:
    """A line of the table. match: the label whose share of kept cells its tau is chosen for."""

    group: str
    label: str
    method: str
    settings: tuple[str, ...] = ()
    match: str | None = None


STARTS = {
    "mulo": ("tau=0.3", "window=none"),
    "mulo-raster": ("tau=0.3",),
    "mulo-islands": ("tau=0.3", "radius=1", "draft_window=2"),
}
"""What the variants start from: serial repair in raster order, so that each part's effect is seen by itself."""
TWO_ROWS = ("rows=2",)
VARIANTS = (
    Variant("control", "ar", "ar"),
    *(Variant("control", f"ZipAR, window {window}", "zipar", (f"window={window}",)) for window in (1, 2, 4, 8)),
    Variant("control", "ZipAR, window 2, adaptive", "zipar", ("window=2", "adaptive=true")),
    Variant("control", "LANTERN", "lantern"),
    Variant("rejection", "local + expansion", "mulo", TWO_ROWS),
    Variant("rejection", "plain local, matched", "mulo", (*TWO_ROWS, "radius=0"), "local + expansion"),
    Variant("rejection", "plain local, same tau", "mulo", (*TWO_ROWS, "radius=0")),
    Variant("rejection", "local + radius 2, matched", "mulo", (*TWO_ROWS, "radius=2"), "local + expansion"),
    Variant("rejection", "raster, matched", "mulo-raster", TWO_ROWS, "local + expansion"),
    Variant("rejection", "raster, same tau", "mulo-raster", TWO_ROWS),
    Variant("pooling", "pooled", "mulo"),
    Variant("pooling", "pooled over 100 codes, matched", "mulo", ("k=100",), "pooled"),
    Variant("pooling", "not pooled, matched", "mulo", ("k=none",), "pooled"),
    Variant("pooling", "not pooled, same tau", "mulo", ("k=none",)),
    Variant("rule", "LANTERN's rule", "mulo", ("rule=lantern",)),
    Variant("rule", "exact rule", "mulo", ("rule=exact",)),
    *(
        Variant("sampler", f"sampler {kind}", "mulo", (f"resampler={kind}",))
        for kind in (*FILTERS, SUPER_RESOLUTION, "latent", "latent-ce", "latent-gan")
    ),
    *(
        Variant("way down", f"sampler {kind}, two rows", "mulo", (*TWO_ROWS, f"resampler={kind}"))
        for kind in ("latent-down-pixel", "latent-down-gan")
    ),
    Variant("order", "islands", "mulo", ("order=islands",)),
    Variant("order", "islands, row fronts", "mulo", ("order=islands", "window=2")),
    Variant("order", "serial, row fronts", "mulo", ("window=2",)),
    Variant("keys", "islands, two rows, stale", "mulo", (*TWO_ROWS, "order=islands")),
    Variant("keys", "islands, two rows, recompute", "mulo", (*TWO_ROWS, "order=islands", "keys=recompute")),
    Variant("drafting", "row fronts in drafting too", "mulo-islands"),
    Variant("drafting", "row fronts in drafting, no repair", "mulo-islands", ("tau=0",)),
    Variant("drafting", "everywhere, radius 0", "mulo-islands", ("radius=0",)),
    Variant("drafting", "everywhere, window 1, radius 0", "mulo-islands", ("radius=0", "window=1", "draft_window=1")),
    Variant("drafting", "one row a cycle", "mulo", ("rows=1",)),
)


def available(pipeline: Pipeline, sampler: SamplingParams) -> tuple[list[Variant], dict[str, str]]:
    """The variants that the models of this folder can draw, and why not the others."""
    found, missing = [], {}
    for one in VARIANTS:
        try:
            built(pipeline, one).open(pipeline, read_conditions(pipeline, (), 1)[0], sampler)
            found.append(one)
        except ValueError as error:
            missing[one.label] = str(error)
    return found, missing


def built(pipeline: Pipeline, one: Variant, *more: str) -> DecodingMethod:
    config = resolve(one.method, TEMPERATURE, None, (*STARTS.get(one.method, ()), *one.settings, *more))
    return build_method(one.label, config, pipeline.tables)


def kept_share(pipeline: Pipeline, method: DecodingMethod, sampler: SamplingParams) -> float:
    prompts = read_conditions(pipeline, (), MATCH_PROMPTS, APART)
    drawn = [draw(pipeline, method, sampler, prompt, 0) for prompt in prompts]
    return float(np.mean([accepted_cells(one, pipeline.grid) for one in drawn]))


def matched_tau(pipeline: Pipeline, one: Variant, wanted: float, sampler: SamplingParams) -> float:
    """The threshold at which `wanted` of the draft is kept, by bisection of its logarithm; the least where none is."""
    low, high = np.log(LEAST_TAU), np.log(MOST_TAU)
    for _ in range(HALVINGS):
        middle = 0.5 * (low + high)
        if kept_share(pipeline, built(pipeline, one, f"tau={np.exp(middle):.5f}"), sampler) > wanted:
            low = middle
        else:
            high = middle
    return float(np.exp(0.5 * (low + high)))


def matched(pipeline: Pipeline, asked: list[Variant], sampler: SamplingParams, memory: Path) -> dict[str, float]:
    """The thresholds of the variants that need one; kept in `memory` for a run that goes on."""
    known: dict[str, Any] = json.loads(memory.read_text()) if memory.exists() else {}
    asks = {"model": json.loads(json.dumps(dict(pipeline.fingerprint()))), "variants": [repr(one) for one in asked]}
    if {name: known.get(name) for name in asks} != asks:
        known = {**asks, "taus": {}}
    by_label = {one.label: one for one in asked}
    for one in asked:
        if one.match is not None and one.label not in known["taus"]:
            wanted = kept_share(pipeline, built(pipeline, by_label[one.match]), sampler)
            known["taus"][one.label] = matched_tau(pipeline, one, wanted, sampler)
            print(f"{one.label}: tau {known['taus'][one.label]:.5f} to keep {wanted:.1%}", file=sys.stderr, flush=True)
            write_beside(memory, json.dumps(known).encode())
    taus: dict[str, float] = known["taus"]
    return taus


def orderings(rows: dict[str, ReportRow]) -> list[dict[str, Any]]:
    """The paper's orderings, and whether they came out; differences of accuracy come with their standard error."""

    def compared(claim: str, better: str, worse: str, what: str, higher: bool = True) -> dict[str, Any] | None:
        if better not in rows or worse not in rows:
            return None
        one, other = getattr(rows[better], what), getattr(rows[worse], what)
        images = rows[better].images
        error = np.sqrt((one * (1 - one) + other * (1 - other)) / images) if what == "prompt_accuracy" else None
        return {
            **{"claim": claim, "figure": what, "better": better, "worse": worse, "found": [one, other]},
            "holds": bool(one > other if higher else one < other),
            "standard_error": None if error is None else float(error),
        }

    asked = (
        ("expansion beats plain local at matched acceptance", "local + expansion", "plain local, matched"),
        ("local + expansion beats raster at matched acceptance", "local + expansion", "raster, matched"),
        ("pooling beats no pooling at matched acceptance", "pooled", "not pooled, matched"),
        ("pixel loss beats token cross-entropy", "sampler latent", "sampler latent-ce"),
        ("the adversarial term beats pixel loss alone", "sampler latent-gan", "sampler latent"),
        ("way down: pixel loss beats token cross-entropy", "sampler latent-down-pixel, two rows", "local + expansion"),
        (
            "way down: the adversarial term beats pixel loss alone",
            *("sampler latent-down-gan, two rows", "sampler latent-down-pixel, two rows"),
        ),
        ("the pixel sampler beats the latent one", "sampler bicubic", "sampler latent-gan"),
        ("recomputed keys beat stale ones", "islands, two rows, recompute", "islands, two rows, stale"),
    )
    found = [compared(*one, "prompt_accuracy") for one in asked]
    found += [compared(claim, better, worse, "frechet_distance", higher=False) for claim, better, worse in asked]
    found += [
        compared("raster rejection is slower at the same tau", "local + expansion", "raster, same tau", "speedup"),
        compared("islands are faster than serial repair", "islands", "pooled", "speedup"),
        compared("row fronts are faster still", "row fronts in drafting too", "islands", "speedup"),
        compared("ZipAR alone is faster than serial MuLo-SD", "ZipAR, window 4", "pooled", "speedup"),
        compared("islands with row fronts beat ZipAR", "row fronts in drafting too", "ZipAR, window 4", "speedup"),
    ]
    return [one for one in found if one is not None]


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
            f"{one.group:10s} {one.label:34s} {'' if tau is None else f'{tau:.4f}':>7s} {row.speedup:7.2f}x "
            f"{row.target_nfe:7.1f} {row.drafter_nfe:7.1f} {row.seconds_per_image:6.3f} {kept} {refused} "
            f"{row.overhead_share:5.0%} {row.resampler_share:8.0%} {row.prompt_accuracy:8.3f} "
            f"{row.frechet_distance:.1f} ({row.frechet_floor or float('nan'):.1f})"
        )


def main(arguments: list[str] | None = None) -> None:
    parser = options("mulo", __doc__)
    engines_option(parser)
    parser.add_argument("--prompts-count", type=at_least(2), default=48)
    parser.add_argument("--seeds", type=at_least(1), default=1)
    parser.add_argument("--folder", type=Path, default=Path("runs/mulo-ablation"), help="finished drawings")
    parser.add_argument("--fresh", action="store_true", help="discard the finished drawings")
    given = parse(parser, arguments)
    if given.prompts_count > APART:
        parser.error(f"--prompts-count: expected at most {APART}, got {given.prompts_count}")
    with refusing(parser):
        check_folder_writable(given.folder)
        pipeline = open_models(given, 128)
        prompts = read_conditions(pipeline, (), given.prompts_count)
    sampler = pipeline.sampling
    asked, missing = available(pipeline, sampler)
    for label, why in missing.items():
        print(f"left out: {label}: {why}", file=sys.stderr)
    taus = matched(pipeline, asked, sampler, given.folder / "taus.json")
    methods = tuple(built(pipeline, one, *([f"tau={taus[one.label]}"] if one.label in taus else [])) for one in asked)
    plan = ComparisonPlan(methods, prompts, tuple(range(given.seeds)), sampler)
    settings = log_settings(pipeline, plan)
    with refusing(parser):
        store = DrawingLog(given.folder, settings, fresh=given.fresh)
    run(pipeline, plan, store, progress)
    rows = {row.method: row for row in make_report(pipeline, plan, store).rows}
    show(asked, rows, taus)
    claims = orderings(rows)
    found = {
        "settings": settings,
        "baseline": BASELINE,
        "left_out": missing,
        "matched_taus": taus,
        "rows": [{"group": one.group, **dataclasses.asdict(rows[one.label])} for one in asked],
        "orderings": claims,
    }
    for one in claims:
        print(f"{'holds' if one['holds'] else 'fails'}: {one['claim']} ({one['figure']}: {one['found']})")
    finish(found, given.out)


if __name__ == "__main__":
    main()
