"""Options shared by the recipes of `underpaint train`, and the start and end of a run. Reading them needs no PyTorch:
modules that need it are imported once a command runs.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, TypedDict

import typer

from underpaint.algos.protocols import Grid
from underpaint.algos.spatial.resolution import ResolutionMap
from underpaint.artifacts.files import check_folder_writable
from underpaint.artifacts.lock import check_free
from underpaint.cli.errors import STOPPED, bad_input
from underpaint.cli.options import MOST_THREADS
from underpaint.cli.outputs import output_folder
from underpaint.cli.terminal import is_quiet, note
from underpaint.zoo.resolutions import RESOLUTIONS

if TYPE_CHECKING:
    from underpaint.training.loop import LoopSettings, TrainingResult

Out = Annotated[Path | None, typer.Option(parser=output_folder, help="Folder of the run; the default is under runs/.")]
Steps = Annotated[int | None, typer.Option(help="Number of optimiser steps.", min=1, max=2**31 - 1)]
Minutes = Annotated[
    float | None,
    typer.Option(
        help="Finish after this long, or after --steps if that is given too; the schedule adapts.",
        min=0.01,
        max=60 * 24 * 365,
    ),
]
Device = Annotated[str, typer.Option(help="cpu or cuda.")]
Seed = Annotated[int, typer.Option(help="Seed of weights and batches.", min=0, max=2**31 - 1)]
Threads = Annotated[int | None, typer.Option(help="CPU threads.", min=1, max=MOST_THREADS)]

InitFrom = Annotated[Path | None, typer.Option(help="Start from the weights of this checkpoint.")]
TokenizerFrom = Annotated[Path, typer.Option("--tokenizer", help="Checkpoint of the tokenizer.")]
Tokens = Annotated[Path, typer.Option(parser=output_folder, help="Folder of the encoded scenes.")]
TOKENIZER: Final = Path("runs/tokenizer/checkpoint.pt")
TRAINING_ERRORS: Final = (ValueError, OSError, FloatingPointError)
"""Errors of a training whose message is for users: bad input, and a loss that is no longer finite."""


class Pixels(IntEnum):
    """Sides of a picture, in pixels, that the embedded models support."""

    small = 64
    large = 128
    largest = 256


Resolution = Annotated[Pixels, typer.Option(help="Side of the pictures in pixels: 64, 128 or 256.")]


@dataclass(frozen=True, slots=True)
class Pair:
    """Options of recipes between two resolutions."""

    low: Annotated[int, typer.Option("--from", help="The smaller side in pixels.", min=1)] = Pixels.small.value
    high: Annotated[int, typer.Option("--to", help="The larger side in pixels.", min=1)] = Pixels.large.value
    pictures_from: Annotated[
        Path | None,
        typer.Option(
            "--pictures",
            help="Folder of pictures to learn from, for a published tokenizer; of any sides. Of more than 20,000, as "
            "many are used, spread evenly over the names.",
        ),
    ] = None

    def check(self) -> None:
        """Raise ValueError unless the first side is smaller and divides the second, and pictures of both exist."""
        options = f"--from {self.low} --to {self.high}"
        if self.low >= self.high:
            raise ValueError(f"{options}: expected the smaller side first")
        if self.high % self.low:
            raise ValueError(f"{options}: expected the larger side to be a whole multiple of the smaller")
        if self.pictures_from is None and not {self.low, self.high} <= set(RESOLUTIONS):
            sides = ", ".join(map(str, RESOLUTIONS))
            raise ValueError(f"{options}: scenes are rendered at {sides} px; give --pictures FOLDER for other sides")

    def grids(self, stride: int) -> ResolutionMap:
        """Return both grids of a tokenizer with `stride` pixels per code; ValueError if `low` is no multiple."""
        if self.low % stride:
            raise ValueError(f"--from {self.low}: expected a multiple of {stride}, this tokenizer's pixels a code")
        low, high = self.low // stride, self.high // stride
        return ResolutionMap(Grid(low, low), Grid(high, high))


class Common(TypedDict):
    """Arguments that every recipe takes by name."""

    loop: "LoopSettings"
    seed: int
    device: str


@dataclass(frozen=True, slots=True)
class Run:
    """Options of one training run: its folder, its length and its device."""

    out: Out = None
    steps: Steps = None
    minutes: Minutes = None
    device: Device = "cpu"
    seed: Seed = 0
    threads: Threads = None

    @contextmanager
    def started(self, default: str) -> Iterator[Path]:
        """Yield the folder to train in. Bad input inside becomes a message and exit code 2: recipes check at start."""
        from underpaint.training.precision import describe_products
        from underpaint.training.verbosity import verbose

        with bad_input(*TRAINING_ERRORS), verbose(not is_quiet()):
            prepare(self.device, self.threads)
            folder = self.out or Path(default)
            check_folder_writable(folder)
            check_free(folder)
            note(f"{folder}: {describe_products(self.device)}")
            yield folder

    def common(self, loop: "LoopSettings") -> Common:
        """Return the options as recipes take them; `loop` is the recipe's own, whose length they may change.

        If only minutes are given, steps do not limit the run.
        """
        from underpaint.training.loop import UNTIL_TIME

        usual = loop.steps if self.minutes is None else UNTIL_TIME
        settings = replace(loop, steps=self.steps or usual, minutes=self.minutes)
        return Common(loop=settings, seed=self.seed, device=self.device)


@dataclass(frozen=True, slots=True)
class Scenes:
    """Options of scenes as tokenizer codes, which are encoded on first use: `underpaint.cli.train.encoded`."""

    tokenizer_from: TokenizerFrom = TOKENIZER
    tokens: Tokens = Path("runs/tokens")


def prepare(device: str, threads: int | None) -> None:
    """Set the number of CPU threads, if given; ValueError if the device is not available."""
    import torch

    if device not in ("cpu", "cuda"):
        raise ValueError(f"--device: expected cpu or cuda, got {device!r}")
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("--device cuda: PyTorch finds no GPU; use --device cpu")
    if threads is not None:
        torch.set_num_threads(threads)


def report(outcome: "TrainingResult", folder: Path) -> None:
    """Print how a run ended; exit with code 130 if it can be continued."""
    state = "finished" if outcome.finished else "stopped; run again to continue"
    figures = ", ".join(f"{name} {value:.4g}" for name, value in outcome.validation.items())
    typer.echo(f"{folder}: {outcome.step} steps, {state}" + (f"; {figures}" if figures else ""))
    if not outcome.finished:
        raise typer.Exit(STOPPED)
