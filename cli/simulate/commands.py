"""`underpaint simulate`: predict the gain of a method before it is built."""

import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from underpaint.algos.chance import MOST_SEED
from underpaint.cli.errors import bad_input, continues, on_interrupt
from underpaint.cli.option_values import refuse_given
from underpaint.cli.options import short_hash
from underpaint.cli.outputs import Commands, check_replaceable, output_folder
from underpaint.cli.simulate.predict import predict
from underpaint.cli.simulate.windows import window_recipes, windows_apart
from underpaint.cli.tables import Column, ResultTable, figure, interval, show
from underpaint.cli.terminal import (
    STANDARD_OUTPUT,
    Format,
    FormatOption,
    JsonFile,
    check_json,
    emit_json,
    note,
    note_files,
    progress,
)

if TYPE_CHECKING:
    from underpaint.sim.report.published import Checked
    from underpaint.sim.sweep.plan import SweepPlan
    from underpaint.sim.sweep.run import Results

app = Commands(help="Predict what methods gain: tables, synthetic models, sweeps, predictions.", no_args_is_help=True)

app.command()(predict)


@app.command()
def tables(
    form: FormatOption = Format.table,
    json_file: JsonFile = None,
) -> None:
    """Check published speedups against their own tokens per cycle, depths and steps."""
    from underpaint.sim.report.published import check, groups

    with bad_input():
        check_json(json_file)
        checked = [check(group) for group in groups()]
    plain_rows = [[_plain(one) for one in group] for group in checked]
    if emit_json(json_file, plain_rows):
        return
    show([_published_table(group) for group in checked], form)


def _published_table(checked: "Sequence[Checked]") -> ResultTable:
    group = checked[0].group
    has_papers = any(one.row.paper for one in checked)
    columns = (
        Column("method", prose=True),
        Column("data"),
        *((Column("source", prose=True),) if has_papers else ()),
        figure("published", "published", ".2f", "x"),
        figure("predicted", "predicted", ".2f", "x"),
        figure("error", "error", "+.1%"),
        figure("implied_alone", "ratio alone", ".3f"),
        figure("by_roofline", "by roofline", ".2f", "x"),
        figure("roofline_error", "error", "+.1%"),
        Column("verdict", prose=True),
    )
    rows = []
    for one in checked:
        alone = one.implied if group.kind in ("depth", "steps") else None
        rows.append({**_plain(one), "implied_alone": alone, "source": f"{one.paper}; {one.tag}"})
    title = f"{group.name} ({group.paper}; {group.tag}){': ' + group.setting if group.setting else ''}"
    return ResultTable(title, columns, rows)


def _plain(one: "Checked") -> dict[str, Any]:
    figures = ("paper", "tag", "predicted", "error", "cost", "implied", "verdict", "by_roofline", "roofline_error")
    return {
        "table": one.group.name,
        "method": one.row.method,
        "data": one.row.data,
        "published": one.row.speedup,
        **{name: getattr(one, name) for name in figures},
    }


@app.command()
def known(form: FormatOption = Format.table) -> None:
    """List synthetic models with their settings, machines, and the sizes of published decoders."""
    from dataclasses import fields

    from underpaint.sim.latency.machines import DECODER_SIZES, MACHINES
    from underpaint.sim.synthetic.field import SYNTHETIC_MODELS

    title = Column("title", "what it is", prose=True)
    synthetic = []
    for model in SYNTHETIC_MODELS:
        settings = {field.name: model.defaults.get(field.name, field.default) for field in fields(model.make)}
        settings_text = ", ".join(f"{key}={value}" for key, value in settings.items())
        synthetic.append({"name": model.name, "title": model.title, "settings": settings_text})
    machines = [
        {"name": one.name, "title": one.title, "bandwidth": one.bandwidth, "peak": one.peak, "source": one.source}
        for one in MACHINES
    ]
    decoders = [
        {"name": one.name, "title": one.title, "parameters": one.parameters, "cells": one.cells, "source": one.source}
        for one in DECODER_SIZES
    ]
    rates = figure("bandwidth", "GB/s", "g"), figure("peak", "TFLOP/s", "g")
    sizes = figure("parameters", "parameters", ".3g"), Column("cells", right=True)
    source = Column("source", prose=True)
    show(
        [
            ResultTable("synthetic models", (Column("name"), title, Column("settings", prose=True)), synthetic),
            ResultTable("machines", (Column("name"), title, *rates, source), machines),
            ResultTable("decoders", (Column("name"), title, *sizes, source), decoders),
        ],
        form,
    )


