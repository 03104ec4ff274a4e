"""`underpaint compare`: methods beside each other, on the same prompts and seeds."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from underpaint.cli.costs import curve_for, tables_with_costs
from underpaint.cli.drawing import draw_all
from underpaint.cli.errors import bad_input
from underpaint.cli.options import (
    Backend,
    Engines,
    Guidance,
    Low,
    Preset,
    Resolution,
    Temperature,
    TopK,
    TopP,
    describe_sampling,
    open_pipeline,
    read_names,
    read_sampling,
    settings_by_method,
)

if TYPE_CHECKING:
    from underpaint.artifacts.cost_curve import CostCurveFile
    from underpaint.runtime.evaluation.comparison import ComparisonPlan
    from underpaint.runtime.evaluation.drawing_log import DrawingLog
    from underpaint.runtime.evaluation.report import ComparisonReport, ReportRow
    from underpaint.runtime.pipeline import Pipeline

DEFAULT_METHODS = "ar,speculative,eagle2,adt-control-chain,adt-control-tree,adt,lantern,lantern++,adt+lantern"


def compare(
    prompts: Annotated[
        list[str] | None,
        typer.Argument(help="Prompts in quotes (see --engines); without any, --prompts-count are chosen."),
    ] = None,
    methods: Annotated[str, typer.Option(help="Methods, with commas between; AR is always among them.")] = (
        DEFAULT_METHODS
    ),
    preset: Preset = "tuned",
    temperature: Temperature = 1.0,
    seeds: Annotated[int, typer.Option(help="Seeds per prompt, counted from 0.", min=1)] = 1,
    prompts_count: Annotated[
        int | None, typer.Option(help="Prompts chosen from the training pairs; 8 if none is given.", min=1, max=1000)
    ] = None,
    prompts_skip: Annotated[
        int, typer.Option(help="Chosen prompts left out: those settings were tuned on.", min=0, max=1000)
    ] = 0,
    setting: Annotated[
        list[str] | None, typer.Option("--set", help="A setting of one method, method.name=value; repeat for more.")
    ] = None,
    guidance: Guidance = None,
    top_k: TopK = None,
    top_p: TopP = None,
    engines: Engines = None,
    resolution: Resolution = None,
    low: Low = None,
    backend: Backend = "cpu",
    out: Annotated[Path, typer.Option(help="Folder for pictures and finished drawings.")] = Path("runs/compare"),
    json_file: Annotated[Path | None, typer.Option("--json", help="Figures; default: compare.json in --out.")] = None,
    save_pictures: Annotated[
        bool, typer.Option("--save-pictures", help="Write every picture as a PNG of its own, under pictures in --out.")
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
        check_opens,
        log_settings,
        read_conditions,
        with_baseline,
    )
    from underpaint.runtime.evaluation.drawing_log import DrawingLog
    from underpaint.runtime.files import check_file_writable, check_folder_writable
    from underpaint.runtime.methods.registry import resolve

    figures = json_file or out / "compare.json"
    with bad_input():
        checked = SamplingParams(temperature=temperature).temperature
        names = with_baseline(read_names(methods))
        own = settings_by_method(setting or [], names)
        configs = [resolve(name, checked, None, own[name], preset) for name in names]
        check_folder_writable(out)
        check_file_writable(figures)
        pipeline = open_pipeline(engines, resolution, low, backend)
        sampling = read_sampling(temperature, guidance, top_k, top_p, pipeline.sampling)
        conditions = read_conditions(pipeline, prompts or [], prompts_count, prompts_skip)
        drawn_by = build_methods(pipeline, names, checked, own, preset)
        plan = ComparisonPlan(drawn_by, conditions, tuple(range(seeds)), sampling, preset)
        check_opens(pipeline, plan)
        if save_pictures and pipeline.decoder is None:
            raise ValueError(f"--save-pictures: {pipeline.folder} holds no picture decoder; leave it out")
        costs = tables_with_costs(pipeline, configs, sampling).costs
        if costs is not None:
            chosen = build_methods(pipeline, names, checked, own, preset, costs)
            plan = ComparisonPlan(chosen, conditions, tuple(range(seeds)), sampling, preset)
        log = DrawingLog(out, log_settings(pipeline, plan), fresh=fresh)
    curve = curve_for(pipeline, plan, log)
    draw_all(pipeline, plan, log)
    _report(pipeline, plan, out, figures, log, curve)
    if save_pictures:
        _save_pictures(pipeline, log, out / "pictures")


def _report(
    pipeline: "Pipeline",
    plan: "ComparisonPlan",
    out: Path,
    figures: Path,
    log: "DrawingLog",
    curve: "CostCurveFile | None",
) -> None:
    from underpaint.artifacts.manifest import write_beside
    from underpaint.runtime.evaluation.gallery import write_acceptance, write_gallery
    from underpaint.runtime.evaluation.machine import describe_machine, typed_command
    from underpaint.runtime.evaluation.report import make_report, to_dict

    report = make_report(pipeline, plan, log)
    settings = {**plan.to_dict(), "resolution": pipeline.resolution, "vocab_size": pipeline.tables.vocab_size}
    plain = {
        "command": typed_command(),
        **to_dict(report, settings, dict(pipeline.fingerprint()), describe_machine(), curve),
    }
    write_beside(figures, (json.dumps(plain, indent=1) + "\n").encode())
    title = title_of(pipeline, plan)
    captions = [condition.caption() for condition in plan.conditions]
    gallery, maps = out / "gallery.png", out / "acceptance.png"
    if report.gallery:
        write_gallery(gallery, report.rows, report.gallery, captions, f"One row a method: {title}")
    write_acceptance(
        maps, report.rows, report.acceptance, f"Share of images in which a cell was an accepted draft: {title}"
    )
    print_table(report, pipeline, title, curve)
    for path in (figures, *([gallery] if report.gallery else []), maps):
        typer.echo(str(path))


def title_of(pipeline: "Pipeline", plan: "ComparisonPlan") -> str:
    """What a table is of: the size of the pictures, how they are sampled, and the preset of the methods' settings."""
    sampling = describe_sampling(plan.sampling, pipeline.tables.vocab_size)
    return f"{pipeline.title()}, {sampling}, {plan.preset} settings"


