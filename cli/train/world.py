"""`underpaint train world`: train the models of textured scenes."""

import os
from dataclasses import asdict
from pathlib import Path
from shutil import which
from typing import TYPE_CHECKING, Annotated

import typer

from underpaint.algos.numbers import whole_number
from underpaint.artifacts.files import check_folder_writable
from underpaint.artifacts.lock import check_free
from underpaint.cli.errors import STOPPED, bad_input
from underpaint.cli.option_values import read_numbers
from underpaint.cli.outputs import output_folder
from underpaint.cli.terminal import is_quiet, note
from underpaint.cli.train.options import TRAINING_ERRORS, Device, Seed, Threads, prepare
from underpaint.cli.train.stages import stages
from underpaint.zoo.resolutions import SHIPPED_RESOLUTIONS

if TYPE_CHECKING:
    from underpaint.training.world import StageReport


def world(
    hours: Annotated[float, typer.Option(help="Hours for all stages together.", min=0.001, max=24 * 365)],
    only: Annotated[list[str] | None, typer.Option(help="Train only this stage; repeat for more.")] = None,
    sides: Annotated[
        str,
        typer.Option(
            help="Sides in pixels of the pictures that target and drafter learn, separated by commas: 64,128 or "
            "64,128,256. Samplers lie between the first two; `train sampler --from 128 --to 256` makes others."
        ),
    ] = ",".join(map(str, SHIPPED_RESOLUTIONS)),
    out: Annotated[
        Path, typer.Option(parser=output_folder, help="Folder of the runs, with a folder for each stage.")
    ] = Path("runs/world"),
    device: Device = "cpu",
    seed: Seed = 0,
    threads: Threads = None,
    compiled: Annotated[
        bool,
        typer.Option("--compile", help="Compile the targets with torch.compile, which needs a C++ compiler."),
    ] = False,
) -> None:
    """Train tokenizer, judge, target, drafter and samplers of textured scenes in order. Run again to continue."""
    from underpaint.models.config import plain
    from underpaint.training.pictures import TexturedPictures
    from underpaint.training.precision import describe_products
    from underpaint.training.textured_world import SHARES, WorldSettings, textured_stages
    from underpaint.training.verbosity import verbose
    from underpaint.training.world import check_world, train_world

    with bad_input(*TRAINING_ERRORS), verbose(not is_quiet()):
        settings = WorldSettings(sides=read_numbers("--sides", sides, whole_number))
        prepare(device, threads)
        check_folder_writable(out)
        check_free(out)
        if compiled and device == "cpu":
            _require_compiler()
        about = {"scenes": "textured", "seed": seed, "settings": plain(asdict(settings))}
        check_world(out, tuple(SHARES), about, only or ())
        note(f"{out}: {describe_products(device)}")
        with stages() as report_stage:
            pictures = TexturedPictures(report=report_stage)
        with stages() as report_stage:
            parts = textured_stages(
                out, pictures, settings=settings, seed=seed, device=device, compiled=compiled, report=report_stage
            )
            reports = train_world(out, hours, parts, about, only=only or (), report=_print_report)
    if reports[-1].state == "stopped":
        raise typer.Exit(STOPPED)


def _require_compiler() -> None:
    """Raise ValueError if torch.compile would not find a C++ compiler."""
    name = os.environ.get("CXX", "g++")
    if which(name) is None:
        raise ValueError(f"--compile: expected a compiler of C++, found no {name}; install one, or leave out --compile")


def _print_report(one: "StageReport") -> None:
    if one.outcome is None:
        typer.echo(f"{one.name}: {one.state}" + (", other stages stand on it" if one.state == "closed" else ""))
        return
    figures = ", ".join(f"{name} {value:.4g}" for name, value in one.outcome.validation.items())
    state = one.state if one.state == "finished" else "stopped; run again to continue"
    typer.echo(f"{one.name}: {one.outcome.step} steps, {state}" + (f"; {figures}" if figures else ""))
