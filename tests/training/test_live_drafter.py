"""Drafters of live targets: drawing, training, loading, and drafting without changing what is drawn."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.runtime.live.tiny_models import MODELS, grid_of, randomise
from underpaint.runtime.live.generate import accelerate
from underpaint.runtime.live.model import LiveModelError
from underpaint.training.drafter import DrafterSettings
from underpaint.training.live_drafter import (
    DRAWN,
    DrawnPictures,
    drafter_costs,
    draw_pictures,
    load_live_drafter,
    teach,
    train_live_drafter,
)
from underpaint.training.loop import LoopSettings

SETTINGS = DrafterSettings(batch=4, passes=2, validated=4, validated_passes=2)
LOOP = LoopSettings(steps=30, learning_rate=3e-3, warmup_steps=5, validate_every=30, log_every=10)


@pytest.fixture(scope="module", params=["emu3", "janus"])
def trained(request, tmp_path_factory):
    """A live target, pictures that it drew, and the folder of a drafter that was trained on them."""
    torch.set_num_threads(1)
    name, tiny = request.param, MODELS[request.param]()
    fast = accelerate(tiny.model, family=name, grid=grid_of(name))
    out = tmp_path_factory.mktemp(name)
    prompts = [tiny.prompt, *[tiny.prompt[:1] + tiny.prompt[2:]] * 11]
    drawn = draw_pictures(fast, prompts, out)
    result = train_live_drafter(fast.live, drawn, out, settings=SETTINGS, loop=LOOP)
    return name, tiny, fast, drawn, out, result


def test_teaching_gives_the_features_and_distributions_of_decoding(trained):
    name, tiny, fast, drawn, _, _ = trained
    logits, features = teach(fast.live, drawn.prompts[:3], drawn.codes[:3])
    assert features.shape[:2] == (3, fast.live.grid.cells)
    plain = accelerate(tiny.model, "ar", family=name, grid=grid_of(name))
    greedy = plain.generate(tiny.prompt, temperature=0, guidance=1).drawing.tokens_array()
    taught, _ = teach(fast.live, [tiny.prompt], greedy[None])
    assert taught[0].argmax(dim=-1).tolist() == greedy.tolist()
    assert logits.isfinite().all()


def test_a_trained_drafter_learns_and_changes_no_token(trained):
    name, tiny, _, _, out, result = trained
    assert result.finished
    assert result.validation["top1_1"] > 0.02
    target = accelerate(tiny.model, "ar", family=name, grid=grid_of(name))
    expected = target.generate(tiny.prompt, temperature=0).drawing
    for method in ("speculative", "eagle1", "eagle2", "adt"):
        drafter = load_live_drafter(target.live, out)
        fast = accelerate(tiny.model, method, family=name, grid=grid_of(name), drafter=drafter)
        drawn = fast.generate(tiny.prompt, temperature=0).drawing
        assert drawn.tokens == expected.tokens
        assert drawn.drafter_nfe > 0


def test_drawing_goes_on_where_it_was_stopped(trained, tmp_path):
    _, _, fast, drawn, _, _ = trained
    kept = drawn.codes.astype(np.int32)
    kept[5:] = -1
    np.save(tmp_path / DRAWN, kept)
    asked = []
    again = draw_pictures(fast, drawn.prompts, tmp_path, progress=lambda done, whole: asked.append((done, whole)))
    assert asked == [(index + 1, 12) for index in range(5, 12)]
    assert np.array_equal(again.codes, drawn.codes)


def test_other_drawings_and_too_few_are_refused(trained, tmp_path):
    _, _, fast, drawn, _, _ = trained
    np.save(tmp_path / DRAWN, np.zeros((3, 5), dtype=np.int32))
    with pytest.raises(ValueError, match="or another --out"):
        draw_pictures(fast, drawn.prompts, tmp_path)
    few = DrawnPictures(drawn.prompts[:4], drawn.codes[:4])
    with pytest.raises(ValueError, match="more than the 4 kept for validation, got 4"):
        train_live_drafter(fast.live, few, tmp_path, settings=SETTINGS, loop=LOOP)


def test_a_drafter_of_another_target_is_refused(trained):
    name, _, _, _, out, _ = trained
    other = MODELS[name]()
    randomise(other.model, seed=9)
    live = accelerate(other.model, family=name, grid=grid_of(name)).live
    with pytest.raises(LiveModelError, match="got one of another target"):
        load_live_drafter(live, out)


def test_costs_count_the_weights_that_are_learnt(trained):
    _, _, fast, _, out, _ = trained
    saved = torch.load(out / "checkpoint.pt", weights_only=True)
    learnt = sum(weight.numel() for weight in saved["model"].values())
    assert drafter_costs(fast.live, SETTINGS).drafter_parameters == learnt
