"""What the recipes of `underpaint train` share: their options, encoded scenes, and how a run starts and ends."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from enum import IntEnum, StrEnum
from pathlib import Path
from typing import Annotated, Final, TypedDict

import numpy as np
import torch
import typer
from numpy.typing import NDArray

from underpaint.algos.draft.spec import Grid
from underpaint.algos.spatial.resolution import ResolutionMap
from underpaint.artifacts.lock import check_free
from underpaint.cli.errors import STOPPED, bad_input
from underpaint.cli.options import MOST_THREADS
from underpaint.cli.terminal import Advance, progress
from underpaint.models.checkpoints import read, vq_config
from underpaint.models.data.batches import Family
from underpaint.models.data.scenes import Split
from underpaint.models.decoder_config import DecoderConfig
from underpaint.models.train.loop import LoopSettings, TrainingResult
from underpaint.models.train.pictures import SCENE_SEED, EmojiPictures, FolderPictures, Pictures
from underpaint.models.train.sampler import PairedCodes, PairedScenes, settings_for
from underpaint.models.train.start import widths
from underpaint.models.train.target import SETTINGS, STRIDE
from underpaint.models.train.tokens import TokenSet, encode_pictures, encode_scenes
from underpaint.runtime.files import check_folder_writable
from underpaint.zoo.resolutions import RESOLUTIONS

Out = Annotated[Path | None, typer.Option(help="Folder of the run; the default is under runs/.")]
Steps = Annotated[int | None, typer.Option(help="Optimiser steps in all.", min=1, max=2**31 - 1)]
Minutes = Annotated[
    float | None, typer.Option(help="Stop after this long; the schedule adapts.", min=0.01, max=60 * 24 * 365)
]
Device = Annotated[str, typer.Option(help="cpu or cuda.")]
Seed = Annotated[int, typer.Option(help="Seed of weights and batches.", min=0, max=2**31 - 1)]
Threads = Annotated[int | None, typer.Option(help="CPU threads.", min=1, max=MOST_THREADS)]

InitFrom = Annotated[Path | None, typer.Option(help="Start from the weights of this checkpoint.")]
TokenizerFrom = Annotated[Path, typer.Option("--tokenizer", help="Checkpoint of the tokenizer.")]
Tokens = Annotated[Path, typer.Option(help="Folder of the encoded scenes.")]
TOKENIZER: Final = Path("runs/tokenizer/checkpoint.pt")


class Pixels(IntEnum):
    """Sides of a picture that the embedded models know."""

    small = 64
    large = 128
    largest = 256


Resolution = Annotated[Pixels, typer.Option(help="Side of the pictures in pixels: 64, 128 or 256.")]


class Scenery(StrEnum):
    """Families of scenes."""

    emoji = "emoji"
    textured = "textured"

    @property
    def family(self) -> Family:
        """The family as recipes name it."""
        return "emoji" if self is Scenery.emoji else "textured"

    def run(self, folder: str) -> str:
        """The default folder of a run: that of the first family bears its stage's name alone."""
        return folder if self is Scenery.emoji else f"{folder}_{self}"


SceneFamily = Annotated[
    Scenery, typer.Option("--scenes", help="emoji: one thing on a simple background. textured: two, on a texture.")
]


@dataclass(frozen=True, slots=True)
class Pair:
    """Options of what lies between two resolutions."""

    low: Annotated[int, typer.Option("--from", help="The smaller side in pixels.", min=1)] = Pixels.small.value
    high: Annotated[int, typer.Option("--to", help="The larger side in pixels.", min=1)] = Pixels.large.value
    pictures_from: Annotated[
        Path | None,
        typer.Option("--pictures", help="Folder of pictures to learn from, for a published tokenizer; of any sides."),
    ] = None

    def check(self) -> None:
        """ValueError unless the first side is the smaller, divides the other, and there are pictures of both."""
        told = f"--from {self.low} --to {self.high}"
        if self.low >= self.high:
            raise ValueError(f"{told}: expected the smaller side first")
        if self.high % self.low:
            raise ValueError(f"{told}: expected the larger side to be a whole multiple of the smaller")
        if self.pictures_from is None and not {self.low, self.high} <= set(RESOLUTIONS):
            sides = ", ".join(map(str, RESOLUTIONS))
            raise ValueError(f"{told}: scenes are rendered at {sides} px; give --pictures FOLDER for other sides")

    def grids(self, stride: int) -> ResolutionMap:
        """Both as cells of a tokenizer of `stride` pixels a code; ValueError where that divides neither."""
        if self.low % stride:
            raise ValueError(f"--from {self.low}: expected a multiple of {stride}, this tokenizer's pixels a code")
        low, high = self.low // stride, self.high // stride
        return ResolutionMap(Grid(low, low), Grid(high, high))


class Common(TypedDict):
    """What every recipe is given by name."""

    loop: LoopSettings
    seed: int
    device: str


