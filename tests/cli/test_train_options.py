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
from underpaint.cli.options import grouped
from underpaint.cli.terminal import be_quiet
from underpaint.cli.train import encoded
from underpaint.cli.train.commands import app
from underpaint.cli.train.options import Pair, Run, Scenes
from underpaint.models.sampler import SamplerConfig
from underpaint.training.loop import UNTIL_TIME, LoopSettings
from underpaint.training.sampler import SamplerSettings
from underpaint.training.tokenizer import CONFIG


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
    output = runner.invoke(alone, ["--help"]).output
    assert output.index("--unit") < output.index("--height") < output.index("--across") < output.index("--factor")
    assert "Multiply." in output


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Checkpoints of every kind, of the right form and without weights; of other widths; and files that are none."""
    folder = tmp_path_factory.mktemp("checkpoints")

    def save(name: str, **config: object) -> None:
        torch.save({"config": config, "model": {}}, folder / f"{name}.pt")

    save("tokenizer", kind="tokenizer", vq=asdict(CONFIG))
    save("tokenizer_narrow", kind="tokenizer", vq=asdict(replace(CONFIG, ch=8)))
    save("target", kind="target")
    save("sampler", kind="sampler", sampler=asdict(SamplerConfig("up", CONFIG.codebook_size)))
    (folder / "text.pt").write_text("no checkpoint")
    (folder / "empty.pt").touch()
    (folder / "cut.pt").write_bytes((folder / "tokenizer.pt").read_bytes()[:-200])
    return folder


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["tokenizer", "--minutes", "nan"], "--minutes"),
        (["tokenizer", "--out", "/proc/run"], "cannot write into /proc/run"),
        (["judge", "--tokenizer", "cut.pt"], "cut.pt is no checkpoint of these recipes"),
        (["judge", "--tokenizer", "empty.pt"], "empty.pt is no checkpoint of these recipes"),
        (["superres", "--tokenizer", "tokenizer.pt", "--tokens", "/proc/tokens"], "cannot write into /proc/tokens"),
        (["judge", "--out", "text.pt/run"], "is not a folder"),
        (
            ["sampler", "--losses", "pixel", "--tokenizer", "tokenizer.pt"],
            "no checkpoint at runs/sampler_up_ce/checkpoint.pt",
        ),
        (
            ["sampler", "--to", "256", "--losses", "gan", "--tokenizer", "tokenizer.pt"],
            "no checkpoint at runs/sampler_up_ce_64_256/checkpoint.pt",
        ),
        (
            ["sampler", "--losses", "gan", "--tokenizer", "tokenizer.pt", "--out", "runs/world/own"],
            "no checkpoint at runs/world/sampler_up_ce/checkpoint.pt",
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
        (["sampler", "--init-from", "target.pt", "--tokenizer", "tokenizer.pt"], "wanted 'sampler'"),
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
    from underpaint.training.loop import LoopSettings, TrainingResult
    from underpaint.training.precision import describe_products

    calls = []

    def stopped(
        folder: Path, sheet: object, *, tokenizer: Path | None, loop: LoopSettings, seed: int, device: str
    ) -> TrainingResult:
        calls.append((folder, tokenizer, loop.steps, loop.minutes, seed, device))
        return TrainingResult(7, False, {"accuracy": 0.5})

    monkeypatch.setattr("underpaint.training.judge.train_judge", stopped)
    monkeypatch.setattr("underpaint.training.pictures.load_sprites", lambda art, report: {})
    monkeypatch.setattr("underpaint.training.pictures.TexturedSheet", lambda sprites: sprites)
    options = ["--out", str(tmp_path), "--steps", "9", "--minutes", "0.5", "--seed", "3"]
    result = CliRunner().invoke(app, ["judge", *options])
    assert result.exit_code == 130, result.output
    products = f"{tmp_path}: {describe_products('cpu')}\n"  # which differs by processor
    assert result.output == f"{products}{tmp_path}: 7 steps, stopped; run again to continue; accuracy 0.5\n"
    assert calls == [(tmp_path, None, 9, 0.5, 3, "cpu")]


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
    from underpaint.training import sampler, superres
    from underpaint.training.loop import TrainingResult

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

    def train(folder: Path, scenes: sampler.PairedScenes, *config: SamplerConfig, **options: object) -> TrainingResult:
        trained.append((folder, scenes, config, options["settings"]))
        return TrainingResult(1, True, {})

    monkeypatch.chdir(checkpoints)
    monkeypatch.setattr("underpaint.cli.train.encoded.encode_pictures", encode)
    monkeypatch.setattr("underpaint.training.pictures.load_sprites", lambda art, report: {})
    monkeypatch.setattr("underpaint.training.pictures.TexturedSheet", lambda sprites: sprites)
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
    assert config == SamplerConfig("down", CONFIG.codebook_size, ratio=ratio, high_blocks=ratio)
    large = sides[1] == 256
    assert (settings.batch, settings.drawn, others.batch) == ((12, 1, 2) if large else (48, 4, 8))
    assert encoded[:2] == [(side, settings.scenes, "train", "cpu") for side in sides]


def test_quiet_leaves_out_the_steps_of_a_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for place, name, stand_in in PREPARED["tiny_recipes"]():
        monkeypatch.setattr(place, name, stand_in)
    try:
        for quiet, expected in (([], "step 1 loss"), (["--quiet"], "")):
            out = tmp_path / f"run{len(quiet)}"
            result = CliRunner().invoke(program, ["train", "judge", "--steps", "1", "--out", str(out), *quiet])
            assert result.exit_code == 0, result.output
            assert result.stderr.startswith(expected)
            assert bool(result.stderr) == bool(expected)
            assert "1 steps, finished" in result.stdout
    finally:
        be_quiet(False)


def test_a_loss_that_diverges_is_one_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def diverges(*_: object, **__: object) -> None:
        raise FloatingPointError("the loss at step 3 is nan: lower the learning rates, and run again")

    monkeypatch.setattr("underpaint.training.judge.train_judge", diverges)
    monkeypatch.setattr("underpaint.training.pictures.load_sprites", lambda art, report: {})
    monkeypatch.setattr("underpaint.training.pictures.TexturedSheet", lambda sprites: sprites)
    result = CliRunner().invoke(app, ["judge", "--out", str(tmp_path)])
    assert result.exit_code == 2
    assert "error: the loss at step 3 is nan: lower the learning rates" in result.output


def test_steps_limit_a_run_of_minutes_only_if_they_are_given() -> None:
    usual = LoopSettings(steps=700, learning_rate=1e-3)
    for run, expected in (
        (Run(), (700, None)),
        (Run(steps=9), (9, None)),
        (Run(minutes=5), (UNTIL_TIME, 5)),
        (Run(steps=9, minutes=5), (9, 5)),
    ):
        loop = run.common(usual)["loop"]
        assert (loop.steps, loop.minutes) == expected


def test_how_many_of_the_pictures_are_used_is_told(
    checkpoints: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    counts = list[int]()

    def encode(folder: Path, tokenizer: Path, pictures: object, side: int, count: int, *_: object) -> NDArray[np.int16]:
        counts.append(count)
        return np.zeros((count, (side // 8) ** 2), np.int16)

    for number in range(9):
        (tmp_path / f"{number}.png").touch()
    monkeypatch.setattr(encoded, "encode_pictures", encode)
    monkeypatch.setattr(encoded, "settings_for", lambda side, cells: SamplerSettings(scenes=5, validation_scenes=1))
    scenes = Scenes(checkpoints / "tokenizer.pt", tmp_path / "codes")
    encoded.encoded_pairs(scenes, Pair(16, 32, tmp_path), "cpu")
    assert counts == [5, 5, 1, 1]
    assert "6 of 9 pictures used\n" in capsys.readouterr().out