def _save_pictures(pipeline: "Pipeline", log: "DrawingLog", folder: Path) -> None:
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
    typer.echo(str(folder))


def print_table(
    report: "ComparisonReport", pipeline: "Pipeline", title: str, curve: "CostCurveFile | None" = None
) -> None:
    """Print a row a method, what the judge itself reads right, and the knee of the cost curve where it is known."""
    from underpaint.cli.terminal import console, table

    judged = pipeline.judge is not None
    shown = table(title)
    shown.add_column("method\n", no_wrap=True)
    for heading in (
        *("loss-\nless", "speed-\nup", "95 %\ninterval", "s per\nimage", "target\nNFE", "drafter\nNFE"),
        *(
            "tokens\nper cycle",
            "mean\ndepth",
            "nodes a\ncycle",
            "draft\nkept",
            "over-\nhead",
            "ms a cycle: target\n+ drafter + host",
        ),
        *(("prompt\naccuracy", "less AR's\n(95 %)", "Fréchet\n(floor)") if judged else ()),
        "same\nas AR",
    ):
        shown.add_column(heading, justify="right", no_wrap=True)
    for row in report.rows:
        shown.add_row(
            row.method,
            "yes" if row.lossless else "no",
            f"{row.speedup:.2f}x",
            "-" if row.speedup_low is None else f"{row.speedup_low:.2f}-{row.speedup_high:.2f}",
            f"{row.seconds_per_image:.3f}",
            f"{row.target_nfe:.1f}",
            f"{row.drafter_nfe:.1f}",
            _figure(row.tokens_per_cycle, ".2f"),
            _figure(row.mean_depth, ".2f"),
            _figure(row.mean_nodes, ".2f"),
            _figure(row.kept_share, ".0%"),
            f"{row.overhead_share:.0%}",
            _split(row),
            *(_quality(row) if judged else ()),
            _figure(row.identical_share, ".0%"),
        )
    console().print(shown)
    own = pipeline.judge.reference.accuracy.get("concept_and_style") if pipeline.judge is not None else None
    if own is not None:
        typer.echo(f"The judge itself reads {own:.3f} of real scenes right (concept and style).")
    if curve is not None:
        typer.echo(f"On this machine {curve.knee.describe()} (`underpaint costs`, curve {curve.fingerprint[:12]}).")


def _quality(row: "ReportRow") -> tuple[str, str, str]:
    distance = f"{_figure(row.frechet_distance, '.1f')} ({_figure(row.frechet_floor, '.1f')})"
    return _figure(row.prompt_accuracy, ".3f"), _difference(row), distance


def _split(row: "ReportRow") -> str:
    parts = (row.target_ms_per_cycle, row.drafter_ms_per_cycle, row.host_ms_per_cycle)
    return " + ".join(_figure(part, ".2f") for part in parts)


def _difference(row: "ReportRow") -> str:
    if row.accuracy_over_ar_low is None:
        return _figure(row.accuracy_over_ar, "+.3f")
    return f"{row.accuracy_over_ar:+.3f} ({row.accuracy_over_ar_low:+.3f} to {row.accuracy_over_ar_high:+.3f})"


def _figure(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