@app.command()
def sweep(
    context: typer.Context,
    model: Annotated[
        str, typer.Option(help="Synthetic models or .npz traces, separated by commas.")
    ] = "field,flat,sharp",
    policies: Annotated[str, typer.Option(help="Tree policies, separated by commas.")] = "chain,eagle1,eagle2,adt",
    rules: Annotated[
        str, typer.Option(help="Acceptance rules, separated by commas; pairs that do not fit are left out.")
    ] = ("chain,without_replacement,point,lantern,lantern_pp"),
    windows: Annotated[
        str,
        typer.Option(
            help='Jacobi methods to simulate as well (sjd, scd-maximal, ...), separated by commas. --policies "" '
            "leaves the trees out."
        ),
    ] = "",
    machines: Annotated[
        str,
        typer.Option(
            help="Machines, separated by commas: machine/model, machine/model/batch8 (batch8-fixed: no slot is "
            "refilled), or files of cost curves."
        ),
    ] = ("a100/llamagen-xl,h100/llamagen-xl"),
    vary: Annotated[
        list[str] | None,
        typer.Option(
            help="Values of a setting, such as model.noise=0.2,0.8, policy.depth=3,5, rule.delta=0.1 or "
            "window.refill=left,above; repeat for more. window.temperature=0,1 runs windows at temperature 0 "
            "too."
        ),
    ] = None,
    precision: Annotated[
        float, typer.Option(help="Stop when half the 95 % interval of a speedup is this share of it.")
    ] = 0.02,
    most_images: Annotated[
        int, typer.Option(help="The largest number of images per simulation.", min=2, max=10_000_000)
    ] = 1024,
    seed: Annotated[int, typer.Option(min=0, max=MOST_SEED)] = 0,
    jobs: Annotated[int | None, typer.Option(help="Number of processes; default: all cores.", min=1, max=1024)] = None,
    on: Annotated[
        str, typer.Option(help="Where to simulate: local (processes), or ray (needs the extra 'cluster').")
    ] = "local",
    address: Annotated[str | None, typer.Option(help="Address of a Ray cluster; default: a local one.")] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            parser=output_folder,
            help="Folder for the results and the report; default: under runs/simulate, named by the settings.",
            show_default=False,
        ),
    ] = None,
    form: FormatOption = Format.table,
    json_file: JsonFile = None,
) -> None:
    """Simulate all combinations of models, policies and rules, predict their speed on machines, and write a report.

    After Ctrl-C the same command continues. The number of processes does not change the results.
    """
    from underpaint.artifacts.files import check_apart, check_folder_writable
    from underpaint.artifacts.run_log import OtherRun, RunLogInUse
    from underpaint.artifacts.workers import WorkerError, check_workers
    from underpaint.runtime.engines.context import usable_cores
    from underpaint.sim.latency.models import SizeMissing
    from underpaint.sim.sweep.plan import SweepPlan, check
    from underpaint.sim.sweep.plan import jobs as all_jobs
    from underpaint.sim.sweep.run import Results, workers
    from underpaint.sim.sweep.run import run as run_sweep

    with bad_input():
        check_json(json_file)
        if not 0.0 < precision < 1.0:
            raise ValueError(f"--precision: expected a share above 0 and below 1, got {precision}")
        jacobi = _split(windows) if windows else ()
        trees = _split(policies) if policies or not jacobi else ()
        if not trees:
            refuse_given(context, ("rules",), "judges trees, and --policies names none; leave it out")
        names = {"model": _split(model), "policy": trees, "rule": _split(rules) if trees else ()}
        of_windows, of_trees = windows_apart(vary or [])
        plan = SweepPlan(
            models=names["model"],
            policies=names["policy"],
            rules=names["rule"],
            machines=_split(machines),
            vary=_read_vary(of_trees, names),
            precision=precision,
            most_images=most_images,
            seed=seed,
            windows=window_recipes(jacobi, of_windows),
        )
        planned = all_jobs(plan)
        check_workers(on, address)
        out = out or Path("runs/simulate") / short_hash(asdict(plan))
        check_folder_writable(out)
        page = out / "report.html"
        outputs = {"the record of simulations": out / "results.jsonl", "the report": page}
        outputs["the record of blocks"] = out / "blocks.jsonl"
        check_apart(outputs if json_file == STANDARD_OUTPUT else {**outputs, "--json": json_file})
        check_replaceable("the report", page)
        jobs = jobs or usable_cores()
        check(plan, planned, jobs if on == "local" else 0)
        results = Results(out, plan)
    with (
        on_interrupt(lambda: continues(f"{len(results.lines)} of {len(planned)} are done", results.path)),
        # SizeMissing: a tree larger than the first image's.
        bad_input(SizeMissing, RunLogInUse, OtherRun, WorkerError),
        progress("simulating", len(planned), len(planned) - len(results.missing(planned))) as advance,
    ):
        run_sweep(plan, results, workers(on, jobs, address), lambda block: advance(len(results), block))
    _write_report(plan, results, out)
    if not emit_json(json_file, results.lines):
        _show_winners(plan, results, out, form)