@dataclass(frozen=True, slots=True)
class Run:
    """Options of one training: where it lies, how long it goes on, and on what."""

    out: Out = None
    steps: Steps = None
    minutes: Minutes = None
    device: Device = "cpu"
    seed: Seed = 0
    threads: Threads = None

    @contextmanager
    def started(self, default: str) -> Iterator[Path]:
        """The folder to train in. Bad input on the way is one message and exit code 2: recipes check as they start."""
        with bad_input():
            prepare(self.device, self.threads)
            folder = self.out or Path(default)
            check_folder_writable(folder)
            check_free(folder)
            yield folder

    def common(self, loop: LoopSettings) -> Common:
        """The options as recipes take them; `loop` is the recipe's own, which they may shorten."""
        own = replace(loop, steps=self.steps or loop.steps, minutes=self.minutes)
        return Common(loop=own, seed=self.seed, device=self.device)


@dataclass(frozen=True, slots=True)
class Scenes:
    """Options of scenes as a tokenizer's codes, encoded on first use."""

    tokenizer_from: TokenizerFrom = TOKENIZER
    tokens: Tokens = Path("runs/tokens")

    def at(self, resolution: int, device: str) -> tuple[TokenSet, TokenSet]:
        """Training and validation codes at a resolution, encoded on `device`."""
        pictures, settings = self._pictures(f"{resolution} px"), SETTINGS[resolution]

        def encoded(split: Split, scenes: int) -> TokenSet:
            return self._encoded(pictures, resolution, scenes, split, device)

        return encoded("train", settings.scenes), encoded("seen", settings.validation_scenes)

    def pairs(self, pair: Pair, device: str) -> PairedScenes:
        """Training and validation codes at both resolutions, their tokenizer, the pictures, and the two grids."""
        pair.check()
        sides = pair.low, pair.high
        grids = pair.grids(vq_config(self.tokenizer_from).stride)
        settings = settings_for(pair.high, grids.high.cells)
        own = None if pair.pictures_from is None else FolderPictures(pair.pictures_from)
        self._tell(f"{sides[0]} and {sides[1]} px")
        pictures: Pictures = EmojiPictures() if own is None else own
        source = {"seed": SCENE_SEED} if own is None else own.source

        def pairs(split: Split, scenes: int) -> PairedCodes:
            count = scenes if own is None else min(scenes, own.count(split))
            wanted = (self.tokens, self.tokenizer_from, pictures)

            def encoded(side: int) -> NDArray[np.int16]:
                with _encoding(side) as report:
                    return encode_pictures(*wanted, side, count, split, source, device, report)

            return PairedCodes(*(encoded(side) for side in sides))

        data, validation = pairs("train", settings.scenes), pairs("seen", settings.validation_scenes)
        return PairedScenes(data, validation, self.tokenizer_from, pictures, grids)

    def _pictures(self, sizes: str) -> EmojiPictures:
        read(self.tokenizer_from, "tokenizer")
        self._tell(sizes)
        return EmojiPictures()

    def _tell(self, sizes: str) -> None:
        check_folder_writable(self.tokens)
        typer.echo(f"codes at {sizes} in {self.tokens} (encoded on first use)")

    def _encoded(self, pictures: EmojiPictures, side: int, scenes: int, split: Split, device: str) -> TokenSet:
        wanted = (self.tokens, self.tokenizer_from, pictures)
        with _encoding(side) as report:
            return encode_scenes(*wanted, resolution=side, scenes=scenes, split=split, device=device, report=report)


@contextmanager
def _encoding(side: int) -> Iterator[Callable[[int, int], None]]:
    """Progress of encoding; nothing is shown where the codes are there."""
    with ExitStack() as opened:
        shown: list[Advance] = []

        def report(done: int, total: int) -> None:
            if not shown:
                shown.append(opened.enter_context(progress(f"encoding pictures of {side} px", total)))
            shown[0](done)

        yield report


def prepare(device: str, threads: int | None) -> None:
    """Take `threads` of the CPU; ValueError on a device that is not there."""
    if device not in ("cpu", "cuda"):
        raise ValueError(f"--device is cpu or cuda; got {device!r}")
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("--device cuda: this PyTorch sees no GPU; use --device cpu")
    if threads is not None:
        torch.set_num_threads(threads)


def trained_target(path: Path, resolution: int) -> DecoderConfig:
    """The widths of the target at `path`; OSError or ValueError, before any work, unless it draws `resolution`."""
    config = widths(path, read(path, "target"), DecoderConfig)
    if config.grid_side * STRIDE != resolution:
        side = config.grid_side * STRIDE
        raise ValueError(f"{path} draws {side} px; wanted {resolution}: say --resolution {side}, or another --target")
    return config


def report(outcome: TrainingResult, folder: Path) -> None:
    """Say how a run ended; exit code 130 where it is to be continued."""
    state = "finished" if outcome.finished else "stopped; run again to continue"
    figures = ", ".join(f"{name} {value:.4g}" for name, value in outcome.validation.items())
    typer.echo(f"{folder}: {outcome.step} steps, {state}" + (f"; {figures}" if figures else ""))
    if not outcome.finished:
        raise typer.Exit(STOPPED)
