"""`underpaint train ...`: the recipes of the embedded models."""

from collections.abc import Callable
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from underpaint.cli.errors import TorchGroup
from underpaint.cli.option_groups import grouped
from underpaint.cli.root import HELP_NAMES
from underpaint.cli.train.drawn import draw
from underpaint.cli.train.near_duplicates import report_near_duplicates
from underpaint.cli.train.options import (
    InitFrom,
    Pair,
    Pixels,
    Resolution,
    Run,
    SceneFamily,
    Scenery,
    Scenes,
    report,
)
from underpaint.cli.train.stages import stages
from underpaint.cli.train.world import store, world
from underpaint.zoo.resolutions import between

app = typer.Typer(
    cls=TorchGroup,
    context_settings=HELP_NAMES,
    help="Train models (needs PyTorch): `world` those that ship, the others a stage each. A stopped run goes on.",
    no_args_is_help=True,
)
app.command()(draw)
app.command()(world)
app.command()(store)
app.command("near-duplicates")(report_near_duplicates)


def _recipe(command: Callable[..., None]) -> Callable[..., None]:
    return app.command()(grouped(command))


@_recipe
def tokenizer(
    *,
    decoder_only: Annotated[
        bool, typer.Option("--decoder-only", help="Refine the decoder of --init-from; codes stay as they are.")
    ] = False,
    init_from: InitFrom = None,
    family: SceneFamily = Scenery.emoji,
    codes: Annotated[
        int | None, typer.Option(help="Codes; by default 1024, or 4096 of textured scenes.", min=2, max=2**18)
    ] = None,
    run: Run,
) -> None:
    """Train the VQ tokenizer, shared by all resolutions; it sees 64 and 128 px, and 256 px of textured scenes."""
    from underpaint.models.train.pictures import family_pictures
    from underpaint.models.train.start import read_start
    from underpaint.models.train.tokenizer import DECODER_LOOP, recipe_of, train_tokenizer

    with run.started(family.run("runs/decoder" if decoder_only else "runs/tokenizer")) as folder:
        if decoder_only and init_from is None:
            init_from = Path(family.run("runs/tokenizer")) / "checkpoint.pt"
        recipe = recipe_of(family.family)
        config = replace(recipe.config, codebook_size=codes or recipe.config.codebook_size)
        read_start(init_from, "tokenizer", config)
        with stages() as told:
            pictures = family_pictures(family.family, told)
        outcome = train_tokenizer(
            folder,
            pictures,
            config=config,
            settings=recipe.settings,
            family=family.family,
            init_from=init_from,
            decoder_only=decoder_only,
            **run.common(DECODER_LOOP if decoder_only else recipe.loop),
        )
        report(outcome, folder)


@_recipe
def target(*, resolution: Resolution = Pixels.small, init_from: InitFrom = None, scenes: Scenes, run: Run) -> None:
    """Train a target; above 64 px it starts from the target of half the side unless --init-from names another."""
    from underpaint.cli.train.encoded import encoded
    from underpaint.models.train.target import LOOPS, emoji_config, read_target_start, train_target

    pixels = int(resolution)
    with run.started(f"runs/target_{pixels}") as folder:
        if pixels > Pixels.small and init_from is None:
            init_from = Path(f"runs/target_{pixels // 2}/checkpoint.pt")
        read_target_start(init_from, emoji_config(pixels))
        data, validation = encoded(scenes, pixels, run.device)
        common = run.common(LOOPS[pixels])
        report(train_target(folder, data, validation, pixels, init_from=init_from, **common), folder)


@_recipe
def guided(
    *,
    resolution: Resolution = Pixels.small,
    guidance: Annotated[float, typer.Option(help="Scale that is baked in, above 1.")] = 2.0,
    target_from: Annotated[Path | None, typer.Option("--target", help="Checkpoint of the target.")] = None,
    scenes: Scenes,
    run: Run,
) -> None:
    """Bake guidance into a target, so that one row draws what a guidance pair drew; drafters and exports read this."""
    from underpaint.cli.train.encoded import encoded, trained_target
    from underpaint.models.train.guided import LOOPS, train_guided

    pixels = int(resolution)
    wanted = target_from or Path(f"runs/target_{pixels}/checkpoint.pt")
    with run.started(f"runs/guided_{pixels}") as folder:
        if not guidance > 1.0:
            raise ValueError(f"--guidance: expected more than 1 (1 is the target as it is), got {guidance}")
        trained_target(wanted, pixels)
        data, validation = encoded(scenes, pixels, run.device)
        common = run.common(LOOPS[pixels])
        report(train_guided(folder, data, validation, wanted, pixels, guidance, **common), folder)


