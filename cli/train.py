"""`underpaint train ...`: the recipes of the embedded models."""

from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from algos.draft.spec import Grid
from algos.spatial.resolution import ResolutionMap
from cli.errors import STOPPED, bad_input
from cli.train_drawn import draw
from cli.train_options import (
    TOKENIZER,
    TOKENS,
    Device,
    InitFrom,
    Minutes,
    Out,
    Pixels,
    Resolution,
    Seed,
    Steps,
    Threads,
    TokenizerFrom,
    Tokens,
    prepare,
)
from models.data.scenes import Split
from models.train.loop import LoopSettings, Outcome
from models.train.pictures import EmojiPictures
from models.train.sampler import PairedCodes
from models.train.tokens import TokenSet

app = typer.Typer(help="Train the embedded models. A stopped run continues where it was.", no_args_is_help=True)
app.command()(draw)


def _length(loop: LoopSettings, steps: int | None, minutes: float | None) -> LoopSettings:
    return replace(loop, steps=steps or loop.steps, minutes=minutes)


def _report(outcome: Outcome, out: Path) -> None:
    state = "finished" if outcome.finished else "stopped; run again to continue"
    figures = ", ".join(f"{name} {value:.4g}" for name, value in outcome.validation.items())
    typer.echo(f"{out}: {outcome.step} steps, {state}" + (f"; {figures}" if figures else ""))
    if not outcome.finished:
        raise typer.Exit(STOPPED)


@app.command()
def tokenizer(
    decoder_only: Annotated[
        bool, typer.Option("--decoder-only", help="Refine the decoder of --init-from; codes stay as they are.")
    ] = False,
    init_from: InitFrom = None,
    out: Out = None,
    steps: Steps = None,
    minutes: Minutes = None,
    device: Device = "cpu",
    seed: Seed = 0,
    threads: Threads = None,
) -> None:
    """Train the VQ tokenizer, shared by 64 and 128 px."""
    from models.train.tokenizer import DECODER_LOOP, DEFAULT_LOOP, train_tokenizer

    folder = out or Path("runs/decoder" if decoder_only else "runs/tokenizer")
    with bad_input():
        prepare(device, threads)
        if decoder_only and init_from is None:
            init_from = TOKENIZER
        outcome = train_tokenizer(
            folder,
            EmojiPictures(),
            loop=_length(DECODER_LOOP if decoder_only else DEFAULT_LOOP, steps, minutes),
            init_from=init_from,
            decoder_only=decoder_only,
            seed=seed,
            device=device,
        )
        _report(outcome, folder)


def _token_sets(tokenizer: Path, tokens: Path, resolution: int) -> tuple[TokenSet, TokenSet]:
    """Training and validation codes at a resolution, encoded on first use."""
    from models.train.target import SETTINGS
    from models.train.tokens import encode_scenes

    settings, pictures = SETTINGS[resolution], EmojiPictures()
    typer.echo(f"codes at {resolution} px in {tokens} (encoded on first use)")
    data = encode_scenes(tokens, tokenizer, pictures, resolution=resolution, scenes=settings.scenes, split="train")
    validation = encode_scenes(
        tokens, tokenizer, pictures, resolution=resolution, scenes=settings.validation_scenes, split="seen"
    )
    return data, validation


@app.command()
def target(
    resolution: Resolution = Pixels.small,
    init_from: InitFrom = None,
    tokenizer_from: TokenizerFrom = TOKENIZER,
    tokens: Tokens = TOKENS,
    out: Out = None,
    steps: Steps = None,
    minutes: Minutes = None,
    device: Device = "cpu",
    seed: Seed = 0,
    threads: Threads = None,
) -> None:
    """Train a target; at 128 px it starts from the 64 px target unless --init-from names another."""
    from models.train.target import LOOPS, train_target

    pixels = int(resolution)
    folder = out or Path(f"runs/target_{pixels}")
    with bad_input():
        prepare(device, threads)
        if pixels == 128 and init_from is None:
            init_from = Path("runs/target_64/checkpoint.pt")
        data, validation = _token_sets(tokenizer_from, tokens, pixels)
        loop = _length(LOOPS[pixels], steps, minutes)
        outcome = train_target(
            folder, data, validation, pixels, loop=loop, init_from=init_from, seed=seed, device=device
        )
        _report(outcome, folder)


