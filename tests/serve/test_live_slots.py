"""Open drawings of a live model share their target passes, each at its own cycle."""

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("transformers", reason="the extra 'live' is not installed")

from tests.runtime.live.tiny_models import MODELS, grid_of
from tests.serve.served import request
from tests.serve.test_forks import alone
from underpaint.algos.tree import NO_TOKEN
from underpaint.runtime.live.batch import SharedPasses
from underpaint.runtime.live.drafter import LiveDrafter, new_drafter
from underpaint.runtime.live.families import family_of
from underpaint.runtime.live.memory import StaticCache
from underpaint.runtime.live.pipeline import LivePipeline
from underpaint.runtime.methods.registry import resolve
from underpaint.serve.models import AUTO, PreparedRequest
from underpaint.serve.progress import Job, Picture
from underpaint.serve.sessions import SessionSlots

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def one_thread() -> Any:
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def pipeline() -> LivePipeline:
    model = MODELS["janus"]().model
    live = family_of(model)(model, None, grid=grid_of("janus"), longest_prompt=64)
    return LivePipeline(live, LiveDrafter(new_drafter(live), live.sampling))


PROMPT = ",".join(map(str, MODELS["janus"]().prompt))
WANTED = [("ar", PROMPT, 1), ("jacobi-lookup", PROMPT, 2), ("ar", PROMPT, 3), ("eagle2", PROMPT, 4)]
"""The last one takes the slot of the second, which lies between those of the others."""


def picture_of(pipeline: LivePipeline, method: str, prompt: str, seed: int, guidance: float | None = None) -> Picture:
    sampling = pipeline.sampling if guidance is None else replace(pipeline.sampling, guidance=guidance)
    config = resolve(method, sampling.temperature)
    prepared = PreparedRequest(request(prompt, (seed,), method), AUTO, pipeline.condition(prompt), sampling, config)
    return Picture(Job(None, prepared, 0), np.full(pipeline.grid.cells, NO_TOKEN, dtype=np.int64))  # type: ignore[arg-type]


def drawn(pipeline: LivePipeline, tasks: Sequence[tuple[str, str, int]], leaves: int | None = None) -> list[list[int]]:
    """Tokens of pictures in three slots; a later one joins as soon as there is a slot. One may leave in its middle."""
    slots = SessionSlots(SimpleNamespace(pipelines={AUTO: pipeline}, default_size=AUTO), 3)  # type: ignore[arg-type]
    pictures = [picture_of(pipeline, *one) for one in tasks]
    waiting, tokens = list(pictures), {}
    for turn in range(1000):
        if waiting and slots.takes(waiting[0].job.prepared) and turn % 3 == 0:
            slots.open(waiting.pop(0))
        for done in slots.turn():
            assert done.error is None, done.error
            if done.finished is not None:
                tokens[pictures.index(done.picture)] = done.finished.tokens.tolist()
        if leaves is not None and pictures[leaves].cycles == 2:
            slots.drop(pictures[leaves])
            pictures[leaves].cycles, tokens[leaves] = 3, []
        if len(tokens) == len(pictures):
            return [tokens[place] for place in range(len(pictures))]
    raise AssertionError("it does not end")


def test_pictures_that_share_passes_are_those_drawn_alone(
    pipeline: LivePipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    together, run = [], SharedPasses.run
    monkeypatch.setattr(SharedPasses, "run", lambda self, inputs: together.append(len(inputs)) or run(self, inputs))
    assert drawn(pipeline, WANTED) == alone(pipeline, WANTED, pipeline.sampling)
    assert together.count(3) > 0
    assert together.count(2) + together.count(3) > together.count(1)


def test_a_client_that_leaves_leaves_the_others_as_they_are(pipeline: LivePipeline) -> None:
    expected = alone(pipeline, WANTED, pipeline.sampling)
    assert drawn(pipeline, WANTED, leaves=1) == [expected[0], [], *expected[2:]]


def test_pictures_with_and_without_guidance_draw_side_by_side(pipeline: LivePipeline) -> None:
    slots = SessionSlots(SimpleNamespace(pipelines={AUTO: pipeline}, default_size=AUTO), 2)  # type: ignore[arg-type]
    pictures = [picture_of(pipeline, "ar", PROMPT, 3, guidance) for guidance in (1.0, 2.0)]
    for one in pictures:
        slots.open(one)
    ended = {}
    while len(ended) < 2:
        ended |= {pictures.index(turn.picture): turn.finished for turn in slots.turn() if turn.finished is not None}
    for place, one in enumerate(pictures):
        (tokens,) = alone(pipeline, [("ar", PROMPT, 3)], one.job.prepared.sampling)
        assert ended[place].tokens.tolist() == tokens


def test_mutant_a_shared_pass_writes_over_the_picture_beside_it(
    pipeline: LivePipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(StaticCache, "end", 0)
    assert drawn(pipeline, WANTED) != alone(pipeline, WANTED, pipeline.sampling)
