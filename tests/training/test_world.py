"""A world: stages in order, each continued, closed stages untouched."""

import json
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

import pytest
import torch
from torch import nn

from tests.training.test_tokenizer import LOOP, SETTINGS, TINY_VQ, flat_pictures
from underpaint.models.checkpoints import read
from underpaint.training import loop
from underpaint.training.loop import CHECKPOINT, LoopSettings, Loss, TrainingResult, save_atomically, train
from underpaint.training.tokenizer import train_tokenizer
from underpaint.training.world import Stage, StageReport, train_world

ABOUT = {"scenes": "textured", "seed": 0}


class Recorder:
    """Recipes that write a checkpoint and remember when they were called, with how many minutes."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, float]] = []
        self.stop_at: str | None = None

    def stage(self, name: str, share: float, *dependents: str) -> Stage:
        def run(folder: Path, minutes: float) -> TrainingResult:
            self.calls.append((name, minutes))
            save_atomically({"config": {"kind": name}, "model": {}}, folder / CHECKPOINT)
            return TrainingResult(1, name != self.stop_at, {})

        return Stage(name, share, run, dependents)


def test_stages_run_in_order_with_their_share_of_the_hours(tmp_path: Path) -> None:
    recorder = Recorder()
    stages = [recorder.stage("tokenizer", 1), recorder.stage("target", 3)]
    seen: list[StageReport] = []
    reports = train_world(tmp_path, 2, stages, ABOUT, report=seen.append)
    assert recorder.calls == [("tokenizer", 30), ("target", 90)]
    assert seen == reports
    assert [one.state for one in reports] == ["finished", "finished"]


def test_a_stopped_world_goes_on_and_a_stage_that_others_stand_on_is_closed(tmp_path: Path) -> None:
    recorder = Recorder()
    names = ("tokenizer", "target", "drafter")
    stages = [recorder.stage(name, 1, *names[place + 1 :]) for place, name in enumerate(names)]
    recorder.stop_at = "target"
    assert [one.state for one in train_world(tmp_path, 3, stages, ABOUT)] == ["finished", "stopped"]
    recorder.stop_at, recorder.calls = None, []
    reports = train_world(tmp_path, 6, stages, ABOUT)
    assert [one.state for one in reports] == ["closed", "finished", "finished"]
    assert recorder.calls == [("target", 120), ("drafter", 120)]


def test_asked_for_stages_alone_are_trained(tmp_path: Path) -> None:
    recorder = Recorder()
    stages = [recorder.stage("tokenizer", 1, "target"), recorder.stage("judge", 1), recorder.stage("target", 1)]
    reports = train_world(tmp_path, 3, stages, ABOUT, only=["target"])
    assert [one.state for one in reports] == ["left out", "left out", "finished"]
    assert recorder.calls == [("target", 60)]
    reports = train_world(tmp_path, 3, stages, ABOUT, only=["judge"])
    assert [one.state for one in reports] == ["left out", "finished", "left out"]
    assert recorder.calls[1:] == [("judge", 60)]
    with pytest.raises(ValueError, match=r"no stage drafter; expected some of tokenizer, judge, target"):
        train_world(tmp_path, 3, stages, ABOUT, only=["drafter"])


def test_a_stage_is_closed_once_it_is_trained_and_learnt_from(tmp_path: Path) -> None:
    """A sampler of the tokenizer's codes says nothing of the target, which stays open."""
    recorder = Recorder()
    stages = [recorder.stage("tokenizer", 1, "target", "guided", "sampler"), recorder.stage("target", 1, "guided")]
    stages += [recorder.stage("guided", 1), recorder.stage("sampler", 1)]
    reports = train_world(tmp_path, 4, stages, ABOUT, only=["tokenizer", "sampler"])
    assert [one.state for one in reports] == ["finished", "left out", "left out", "finished"]
    recorder.stop_at = "target"
    assert [one.state for one in train_world(tmp_path, 4, stages, ABOUT)] == ["closed", "stopped"]
    recorder.stop_at = None
    reports = train_world(tmp_path, 4, stages, ABOUT)
    assert [one.state for one in reports] == ["closed", "finished", "finished", "finished"]
    (tmp_path / "target" / CHECKPOINT).unlink()
    assert [one.state for one in train_world(tmp_path, 4, stages, ABOUT)][:2] == ["closed", "finished"]


