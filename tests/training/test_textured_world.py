"""Every stage of a textured world at tiny sizes, from scenes to samplers, stopped once and gone on."""

import os
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from tests.training.sprites import made_up_sprites
from underpaint.cli.train.commands import app
from underpaint.models.checkpoints import load_whole
from underpaint.models.judge import JudgeConfig
from underpaint.training import textured_world
from underpaint.training import tokenizer as recipe
from underpaint.training.data.art import Report, unheard
from underpaint.training.data.textured_render import TexturedSheet
from underpaint.training.distillation import DrafterSettings
from underpaint.training.drawn import CHUNK
from underpaint.training.judge import JudgeSettings
from underpaint.training.loop import LoopSettings, TrainingResult
from underpaint.training.pictures import TexturedPictures
from underpaint.training.sampler import SamplerSettings
from underpaint.training.target import CONFIG, GROWN_LOOP, LOOP, TargetSettings
from underpaint.training.textured_world import WorldSettings, textured_stages
from underpaint.training.world import Stage, train_world

WIDTHS = (1, 1, 1, 2)
SETTINGS = WorldSettings(
    vq=replace(
        recipe.CONFIG,
        codebook_size=48,
        ch=4,
        z_channels=8,
        encoder_ch_mult=(1, 1, 1, 2),
        decoder_ch_mult=(1, 1, 1, 2),
    ),
    tokenizer=replace(recipe.SETTINGS, batch=4, plain_steps=1, validation_scenes=2, sides=(64, 128)),
    judge=JudgeConfig((4, 4, 4, 4), 8),
    judging=JudgeSettings(batch=4, validation_scenes=4),
    decoder=replace(CONFIG, dim=16, layers=2, heads=2, hidden=32, vocab_size=48, kv_heads=0, head_dim=0),
    shallow_layers=1,
    caption_dim=8,
    target=TargetSettings(batch=2, validated=2),
    guiding=TargetSettings(batch=2, validated=2),
    drafter=DrafterSettings(batch=2, passes=2, validated=2, validated_passes=2),
    sampling=SamplerSettings(batch=2, drawn=1, validated=2),
    sampler_width=8,
    scenes=6,
    validation_scenes=4,
    drawings=3,
    steps=2,
)


class MadeUp(TexturedPictures):
    def __init__(self, report: Report = unheard) -> None:
        self.sheet = TexturedSheet(made_up_sprites())


def test_all_stages_run_and_stand_on_each_other(tmp_path: Path) -> None:
    pictures, heard = MadeUp(), list[tuple[str, int, int, str]]()

    def run(settings: WorldSettings) -> list[str]:
        stages = textured_stages(tmp_path, pictures, settings=settings, report=lambda *event: heard.append(event))
        assert sum(stage.share for stage in stages) == 100
        return [one.state for one in train_world(tmp_path, 1, stages, {})]

    assert run(SETTINGS) == ["finished"] * 10
    large = np.fromfile(tmp_path / "tokens" / "train_128.codes", np.int16)
    codes = np.fromfile(tmp_path / "tokens" / "train_64.codes", np.int16)
    assert len(codes) == len(large) == 6 * 16**2
    assert 0 <= codes.min() <= codes.max() < 48
    assert load_whole(tmp_path / "sampler_down_ce" / "checkpoint.pt")["step"] == 2
    for one in ("target", "guided", "drafter"):
        assert load_whole(tmp_path / one / "checkpoint.pt")["config"]["grids"] == [8, 16]
    assert load_whole(tmp_path / "guided" / "checkpoint.pt")["config"]["guidance"] == 3.0
    # The drafter learnt from what its target drew on each grid, a chunk less the two that are validated on.
    learnt = load_whole(tmp_path / "drafter" / "checkpoint.pt")
    assert learnt["runs"][-1]["how"]["drawn_scenes"] == {"8": CHUNK - 2, "16": CHUNK - 2}
    assert {name for name in learnt["validation"] if name.startswith("drawn_top1_1")} == {
        "drawn_top1_1_64",
        "drawn_top1_1_128",
    }
    assert {
        ("encoding train pictures of 64 px", 24, 24, "pictures"),
        ("drawing pictures of 64 px", CHUNK, CHUNK, "pictures"),
        ("drawing pictures of 128 px", CHUNK, CHUNK, "pictures"),
    } <= set(heard)
    # Nothing learns from a judge, a drafter or the last samplers: they go on.
    open_ones = ("judge", "drafter", "sampler_up_pixel", "sampler_down_ce", "superres")
    names = [stage.name for stage in textured_stages(tmp_path, pictures, settings=SETTINGS)]
    expected = ["finished" if name in open_ones else "closed" for name in names]
    assert run(replace(SETTINGS, steps=3)) == expected
    assert load_whole(tmp_path / "sampler_down_ce" / "checkpoint.pt")["step"] == 3


@pytest.mark.parametrize("sides", [(), (64,), (128, 256), (64, 256), (64, 128, 512), (128, 64)])
def test_a_world_is_of_the_sides_that_ship_and_larger_ones(sides: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="sides: expected 64,128 or 64,128,256, got"):
        replace(SETTINGS, sides=sides)


