"""Forks of a pipeline draw side by side on the same weights: each what the pipeline draws alone."""

import gc
from collections.abc import Iterator, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.serve.served import events_of, pictures, request
from underpaint.runtime.drawing import draw, noise_of
from underpaint.runtime.live.drafter import LiveDrafter, new_drafter
from underpaint.runtime.live.pipeline import LivePipeline
from underpaint.runtime.methods.registry import build_method, resolve
from underpaint.runtime.models import OpenModels
from underpaint.runtime.pipeline import Pipeline
from underpaint.serve import sessions
from underpaint.serve.engine import EngineLoop
from underpaint.serve.models import PreparedRequest, ServedModels
from underpaint.serve.sessions import Slot

PROMPTS = ("a woolly fox left of an outlined pumpkin", "a glossy whale right of an owl")


def interleaved(models: OpenModels, tasks: Sequence[tuple[str, str, int]], sampling: Any) -> list[list[int]]:
    """Tokens of drawings by (method, prompt, seed), each on a fork; each begins a cycle after the one before it."""
    sessions = []
    for name, prompt, seed in tasks:
        fork = models.fork()
        condition = fork.condition(prompt)
        method = build_method(name, resolve(name, sampling.temperature), fork.tables)
        session = method.open(fork, condition, sampling)
        session.begin(noise_of(condition, seed))
        sessions.append(session)
        for one in sessions[:-1]:
            one.step()
    tokens: list[list[int]] = [[] for _ in sessions]
    unfinished = dict(enumerate(sessions))
    while unfinished:
        for place, session in list(unfinished.items()):
            if not session.step():
                tokens[place] = unfinished.pop(place).result().tokens.tolist()
    return tokens


def alone(models: OpenModels, tasks: Sequence[tuple[str, str, int]], sampling: Any) -> list[list[int]]:
    return [
        list(
            draw(
                models,
                build_method(name, resolve(name, sampling.temperature), models.tables),
                sampling,
                models.condition(prompt),
                seed,
            ).tokens
        )
        for name, prompt, seed in tasks
    ]


def test_forks_of_the_shipped_models_draw_what_the_pipeline_draws() -> None:
    pipeline = Pipeline.open(resolution=64)
    tasks = [
        ("eagle2", PROMPTS[0], 1),
        ("jacobi-lookup", PROMPTS[0], 2),
    ]
    assert interleaved(pipeline, tasks, pipeline.sampling) == alone(pipeline, tasks, pipeline.sampling)


def test_forks_share_low_targets_and_resamplers() -> None:
    pipeline = Pipeline.open(resolution=128)
    tasks = [("mulo-islands", PROMPTS[0], 1), ("jacobi-lookup", PROMPTS[1], 1)]
    assert interleaved(pipeline, tasks, pipeline.sampling) == alone(pipeline, tasks, pipeline.sampling)
    fork = pipeline.fork()
    assert fork.low.target(2).decoder is pipeline.low.target(2).decoder
    assert fork.low.target(2) is not pipeline.low.target(2)
    assert fork.low.resampler("latent", 2) is pipeline.low.resampler("latent", 2)


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Tiny passes run on one thread: more threads only wait for each other."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.usefixtures("one_thread")
def test_forks_of_a_live_model_draw_what_it_draws() -> None:
    from tests.runtime.live.tiny_models import MODELS, grid_of
    from underpaint.runtime.live.families import family_of

    tiny = MODELS["janus"]()
    live = family_of(tiny.model)(tiny.model, None, grid=grid_of("janus"), longest_prompt=64)
    pipeline = LivePipeline(live, LiveDrafter(new_drafter(live), live.sampling))
    prompt = ",".join(map(str, tiny.prompt))
    tasks = [("eagle2", prompt, 1), ("jacobi-lookup", prompt, 2), ("ar", prompt, 3), ("eagle2", prompt, 4)]
    assert interleaved(pipeline, tasks, pipeline.sampling) == alone(pipeline, tasks, pipeline.sampling)


def test_the_shipped_folder_is_served_at_each_of_its_resolutions() -> None:
    served = ServedModels.open_folder(Pipeline.open(resolution=64).folder)
    assert list(served.pipelines) == ["64x64", "128x128"]
    assert (served.name, served.default_size) == ("textured-scenes", "128x128")
    engine = EngineLoop(served, slots=2)
    try:
        requests = [request(PROMPTS[0], (3,), "jacobi-lookup", size="64x64"), request(PROMPTS[1], (4,), "mulo-islands")]
        event_lists = events_of(*(engine.submit(one) for one in requests))
        for one, events, size in zip(requests, event_lists, served.pipelines, strict=True):
            models = served.pipelines[size]
            (tokens,) = alone(models, [(one.method, one.prompt, one.seeds[0])], models.sampling)
            np.testing.assert_array_equal(pictures(events)[0], models.picture(np.array(tokens)))
    finally:
        engine.close()
        gc.collect()


def test_methods_with_and_without_guidance_are_built_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Passes with guidance have two rows, so those that choose by costs need the curve of two rows."""
    from tests.serve.served import ServedPipeline

    built: list[float] = []
    monkeypatch.setattr(sessions, "build", lambda prepared, models: built.append(prepared.sampling.guidance))
    models: Any = ServedPipeline()
    served: Any = SimpleNamespace(pipelines={"64x64": models})
    slot, config = Slot(served, 0), resolve("roofline", 1.0)
    for guidance in (2.0, 1.0, 3.0, 1.0):
        asked, sampling = request(PROMPTS[0], method="roofline"), replace(models.sampling, guidance=guidance)
        slot._method(PreparedRequest(asked, "64x64", models.condition(PROMPTS[0]), sampling, config), models)
    assert built == [2.0, 1.0]


def test_models_without_a_picture_decoder_are_not_served() -> None:
    from tests.serve.served import ServedPipeline

    with pytest.raises(ValueError, match="no picture decoder"):
        ServedModels("synthetic", {"64x64": ServedPipeline(decoder=None)})
