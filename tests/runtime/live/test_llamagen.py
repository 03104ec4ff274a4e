"""The shipped target, live in torch, draws what its exported graph draws."""

from __future__ import annotations

import pytest

from underpaint.runtime.device.weights import read_decoder
from underpaint.runtime.drawing import draw
from underpaint.runtime.live.llamagen import llamagen
from underpaint.runtime.live.pipeline import LivePipeline
from underpaint.runtime.methods.registry import build_method, resolve
from underpaint.runtime.pipeline import Pipeline

PROMPT = "a woolly fox left of an outlined pumpkin"


@pytest.fixture(scope="module")
def both():
    import torch

    pipeline = Pipeline.open(resolution=64)
    on_device = Pipeline.open(resolution=64, backend="device")
    decoder = read_decoder(on_device.high.decoder, torch.device("cpu"))
    return pipeline, LivePipeline(llamagen(decoder))


@pytest.mark.parametrize("method", ["ar", "jacobi-lookup", "zipar", "pjd"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_live_target_draws_what_the_exported_graph_draws(both, method, temperature):
    from dataclasses import replace

    pipeline, live = both
    sampling = replace(pipeline.sampling, temperature=temperature)
    condition = pipeline.condition(PROMPT)
    config = resolve(method, temperature)
    exported = draw(pipeline, build_method(method, config, pipeline.tables), sampling, condition, seed=3)
    drawn = draw(live, build_method(method, config, pipeline.tables), sampling, condition, seed=3)
    assert drawn.tokens == exported.tokens
    assert drawn.target_nfe == exported.target_nfe
