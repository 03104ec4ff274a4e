"""A checkpoint tells how it came to be, and so does the manifest of what is exported from it."""

from dataclasses import asdict, replace
from pathlib import Path

import pytest

from tests.models.test_drawn import captions
from tests.models.tiny import CAPTION_DIM, TINY, tiny_tokens
from underpaint.export.trained_models import export_all
from underpaint.models.checkpoints import read, story
from underpaint.models.train.drafter import DrafterSettings, train_drafter
from underpaint.models.train.drawn import CHUNK, draw_scenes
from underpaint.models.train.guided import train_guided
from underpaint.models.train.history import Given, runs_with
from underpaint.models.train.loop import CHECKPOINT, LoopSettings
from underpaint.models.train.target import TargetSettings, train_target
from underpaint.zoo import load

LOOP = LoopSettings(steps=2, learning_rate=1e-3, validate_every=2)
SETTINGS = TargetSettings(batch=8, validated=32)


def test_a_run_that_goes_on_as_it_did_adds_nothing() -> None:
    given, loop = Given({"seed": 1}, {"kind": "target"}), {"steps": 5}
    first = runs_with(None, given, loop)
    assert first == [{"first_step": 0, "how": {"seed": 1, "loop": loop}, "began_from": {"kind": "target"}}]
    saved = {"step": 3, "runs": first}
    assert runs_with(saved, given, loop) == first
    longer = runs_with(saved, given, {"steps": 9})
    assert longer == [*first, {"first_step": 3, "how": {"seed": 1, "loop": {"steps": 9}}}]


def test_what_an_older_recipe_did_is_not_made_up() -> None:
    found = runs_with({"step": 7}, Given({"seed": 1}, {"kind": "target"}), {"steps": 9})
    assert found == [{"first_step": 7, "how": {"seed": 1, "loop": {"steps": 9}}}]
    assert story({"config": {"kind": "judge"}, "model": {}, "step": 4}) == {"kind": "judge", "step": 4}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A target, guided, and its drafter in two runs, the second with drawings."""
    folder, data = tmp_path_factory.mktemp("runs"), tiny_tokens()
    target, guided, drafter = (folder / f"{name}_64" for name in ("target", "guided", "drafter"))
    train_target(target, data, data, 64, config=TINY, caption_dim=CAPTION_DIM, settings=SETTINGS, loop=LOOP)
    train_guided(guided, data, data, target / CHECKPOINT, 64, 2.0, settings=SETTINGS, loop=LOOP, seed=3)
    draw_scenes(folder / "drawn", guided / CHECKPOINT, captions, 2 * CHUNK)
    settings, wanted = DrafterSettings(batch=4, passes=1, validated=16, validated_passes=1), guided / CHECKPOINT
    train_drafter(drafter, data, data, wanted, 64, settings=settings, loop=LOOP)
    longer = replace(LOOP, steps=4)
    train_drafter(drafter, data, data, wanted, 64, settings=settings, loop=longer, drawn=folder / "drawn")
    train_drafter(drafter, data, data, wanted, 64, settings=settings, loop=LOOP)  # finished: not a step of it is run
    return folder


def test_a_story_goes_back_to_random_weights(runs: Path) -> None:
    told = story(read(runs / "guided_64" / CHECKPOINT, "target"))
    (run,) = told["runs"]
    assert (told["kind"], told["step"], set(told["validation"])) == ("target", 2, {"validation_kl"})
    assert told["elapsed_seconds"] > 0
    assert run["first_step"] == 0
    assert run["how"] == {"seed": 3, "guidance": 2.0, "settings": asdict(SETTINGS), "loop": asdict(LOOP)}
    before = run["began_from"]
    assert set(before["validation"]) == {"validation_ce"}
    assert before["runs"][0]["began_from"] is None


def test_a_run_under_new_settings_is_told_apart(runs: Path) -> None:
    first, second = story(read(runs / "drafter_64" / CHECKPOINT, "drafter"))["runs"]
    assert (first["first_step"], second["first_step"]) == (0, 2)
    assert (first["how"]["drawn_scenes"], second["how"]["drawn_scenes"]) == (0, 2 * CHUNK - 16)
    assert first["how"]["target"] == second["how"]["target"]


def test_manifests_say_how_the_weights_came_to_be(runs: Path, tmp_path: Path) -> None:
    assert export_all(runs, tmp_path, ("target64", "drafter64_float"))
    target, drafter = (load.manifest(name, tmp_path) for name in ("target64", "drafter64_float"))
    assert target.training == story(read(runs / "guided_64" / CHECKPOINT, "target"))
    assert drafter.training["step"] == 4
    command = "underpaint train draw --resolution 64 && underpaint train drafter --resolution 64 --drawn runs/drawn"
    assert drafter.recipe == f"{command} && underpaint export drafter64_float"
    assert target.recipe == "underpaint train guided --resolution 64 && underpaint export target64"