@_recipe
def drafter(
    *,
    resolution: Resolution = Pixels.small,
    target_from: Annotated[Path | None, typer.Option("--target", help="Checkpoint of its target.")] = None,
    init_from: InitFrom = None,
    drawn: Annotated[
        Path | None, typer.Option(help="Folder of `underpaint train draw`: learn from the target's own drawings too.")
    ] = None,
    drawn_share: Annotated[
        float | None, typer.Option(help="Share of the drawings in a batch, with --drawn; 0.5 by default.")
    ] = None,
    scenes: Scenes,
    run: Run,
) -> None:
    """Train the drafter of a guided target."""
    from underpaint.cli.train.encoded import encoded, trained_target
    from underpaint.models.train.drafter import LOOPS, SETTINGS, train_drafter
    from underpaint.models.train.start import read_start

    pixels = int(resolution)
    wanted = target_from or Path(f"runs/guided_{pixels}/checkpoint.pt")
    with run.started(f"runs/drafter_{pixels}") as folder:
        if drawn is None and drawn_share is not None:
            raise ValueError("--drawn-share needs --drawn, a folder of `underpaint train draw`")
        if drawn is not None and not drawn.is_dir():
            raise FileNotFoundError(f"--drawn: no folder {drawn}; make one with `underpaint train draw`")
        settings = SETTINGS[pixels] if drawn_share is None else replace(SETTINGS[pixels], drawn_share=drawn_share)
        read_start(init_from, "drafter", trained_target(wanted, pixels))
        data, validation = encoded(scenes, pixels, run.device)
        outcome = train_drafter(
            *(folder, data, validation, wanted, pixels),
            settings=settings,
            init_from=init_from,
            drawn=drawn,
            **run.common(LOOPS[pixels]),
        )
        report(outcome, folder)


@_recipe
def judge(
    *,
    family: SceneFamily = Scenery.emoji,
    tokenizer: Annotated[
        Path | None,
        typer.Option(help="Checkpoint of a tokenizer; half of the pictures are then what comes back from it."),
    ] = None,
    run: Run,
) -> None:
    """Train the judge, which reads what a picture shows."""
    from underpaint.models.checkpoints import read
    from underpaint.models.train.judge import DEFAULT_LOOP, train_judge
    from underpaint.models.train.pictures import family_pictures

    with run.started(family.run("runs/judge")) as folder:
        if tokenizer is not None:
            read(tokenizer, "tokenizer")
        with stages() as told:
            sheet = family_pictures(family.family, told).sheet
        report(train_judge(folder, sheet, tokenizer=tokenizer, **run.common(DEFAULT_LOOP)), folder)


class Way(StrEnum):
    """Whether a token sampler makes codes of the larger pictures from those of the smaller, or the reverse."""

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
    direction: Annotated[Way, typer.Option(help="From the smaller side to the larger, or back.")] = Way.up,
    pair: Pair,
    losses: Annotated[
        Losses,
        typer.Option(
            help="ce: tokens. pixel: and pictures through the decoder. gan: and a critic. Both go on from ce."
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
    from underpaint.models.train.sampler import LOOPS, LOSSES, read_sampler_start, settings_for, train_sampler

    ends = between(pair.low, pair.high)
    with run.started(f"runs/sampler_{direction}_{losses}{ends}") as folder:
        pair.check()
        vq, ratio = vq_config(scenes.tokenizer_from), pair.high // pair.low
        if losses is not Losses.ce and init_from is None:
            init_from = Path(f"runs/sampler_{direction}_ce{ends}/checkpoint.pt")
        # A high block for each cell along a low one's side: its edges can still meet the next one's.
        config = SamplerConfig(direction.value, vq.codebook_size, ratio=ratio, high_blocks=ratio)
        read_sampler_start(init_from, config, scenes.tokenizer_from)
        outcome = train_sampler(
            *(folder, encoded_pairs(scenes, pair, run.device), config),
            losses=LOSSES[losses],
            settings=settings_for(pair.high, pair.grids(vq.stride).high.cells),
            init_from=init_from,
            **run.common(LOOPS[losses]),
        )
        report(outcome, folder)


@_recipe
def superres(*, pair: Pair, scenes: Scenes, run: Run) -> None:
    """Train the super-resolution network of the pixel sampler."""
    from underpaint.cli.train.encoded import encoded_pairs
    from underpaint.models.train.superres import LOOP, settings_for, train_super_resolution

    with run.started(f"runs/superres{between(pair.low, pair.high)}") as folder:
        pairs, settings = encoded_pairs(scenes, pair, run.device), settings_for(pair.high)
        report(train_super_resolution(folder, pairs, settings=settings, **run.common(LOOP)), folder)


if __name__ == "__main__":
    app()
