"""`underpaint compare`: methods beside each other, on the same prompts and seeds."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from underpaint.cli.costs import curve_for, tables_with_costs
from underpaint.cli.drawing import draw_all, record_all
from underpaint.cli.errors import bad_input
from underpaint.cli.evaluation.prompts import PromptOptions, choose
from underpaint.cli.option_groups import grouped
from underpaint.cli.options import (
    Backend,
    Engines,
    Guidance,
    Low,
    MethodSettings,
    Preset,
    Resolution,
    Seeds,
    Temperature,
    TopK,
    TopP,
    check_costs,
    check_promises,
    describe_sampling,
    open_pipeline,
    read_names,
    read_sampling,
    settings_by_method,
    short_hash,
)
from underpaint.cli.terminal import (
    Column,
    Format,
    FormatOption,
    ResultTable,
    check_json,
    figure,
    note,
    progress,
    show,
    told_as_json,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from underpaint.artifacts.cost_curve import CostCurveFile
    from underpaint.runtime.evaluation.comparison import ComparisonPlan
    from underpaint.runtime.evaluation.drawing_log import DrawingLog
    from underpaint.runtime.evaluation.replay import ReplayLog
    from underpaint.runtime.evaluation.report import ReportRow
    from underpaint.runtime.pipeline import Pipeline

DEFAULT_OUT = Path("runs/compare")
GALLERY = "gallery.png"
MAPS = "acceptance.png"
DEFAULT_METHODS = (
    "ar,speculative,eagle2,adt-control-chain,adt-control-tree,adt,scd-maximal,jacobi-lookup,"
    "lantern,lantern++,adt+lantern"
)

_NO_FILE = PromptOptions()


@grouped
def compare(
    prompts: Annotated[
        list[str] | None,
        typer.Argument(help="Prompts in quotes (see --engines); without any, and without --prompts, some are chosen."),
    ] = None,
    methods: Annotated[str, typer.Option(help="Methods, with commas between; AR is always among them.")] = (
        DEFAULT_METHODS
    ),
    preset: Preset = "tuned",
    temperature: Temperature = 1.0,
    seeds: Seeds = 1,
    prompt_options: PromptOptions = _NO_FILE,
    setting: MethodSettings = None,
    guidance: Guidance = None,
    top_k: TopK = None,
    top_p: TopP = None,
    engines: Engines = None,
    resolution: Resolution = None,
    low: Low = None,
    backend: Backend = "cpu",
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder for pictures and finished drawings; default: under runs/compare, by settings.",
            show_default=False,
        ),
    ] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Figures; default: compare.json in --out; - is standard output.")
    ] = None,
    form: FormatOption = Format.table,
    save_pictures: Annotated[
        bool, typer.Option("--save-pictures", help="Write every picture as a PNG of its own, under pictures in --out.")
    ] = False,
    save_replay: Annotated[
        int,
        typer.Option(
            help="Also record, step by step, how every method decodes the first so many prompts, for `underpaint "
            "report`. They are drawn once more for it, so no timing changes.",
            min=0,
        ),
    ] = 0,
    likelihood: Annotated[
        bool,
        typer.Option(
            "--likelihood",
            help="Also how likely the target itself holds the drawn tokens (temperature 1, nothing cut off): "
            "some passes a drawing, after all are drawn.",
        ),
    ] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Discard the drawings that --out holds.")] = False,
) -> None:
    """Draw the same prompts by several methods and report speed, cost and quality beside plain AR.

    A stopped comparison (Ctrl-C) keeps what is drawn; the same command goes on with it. Quality is reported where the
    folder of models holds a judge, pictures where it holds a decoder.
    """
    from underpaint.algos.rows import SamplingParams
    from underpaint.runtime.evaluation.comparison import (
        ComparisonPlan,
        build_methods,
        check_log,
        check_opens,
        log_settings,
        with_baseline,
    )
    from underpaint.runtime.evaluation.drawing_log import FILE_NAME, DrawingLog
    from underpaint.runtime.evaluation.replay import ReplayLog
    from underpaint.runtime.files import check_apart, check_folder_writable
    from underpaint.runtime.methods.registry import resolve

    with bad_input():
        checked = SamplingParams(temperature=temperature).temperature
        names = with_baseline(read_names(methods))
        own = settings_by_method(setting or [], names)
        configs = [resolve(name, checked, None, own[name], preset) for name in names]
        check_folder_writable(out or DEFAULT_OUT)
        check_json(json_file)
        pipeline = open_pipeline(engines, resolution, low, backend)
        sampling = read_sampling(temperature, guidance, top_k, top_p, pipeline)
        chosen = choose(pipeline, prompts or [], prompt_options)
        drawn_by = build_methods(pipeline, names, checked, own, preset)
        check_promises(configs)
        check_costs(setting or (), pipeline)
        plan = ComparisonPlan(drawn_by, chosen.conditions, tuple(range(seeds)), sampling, preset)
        check_opens(pipeline, plan)
        if save_pictures and pipeline.decoder is None:
            raise ValueError(f"--save-pictures: {pipeline.folder} holds no picture decoder; leave it out")
        costs = tables_with_costs(pipeline, configs, sampling).costs
        if costs is not None:
            drawn_by = build_methods(pipeline, names, checked, own, preset, costs)
            plan = ComparisonPlan(drawn_by, chosen.conditions, tuple(range(seeds)), sampling, preset)
        told = log_settings(pipeline, plan)
        out = out or DEFAULT_OUT / short_hash(told)
        figures = json_file or out / "compare.json"
        check_json(figures)
        kept = {"the record of drawings": out / FILE_NAME, "the gallery": out / GALLERY, "the maps": out / MAPS}
        check_apart({**kept, "--json": figures})
        log, replays = DrawingLog(out, told, fresh=fresh), ReplayLog(out, told)
        check_log(log, plan, pipeline)
    curve = curve_for(pipeline, plan, log)
    draw_all(pipeline, plan, log)
    record_all(pipeline, plan, log, replays, save_replay)
    _report(pipeline, plan, out, figures, log, replays, curve, form, chosen.source, likelihood)
    if save_pictures:
        _save_pictures(pipeline, log, out / "pictures", form)


def _report(
    pipeline: "Pipeline",
    plan: "ComparisonPlan",
    out: Path,
    figures: Path,
    log: "DrawingLog",
    replays: "ReplayLog",
    curve: "CostCurveFile | None",
    form: Format,
    source: "Mapping[str, Any]",
    likelihood: bool,
) -> None:
    from underpaint.runtime.evaluation.gallery import write_acceptance, write_gallery
    from underpaint.runtime.evaluation.machine import typed_command
    from underpaint.runtime.evaluation.report import make_report, to_results

    with progress("looking at the pictures of methods", len(plan.methods)) as advance:
        report = make_report(
            pipeline,
            plan,
            log,
            replays.replays(),
            likelihood=likelihood,
            report=lambda done, most: advance(done, total=most),
        )
    more_settings = {"prompts_file": source} if source else {}
    plain = to_results(pipeline, plan, report, typed_command(), curve, more_settings)
    title = title_of(pipeline, plan)
    captions = [condition.caption() for condition in plan.conditions]
    gallery, maps = out / GALLERY, out / MAPS
    if report.gallery:
        write_gallery(gallery, report.rows, report.gallery, captions, f"One row a method: {title}")
    write_acceptance(
        maps, report.rows, report.acceptance, f"Share of images in which a cell was an accepted draft: {title}"
    )
    if told_as_json(figures, plain):
        return
    print_rows(report.rows, pipeline, title, curve, form)
    for path in (figures, *([gallery] if report.gallery else []), maps):
        note(str(path), form)


def title_of(pipeline: "Pipeline", plan: "ComparisonPlan") -> str:
    """What a table is of: the size of the pictures, how they are sampled, and the preset of the methods' settings."""
    sampling = describe_sampling(plan.sampling, pipeline.tables.vocab_size)
    return f"{pipeline.title()}, {sampling}, {plan.preset} settings"


