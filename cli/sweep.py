"""`underpaint sweep`: speed against quality over many settings, as a plot and as JSON."""

from pathlib import Path
from typing import Annotated

import typer

from underpaint.cli.costs import curve_for
from underpaint.cli.errors import bad_input
from underpaint.cli.evaluation.prompts import PromptOptions, choose
from underpaint.cli.live import LiveOptions
from underpaint.cli.option_values import read_names
from underpaint.cli.options import Models, grouped, short_hash
from underpaint.cli.outputs import check_replaceable, json_output, output_folder
from underpaint.cli.runs import RunOptions, draw_run
from underpaint.cli.terminal import Format, FormatOption, check_json, emit_json, note_files

DEFAULT_OUT = Path("runs/sweep")
DEFAULT_VARY = (
    "zipar.window=1,2,3,4,8",
    "mulo.tau=0.1,0.3,0.5",
    "mulo.radius=0,1",
    "mulo.draft_window=2,8",
    "mulo-islands.tau=0.1,0.3,0.5",
    "mulo-islands.k=10,30",
    "mulo-islands.radius=0,1",
    "mulo-islands.rows=2,8",
    "lantern.delta=0.1,0.3,0.6",
)
LIVE_VARY = ("zipar.window=1,2,3,4,8", "sjd.window=4,8,16,32", "jacobi-lookup.window=4,8,16,32")
"""Default values to vary on a live model: those of methods that need no drafter."""
_NO_FILE = PromptOptions()
_NO_LIVE = LiveOptions()
_USUAL = RunOptions()


@grouped
def sweep(
    vary: Annotated[
        list[str] | None,
        typer.Option(
            help="Values to try, as method.name=value,value,...; repeat for more. All combinations within a method "
            "are drawn. Values that contain commas are separated by semicolons."
        ),
    ] = None,
    methods: Annotated[
        str, typer.Option(help="Other methods to draw with unchanged settings, separated by commas.")
    ] = "",
    prompt_options: PromptOptions = _NO_FILE,
    models: Models = None,
    live: LiveOptions = _NO_LIVE,
    options: RunOptions = _USUAL,
    out: Annotated[
        Path | None,
        typer.Option(
            parser=output_folder,
            help="Folder for the results and finished drawings; default: under runs/sweep, named by the settings.",
            show_default=False,
        ),
    ] = None,
    json_file: Annotated[
        Path | None,
        typer.Option(
            "--json",
            parser=json_output,
            help="File for the results; default: sweep.json in --out; - is standard output.",
        ),
    ] = None,
    form: FormatOption = Format.table,
    fresh: Annotated[bool, typer.Option("--fresh", help="Discard the finished drawings in --out.")] = False,
) -> None:
    """Draw the same prompts at many settings, and plot speedup against quality with its Pareto front.

    Without --vary: ZipAR, MuLo-SD and LANTERN over their main settings. After Ctrl-C the same command continues.
    Quality is the judge's score of the pictures. Without a judge, as for live models, it is the target's likelihood of
    the tokens relative to plain decoding. `underpaint tune` chooses settings automatically.
    """
    from underpaint.artifacts.files import check_apart, check_folder_writable
    from underpaint.artifacts.workers import ThisProcess
    from underpaint.cli.comparison_table import print_rows, title_of
    from underpaint.runtime.evaluation.comparison import BASELINE, check_opens
    from underpaint.runtime.evaluation.drawer import OpenedDrawer
    from underpaint.runtime.evaluation.machine import typed_command
    from underpaint.runtime.evaluation.pareto import to_dict as rows_to_dict
    from underpaint.runtime.evaluation.pareto import variants, write_pareto
    from underpaint.runtime.evaluation.picture_judge import judge_of
    from underpaint.runtime.evaluation.plan import RunPlan
    from underpaint.runtime.evaluation.report import make_report, to_results

    with bad_input():
        options.checked_temperature()
        once = list(dict.fromkeys([BASELINE, *read_names(methods)]))
        usual = DEFAULT_VARY if live.live is None else LIVE_VARY
        all_variants = variants(vary or usual, options.setting or (), once)
        options.check_settings(all_variants)
        check_folder_writable(out or DEFAULT_OUT)
        check_json(json_file)
        pipeline, sampling = options.open(models, live)
        judge, chosen = judge_of(pipeline), choose(pipeline, (), prompt_options)
        plan = options.plan(pipeline, sampling, all_variants, chosen)
        check_opens(pipeline, plan)
        plan = options.with_costs(plan, pipeline)
        run = RunPlan.of(pipeline, plan, judge, prompts_file=chosen.source)
        out = out or DEFAULT_OUT / short_hash(run.to_dict())
        figures, plot = json_file or out / "sweep.json", out / "pareto.png"
        log = run.open_log(out, fresh=fresh)
        check_apart({"the record of drawings": log.path, "the plot": plot, "--json": figures})
        check_replaceable("the plot", plot)
        check_replaceable("the figures", figures, "json")
    curve = curve_for(pipeline, sampling, measure=False)
    draw_run(run.jobs(), log, ThisProcess(OpenedDrawer(pipeline, plan)), plan.size)
    report = make_report(run, log, likelihood=judge is None)
    plain = {**to_results(run, report, typed_command(), curve), "kind": "sweep"}
    del plain["acceptance_per_cell"]
    plain["rows"] = rows_to_dict(report.rows, all_variants, plain["rows"])
    title = f"{title_of(run.models[0])}, {plan.images} images each"
    write_pareto(plot, report.rows, all_variants, title)
    if emit_json(figures, plain):
        return
    print_rows(report.rows, judge, title, curve, form)
    note_files((figures, plot), f"open {plot}, then compare with the settings of a joined point", form)
