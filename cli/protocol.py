"""`underpaint protocol`: measure every method at both presets on frozen prompts, with one command that can resume."""

import shlex
from collections.abc import Mapping
from dataclasses import replace
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from underpaint.cli.costs import curve_for
from underpaint.cli.errors import STOPPED, bad_input
from underpaint.cli.evaluation.prompts import PromptOptions, choose
from underpaint.cli.live import LiveOptions
from underpaint.cli.option_values import refuse_given
from underpaint.cli.options import check_preset, grouped, read_preset
from underpaint.cli.outputs import check_replaceable, output_folder
from underpaint.cli.runs import draw_run
from underpaint.cli.tables import Column, ResultTable, figure, show, with_interval
from underpaint.cli.terminal import Format, FormatOption, note, note_files, progress, write_json
from underpaint.cli.tune import (
    ALL,
    USUAL_CANDIDATES,
    Candidates,
    ModelOptions,
    Within,
    checked_tables,
    read_bound,
    read_methods,
    run_tuning,
)

if TYPE_CHECKING:
    from underpaint.runtime.evaluation.drawing_log import DrawingLog
    from underpaint.runtime.protocol.protocol import Protocol

RECORD = "protocol.json"
CARDS = "cards"
_NO_FILE = PromptOptions()
_USUAL = ModelOptions()
_NO_LIVE = LiveOptions()


