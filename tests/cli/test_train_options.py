"""Every recipe of `underpaint train` refuses what cannot be trained before it encodes or trains anything."""

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated

import numpy as np
import pytest
import torch
import typer
from numpy.typing import NDArray
from typer.testing import CliRunner

from tests.cli.killed_commands import PREPARED
from underpaint.cli.app import app as program
from underpaint.cli.option_groups import grouped
from underpaint.cli.terminal import be_quiet
from underpaint.cli.train.commands import app
from underpaint.models.sampler import SamplerConfig
from underpaint.models.train.target import emoji_config
from underpaint.models.train.tokenizer import EMBEDDED
from underpaint.zoo.prompts import WORDS


@dataclass(frozen=True)
class Size:
    height: Annotated[int, typer.Option(help="Rows.", min=1)] = 2
    width: Annotated[int, typer.Option("--across", help="Columns.")] = 3


def test_a_group_of_options_stands_where_it_is_named() -> None:
    alone = typer.Typer()

    @alone.command()
    @grouped
    def area(*, unit: str = "cells", size: Size, factor: int = 1) -> None:
        """Multiply."""
        typer.echo(f"{size.height * size.width * factor} {unit}")

    runner = CliRunner()
    assert runner.invoke(alone, []).output == "6 cells\n"
    assert runner.invoke(alone, ["--height", "4", "--across", "5", "--factor", "2", "--unit", "px"]).output == "40 px\n"
    assert runner.invoke(alone, ["--height", "0"]).exit_code == 2
    shown = runner.invoke(alone, ["--help"]).output
    assert shown.index("--unit") < shown.index("--height") < shown.index("--across") < shown.index("--factor")
    assert "Multiply." in shown


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Checkpoints of every kind, of the right form and without weights; of other widths; and files that are none."""
    folder = tmp_path_factory.mktemp("checkpoints")

    def save(name: str, **config: object) -> None:
        torch.save({"config": config, "model": {}}, folder / f"{name}.pt")

    target, narrow = asdict(emoji_config(64)), asdict(replace(emoji_config(64), dim=128, heads=2))
    save("tokenizer", kind="tokenizer", vq=asdict(EMBEDDED))
    save("tokenizer_narrow", kind="tokenizer", vq=asdict(replace(EMBEDDED, ch=16)))
    save("target", kind="target", words=WORDS, decoder=target)
    save("target_narrow", kind="target", words=WORDS, decoder=narrow)
    save("target_heads", kind="target", words=WORDS, decoder=target | {"heads": 8})
    save("target_words", kind="target", words=7, decoder=target)
    save("target_bare", kind="target")
    save("drafter", kind="drafter", decoder=target)
    save("drafter_narrow", kind="drafter", decoder=narrow)
    save("sampler", kind="sampler", sampler=asdict(SamplerConfig("up")))
    (folder / "text.pt").write_text("no checkpoint")
    (folder / "empty.pt").touch()
    (folder / "cut.pt").write_bytes((folder / "target.pt").read_bytes()[:-200])
    return folder


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["tokenizer", "--decoder-only", "--init-from", "absent.pt"], "no checkpoint at absent.pt"),
        (["tokenizer", "--init-from", "target.pt"], "holds a 'target' checkpoint; wanted 'tokenizer'"),
        (["tokenizer", "--minutes", "nan"], "525600"),
        (["tokenizer", "--out", "/proc/run"], "cannot write into /proc/run"),
        (["tokenizer", "--init-from", "tokenizer_narrow.pt"], "a tokenizer of ch 32 to start from, got one of ch 16"),
        (["target", "--init-from", "drafter.pt"], "holds a 'drafter' checkpoint; wanted 'target'"),
        (
            ["target", "--init-from", "target_narrow.pt"],
            "target of dim 256, heads 4 to start from, got one of dim 128",
        ),
        (["target", "--init-from", "target_heads.pt"], "a target of heads 4 to start from, got one of heads 8"),
        (["target", "--init-from", "target_words.pt"], "to start from, got one of 7; its prompts were others"),
        (["target", "--init-from", "target_bare.pt"], "target_bare.pt: the checkpoint does not say its widths"),
        (["target", "--init-from", "text.pt"], "text.pt is no checkpoint of these recipes"),
        (["target", "--resolution", "128"], "no checkpoint at runs/target_64/checkpoint.pt"),
        (["target", "--resolution", "256"], "no checkpoint at runs/target_128/checkpoint.pt"),
        (["target", "--tokenizer", "empty.pt"], "empty.pt is no checkpoint of these recipes"),
        (["target", "--tokenizer", "tokenizer.pt", "--tokens", "/proc/tokens"], "cannot write into /proc/tokens"),
        (["guided", "--guidance", "1"], "--guidance: expected more than 1"),
        (["guided", "--guidance", "nan"], "--guidance: expected more than 1"),
        (["guided"], "no checkpoint at runs/target_64/checkpoint.pt"),
        (["guided", "--resolution", "256"], "no checkpoint at runs/target_256/checkpoint.pt"),
        (["guided", "--target", "cut.pt"], "cut.pt is no checkpoint of these recipes"),
        (["drafter", "--target", "target.pt", "--init-from", "target.pt"], "wanted 'drafter'"),
        (
            ["drafter", "--target", "target.pt", "--init-from", "drafter_narrow.pt"],
            "expected a drafter of dim 256, heads 4",
        ),
        (["drafter", "--target", "target.pt", "--resolution", "128"], "target.pt draws 64 px; wanted 128"),
        (["guided", "--target", "target.pt", "--resolution", "128"], "say --resolution 64, or another --target"),
        (["drafter", "--resolution", "256"], "no checkpoint at runs/guided_256/checkpoint.pt"),
        (["drafter", "--drawn", "absent"], "no folder absent"),
        (["draw", "--resolution", "256"], "no checkpoint at runs/guided_256/checkpoint.pt"),
        (["draw", "--target", "text.pt"], "text.pt is no checkpoint of these recipes"),
        (["draw", "--target", "target.pt", "--out", "/proc/drawn"], "cannot write into /proc/drawn"),
        (["judge", "--out", "text.pt/run"], "is not a folder"),
        (
            ["sampler", "--losses", "pixel", "--tokenizer", "tokenizer.pt"],
            "no checkpoint at runs/sampler_up_ce/checkpoint.pt",
        ),
        (
            ["sampler", "--to", "256", "--losses", "gan", "--tokenizer", "tokenizer.pt"],
            "no checkpoint at runs/sampler_up_ce_64_256/checkpoint.pt",
        ),
        (["sampler", "--from", "64", "--to", "160"], "--from 64 --to 160: expected the larger side to be a whole"),
        (["superres", "--to", "512"], "scenes are rendered at 64, 128, 256 px; give --pictures FOLDER for other sides"),
        (
            ["sampler", "--from", "60", "--to", "120", "--pictures", ".", "--tokenizer", "tokenizer.pt"],
            "--from 60: expected a multiple of 8",
        ),
        (["superres", "--pictures", "absent", "--tokenizer", "tokenizer.pt"], "--pictures: no folder absent"),
        (["superres", "--pictures", ".", "--tokenizer", "tokenizer.pt"], "files or more, got 0"),
        (["sampler", "--from", "128", "--to", "64"], "--from 128 --to 64: expected the smaller side first"),
        (["superres", "--from", "128"], "--from 128 --to 128: expected the smaller side first"),
        (["sampler", "--init-from", "drafter.pt", "--tokenizer", "tokenizer.pt"], "wanted 'sampler'"),
        (
            ["sampler", "--direction", "down", "--init-from", "sampler.pt", "--tokenizer", "tokenizer.pt"],
            "a sampler of direction down to start from",
        ),
        (
            ["sampler", "--to", "256", "--init-from", "sampler.pt", "--tokenizer", "tokenizer.pt"],
            "expected a sampler of ratio 4, high_blocks 4",
        ),
        (["sampler"], "no checkpoint at runs/tokenizer/checkpoint.pt"),
        (["superres", "--tokenizer", "absent.pt"], "train one with `underpaint train tokenizer`"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_cannot_be_trained_is_refused_at_once(
    checkpoints: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
) -> None:
    monkeypatch.chdir(checkpoints)
    before = sorted(checkpoints.rglob("*"))
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2, result.output
    assert message in result.output
    assert "codes at" not in result.output
    assert sorted(checkpoints.rglob("*")) == before


def test_a_stopped_run_says_so_and_exits_as_a_shell_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from underpaint.models.train.loop import LoopSettings, TrainingResult

    asked = []

    def stopped(
        folder: Path, sheet: object, *, tokenizer: Path | None, loop: LoopSettings, seed: int, device: str
    ) -> TrainingResult:
        asked.append((folder, tokenizer, loop.steps, loop.minutes, seed, device))
        return TrainingResult(7, False, {"accuracy": 0.5})

    monkeypatch.setattr("underpaint.models.train.judge.train_judge", stopped)
    monkeypatch.setattr("underpaint.models.train.pictures.load_sprites", lambda art, report: {})
    monkeypatch.setattr("underpaint.models.train.pictures.SpriteSheet", lambda sprites: sprites)
    given = ["--out", str(tmp_path), "--steps", "9", "--minutes", "0.5", "--seed", "3"]
    result = CliRunner().invoke(app, ["judge", *given])
    assert result.exit_code == 130, result.output
    assert result.output == f"{tmp_path}: 7 steps, stopped; run again to continue; accuracy 0.5\n"
    assert asked == [(tmp_path, None, 9, 0.5, 3, "cpu")]


@pytest.mark.parametrize(
    ("asked", "run", "sides"),
    [
        ([], "", (64, 128)),
        (["--to", "256"], "_64_256", (64, 256)),
        (["--from", "128", "--to", "256"], "_128_256", (128, 256)),
    ],
    ids=["shipped", "64_256", "128_256"],
)
def test_samplers_learn_between_the_sides_that_are_named(
    checkpoints: Path, monkeypatch: pytest.MonkeyPatch, asked: list[str], run: str, sides: tuple[int, int]
) -> None:
    from underpaint.models.train import sampler, superres
    from underpaint.models.train.loop import TrainingResult

    encoded, trained = [], []

    def encode(
        folder: Path,
        tokenizer: Path,
        pictures: object,
        side: int,
        count: int,
        split: str,
        source: object,
        device: str,
        report: object,
    ) -> NDArray[np.int16]:
        encoded.append((side, count, split, device))
        return np.zeros((count, (side // 8) ** 2), np.int16)

    def train(folder: Path, scenes: sampler.PairedScenes, *config: SamplerConfig, **given: object) -> TrainingResult:
        trained.append((folder, scenes, config, given["settings"]))
        return TrainingResult(1, True, {})

    monkeypatch.chdir(checkpoints)
    monkeypatch.setattr("underpaint.cli.train.encoded.encode_pictures", encode)
    monkeypatch.setattr("underpaint.cli.train.encoded.EmojiPictures", lambda report: None)
    monkeypatch.setattr(sampler, "train_sampler", train)
    monkeypatch.setattr(superres, "train_super_resolution", train)
    for command in (["sampler", "--direction", "down"], ["superres"]):
        result = CliRunner().invoke(app, [*command, *asked, "--tokenizer", "tokenizer.pt"])
        assert result.exit_code == 0, result.output
        assert f"codes at {sides[0]} and {sides[1]} px" in result.output
    ratio = sides[1] // sides[0]
    (first, scenes, (config,), settings), (second, _, none, others) = trained
    assert (first, second, none) == (Path(f"runs/sampler_down_ce{run}"), Path(f"runs/superres{run}"), ())
    sampler.check_pairs(scenes, ratio)
    assert (scenes.grids.low.width, scenes.grids.high.width) == (sides[0] // 8, sides[1] // 8)
    assert config == SamplerConfig("down", ratio=ratio, high_blocks=ratio)
    large = sides[1] == 256
    assert (settings.batch, settings.drawn, others.batch) == ((12, 1, 2) if large else (48, 4, 8))
    assert encoded[:2] == [(side, settings.scenes, "train", "cpu") for side in sides]


def test_quiet_leaves_out_the_steps_of_a_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for place, name, stand_in in PREPARED["tiny_recipes"]():
        monkeypatch.setattr(place, name, stand_in)
    try:
        for quiet, told in (([], "step 1 loss"), (["--quiet"], "")):
            out = tmp_path / f"run{len(quiet)}"
            result = CliRunner().invoke(program, ["train", "judge", "--steps", "1", "--out", str(out), *quiet])
            assert result.exit_code == 0, result.output
            assert result.stderr.startswith(told)
            assert bool(result.stderr) == bool(told)
            assert "1 steps, finished" in result.stdout
    finally:
        be_quiet(False)
