"""`underpaint train draw`: what a target draws itself, for its drafter to learn from."""

from pathlib import Path
from typing import Annotated

import typer

from underpaint.artifacts.lock import check_free
from underpaint.cli.errors import STOPPED, bad_input
from underpaint.cli.train.options import Device, Pixels, Resolution, Seed, Threads, prepare
from underpaint.cli.train.stages import stages
from underpaint.runtime.files import check_folder_writable

DRAWN = Path("runs/drawn")


def draw(
    resolution: Resolution = Pixels.small,
    scenes: Annotated[
        int, typer.Option(help="How many; captions of the first training scenes.", min=1, max=10_000_000)
    ] = 4096,
    target_from: Annotated[Path | None, typer.Option("--target", help="Checkpoint of the guided target.")] = None,
    greedy_share: Annotated[float, typer.Option(help="Share that is drawn at temperature 0.")] = 0.5,
    temperature: Annotated[float, typer.Option(help="Of the others.")] = 1.0,
    top_k: Annotated[int, typer.Option(help="Of the others; 0 keeps every token.")] = 5,
    out: Annotated[Path, typer.Option(help="Folder of the drawings, by target; `train drafter --drawn`.")] = DRAWN,
    minutes: Annotated[float | None, typer.Option(help="Stop after this long.", min=0.01, max=60 * 24 * 365)] = None,
    device: Device = "cpu",
    seed: Seed = 0,
    threads: Threads = None,
) -> None:
    """Let a guided target draw scenes for its drafter to learn from. A stopped run continues where it was."""
    from underpaint.cli.train.encoded import trained_target
    from underpaint.models.train.drawn import DrawSettings, draw_scenes
    from underpaint.models.train.pictures import captions

    wanted = target_from or Path(f"runs/guided_{int(resolution)}/checkpoint.pt")
    with bad_input(), stages() as told:
        prepare(device, threads)
        settings = DrawSettings(greedy_share, temperature, top_k, seed)
        check_folder_writable(out)
        check_free(out)
        codes = trained_target(wanted, int(resolution)).vocab_size
        if top_k > codes:
            raise ValueError(f"--top-k: expected at most {codes}, the codes of this target, or 0 for all; got {top_k}")
        drawn = draw_scenes(
            out,
            wanted,
            lambda indices: captions(indices, "train"),
            scenes,
            settings=settings,
            minutes=minutes,
            device=device,
            progress=lambda rows, total: told("drawing scenes", rows, total, "scenes"),
        )
    state = "finished" if drawn.rows == drawn.wanted else "stopped; run again to continue"
    typer.echo(f"{out}: {drawn.rows} of {drawn.wanted} scenes drawn, {state}")
    if drawn.rows < drawn.wanted:
        raise typer.Exit(STOPPED)
