"""Lossless methods on live models draw the tokens of `model.generate`, family by family."""

from __future__ import annotations

import pytest

from tests.runtime.live.tiny_models import MODELS, as_array, family_for, grid_of
from underpaint.runtime.live.generate import accelerate

LOSSLESS = ("ar", "sjd", "scd-maximal", "scd-gumbel", "sjd-pac", "jacobi-lookup")
GUIDANCE = {"janus": 5.0, "glm-image": 1.0}


@pytest.fixture(scope="module", params=sorted(MODELS))
def family(request):
    """A family, its tiny model, and the tokens that its own generate draws."""
    tiny = MODELS[request.param]()
    guidance = GUIDANCE.get(request.param, 3.0)
    return request.param, tiny, guidance, as_array(tiny.generate(tiny.prompt, guidance))


@pytest.mark.parametrize("method", LOSSLESS)
def test_lossless_methods_draw_the_tokens_of_the_models_own_generate(family, method):
    name, tiny, guidance, expected = family
    fast = accelerate(tiny.model, method, family=family_for(name), grid=grid_of(name))
    image = fast.generate(
        tiny.prompt, negative_prompt=tiny.negative or None, temperature=0, guidance=guidance, top_k=0, top_p=1
    )
    assert len(set(expected.tolist())) > 5
    assert image.token_ids[: len(expected)].tolist() == expected.tolist()