@grouped
def protocol(
    context: typer.Context,
    methods: Annotated[str, typer.Option(help="Methods, separated by commas, or all.")] = ALL,
    preset: Annotated[
        str | None,
        typer.Option(
            help="Use these as tuned settings: tuned, or a preset file. Default: tune these models first, which "
            "takes as long again.",
            show_default=False,
        ),
    ] = None,
    within: Within = None,
    measure: Annotated[
        str | None,
        typer.Option(help="Quality of pictures while tuning; see `tune`. Default: judge if the models have one."),
    ] = None,
    candidates: Candidates = USUAL_CANDIDATES,
    hours: Annotated[
        float | None,
        typer.Option(
            help="Hours for everything, over all starts. They limit the prompts of every method to one number; more "
            "hours at a later start add prompts, but not to a search of the tuning that has begun.",
            min=0.01,
            max=24 * 365,
            show_default=False,
        ),
    ] = None,
    prompts_scale: Annotated[
        float,
        typer.Option(
            help="Share of the protocol's prompts to draw: 1 is 100 to tune, 200 and 50 to report.", min=0.001, max=1.0
        ),
    ] = 1.0,
    prompt_options: PromptOptions = _NO_FILE,
    models: ModelOptions = _USUAL,
    live: LiveOptions = _NO_LIVE,
    estimate: Annotated[
        bool, typer.Option("--estimate", help="Draw the first round, print the estimated hours, and stop.")
    ] = False,
    no_draw: Annotated[
        bool, typer.Option("--no-draw", help="Draw nothing; write the record of what is drawn.")
    ] = False,
    out: Annotated[Path, typer.Option(parser=output_folder, help="Folder for drawings, record and cards.")] = Path(
        "runs/protocol"
    ),
    form: FormatOption = Format.table,
) -> None:
    """Measure every method by protocol 1, on these models and this machine, and write one record.

    Each round draws one prompt with all methods, both presets and temperatures 0 and 1, so that all ratios are paired.
    A fifth of the drawing time goes into a cost curve, measured between the drawings and written next to the record.
    After an interruption the same command continues. Ctrl-C also writes the tables of the finished drawings.
    `underpaint results rank` compares records of several machines or models.
    """
    from underpaint.artifacts.files import check_file_writable, check_folder_writable
    from underpaint.artifacts.workers import ThisProcess
    from underpaint.runtime.costs.interleaved import CURVE, SHARE, InterleavedCurve
    from underpaint.runtime.evaluation.machine import typed_command
    from underpaint.runtime.evaluation.picture_judge import judge_of
    from underpaint.runtime.methods.registry import TUNED
    from underpaint.runtime.protocol.budget import fit_protocol
    from underpaint.runtime.protocol.protocol import REPORT_SKIP, TEMPERATURES, TUNE_SKIP, WITHIN, Protocol, Sizes
    from underpaint.runtime.protocol.tuning import Tuning, judge_for

    record_file, tuned = out / RECORD, out / "tune"
    with bad_input():
        if preset is not None:
            reason = "applies to the tuning, which --preset skips; leave one of them out"
            refuse_given(context, ("within", "measure", "candidates"), reason)
        if hours is not None and isnan(hours):
            raise ValueError("--hours: expected a number from 0.01 to 8,760, got nan")
        sizes = Sizes().scaled(prompts_scale)
        names = read_methods(methods)
        chosen = None if preset is None else read_preset(preset)
        if isinstance(chosen, str) and chosen != TUNED:
            raise ValueError(
                f"--preset: expected {TUNED} or a file of `underpaint tune`, got {chosen!r}; leave it out, as the "
                "papers' settings are drawn in any case"
            )
        check_folder_writable(out)
        check_file_writable(record_file)
        check_replaceable("the record", record_file, "json")
        pipeline = models.open(live)
        samplings = [models.sampling(heat, pipeline) for heat in TEMPERATURES]
        judge = judge_of(pipeline)
        quality_measure = measure or ("log-likelihood" if judge is None else "judge")
        bound = None if chosen is not None else read_bound(WITHIN if within is None else within, quality_measure)
        if chosen is not None:
            check_preset(chosen, pipeline)
        to_tune, to_report, source = _prompts(pipeline, prompt_options, sizes, (TUNE_SKIP, REPORT_SKIP), chosen is None)
        judge_for(bound, pipeline, to_tune)
        tables = checked_tables(pipeline, names, samplings, measure=not no_draw)
        parts = (pipeline, names, samplings, tables)
        first = Protocol.of(*parts, to_report, judge, chosen or TUNED, sizes, source)
        _check_drawn(first)
        if methods != ALL and first.left_out:
            label, why = next(iter(first.left_out.items()))
            note(f"left out: {label}: {why}", form)
        tuning = None
        if chosen is None:
            entry_names = [name for name in names if any(one.name == name for one in first.entries)]
            tuning = Tuning.of(
                pipeline, entry_names, samplings, to_tune, bound, judge, tables, candidates, tuned, named=methods != ALL
            )
        log = first.run.open_log(out if tuning is None else out / "first")
        drawer = ThisProcess(first.drawer())
    curve = curve_for(pipeline, samplings[0], measure=not no_draw)
    with bad_input():
        pieces = None if curve is None else InterleavedCurve(pipeline, samplings[0], curve, out)
    if not no_draw:
        draw_run(first.jobs(1), log, drawer, what="the first round")
    with bad_input():
        whole, budget, message = fit_protocol(first, log, hours, tuning, 0.0 if pieces is None else SHARE)
    if estimate or not no_draw:
        note(message, form)
    if estimate:
        return
    about = {
        "sizes": sizes._asdict(),
        "scale": prompts_scale,
        "hours": hours,
        "within": None if bound is None else bound._asdict(),
        **budget,
    }
    if tuning is not None:
        if not no_draw:
            run_tuning(tuning, {"skip": TUNE_SKIP, "count": len(to_tune), **source}, form)
        with bad_input():
            file = read_preset(str(tuning.preset_path))
            check_preset(file, pipeline)
            again = Protocol.of(*parts, to_report, judge, file, sizes, source)
            whole = again.limited(max(whole.counts.values()))
            log, drawer = whole.run.open_log(out), ThisProcess(whole.drawer())
    if pieces is not None:
        drawer = ThisProcess(pieces.between(drawer.work))
    stop: typer.Exit | None = None
    if not no_draw:
        try:
            draw_run(whole.jobs(), log, drawer, len(whole.jobs()), "drawing rounds")
        except typer.Exit as error:
            if error.exit_code != STOPPED:
                raise
            stop = error
    if stop is None or len(log):
        _report(whole, log, record_file, typed_command(), curve, about, form)
    if pieces is not None and pieces.finish() is not None:
        note(f"Wrote {out / CURVE}, the cost curve of these hours, for `simulate predict`", form)
    if stop is not None:
        raise stop