def _write_report(plan: "SweepPlan", results: "Results", out: Path) -> None:
    from underpaint.artifacts.manifest import write_beside
    from underpaint.cli.simulate.report import page

    command = shlex.join(["underpaint", *sys.argv[1:]])
    write_beside(out / "report.html", page(results.lines, plan, command).encode())


def _show_winners(plan: "SweepPlan", results: "Results", out: Path, form: Format) -> None:
    from underpaint.cli.simulate.report import winners

    rows = []
    for row in winners(results.lines, plan):
        mean, low, high = row["speedup"]
        rows.append({**row, "speedup": mean, "speedup_low": low, "speedup_high": high})
    columns = (
        *(Column(name) for name in ("model", "machine", "among", "fastest")),
        figure("speedup", "speedup", ".2f", "x"),
        interval("speedup", "95 %", ".2f"),
        Column("settings", prose=True),
    )
    show([ResultTable("the fastest", columns, rows)], form)
    note(f"{len(results.lines)} simulations on {len(plan.machines)} latency models", form)
    page = out / "report.html"
    note_files((results.path, page), f"open {page} in a browser", form)


def _split(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    if not names or len(set(names)) != len(names):
        raise ValueError(f"expected names separated by commas, each once, got {text!r}")
    return names


def _read_vary(vary: list[str], names: Mapping[str, Sequence[str]]) -> dict[str, tuple[Any, ...]]:
    """Read values by the types of the settings. Values of unknown settings stay text, and the plan refuses them."""
    from underpaint.runtime.methods.settings import read_setting, settings_of
    from underpaint.sim.sweep.plan import setting_names_of, settings_class

    varied: dict[str, tuple[Any, ...]] = {}
    for text in vary:
        key, equals, values = text.partition("=")
        if not equals or key in varied:
            raise ValueError(f"--vary {text}: expected part.setting=value,value, each setting once")
        part, _, setting = key.partition(".")
        texts = [value.strip() for value in values.split(",") if value.strip()]
        makers = [
            (name, settings_class(part, name))
            for name in names.get(part, ())
            if setting in setting_names_of(part, name)
        ]
        if not makers:
            varied[key] = tuple(texts)
            continue
        name, make = makers[0]
        kinds = settings_of(cast("type[Any]", make))
        # Commas separate values, so colons separate the widths of a static tree: 4:8:8.
        varied[key] = tuple(read_setting(f"{part} '{name}'", setting, one.replace(":", ","), kinds) for one in texts)
    return varied
