"""Pictures that are drawn at once are those that are drawn one by one."""

from __future__ import annotations

import threading
from itertools import count
from time import perf_counter, sleep

import pytest
import torch

from tests.runtime.live.tiny_models import MODELS, family_for, grid_of
from underpaint.algos.rows import SamplingParams
from underpaint.runtime.drawing import ImageTask
from underpaint.runtime.live.batch import BatchDrawer, SharedPasses
from underpaint.runtime.live.drafter import LiveDrafter, new_drafter
from underpaint.runtime.live.generate import accelerate
from underpaint.runtime.live.model import LiveModelError


def opened(family, method="sjd", **more):
    tiny, about = MODELS[family](), {"family": family_for(family), "grid": grid_of(family)}
    torch.manual_seed(1)
    drafter = LiveDrafter(new_drafter(accelerate(tiny.model, **about).live), SamplingParams())
    prompts = [
        (tiny.prompt[0], 100 + each, *([101] * (each % 3)), *tiny.prompt[2 if family != "lumina-mgpt-2" else 1 :])
        for each in range(5)
    ]
    return accelerate(tiny.model, method, **about, drafter=drafter, **more), prompts


def shown(image):
    drawing = image.drawing
    return drawing.tokens, drawing.target_nfe, drawing.drafter_nfe


@pytest.mark.parametrize(
    ("family", "method"),
    [*((family, "jacobi-lookup") for family in sorted(MODELS)), ("emu3", "eagle2"), ("janus", "eagle2")],
)
def test_a_batch_draws_what_single_drawings_draw(family, method):
    fast, prompts = opened(family, method)
    alone = [shown(fast.generate(prompt, temperature=0)) for prompt in prompts]
    together = fast.generate(prompts, temperature=0, batch=3)
    assert [shown(image) for image in together] == alone
    assert len({tokens for tokens, _, _ in alone}) > 1


@pytest.mark.parametrize("method", ["mulo", "zipar"])
def test_methods_that_decide_cells_elsewhere_draw_in_batches(method):
    fast, prompts = opened("glm-image", method, settings=["window=2"] if method == "zipar" else [])
    alone = [shown(fast.generate(prompt, seed=4)) for prompt in prompts[:3]]
    assert [shown(image) for image in fast.generate(prompts[:3], seed=4, batch=2)] == alone


def test_compiled_passes_draw_in_batches(monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda body, **_: body)
    fast, prompts = opened("emu3", compile=True)
    alone = [shown(fast.generate(prompt, seed=4)) for prompt in prompts]
    run, passes = SharedPasses.run, count()

    def run_as_a_drawing_that_ends_would(self, inputs):
        with torch.inference_mode(next(passes) % 2 == 0):
            return run(self, inputs)

    monkeypatch.setattr(SharedPasses, "run", run_as_a_drawing_that_ends_would)
    assert [shown(image) for image in fast.generate(prompts, seed=4, batch=3)] == alone


def test_passes_are_shared_and_the_next_picture_enters_where_one_ends(monkeypatch):
    fast, prompts = opened("janus", "jacobi-lookup")
    lanes = []
    run = SharedPasses.run
    monkeypatch.setattr(SharedPasses, "run", lambda self, inputs: lanes.append(sorted(inputs)) or run(self, inputs))
    images = fast.generate(prompts * 2, seed=list(range(10)), batch=3)
    passes = [image.drawing.target_nfe - 1 for image in images]
    assert len(set(passes)) > 1
    assert sum(map(len, lanes)) == sum(passes)
    # all three lanes work until no picture is left to begin
    assert [len(each) for each in lanes] == sorted(map(len, lanes), reverse=True)
    assert len(lanes) < max(sum(passes) / 3 + max(passes), 1)


def test_seconds_are_divided_among_the_pictures_that_are_under_way():
    fast, prompts = opened("janus", "eagle2")
    drawings = [image.drawing for image in fast.generate(prompts, batch=2)]
    assert {one.batch for one in drawings} == {2}
    for one in drawings:
        assert 0 < one.target_seconds + one.drafter_seconds < 2 * one.seconds


def test_pictures_pause_while_the_caller_works_with_one():
    fast, prompts = opened("emu3")
    params, slept = fast.live.sampling, 0.1
    tasks = [ImageTask(fast.condition(prompt), 1) for prompt in prompts]
    drawer, drawings, started = BatchDrawer(fast.pipeline, 3, 2), [], perf_counter()
    for _, drawing in drawer.draw(lambda: fast.build(params), params, tasks, pauses=True):
        drawings.append(drawing)
        sleep(slept)
    # a second is divided among the pictures under way, so all of theirs and the caller's fit into those that passed
    assert sum(one.seconds for one in drawings) + slept * len(tasks) <= perf_counter() - started


def test_an_error_in_one_picture_ends_the_batch_and_the_next_batch_draws():
    fast, prompts = opened("emu3")
    drawer = BatchDrawer(fast.pipeline, 2, 2)
    params = fast.live.sampling
    tasks = [ImageTask(fast.condition(prompt), 1) for prompt in prompts]
    weight = fast.live.body.norm.weight
    original_weight = weight.detach().clone()
    with torch.no_grad():
        weight.fill_(float("nan"))
    with pytest.raises(ValueError, match="expected finite logits"):
        list(drawer.draw(lambda: fast.build(params), params, tasks))
    with torch.no_grad():
        weight.copy_(original_weight)
    drawings = dict(drawer.draw(lambda: fast.build(params), params, tasks))
    assert [drawings[number].tokens for number in range(5)] == [
        fast.generate(prompt, seed=1).drawing.tokens for prompt in prompts
    ]


def test_a_batch_that_is_left_early_ends_its_threads():
    fast, prompts = opened("emu3")
    params = fast.live.sampling
    tasks = [ImageTask(fast.condition(prompt), 1) for prompt in prompts]
    before = threading.active_count()
    drawings = BatchDrawer(fast.pipeline, 2, 2).draw(lambda: fast.build(params), params, tasks)
    next(drawings)
    drawings.close()
    assert threading.active_count() == before


def test_a_list_is_drawn_one_by_one_where_near_ties_are_verified():
    tiny = MODELS["chameleon"]()
    half = accelerate(tiny.model.bfloat16(), grid=(3, 3), verify_near_ties="float32")
    prompts = [tiny.prompt, (tiny.prompt[0], 100, *tiny.prompt[2:])]
    alone = [shown(half.generate(prompt, seed=4)) for prompt in prompts]
    assert [shown(image) for image in half.generate(prompts, seed=4)] == alone


def test_batches_that_cannot_be_drawn_are_refused():
    tiny = MODELS["emu3"]()
    fast = accelerate(tiny.model, grid=grid_of("emu3"))
    with pytest.raises(LiveModelError, match="expected 1 picture or more at once, got 0"):
        fast.generate([tiny.prompt], batch=0)
    with pytest.raises(LiveModelError, match="expected one, or one for each of 1 prompts, got 2"):
        fast.generate([tiny.prompt], seed=[1, 2])
    half = accelerate(tiny.model.bfloat16(), grid=grid_of("emu3"), verify_near_ties="float32")
    with pytest.raises(LiveModelError, match="leave one of the two out"):
        half.generate([tiny.prompt], batch=2)