def test_a_drawing_that_was_stopped_goes_on_before_the_drafter_learns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = replace(SETTINGS, drawings=CHUNK + 1)

    def run(out: Path, report: Report = unheard) -> list[str]:
        stages = textured_stages(out, MadeUp(), settings=whole, report=report)
        return [one.state for one in train_world(out, 1, stages[:6], {})]

    def interrupt(what: str, done: int, total: int, unit: str) -> None:
        if (what, done, total) == ("drawing pictures of 128 px", CHUNK, 2 * CHUNK):
            os.kill(os.getpid(), signal.SIGINT)

    assert run(tmp_path / "parts", interrupt)[-1] == "stopped"
    assert not (tmp_path / "parts" / "drafter").exists()
    assert run(tmp_path / "parts")[-1] == "finished"
    assert run(tmp_path / "whole")[-1] == "finished"
    checkpoints = [load_whole(tmp_path / name / "drafter" / "checkpoint.pt") for name in ("parts", "whole")]
    assert checkpoints[0]["runs"][0]["how"]["drawn_scenes"] == {"8": 2 * CHUNK - 2, "16": 2 * CHUNK - 2}
    assert all(torch.equal(value, checkpoints[1]["raw"][name]) for name, value in checkpoints[0]["raw"].items())


@pytest.mark.parametrize("kept", [False, True], ids=["from a shallow one", "from kept weights alone"])
def test_a_target_is_trained_on_at_the_lower_rate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: bool) -> None:
    pictures, rates, starts = MadeUp(), list[float](), list[Path | None]()

    def told(out: Path, grids: object, *, loop: LoopSettings, init_from: Path | None, **rest: object) -> TrainingResult:
        rates.append(loop.learning_rate)
        starts.append(init_from)
        return real(out, grids, loop=loop, init_from=init_from, **rest)  # type: ignore[arg-type]

    real = textured_world.train_target
    monkeypatch.setattr(textured_world, "train_target", told)
    stages = textured_stages(tmp_path, pictures, settings=SETTINGS)
    train_world(tmp_path, 1, stages[:4], {})
    assert rates == [LOOP.learning_rate, GROWN_LOOP.learning_rate]
    assert GROWN_LOOP.learning_rate < LOOP.learning_rate
    if kept:
        (tmp_path / "target_shallow" / "checkpoint.pt").unlink()
        again = textured_stages(tmp_path, pictures, settings=replace(SETTINGS, steps=3))
        train_world(tmp_path, 1, again[:4], {}, only=["target"])
        assert rates[2:] == [GROWN_LOOP.learning_rate]
        assert starts[2:] == [None]
        reports = train_world(tmp_path, 1, again[:4], {}, only=["target_shallow"])
        assert [one.outcome and one.outcome.step for one in reports] == [None, None, 0, None]
        assert not (tmp_path / "target_shallow" / "checkpoint.pt").exists()


def test_bad_input_to_the_command_is_one_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("underpaint.training.pictures.TexturedPictures", MadeUp)
    (tmp_path / "world.json").write_text('{"seed": 5}')
    done = CliRunner().invoke(app, ["world", "--hours", "1", "--out", str(tmp_path)])
    assert done.exit_code == 2
    assert "holds a world of" in done.output
    assert CliRunner().invoke(app, ["world", "--hours", "1", "--device", "tpu"]).exit_code == 2
    for sides, message in (
        ("64,256", "expected 64,128 or 64,128,256"),
        ("64;128", "--sides: expected numbers separated by commas"),
    ):
        done = CliRunner().invoke(app, ["world", "--hours", "1", "--sides", sides, "--out", str(tmp_path / "new")])
        assert done.exit_code == 2
        assert message in done.output
    monkeypatch.setenv("CXX", "no-such-compiler")
    done = CliRunner().invoke(app, ["world", "--hours", "1", "--compile", "--out", str(tmp_path / "new")])
    assert done.exit_code == 2
    assert "expected a compiler of C++, found no no-such-compiler" in done.output
    assert not (tmp_path / "new").exists()


def test_a_world_that_cannot_be_trained_is_refused_before_its_art_is_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fetched(report: Report) -> None:
        pytest.fail("the art was fetched")

    monkeypatch.setattr("underpaint.training.pictures.TexturedPictures", fetched)
    other = tmp_path / "other"
    other.mkdir()
    (other / "world.json").write_text('{"scenes": "textured", "seed": 5}')
    for options, message in (
        (["--only", "targett", "--out", str(tmp_path / "new")], "there is no stage targett; expected some of"),
        (["--out", str(other)], "holds a world of seed 5, now wanted 0"),
    ):
        done = CliRunner().invoke(app, ["world", "--hours", "1", *options])
        assert done.exit_code == 2, done.output
        assert message in " ".join(done.output.split())


def test_a_loss_that_diverges_in_a_stage_is_one_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def diverges(folder: Path, minutes: float) -> TrainingResult:
        raise FloatingPointError("the loss at step 3 is nan: lower the learning rates, and run again")

    monkeypatch.setattr("underpaint.training.pictures.TexturedPictures", MadeUp)
    stages = [Stage("tokenizer", 1, diverges)]
    monkeypatch.setattr("underpaint.training.textured_world.textured_stages", lambda *_, **__: stages)
    done = CliRunner().invoke(app, ["world", "--hours", "1", "--out", str(tmp_path)])
    assert done.exit_code == 2
    assert "error: the loss at step 3 is nan: lower the learning rates" in done.output


def test_a_folder_from_before_a_stage_goes_on_and_options_reach_the_stages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("underpaint.training.pictures.TexturedPictures", MadeUp)
    compile_flags = list[object]()

    def stages_of(_: object, pictures: MadeUp, *, compiled: bool, **__: object) -> list[Stage]:
        compile_flags.append(compiled)
        return [Stage("tokenizer", 1, lambda folder, minutes: TrainingResult(1, True, {}))]

    monkeypatch.setattr("underpaint.training.textured_world.textured_stages", stages_of)
    command = ["world", "--hours", "1", "--out", str(tmp_path)]
    assert CliRunner().invoke(app, command).exit_code == 0
    monkeypatch.setenv("CXX", "python3")
    assert CliRunner().invoke(app, [*command, "--compile"]).exit_code == 0
    assert compile_flags == [False, True]