@app.command()
def guided(
    resolution: Resolution = Pixels.small,
    guidance: Annotated[float, typer.Option(help="Scale that is baked in, above 1.")] = 2.0,
    target_from: Annotated[Path | None, typer.Option("--target", help="Checkpoint of the target.")] = None,
    tokenizer_from: TokenizerFrom = TOKENIZER,
    tokens: Tokens = TOKENS,
    out: Out = None,
    steps: Steps = None,
    minutes: Minutes = None,
    device: Device = "cpu",
    seed: Seed = 0,
    threads: Threads = None,
) -> None:
    """Bake guidance into a target, so that one row draws what a guidance pair drew; drafters and exports read this."""
    from models.train.guided import LOOPS, train_guided

    pixels = int(resolution)
    folder = out or Path(f"runs/guided_{pixels}")
    with bad_input():
        prepare(device, threads)
        wanted = target_from or Path(f"runs/target_{pixels}/checkpoint.pt")
        data, validation = _token_sets(tokenizer_from, tokens, pixels)
        loop = _length(LOOPS[pixels], steps, minutes)
        outcome = train_guided(folder, data, validation, wanted, pixels, guidance, loop=loop, seed=seed, device=device)
        _report(outcome, folder)


@app.command()
def drafter(
    resolution: Resolution = Pixels.small,
    target_from: Annotated[Path | None, typer.Option("--target", help="Checkpoint of its target.")] = None,
    init_from: InitFrom = None,
    drawn: Annotated[
        Path | None, typer.Option(help="Folder of `underpaint train draw`: learn from the target's own drawings too.")
    ] = None,
    drawn_share: Annotated[
        float | None, typer.Option(help="Share of the drawings in a batch, with --drawn; 0.5 by default.")
    ] = None,
    tokenizer_from: TokenizerFrom = TOKENIZER,
    tokens: Tokens = TOKENS,
    out: Out = None,
    steps: Steps = None,
    minutes: Minutes = None,
    device: Device = "cpu",
    seed: Seed = 0,
    threads: Threads = None,
) -> None:
    """Train the drafter of a guided target."""
    from models.train.drafter import LOOPS, SETTINGS, train_drafter

    pixels = int(resolution)
    folder = out or Path(f"runs/drafter_{pixels}")
    with bad_input():
        prepare(device, threads)
        if drawn is None and drawn_share is not None:
            raise ValueError("--drawn-share needs --drawn, a folder of `underpaint train draw`")
        settings = SETTINGS[pixels] if drawn_share is None else replace(SETTINGS[pixels], drawn_share=drawn_share)
        wanted = target_from or Path(f"runs/guided_{pixels}/checkpoint.pt")
        data, validation = _token_sets(tokenizer_from, tokens, pixels)
        outcome = train_drafter(
            folder,
            data,
            validation,
            wanted,
            pixels,
            settings=settings,
            loop=_length(LOOPS[pixels], steps, minutes),
            init_from=init_from,
            drawn=drawn,
            seed=seed,
            device=device,
        )
        _report(outcome, folder)


@app.command()
def judge(
    out: Out = None,
    steps: Steps = None,
    minutes: Minutes = None,
    device: Device = "cpu",
    seed: Seed = 0,
    threads: Threads = None,
) -> None:
    """Train the judge, which reads what a picture shows."""
    from models.data.art import load_sprites
    from models.data.scenes import SpriteSheet
    from models.train.judge import DEFAULT_LOOP, train_judge

    folder = out or Path("runs/judge")
    with bad_input():
        prepare(device, threads)
        loop = _length(DEFAULT_LOOP, steps, minutes)
        _report(train_judge(folder, SpriteSheet(load_sprites()), loop=loop, seed=seed, device=device), folder)


