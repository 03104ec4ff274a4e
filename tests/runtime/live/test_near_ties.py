"""Near-ties in bfloat16 and float16, decided in float32."""

from __future__ import annotations

import copy

import pytest
import torch

from tests.runtime.live.tiny_models import CODES, MODELS, SIDE
from underpaint.runtime.live.generate import accelerate
from underpaint.runtime.live.model import LiveModelError

GRID = (SIDE, SIDE)


def tied(dtype):
    """A Chameleon whose two likeliest codes differ by less than its type resolves, at about half of all cells.

    Rows of the head that differ in one weight by the least step give logits that round to one number: the first of the
    two is taken. In float32 either may be the larger one.
    """
    tiny = MODELS["chameleon"]()
    mapping = tiny.model.model.vocabulary_mapping.img2bpe
    with torch.no_grad():
        weight = tiny.model.lm_head.weight
        for code in range(CODES):
            weight[mapping[code]] *= 0.02
        first, second = weight[mapping[5]], weight[mapping[9]]
        first.copy_(torch.sign(torch.randn(first.shape, generator=torch.Generator().manual_seed(2))) * 0.5)
        second.copy_(first)
        model = tiny.model.to(dtype)
        row = model.lm_head.weight[mapping[9]]
        row[:4] *= 1 + torch.finfo(dtype).eps
    return model, tiny.prompt


def greedy(model, method, **options):
    fast = accelerate(model, method, grid=GRID, **options)
    return fast.generate(PROMPT, temperature=0, guidance=3.0, top_k=0, top_p=1).drawing


PROMPT = (0, 103, 110, 121)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_near_ties_fall_as_in_float32(dtype):
    model, _ = tied(dtype)
    expected = greedy(copy.deepcopy(model).float(), "ar")
    assert greedy(model, "ar").tokens != expected.tokens
    for method in ("ar", "sjd", "jacobi-lookup"):
        assert greedy(model, method, verify_near_ties="float32").tokens == expected.tokens


def test_only_passes_with_a_near_tie_are_computed_again():
    model = MODELS["chameleon"]().model.to(torch.bfloat16)

    def passes(**options):
        fast = accelerate(model, "jacobi-lookup", grid=GRID, **options)
        return fast.generate(PROMPT, temperature=0, guidance=1.0, top_k=0, top_p=1).drawing.target_nfe

    assert passes() < passes(verify_near_ties="float32") < 2 * passes()


@pytest.mark.parametrize("method", ["ar", "sjd", "jacobi-lookup"])
def test_above_temperature_0_verdicts_read_float32_distributions(method):
    model, _ = tied(torch.bfloat16)
    exact = accelerate(copy.deepcopy(model).float(), "ar", grid=GRID)
    fast = accelerate(model, method, grid=GRID, verify_near_ties="float32")
    target = fast.pipeline.target(fast.condition(PROMPT), fast.live.sampling).model
    other = exact.pipeline.target(exact.condition(PROMPT), exact.live.sampling).model
    assert target.begin().probs == pytest.approx(other.begin().probs, abs=1e-6)
    assert len(fast.generate(PROMPT, seed=1).drawing.tokens) == SIDE * SIDE


@pytest.mark.parametrize(
    ("dtype", "method", "asked", "expected"),
    [
        (torch.float32, "sjd", "float32", "got one in float32"),
        (torch.bfloat16, "sjd", "float64", "expected float32, got 'float64'"),
        (torch.bfloat16, "zipar", "float32", "decides cells elsewhere"),
    ],
)
def test_what_has_no_near_ties_to_verify_is_refused(dtype, method, asked, expected):
    model = MODELS["chameleon"]().model.to(dtype)
    settings = ("window=3",) if method == "zipar" else ()
    with pytest.raises(LiveModelError, match=expected):
        accelerate(model, method, grid=GRID, verify_near_ties=asked, settings=settings).generate(PROMPT)
