"""`underpaint simulate spatial` and `underpaint simulate fit`."""

import dataclasses
import json
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from underpaint.algos.chance import MOST_SEED
from underpaint.algos.numbers import real_number, whole_number
from underpaint.cli.errors import BAD_INPUT, bad_input
from underpaint.cli.options import read_numbers
from underpaint.cli.terminal import (
    Column,
    Format,
    FormatOption,
    JsonFile,
    ResultTable,
    check_json,
    figure,
    progress,
    show,
    told_as_json,
)

if TYPE_CHECKING:
    from underpaint.sim.synthetic.multi_scale import Spatial


def spatial(
    model: Annotated[
        str, typer.Option(help="Synthetic models, separated by commas.")
    ] = "field,sharp,duplicates,patchy",
    machine: Annotated[str, typer.Option(help="machine/model, or a cost curve's file.")] = "a100/llamagen-xl",
    windows: Annotated[str, typer.Option(help="ZipAR's windows, separated by commas.")] = "2,4,8",
    taus: Annotated[str, typer.Option(help="MuLo-SD's thresholds, separated by commas.")] = "0.05,0.2,0.4",
    nearest: Annotated[int, typer.Option(help="How many nearest codes to pool with a drafted one.", min=1)] = 8,
    rows: Annotated[int, typer.Option(help="Rows drafted per cycle, an even number.", min=2)] = 4,
    radius: Annotated[int, typer.Option(help="How far around a rejected cell is redrawn.", min=0)] = 1,
    images: Annotated[int, typer.Option(help="Number of images.", min=1, max=10_000)] = 4,
    seed: Annotated[int, typer.Option(help="Random seed.", min=0, max=MOST_SEED)] = 0,
    form: FormatOption = Format.table,
    json_file: JsonFile = None,
) -> None:
    """Compare MuLo-SD (coarse drafts, local repair) with ZipAR, its control, on synthetic models."""
    from underpaint.algos.spatial.mulo import Repair
    from underpaint.sim.latency.models import SizeMissing
    from underpaint.sim.latency.run_times import latency_model_of
    from underpaint.sim.synthetic.field import make_synthetic_model
    from underpaint.sim.synthetic.multi_scale import coarse, run_mulo, run_zipar

    with bad_input():
        check_json(json_file)
        costs, synthetic = (
            latency_model_of(machine),
            {name: make_synthetic_model(name, {}) for name in model.split(",")},
        )
        sizes, thresholds = read_numbers("--windows", windows, whole_number), read_numbers("--taus", taus, real_number)
        repairs = {
            "serial": Repair(radius=radius, order="serial"),
            "islands": Repair(radius=radius, order="islands"),
            "islands + ZipAR-4": Repair(radius=radius, order="islands", window=4),
        }
        for one in synthetic.values():
            coarse(one)
            for repair in (*(Repair(window=window) for window in sizes), *repairs.values()):
                repair.check(one.grid)
            if rows % 2 or rows > one.grid.height:
                raise ValueError(f"--rows: expected an even number up to {one.grid.height}, got {rows}")
            if nearest >= one.vocab_size:
                raise ValueError(f"--nearest: expected fewer than {one.vocab_size} codes, got {nearest}")
        if not all(0.0 <= threshold < inf for threshold in thresholds):
            raise ValueError(f"--taus: expected finite thresholds of at least 0, got {taus}")
    results: list[tuple[str, str, Spatial]] = []
    try:
        most = len(synthetic) * (len(sizes) + len(thresholds) * len(repairs))
        with progress("simulating", most) as advance:
            for name, one in synthetic.items():
                for size in sizes:
                    results.append((name, f"ZipAR-{size}", run_zipar(one, costs, size, images, seed)))
                    advance(len(results))
                for tau in thresholds:
                    for label, repair in repairs.items():
                        done = run_mulo(one, costs, tau, nearest, repair, rows, images, seed)
                        results.append((name, f"MuLo-SD, tau {tau:g}, {label}", done))
                        advance(len(results))
    except SizeMissing as error:  # which sizes a repair asks for shows as it goes
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(BAD_INPUT) from error
    rows_found = [{"model": name, "method": label, **one._asdict()} for name, label, one in results]
    if told_as_json(json_file, rows_found):
        return
    title = f"spatial methods on {machine}: {images} images; a coarse pass costs a plain step"
    columns = (
        Column("model"),
        Column("method"),
        figure("passes", "target passes", ".1f"),
        figure("coarse_passes", "coarse passes", ".0f"),
        figure("kept", "drafted cells kept", ".0%"),
        figure("speedup", "speed-up", ".2f", "x"),
    )
    shown = [{**row, "kept": row["kept"] if row["coarse_passes"] else None} for row in rows_found]
    show([ResultTable(title, columns, shown)], form)


def fit(
    trace: Annotated[Path, typer.Option(help="The trace to fit to.")],
    vocab_size: Annotated[int, typer.Option(help="Codes of the fitted field.")] = 128,
    clusters: Annotated[int, typer.Option(help="Clusters of the fitted field.")] = 8,
    seed: Annotated[int, typer.Option(help="Random seed.", min=0, max=MOST_SEED)] = 0,
) -> None:
    """Fit an image field to a trace; print its settings as JSON, and how near its statistics came."""
    from underpaint.sim.replay.trace import load, statistics
    from underpaint.sim.synthetic.field import FieldSettings
    from underpaint.sim.synthetic.fit import fit_field

    with bad_input():
        recorded = load(trace)
        start = FieldSettings(
            vocab_size=vocab_size,
            clusters=clusters,
            height=recorded.grid.height,
            width=recorded.grid.width,
            images=16,
            depth_known=recorded.draft_probs.shape[1],
            seed=seed,
        )
        start.check()
        measured = statistics(recorded)
        fitted = fit_field(measured, start)
    typer.echo(json.dumps(dataclasses.asdict(fitted.settings)))
    for name, value in measured._asdict().items():
        typer.echo(f"{name:16s} trace {value:.4f}  field {getattr(fitted.reached, name):.4f}", err=True)