def _check_drawn(first: "Protocol") -> None:
    """Raise ValueError if the models reject all methods at a temperature, as there is nothing to compare then."""
    for place, model in enumerate(first.run.models):
        if sum(at == place for at, _ in first.counts) < 2:
            heat = model.comparison.sampling.temperature
            left_out = [one for one in first.left_out.items() if one[0].endswith(f"at temperature {heat:g}")]
            label, why = left_out[0]
            raise ValueError(
                f"--methods: expected a method that these models draw by at temperature {heat:g}, got none; name "
                f"others. The first, {label}: {why}"
            )


def _prompts(
    pipeline: Any, prompt_options: PromptOptions, sizes: Any, skips: tuple[int, int], tunes: bool
) -> "tuple[Any, Any, Mapping[str, Any]]":
    """Return the prompts for tuning, those for the report, and the file that they come from.

    The first prompts of a file are for tuning, and the next ones for the report; ValueError if it has too few.
    """
    if prompt_options.prompts_file is None:
        folder_models = pipeline.folder_models()
        if prompt_options.prompts_count is not None or prompt_options.prompts_skip:
            raise ValueError("the protocol chooses its prompts; pass --prompts-scale for fewer, or --prompts FILE")
        from underpaint.zoo.load import takes_grammar

        if folder_models is None or not takes_grammar(folder_models.index):
            raise ValueError(
                f"these models have no built-in prompts; name a file of {sizes.tune + sizes.tuned} prompts or more: "
                "--prompts FILE"
            )
        ranges = [(sizes.tune, skips[0]), (sizes.tuned, skips[1])]
        sets = [
            choose(pipeline, (), replace(prompt_options, prompts_count=count, prompts_skip=skip))
            for count, skip in ranges
        ]
        return sets[0].conditions, sets[1].conditions, {}
    chosen = choose(pipeline, (), prompt_options)
    needed = (sizes.tune if tunes else 0) + sizes.tuned
    if len(chosen.conditions) < needed:
        raise ValueError(
            f"--prompts: expected at least {needed} prompts, got {len(chosen.conditions)}; name a file of more, or "
            "pass a smaller --prompts-scale"
        )
    cut = sizes.tune if tunes else 0
    return chosen.conditions[:cut], chosen.conditions[cut:needed], chosen.source


def _report(
    whole: "Protocol",
    log: "DrawingLog",
    path: Path,
    command: str,
    curve: Any,
    about: "Mapping[str, Any]",
    form: Format,
) -> None:
    """Write the record and the cards, and print one table per temperature."""
    from underpaint.artifacts.manifest import write_beside
    from underpaint.runtime.protocol.tables import card, names_of

    with bad_input(), progress("looking at pictures", 2 * len(whole.entries)) as advance:
        record = whole.record(log, command, curve, about, lambda done, most: advance(done, total=most))
    write_json(path, record)
    for name in names_of(record):
        write_beside(path.parent / CARDS / f"{name.replace(':', '_')}.md", f"# {name}\n\n{card(record, name)}".encode())
    show(summary_tables(record), form)
    then = shlex.join(["underpaint", "results", "rank", str(path), "OTHER"])
    note_files((path, path.parent / CARDS), f"{then} puts another machine's record beside it", form)


def summary_tables(record: "Mapping[str, Any]") -> list[ResultTable]:
    """Return one table per temperature of a record."""
    from underpaint.runtime.protocol.tables import runs_of, summary

    columns = (
        Column("method"),
        Column("promise"),
        Column("same_as_ar", "equal to AR at\ntemperature 0", right=True),
        with_interval("speedup", "speedup\n(95 %)", ".2f"),
        figure("target_nfe", "target\npasses", ".1f"),
        figure("tokens_per_pass", "tokens\nper pass", ".2f"),
        with_interval("quality_over_ar", "quality minus AR's\nnats (95 %)", "+.3f"),
        Column("images", "pic-\ntures", right=True),
    )
    return [
        ResultTable(f"temperature {run['settings']['temperature']:g}", columns, summary(record, run))
        for run in runs_of(record)
    ]
