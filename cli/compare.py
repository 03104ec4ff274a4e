"""`underpaint compare`: several methods on the same prompts and seeds."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from underpaint.cli.comparison_table import print_rows, title_of
from underpaint.cli.costs import curve_for
from underpaint.cli.device import (
    DEFAULT_METHODS as DEVICE_METHODS,
)
from underpaint.cli.device import describe, draw_all_on_device, plan_on_device
from underpaint.cli.errors import bad_input
from underpaint.cli.evaluation.prompts import PromptOptions, choose
from underpaint.cli.live import LiveOptions
from underpaint.cli.option_values import read_names, settings_by_method
from underpaint.cli.options import DEVICE, DeviceOptions, Models, grouped, short_hash
from underpaint.cli.outputs import check_replaceable, json_output, output_folder
from underpaint.cli.runs import RunOptions, draw_run, record_all
from underpaint.cli.terminal import (
    STANDARD_OUTPUT,
    Format,
    FormatOption,
    check_json,
    emit_json,
    note,
    note_files,
    progress,
)

if TYPE_CHECKING:
    from underpaint.artifacts.cost_curve import CostCurveFile
    from underpaint.runtime.device.drawing_plan import DevicePlan
    from underpaint.runtime.evaluation.drawing_log import DrawingLog
    from underpaint.runtime.evaluation.plan import RunPlan
    from underpaint.runtime.evaluation.replay import ReplayLog
    from underpaint.runtime.live.device import LivePlan

DEFAULT_OUT = Path("runs/compare")
GALLERY = "gallery.png"
DEFAULT_METHODS = (
    "ar,speculative,eagle2,adt-control-chain,adt-control-tree,adt,scd-maximal,jacobi-lookup,"
    "lantern,lantern++,adt+lantern"
)

LIVE_METHODS = "ar,sjd,scd-maximal,jacobi-lookup"
"""Default methods of a comparison on a live model: those that need no drafter."""

_NO_FILE = PromptOptions()
_NO_LIVE = LiveOptions()
_USUAL = RunOptions()
_NO_DEVICE = DeviceOptions()


@grouped
def compare(
    prompts: Annotated[
        list[str] | None,
        typer.Argument(help="Prompts in quotes; see --models. Default: built-in prompts."),
    ] = None,
    methods: Annotated[str, typer.Option(help="Methods, separated by commas. Plain AR is always added.")] = (
        DEFAULT_METHODS
    ),
    prompt_options: PromptOptions = _NO_FILE,
    models: Models = None,
    live: LiveOptions = _NO_LIVE,
    options: RunOptions = _USUAL,
    device: DeviceOptions = _NO_DEVICE,
    out: Annotated[
        Path | None,
        typer.Option(
            parser=output_folder,
            help="Folder for pictures and finished drawings; default: under runs/compare, named by the settings.",
            show_default=False,
        ),
    ] = None,
    json_file: Annotated[
        Path | None,
        typer.Option(
            "--json",
            parser=json_output,
            help="File for the results; default: compare.json in --out; - is standard output.",
        ),
    ] = None,
    form: FormatOption = Format.table,
    save_pictures: Annotated[
        bool,
        typer.Option(
            "--save-pictures", help="Also write every picture as a PNG file, in the folder pictures of --out."
        ),
    ] = False,
    save_replay: Annotated[
        int,
        typer.Option(
            help="Also record how every method decodes the first N prompts, for `underpaint report`. They are drawn "
            "once more, so timings do not change.",
            min=0,
        ),
    ] = 0,
    likelihood: Annotated[
        bool | None,
        typer.Option(
            "--likelihood/--no-likelihood",
            help="Whether to compute the target's likelihood of the drawn tokens, at temperature 1 without top-k or "
            "top-p. It takes some passes per drawing. Default: yes; no with --backend device.",
            show_default=False,
        ),
    ] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Discard the finished drawings in --out.")] = False,
) -> None:
    """Draw the same prompts by several methods, and compare speed, cost and quality with plain AR.

    After Ctrl-C the same command continues. Quality is measured if the folder of models has a judge, and pictures are
    written if it has a decoder.
    """
    from underpaint.artifacts.files import check_apart, check_folder_writable
    from underpaint.artifacts.workers import ThisProcess
    from underpaint.runtime.evaluation.comparison import (
        EAGER,
        check_opens,
        named_variants,
        with_baseline,
        with_eager_baseline,
    )
    from underpaint.runtime.evaluation.drawer import OpenedDrawer
    from underpaint.runtime.evaluation.picture_judge import judge_of
    from underpaint.runtime.evaluation.plan import RunPlan
    from underpaint.runtime.evaluation.replay import ReplayLog

    with bad_input():
        options.checked_temperature()
        backend = options.backend
        device.check(backend)
        device.check_live(live.live)
        if backend == DEVICE and (likelihood or save_replay):
            raise ValueError(
                "--likelihood and --save-replay do not work with --backend device; leave them out, or that backend"
            )
        likelihood = backend != DEVICE if likelihood is None else likelihood
        usual = LIVE_METHODS if live.live is not None else DEVICE_METHODS if backend == DEVICE else DEFAULT_METHODS
        listed = usual if methods == DEFAULT_METHODS else methods
        names = with_baseline(tuple(name for name in read_names(listed) if backend != DEVICE or name != EAGER))
        variants = named_variants(names, settings_by_method(options.setting or [], names))
        options.check_settings(variants)
        check_folder_writable(out or DEFAULT_OUT)
        check_json(json_file)
        pipeline, sampling = options.open(models, live, on_device=True, device=device)
        chosen = choose(pipeline, prompts or [], prompt_options)
        plan = options.plan(pipeline, sampling, variants, chosen)
        on_device = None
        if backend == DEVICE:
            on_device = plan_on_device(pipeline, plan.methods, sampling, device, plan.conditions, eager=True)
        check_opens(pipeline, plan)
        if save_pictures and pipeline.decoder is None:
            raise ValueError(f"--save-pictures: {pipeline.folder} has no picture decoder; leave --save-pictures out")
        if on_device is None:
            plan = options.with_costs(plan, pipeline)
        elif live.live is None:
            plan = with_eager_baseline(plan)
        device_record = {} if on_device is None else describe(on_device)
        run = RunPlan.of(pipeline, plan, judge_of(pipeline), prompts_file=chosen.source, device=device_record)
        out = out or DEFAULT_OUT / short_hash(run.to_dict())
        figures = json_file or out / "compare.json"
        check_json(figures)
        log, replays = run.open_log(out, fresh=fresh), ReplayLog(out, run.to_dict())
        gallery = out / GALLERY
        outputs = {"the record of drawings": log.path, "the replays": replays.path, "the gallery": gallery}
        check_apart({**outputs, "--json": figures})
        check_replaceable("the gallery", gallery)
        if figures != STANDARD_OUTPUT:
            check_replaceable("the figures", figures, "json")
        for key in run.jobs() if save_pictures else ():
            check_replaceable("--save-pictures", log.picture_path(key))
    if on_device is not None:
        curve = None
        draw_all_on_device(on_device, plan, log)
    else:
        curve = curve_for(pipeline, sampling, measure=False)
        draw_run(run.jobs(), log, ThisProcess(OpenedDrawer(pipeline, plan)), plan.size)
        record_all(run, log, replays, save_replay)
    _report(run, out, figures, log, replays, curve, form, likelihood, on_device)
    if save_pictures:
        _save_pictures(run, log, Format.json if figures == STANDARD_OUTPUT else form)


def _report(
    run: "RunPlan",
    out: Path,
    figures: Path,
    log: "DrawingLog",
    replays: "ReplayLog",
    curve: "CostCurveFile | None",
    form: Format,
    likelihood: bool,
    on_device: "DevicePlan | LivePlan | None",
) -> None:
    from underpaint.runtime.evaluation.gallery import write_gallery
    from underpaint.runtime.evaluation.machine import typed_command
    from underpaint.runtime.evaluation.report import make_report, to_results

    plan, judge = run.models[0].comparison, run.models[0].judge
    with progress("looking at the pictures of methods", len(plan.methods)) as advance:
        report = make_report(
            run,
            log,
            replays.replays(),
            likelihood=likelihood,
            report=lambda done, most: advance(done, total=most),
        )
    plain = to_results(run, report, typed_command(), curve)
    title = title_of(run.models[0])
    captions = [condition.caption() for condition in plan.conditions]
    gallery = out / GALLERY
    if report.gallery:
        write_gallery(gallery, report.rows, report.gallery, captions, f"One row per method: {title}")
    if emit_json(figures, plain):
        return
    title = title if on_device is None else f"{title}, {on_device.describe()}"
    print_rows(report.rows, judge, title, curve, form, on_device=on_device is not None)
    elsewhere = [] if figures == out / "compare.json" else ["--figures", str(figures)]
    page = shlex.join(["underpaint", "report", str(out), *elsewhere])
    note_files((figures, *([gallery] if report.gallery else [])), f"{page} makes one page of it", form)


def _save_pictures(run: "RunPlan", log: "DrawingLog", form: Format) -> None:
    """Write one PNG file per drawing."""
    from underpaint.artifacts.manifest import write_beside
    from underpaint.runtime.engines.images import encoded
    from underpaint.runtime.evaluation.drawing_log import PICTURES

    for job in log:
        picture = run.models[0].pipeline.picture(job.drawing.tokens_array())
        write_beside(log.picture_path(job.key), encoded(picture))
    note(str(log.folder / PICTURES), form)
