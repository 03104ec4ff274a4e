"""Guidance by task arithmetic: the weights are the sum, and the guided recipe goes on from them."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from tests.models.tiny import save_target, tiny_target
from tests.training.test_drafter import target
from tests.training.test_guided import GRIDS, LOOP, PLAIN
from tests.training.test_target import LARGE, run
from underpaint.cli.train.commands import app
from underpaint.models.checkpoints import load_target, load_whole
from underpaint.training.drawn import fingerprint
from underpaint.training.guided import train_guided
from underpaint.training.loop import CHECKPOINT
from underpaint.training.task_arithmetic import SHARED, add_guidance

__all__ = ["target"]


@pytest.fixture
def guided(target: Path, tmp_path: Path) -> Path:
    """Two steps of guidance on `target`."""
    train_guided(tmp_path / "guided", GRIDS, target, 3.0, settings=PLAIN, loop=replace(LOOP, steps=2))
    return tmp_path / "guided" / CHECKPOINT


def test_weights_are_moved_by_what_guidance_changed(target: Path, guided: Path, tmp_path: Path) -> None:
    run(tmp_path / "other", steps=3, seed=7)
    other = tmp_path / "other" / CHECKPOINT
    path = add_guidance(tmp_path / "moved", other, target, guided)
    moved, before, after, base = (load_whole(one)["model"] for one in (path, target, guided, other))
    changed = 0
    for name, value in moved.items():
        if name in SHARED:
            assert torch.equal(value, base[name])
            continue
        torch.testing.assert_close(value, base[name] + after[name] - before[name])
        changed += not torch.equal(before[name], after[name])
    assert changed > 5
    assert moved.keys() >= SHARED
    saved = load_whole(path)
    assert saved["config"] == {**load_whole(other)["config"], "guidance": 3.0}
    how = saved["runs"][0]["how"]["task_arithmetic"]
    assert how == {name: fingerprint(load_target(one)) for name, one in (("before", target), ("guided", guided))}
    assert saved["runs"][0]["began_from"]["step"] == 3


def test_added_to_its_own_target_it_is_the_guided_one_and_goes_on(target: Path, guided: Path, tmp_path: Path) -> None:
    path = add_guidance(tmp_path / "moved", target, target, guided)
    wanted = load_whole(guided)["model"]
    for name, value in load_whole(path)["model"].items():
        torch.testing.assert_close(value, wanted[name])
    outcome = train_guided(path.parent, GRIDS, target, 3.0, settings=PLAIN, loop=LOOP)
    assert outcome.step == 1
    saved = load_whole(path)
    assert "optimizer" in saved
    assert list(saved["runs"][0]["how"]) == ["task_arithmetic"]
    assert saved["runs"][-1]["how"]["guidance"] == 3.0


def test_wrong_checkpoints_are_refused_and_nothing_is_written(target: Path, guided: Path, tmp_path: Path) -> None:
    small = save_target(tmp_path / "small" / CHECKPOINT, tiny_target(config=replace(LARGE, hidden=LARGE.hidden * 2)))
    for given, message in (
        ((target, target, target), "expected a target that guidance was baked into"),
        ((guided, target, guided), "expected a target before guidance was baked in"),
        ((target, guided, guided), "expected a target before guidance was baked in"),
        ((small, target, guided), "expected a target of the widths and grids of"),
    ):
        with pytest.raises(ValueError, match=message):
            add_guidance(tmp_path / "out", *given)
    with pytest.raises(FileNotFoundError, match="no checkpoint at"):
        add_guidance(tmp_path / "out", target, target, tmp_path / "nowhere.pt")
    assert not (tmp_path / "out").exists()


def test_the_command_says_how_it_goes_on_and_writes_over_nothing(target: Path, guided: Path, tmp_path: Path) -> None:
    asked = ["add-guidance", "--target", str(target), "--before", str(target), "--guided", str(guided)]
    done = CliRunner().invoke(app, [*asked, "--out", str(tmp_path / "out")])
    assert done.exit_code == 0, done.output
    assert "`underpaint train world --hours 1 --only guided` goes on from it" in done.output
    held = (tmp_path / "out" / CHECKPOINT).read_bytes()
    again = CliRunner().invoke(app, [*asked, "--out", str(tmp_path / "out")])
    assert again.exit_code == 2
    assert "is there already: nothing is written over it" in again.output
    assert (tmp_path / "out" / CHECKPOINT).read_bytes() == held