def _save_pictures(pipeline: "Pipeline", log: "DrawingLog", folder: Path, form: Format) -> None:
    """One PNG a drawing: pictures/METHOD/PROMPT-seedSEED.png, prompts numbered as they were given."""
    import io

    from PIL import Image

    from underpaint.artifacts.manifest import write_beside

    places = {prompt: place for place, prompt in enumerate(dict.fromkeys(one.prompt for one in log))}
    for drawing in log:
        stream = io.BytesIO()
        Image.fromarray(pipeline.picture(drawing.tokens_array())).save(stream, "PNG")
        name = f"{places[drawing.prompt]:04d}-seed{drawing.seed}.png"
        write_beside(folder / drawing.method.replace(":", "_") / name, stream.getvalue())
    note(str(folder), form)


def print_rows(
    reported: "Sequence[ReportRow]",
    pipeline: "Pipeline",
    title: str,
    curve: "CostCurveFile | None" = None,
    form: Format = Format.table,
) -> None:
    """Print a row a method, what the judge itself reads right, and the knee of the cost curve where it is known."""
    from underpaint.runtime.evaluation.comparison import BASELINE

    judged = pipeline.judge is not None
    rows = [{**asdict(row), **_joined(row)} for row in reported]
    show([ResultTable(title, _columns(judged, reported), rows)], form)
    own = pipeline.judge.reference.accuracy.get("concept_and_style") if pipeline.judge is not None else None
    if own is not None:
        note(f"The judge itself reads {own:.3f} of real scenes right (concept and style).", form)
    if curve is not None:
        note(f"On this machine {curve.knee.describe()} (`underpaint costs`, curve {curve.fingerprint[:12]}).", form)
        plain = next((row.target_ms_per_cycle for row in reported if row.method == BASELINE), None)
        warning = None if plain is None else curve.outdated(plain)
        if warning is not None:
            note(f"Beware: {warning}.", form)


