"""A checkpoint tells how it came to be, and so does the manifest of what is exported from it."""

from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.models.tiny import CAPTION_DIM, TINY
from underpaint.export.trained_models import export_all
from underpaint.models.checkpoints import load_target, read, story
from underpaint.training.distillation import DrafterSettings
from underpaint.training.drafter import train_drafter
from underpaint.training.drawn import CHUNK, draw_scenes, fingerprint, load_drawn
from underpaint.training.grids import GridData
from underpaint.training.guided import train_guided
from underpaint.training.history import RecipeInputs, differences, runs_with
from underpaint.training.loop import CHECKPOINT, LoopSettings
from underpaint.training.target import TargetSettings, train_target
from underpaint.training.tokens import TokenSet
from underpaint.zoo import load
from underpaint.zoo.textured_prompts import TEXTURED_WORD_SLOTS, TEXTURED_WORDS

LOOP = LoopSettings(steps=2, learning_rate=1e-3, validate_every=2)
SETTINGS = TargetSettings(batch=8, validated=32)


def test_a_run_that_goes_on_as_it_did_adds_nothing() -> None:
    inputs, loop = RecipeInputs({"seed": 1}, {"kind": "target"}), {"steps": 5}
    first = runs_with(None, inputs, loop)
    assert first == [{"first_step": 0, "how": {"seed": 1, "loop": loop}, "began_from": {"kind": "target"}}]
    saved = {"step": 3, "runs": first}
    assert runs_with(saved, inputs, loop) == first
    longer = runs_with(saved, inputs, {"steps": 9})
    assert longer == [*first, {"first_step": 3, "how": {"seed": 1, "loop": {"steps": 9}}}]


def test_what_an_older_recipe_did_is_not_made_up() -> None:
    history = runs_with({"step": 7}, RecipeInputs({"seed": 1}, {"kind": "target"}), {"steps": 9})
    assert history == [{"first_step": 7, "how": {"seed": 1, "loop": {"steps": 9}}}]
    assert story({"config": {"kind": "judge"}, "model": {}, "step": 4}) == {"kind": "judge", "step": 4}


def test_settings_that_differ_are_named_one_by_one() -> None:
    before = {"seed": 1, "settings": {"batch": 8, "scenes": 20000}}
    assert differences(before, {"seed": 1, "settings": {"batch": 8, "scenes": 20000}}) == []
    now = {"seed": 1, "settings": {"batch": 4, "scenes": 1}}
    assert differences(before, now) == ["settings.batch 8, now wanted 4", "settings.scenes 20000, now wanted 1"]
    lacking = differences({"settings": {"dropout": 0.1}}, {"settings": {}})
    assert lacking == ["settings.dropout 0.1, now wanted 'not set'"]
    assert differences({"seed": None}, {}) == ["seed None, now wanted 'not set'"]
    assert differences([1], [1]) == []
    assert differences([1], {}) == ["settings [1], now wanted {}"]


def tiny_grid() -> GridData:
    """Random scenes of 64 px, in the words of textured scenes."""
    random = np.random.default_rng(0)
    codes = random.integers(24, size=(40, 64)).astype(np.int16)
    tokens = TokenSet(codes, random.integers(1, TEXTURED_WORDS, size=(40, TEXTURED_WORD_SLOTS)))
    return GridData(tokens, tokens)


def captions(indices: range) -> NDArray[np.int64]:
    """Of the scenes of `tiny_grid`, over and over."""
    return np.stack([tiny_grid().data.words[index % 40] for index in indices])


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A target, guided, and its drafter in two runs, the second with drawings."""
    folder, grids = tmp_path_factory.mktemp("runs"), {8: tiny_grid()}
    target, guided, drafter = (folder / name for name in ("target", "guided", "drafter"))
    config = replace(TINY, grid_side=8, prefix=TEXTURED_WORD_SLOTS)
    train_target(target, grids, config=config, caption_dim=CAPTION_DIM, settings=SETTINGS, loop=LOOP)
    train_guided(guided, grids, target / CHECKPOINT, 2.0, settings=SETTINGS, loop=LOOP, seed=3)
    draw_scenes(folder / "drawn", guided / CHECKPOINT, captions, 2 * CHUNK)
    drawings = {8: load_drawn(folder / "drawn", load_target(guided / CHECKPOINT))}
    settings, checkpoint = DrafterSettings(batch=4, passes=1, validated=16, validated_passes=1), guided / CHECKPOINT
    train_drafter(drafter, grids, checkpoint, settings=settings, loop=LOOP)
    train_drafter(drafter, grids, checkpoint, settings=settings, loop=replace(LOOP, steps=4), drawn=drawings)
    # Finished: not a step of it is run.
    train_drafter(drafter, grids, checkpoint, settings=settings, loop=LOOP, drawn=drawings)
    return folder


def test_a_story_goes_back_to_random_weights(runs: Path) -> None:
    record = story(read(runs / "guided" / CHECKPOINT, "target"))
    (run,) = record["runs"]
    assert (record["kind"], record["step"], set(record["validation"])) == ("target", 2, {"validation_kl_64"})
    assert record["elapsed_seconds"] > 0
    assert run["first_step"] == 0
    teacher = fingerprint(load_target(runs / "target" / CHECKPOINT))
    how = {"seed": 3, "guidance": 2.0, "settings": asdict(SETTINGS), "target": teacher}
    assert run["how"] == how | {"loop": asdict(LOOP)}
    before = run["began_from"]
    assert set(before["validation"]) == {"validation_ce_64"}
    assert before["runs"][0]["began_from"] is None


def test_a_run_under_new_settings_is_told_apart(runs: Path) -> None:
    first, second = story(read(runs / "drafter" / CHECKPOINT, "drafter"))["runs"]
    assert (first["first_step"], second["first_step"]) == (0, 2)
    assert (first["how"]["drawn_scenes"], second["how"]["drawn_scenes"]) == ({}, {"8": 2 * CHUNK - 16})
    assert first["how"]["target"] == second["how"]["target"]


def test_manifests_say_how_the_weights_came_to_be(runs: Path, tmp_path: Path) -> None:
    assert export_all(runs, tmp_path, ("target", "drafter_float"))
    target, drafter = (load.manifest(name, tmp_path) for name in ("target64", "drafter64_float"))
    assert target.training == story(read(runs / "guided" / CHECKPOINT, "target"))
    assert drafter.training["step"] == 4
    assert target.recipe == "underpaint train world && underpaint export target"
    assert drafter.recipe == "underpaint train world && underpaint export drafter_float"