class Way(StrEnum):
    """What a token sampler changes 64 px codes into, or makes them from."""

    up = "up"
    down = "down"


class Losses(StrEnum):
    """Stages of a token sampler's training."""

    ce = "ce"
    pixel = "pixel"
    gan = "gan"


PAIR = ResolutionMap(Grid(8, 8), Grid(16, 16))
"""The grids of the embedded models: 64 and 128 px."""


def _pairs(tokenizer: Path, tokens: Path, pictures: EmojiPictures) -> tuple[PairedCodes, PairedCodes]:
    """Codes of training and of validation scenes at both resolutions, encoded on first use."""
    from models.train.sampler import SamplerSettings
    from models.train.target import STRIDE
    from models.train.tokens import encode_scenes

    typer.echo(f"codes at 64 and 128 px in {tokens} (encoded on first use)")

    def pairs(split: Split, scenes: int) -> PairedCodes:
        low, high = (
            encode_scenes(tokens, tokenizer, pictures, resolution=side, scenes=scenes, split=split).codes
            for side in (PAIR.low.height * STRIDE, PAIR.high.height * STRIDE)
        )
        return PairedCodes(low, high)

    settings = SamplerSettings()
    return pairs("train", settings.scenes), pairs("seen", settings.validation_scenes)


@app.command()
def sampler(
    direction: Annotated[Way, typer.Option(help="From 64 to 128 px, or back.")] = Way.up,
    losses: Annotated[
        Losses,
        typer.Option(
            help="ce: tokens. pixel: and pictures through the decoder. gan: and a critic. Both go on from ce."
        ),
    ] = Losses.ce,
    init_from: InitFrom = None,
    tokenizer_from: TokenizerFrom = TOKENIZER,
    tokens: Tokens = TOKENS,
    out: Out = None,
    steps: Steps = None,
    minutes: Minutes = None,
    device: Device = "cpu",
    seed: Seed = 0,
    threads: Threads = None,
) -> None:
    """Train a latent sampler, which turns codes at 64 px into codes at 128 px, or back."""
    from models.sampler import SamplerConfig
    from models.train.sampler import LOOPS, LOSSES, train_sampler

    folder = out or Path(f"runs/sampler_{direction}_{losses}")
    with bad_input():
        prepare(device, threads)
        if losses is not Losses.ce and init_from is None:
            init_from = Path(f"runs/sampler_{direction}_ce/checkpoint.pt")
        pictures = EmojiPictures()
        data, validation = _pairs(tokenizer_from, tokens, pictures)
        outcome = train_sampler(
            folder,
            data,
            validation,
            tokenizer_from,
            pictures,
            PAIR,
            SamplerConfig(direction.value, ratio=PAIR.ratio),
            losses=LOSSES[losses],
            loop=_length(LOOPS[losses], steps, minutes),
            init_from=init_from,
            seed=seed,
            device=device,
        )
        _report(outcome, folder)


@app.command()
def superres(
    tokenizer_from: TokenizerFrom = TOKENIZER,
    tokens: Tokens = TOKENS,
    out: Out = None,
    steps: Steps = None,
    minutes: Minutes = None,
    device: Device = "cpu",
    seed: Seed = 0,
    threads: Threads = None,
) -> None:
    """Train the super-resolution network of the pixel sampler."""
    from models.train.superres import LOOP, train_super_resolution

    folder = out or Path("runs/superres")
    with bad_input():
        prepare(device, threads)
        pictures = EmojiPictures()
        data, validation = _pairs(tokenizer_from, tokens, pictures)
        outcome = train_super_resolution(
            folder,
            data,
            validation,
            tokenizer_from,
            pictures,
            PAIR,
            loop=_length(LOOP, steps, minutes),
            seed=seed,
            device=device,
        )
        _report(outcome, folder)


if __name__ == "__main__":
    app()
