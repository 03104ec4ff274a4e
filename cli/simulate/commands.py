"""`underpaint simulate`: what a method would gain, before anyone builds it."""

import json
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from underpaint.cli.errors import BAD_INPUT, STOPPED, bad_input
from underpaint.cli.simulate.predict import predict
from underpaint.cli.simulate.spatial import fit, spatial

if TYPE_CHECKING:
    from underpaint.sim.report.published import Checked
    from underpaint.sim.sweep.plan import SweepPlan
    from underpaint.sim.sweep.run import Results

app = typer.Typer(
    help="Predict what methods gain: tables, synthetic models, sweeps, predictions.", no_args_is_help=True
)

app.command()(spatial)
app.command()(fit)
app.command()(predict)


@app.command()
def tables(
    fit_on: Annotated[
        str, typer.Option(help="Row of each table that its cost ratio is fitted on, from 0; or 'median'.")
    ] = "0",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check published speed-ups against their own tokens per cycle, depths and steps."""
    from underpaint.sim.report.published import check, groups

    with bad_input():
        if fit_on != "median" and not fit_on.isdigit():
            raise ValueError(f"--fit-on: expected a row's number or 'median', got {fit_on!r}")
        row = None if fit_on == "median" else int(fit_on)
        found = [check(group, row) for group in groups() if row is None or row < len(group.rows)]
        if not found:
            raise ValueError(f"--fit-on {fit_on}: no published table has that many rows")
    if as_json:
        typer.echo(json.dumps([[_plain(one) for one in group] for group in found], indent=1))
        return
    from underpaint.cli.terminal import console, table

    for checked in found:
        group = checked[0].group
        shown = table(f"{group.name} ({group.paper}; {group.tag}){': ' + group.setting if group.setting else ''}")
        own = any(one.row.paper for one in checked)
        for head in ("method", "data", "source") if own else ("method", "data"):
            shown.add_column(head)
        for head in ("published", "predicted", "error", "ratio alone", "by roofline", "error"):
            shown.add_column(head, justify="right")
        shown.add_column("verdict")
        for one in checked:
            shown.add_row(
                *(one.row.method, one.row.data),
                *((f"{one.paper}; {one.tag}",) if own else ()),
                *(f"{one.row.speedup:.2f}x", _number(one.predicted, ".2f", "x"), _number(one.error, "+.1%", "")),
                _number(one.implied if group.kind in ("depth", "steps") else None, ".3f", ""),
                *(_number(one.by_roofline, ".2f", "x"), _number(one.roofline_error, "+.1%", ""), one.verdict),
            )
        console().print(shown)


def _number(value: float | None, form: str, unit: str) -> str:
    return "-" if value is None else format(value, form) + unit


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
def known() -> None:
    """List synthetic models with their settings, machines, and the sizes of published decoders."""
    from dataclasses import fields

    from underpaint.cli.terminal import console, table
    from underpaint.sim.latency.machines import DECODER_SIZES, MACHINES
    from underpaint.sim.synthetic.field import SYNTHETIC_MODELS

    synthetic = table("synthetic models")
    for head in ("name", "what it is", "settings"):
        synthetic.add_column(head)
    for model in SYNTHETIC_MODELS:
        settings = {field.name: model.defaults.get(field.name, field.default) for field in fields(model.make)}
        synthetic.add_row(model.name, model.title, ", ".join(f"{key}={value}" for key, value in settings.items()))
    machines = table("machines")
    for head in ("name", "what it is", "GB/s", "TFLOP/s", "source"):
        machines.add_column(head)
    for machine in MACHINES:
        machines.add_row(machine.name, machine.title, f"{machine.bandwidth:g}", f"{machine.peak:g}", machine.source)
    decoders = table("decoders")
    for head in ("name", "what it is", "parameters", "cells", "source"):
        decoders.add_column(head)
    for size in DECODER_SIZES:
        decoders.add_row(size.name, size.title, f"{size.parameters:.3g}", str(size.cells), size.source)
    for shown in (synthetic, machines, decoders):
        console().print(shown)


@app.command()
def sweep(
    models: Annotated[
        str, typer.Option(help="Synthetic models, or .npz traces, with commas between.")
    ] = "field,flat,sharp",
    policies: Annotated[str, typer.Option(help="Tree policies, with commas between.")] = "chain,eagle1,eagle2,adt",
    rules: Annotated[str, typer.Option(help="Rules; pairs that do not fit are left out.")] = (
        "chain,without_replacement,point,lantern,lantern_pp"
    ),
    machines: Annotated[
        str, typer.Option(help="machine/model or machine/model/batch8, or cost curve files, with commas between.")
    ] = ("a100/llamagen-xl,h100/llamagen-xl"),
    vary: Annotated[
        list[str] | None,
        typer.Option(help="Values of a setting, model.noise=0.2,0.8 or policy.depth=3,5 or rule.delta=0.1; repeat."),
    ] = None,
    precision: Annotated[float, typer.Option(help="Half the 95 % interval of a speed-up, as a share of it.")] = 0.02,
    most_images: Annotated[int, typer.Option(help="Images per simulation at most.", min=2)] = 1024,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    jobs: Annotated[int | None, typer.Option(help="Processes; default: all cores.", min=1)] = None,
    engine: Annotated[str, typer.Option(help="local, or ray (needs the extra 'cluster').")] = "local",
    address: Annotated[str | None, typer.Option(help="Address of a Ray cluster; default: a local one.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for the results and the report.")] = Path("runs/sweep"),
) -> None:
    """Simulate every fitting combination, price it on every machine, and write a report.

    A stopped sweep (Ctrl-C) keeps what is finished; the same command goes on with it.
    """
    from underpaint.artifacts.run_log import RunLogInUse
    from underpaint.runtime.files import check_folder_writable
    from underpaint.sim.latency.models import SizeMissing
    from underpaint.sim.sweep.executors import executor
    from underpaint.sim.sweep.plan import SweepPlan, check
    from underpaint.sim.sweep.plan import jobs as all_jobs
    from underpaint.sim.sweep.run import Results
    from underpaint.sim.sweep.run import run as run_sweep

    with bad_input():
        if not 0.0 < precision < 1.0:
            raise ValueError(f"--precision: expected a share above 0 and below 1, got {precision}")
        names = {"model": _split(models), "policy": _split(policies), "rule": _split(rules)}
        plan = SweepPlan(
            models=names["model"],
            policies=names["policy"],
            rules=names["rule"],
            machines=_split(machines),
            vary=_read_vary(vary or [], names),
            precision=precision,
            most_images=most_images,
            seed=seed,
        )
        wanted = all_jobs(plan)
        where = executor(engine, jobs, address)
        check_folder_writable(out)
        check(plan, wanted)
        results = Results(out, plan)
    try:
        with _progress(len(wanted) - len(results.missing(wanted)), len(wanted)) as report:
            run_sweep(plan, results, where, report)
    except (
        SizeMissing,
        RunLogInUse,
    ) as error:  # a tree larger than the first image's
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(BAD_INPUT) from error
    except KeyboardInterrupt:
        typer.echo(f"stopped: {len(results.lines)} of {len(wanted)} are done; the same command goes on", err=True)
        raise typer.Exit(STOPPED) from None
    _write_report(plan, results, out)


def _write_report(plan: "SweepPlan", results: "Results", out: Path) -> None:
    from underpaint.artifacts.manifest import write_beside
    from underpaint.cli.simulate.report import page

    command = shlex.join(["underpaint", *sys.argv[1:]])
    write_beside(out / "report.html", page(results.lines, plan, command).encode())
    best = max(results.lines, key=lambda line: float(line["speedup"][plan.machines[0]][0]))
    speed = best["speedup"][plan.machines[0]]
    typer.echo(
        f"{len(results.lines)} simulations on {len(plan.machines)} latency models. Fastest on {plan.machines[0]}: "
        f"{best['policy']} + {best['rule']} in {best['model']}, {speed[0]:.2f}x ({speed[1]:.2f} to {speed[2]:.2f})."
    )
    for path in (results.path, out / "report.html"):
        typer.echo(str(path))


def _split(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    if not names or len(set(names)) != len(names):
        raise ValueError(f"expected names with commas between, each once, got {text!r}")
    return names


def _read_vary(given: list[str], names: Mapping[str, Sequence[str]]) -> dict[str, tuple[Any, ...]]:
    """Values as the settings' types are declared; what no name knows stays text, for the plan to refuse."""
    from underpaint.runtime.methods.settings import read_setting, settings_of
    from underpaint.sim.sweep.plan import settings_known, settings_made_by

    found: dict[str, tuple[Any, ...]] = {}
    for text in given:
        key, equals, values = text.partition("=")
        if not equals or key in found:
            raise ValueError(f"--vary {text}: expected part.setting=value,value, each setting once")
        part, _, setting = key.partition(".")
        texts = [value.strip() for value in values.split(",") if value.strip()]
        makers = [
            (name, settings_made_by(part, name))
            for name in names.get(part, ())
            if setting in settings_known(part, name)
        ]
        if not makers:
            found[key] = tuple(texts)
            continue
        name, make = makers[0]
        kinds = settings_of(cast("type[Any]", make))
        # Between values stand commas, so between the widths of a static tree stand colons: 4:8:8.
        found[key] = tuple(read_setting(f"{part} '{name}'", setting, one.replace(":", ","), kinds) for one in texts)
    return found


@contextmanager
def _progress(done: int, size: int) -> Iterator[Callable[[dict[str, Any]], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task("simulating", total=size, completed=done)

        def report(line: dict[str, Any]) -> None:
            progress.update(task, advance=1, description=f"{line['model']}: {line['policy']} + {line['rule']}")

        yield report