def _columns(judged: bool, reported: "Sequence[ReportRow]") -> list[Column]:
    """What a row of a comparison shows; JSON and CSV give intervals and parts as figures of their own."""
    quality = (
        figure("prompt_accuracy", "prompt\naccuracy", ".3f"),
        Column("accuracy_over_ar_interval", "less AR's\n(95 %)", right=True),
        Column("log_probability_interval", "judge's log-probability\nless AR's (95 %)", right=True),
        Column("frechet", "Fréchet\n(floor)", right=True),
    )
    return [
        Column("method", "method\n"),
        Column("lossless", "loss-\nless", right=True),
        figure("speedup", "speed-\nup", ".2f", "x"),
        Column("speedup_interval", "95 %\ninterval", right=True),
        figure("seconds_per_image", "s per\nimage", ".3f"),
        figure("target_nfe", "target\nNFE", ".1f"),
        figure("drafter_nfe", "drafter\nNFE", ".1f"),
        figure("tokens_per_cycle", "tokens\nper cycle", ".2f"),
        figure("mean_depth", "mean\ndepth", ".2f"),
        figure("mean_nodes", "nodes a\ncycle", ".2f"),
        figure("kept_share", "draft\nkept", ".0%"),
        figure("overhead_share", "over-\nhead", ".0%"),
        Column("ms_per_cycle", "ms a cycle: target\n+ drafter + host", right=True),
        *(quality if judged else ()),
        Column("auc_interval", "told from AR's\nAUC (95 %)", right=True),
        *(
            (Column("log_likelihood_interval", "log-likelihood\nless AR's (95 %)", right=True),)
            if any(row.log_likelihood is not None for row in reported)
            else ()
        ),
        figure("identical_share", "same\nas AR", ".0%"),
    ]


def _joined(row: "ReportRow") -> dict[str, str]:
    """Figures that stand in one cell."""
    low, high = row.speedup_low, row.speedup_high
    parts = (row.target_ms_per_cycle, row.drafter_ms_per_cycle, row.host_ms_per_cycle)
    return {
        "speedup_interval": "-" if low is None else f"{low:.2f}-{high:.2f}",
        "ms_per_cycle": " + ".join(_figure(part, ".2f") for part in parts),
        "accuracy_over_ar_interval": _difference(row, "accuracy_over_ar"),
        "log_probability_interval": _difference(row, "attribute_log_probability_over_ar"),
        "auc_interval": "-" if row.auc is None else f"{row.auc:.3f} ({row.auc_low:.3f} to {row.auc_high:.3f})",
        "log_likelihood_interval": _difference(row, "log_likelihood_over_ar"),
        "frechet": _frechet(row),
    }


def _frechet(row: "ReportRow") -> str:
    """The distance and its floor; nothing where the distance is within what real scenes are from each other."""
    if row.frechet_distance is None or row.frechet_floor is None or row.frechet_distance <= row.frechet_floor:
        return "-"
    return f"{row.frechet_distance:.1f} ({row.frechet_floor:.1f})"


def _difference(row: "ReportRow", name: str) -> str:
    """A paired difference to the baseline with its interval."""
    value, low, high = (getattr(row, key) for key in (name, f"{name}_low", f"{name}_high"))
    return _figure(value, "+.3f") if low is None else f"{value:+.3f} ({low:+.3f} to {high:+.3f})"


def _figure(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
