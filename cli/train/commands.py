"""`underpaint train ...`: the recipes of the embedded models."""

from collections.abc import Callable
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from underpaint.cli.app import HELP_NAMES
from underpaint.cli.errors import TorchGroup
from underpaint.cli.options import grouped
from underpaint.cli.outputs import Commands
from underpaint.cli.train.drafter import drafter
from underpaint.cli.train.options import InitFrom, Pair, Run, Scenes, report
from underpaint.cli.train.stages import stages
from underpaint.cli.train.world import world
from underpaint.zoo.resolutions import between

app = Commands(
    cls=TorchGroup,
    context_settings=HELP_NAMES,
    help="Train models (needs PyTorch): `world` trains all that ship, the others one each. A stopped run continues.",
    no_args_is_help=True,
)
app.command()(world)


def _recipe(command: Callable[..., None]) -> Callable[..., None]:
    return app.command()(grouped(command))


_recipe(drafter)


@_recipe
def tokenizer(
    *,
    codes: Annotated[int, typer.Option(help="Size of the codebook.", min=2, max=2**15)] = 4096,
    run: Run,
) -> None:
    """Train the VQ tokenizer, shared by all resolutions; it sees pictures of 64, 128 and 256 px."""
    from underpaint.training.pictures import TexturedPictures
    from underpaint.training.tokenizer import CONFIG, LOOP, SETTINGS, check_codes, train_tokenizer

    with run.started("runs/tokenizer") as folder:
        config = replace(CONFIG, codebook_size=codes)
        check_codes(config, SETTINGS)
        with stages() as report_stage:
            pictures = TexturedPictures(report=report_stage)
        report(train_tokenizer(folder, pictures, config=config, **run.common(LOOP)), folder)


@_recipe
def judge(
    *,
    tokenizer: Annotated[
        Path | None,
        typer.Option(help="Checkpoint of a tokenizer; half of the pictures are then encoded and decoded by it."),
    ] = None,
    run: Run,
) -> None:
    """Train the judge, which reads what a picture shows."""
    from underpaint.models.checkpoints import read
    from underpaint.training.judge import DEFAULT_LOOP, train_judge
    from underpaint.training.pictures import TexturedPictures

    with run.started("runs/judge") as folder:
        if tokenizer is not None:
            read(tokenizer, "tokenizer")
        with stages() as report_stage:
            sheet = TexturedPictures(report=report_stage).sheet
        report(train_judge(folder, sheet, tokenizer=tokenizer, **run.common(DEFAULT_LOOP)), folder)


class Way(StrEnum):
    """Whether a token sampler turns codes of smaller pictures into those of larger ones, or the reverse."""

    up = "up"
    down = "down"


class Losses(StrEnum):
    """Stages of a token sampler's training."""

    ce = "ce"
    pixel = "pixel"
    gan = "gan"


@_recipe
def sampler(
    *,
    direction: Annotated[Way, typer.Option(help="up: from the smaller side to the larger; down: back.")] = Way.up,
    pair: Pair,
    losses: Annotated[
        Losses,
        typer.Option(
            help="ce: tokens. pixel: also decoded pictures. gan: also a critic. pixel and gan start from ce's run."
        ),
    ] = Losses.ce,
    init_from: InitFrom = None,
    scenes: Scenes,
    run: Run,
) -> None:
    """Train a latent sampler, which turns codes at one resolution into codes at another, or back."""
    from underpaint.cli.train.encoded import encoded_pairs
    from underpaint.models.checkpoints import vq_config
    from underpaint.models.sampler import SamplerConfig
    from underpaint.training.sampler import LOOPS, LOSSES, read_sampler_start, settings_for, train_sampler

    ends = between(pair.low, pair.high)
    with run.started(f"runs/sampler_{direction}_{losses}{ends}") as folder:
        pair.check()
        vq, ratio = vq_config(scenes.tokenizer_from), pair.high // pair.low
        high = pair.grids(vq.stride).high
        if losses is not Losses.ce and init_from is None:
            init_from = folder.parent / f"sampler_{direction}_ce{ends}" / "checkpoint.pt"
        # One high block per high cell along a low cell's side, so that edges can still reach the next low cell.
        config = SamplerConfig(direction.value, vq.codebook_size, ratio=ratio, high_blocks=ratio)
        read_sampler_start(init_from, config, scenes.tokenizer_from)
        outcome = train_sampler(
            *(folder, encoded_pairs(scenes, pair, run.device), config),
            losses=LOSSES[losses],
            settings=settings_for(pair.high, high.cells),
            init_from=init_from,
            **run.common(LOOPS[losses]),
        )
        report(outcome, folder)


@_recipe
def superres(*, pair: Pair, scenes: Scenes, run: Run) -> None:
    """Train the super-resolution network of the pixel sampler."""
    from underpaint.cli.train.encoded import encoded_pairs
    from underpaint.training.superres import LOOP, settings_for, train_super_resolution

    with run.started(f"runs/superres{between(pair.low, pair.high)}") as folder:
        pairs, settings = encoded_pairs(scenes, pair, run.device), settings_for(pair.high)
        report(train_super_resolution(folder, pairs, settings=settings, **run.common(LOOP)), folder)


if __name__ == "__main__":
    app()