def test_another_world_in_the_folder_is_refused(tmp_path: Path) -> None:
    stages = [Recorder().stage("tokenizer", 1)]
    train_world(tmp_path, 1, stages, ABOUT)
    with pytest.raises(
        ValueError, match=r"holds a world of seed 0, now wanted 1\. Give the same to continue it, or another --out"
    ):
        train_world(tmp_path, 1, stages, ABOUT | {"seed": 1})
    (tmp_path / "world.json").write_text(json.dumps({**ABOUT, "settings": {"target": {"batch": 2}}}))
    other = {**ABOUT, "settings": {"target": {"batch": 3, "width": None}}}
    match = r"a world of settings\.target\.batch 2, now wanted 3; settings\.target\.width 'not set', now wanted None\."
    with pytest.raises(ValueError, match=match):
        train_world(tmp_path, 1, stages, other)
    (tmp_path / "world.json").write_text("{")
    with pytest.raises(ValueError, match="is damaged"):
        train_world(tmp_path, 1, stages, ABOUT)


def test_wrong_worlds_are_refused(tmp_path: Path) -> None:
    one = Recorder().stage("a", 1)
    for hours, stages, message in ((0, [one], "hours"), (1, [], "different names"), (1, [one, one], "different names")):
        with pytest.raises(ValueError, match=message):
            train_world(tmp_path, hours, stages, ABOUT)
    with pytest.raises(ValueError, match="a share above 0"):
        Recorder().stage("a", 0)
    assert not (tmp_path / "world.json").exists()


def test_a_real_stage_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    def recipe(steps: int) -> Stage:
        def run(folder: Path, minutes: float) -> TrainingResult:
            loop_settings = replace(LOOP, steps=steps, minutes=minutes)
            return train_tokenizer(folder, flat_pictures, config=TINY_VQ, settings=SETTINGS, loop=loop_settings)

        return Stage("tokenizer", 1, run)

    (first,) = train_world(tmp_path / "a", 1, [recipe(11)], ABOUT)
    (again,) = train_world(tmp_path / "a", 1, [recipe(13)], ABOUT)
    assert (first.outcome and first.outcome.step, again.outcome and again.outcome.step) == (11, 13)


def test_a_full_disk_keeps_what_was_trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = nn.Linear(1, 1)
    settings = LoopSettings(steps=3, learning_rate=0.1, warmup_steps=1)

    def loss(step: int) -> Loss:
        return Loss(module(torch.ones(1, 1)).square().sum(), {})

    train(module, loss, tmp_path, settings, {"kind": "line"})
    before = (tmp_path / CHECKPOINT).read_bytes()

    def full(payload: object, file: BinaryIO) -> None:
        file.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(loop.torch, "save", full)
    with pytest.raises(OSError, match=r"No space left.*before it is kept. Free some space and run again"):
        train(module, loss, tmp_path, replace(settings, steps=5), {"kind": "line"})
    assert (tmp_path / CHECKPOINT).read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == [CHECKPOINT]


def test_a_missing_checkpoint_of_a_world_names_the_command_that_makes_worlds(tmp_path: Path) -> None:
    for folder in (tmp_path / "world", tmp_path / "other"):
        train_world(folder, 1, [Recorder().stage("tokenizer", 1)], ABOUT)
        with pytest.raises(
            FileNotFoundError, match=f"train one with `underpaint train world --hours 12 --out {folder}`"
        ):
            read(folder / "target" / CHECKPOINT, "target")
    with pytest.raises(FileNotFoundError, match="train one with `underpaint train tokenizer`"):
        read(tmp_path / "runs" / "tokenizer" / CHECKPOINT, "tokenizer")
    with pytest.raises(FileNotFoundError, match="train one with `underpaint train world --hours 12`"):
        read(tmp_path / "runs" / "target_64" / CHECKPOINT, "target")
