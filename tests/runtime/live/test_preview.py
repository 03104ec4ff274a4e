"""MuLo-SD on GLM-Image: its small grid, drawn first, is the draft of the large one."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch

from tests.runtime.live.tiny_models import CODES, MODELS
from underpaint.algos.chance import enumerate_outcomes
from underpaint.algos.protocols import Grid
from underpaint.algos.spatial.target import Feed
from underpaint.runtime.live.generate import accelerate
from underpaint.runtime.live.glm_image import glm_image
from underpaint.runtime.live.preview import PartTarget, enlarged
from underpaint.training.live_drafter import teach

SMALL, LARGE = Grid(4, 3), Grid(8, 6)
FAMILY = partial(glm_image, preview=SMALL)
EXACT = ("rule=exact", "reject=raster", "window=none", "k=none")
ALL = {"temperature": 0, "top_k": 0, "top_p": 1}


def drawn_by(model, method, settings=(), **sampling):
    fast = accelerate(model, method, family=FAMILY, grid=LARGE, settings=settings)
    return fast.generate(MODELS["glm-image"]().prompt, **(ALL | sampling)).drawing


@pytest.fixture(scope="module")
def trained():
    """A tiny GLM-Image, trained briefly on pictures whose large grid shows their small one, with a code changed."""
    torch.set_num_threads(1)
    tiny = MODELS["glm-image"]()
    live = accelerate(tiny.model, family=FAMILY, grid=LARGE).live
    learnt = [*live.body.parameters(), tiny.model.lm_head.weight]
    with torch.no_grad():
        for weight in learnt:
            weight.mul_(0.3 if weight.ndim > 1 else 1.0)
    optimiser = torch.optim.AdamW(learnt, 4e-3)
    for step in range(120):
        random = np.random.default_rng(step)
        previews = [np.kron(random.integers(0, CODES, (2, 1)), np.ones((2, 3), np.int64)).reshape(-1) for _ in range(8)]
        pictures = np.stack([np.concatenate([one, enlarged(one, SMALL, LARGE)]) for one in previews])
        pictures[:, random.integers(SMALL.cells, pictures.shape[1])] = random.integers(0, CODES)
        logits = teach(live, [tiny.prompt] * len(pictures), pictures).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), torch.as_tensor(pictures).flatten())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return tiny.model.eval()


@pytest.mark.parametrize("method", ["mulo", "mulo-raster"])
def test_with_exact_acceptance_the_tokens_are_the_models_own(method):
    tiny = MODELS["glm-image"]()
    expected = drawn_by(tiny.model, "ar")
    actual = drawn_by(tiny.model, method, EXACT)
    assert actual.tokens == expected.tokens
    # One pass takes in the preview again, one verifies its enlargement; the rest is decoding.
    assert actual.target_nfe <= expected.target_nfe + 2


def test_a_trained_model_draws_its_own_tokens_in_half_the_passes(trained):
    expected = drawn_by(trained, "ar")
    exact = drawn_by(trained, "mulo", EXACT)
    assert exact.tokens == expected.tokens
    assert exact.target_nfe < expected.target_nfe / 2
    assert exact.kept_cells is not None
    assert min(exact.kept_cells) >= SMALL.cells
    relaxed = drawn_by(trained, "mulo", ("k=none", "tau=0.05"), temperature=1.0)
    assert SMALL.cells + 3 <= relaxed.target_nfe < expected.target_nfe
    fronts = drawn_by(trained, "mulo-islands", ("k=none", "window=2", "draft_window=1"))
    assert fronts.target_nfe < exact.target_nfe


def test_an_exact_rule_keeps_the_distribution_of_pictures():
    import dataclasses

    import transformers

    from tests.runtime.live.own_family import family
    from tests.runtime.live.test_generate import PROMPT
    from tests.runtime.live.tiny_models import randomise
    from underpaint.runtime.methods.registry import build_method, resolve

    config = transformers.LlamaConfig(
        vocab_size=12, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2
    )
    model = randomise(transformers.LlamaForCausalLM(config), scale=0.6)

    def of_two_grids(*args, **options):
        live_model = family(*args, **options)
        return dataclasses.replace(live_model, grid=Grid(1, 5), parts=(Grid(1, 1), Grid(2, 2)))

    fast = accelerate(model, "ar", family=of_two_grids)

    def pictures(name, settings=()):
        method = build_method(name, resolve(name, 1.0, None, settings, "paper"), fast.pipeline.tables)
        assert method.lossless
        condition = fast.condition(PROMPT)
        return enumerate_outcomes(
            lambda chance: tuple(
                method.open(fast.pipeline, condition, fast.live.sampling).decode(chance).tokens.tolist()
            )
        )

    expected, actual = pictures("ar"), pictures("mulo", EXACT)
    assert len(expected) == 32
    # float32 passes of different widths round differently
    assert max(abs(actual[picture] - expected[picture]) for picture in expected) < 1e-6


def test_each_part_is_scored_as_the_whole_is():
    tiny = MODELS["glm-image"]()
    fast = accelerate(tiny.model, family=FAMILY, grid=LARGE)
    condition, sampling = fast.condition(tiny.prompt), fast.live.sampling
    tokens = np.random.default_rng(0).integers(0, CODES, SMALL.cells + LARGE.cells)
    whole = fast.pipeline.grid_target(condition, sampling).model
    first = whole.begin()
    cells = np.arange(tokens.size)
    probs = whole.score(Feed(cells, tokens, np.tri(tokens.size, dtype=bool), np.zeros((tokens.size,) * 2, dtype=bool)))
    small = PartTarget(fast.pipeline.grid_target(condition, sampling).model, SMALL)
    assert np.allclose(small.begin(), first, atol=1e-6)
    large = PartTarget(fast.pipeline.grid_target(condition, sampling).model, LARGE, tokens[: SMALL.cells])
    assert np.allclose(large.begin(), probs[SMALL.cells - 1], atol=1e-5)
    seen, cached = np.tri(LARGE.cells, dtype=bool), np.zeros((LARGE.cells,) * 2, dtype=bool)
    scored = large.score(Feed(np.arange(LARGE.cells), tokens[SMALL.cells :], seen, cached))
    assert np.allclose(scored, probs[SMALL.cells :], atol=1e-5)


def test_a_preview_is_enlarged_to_the_cell_that_lies_over_each():
    tokens = np.arange(6)
    assert enlarged(tokens, Grid(2, 3), Grid(4, 6)).reshape(4, 6)[::2, ::2].tolist() == [[0, 1, 2], [3, 4, 5]]
    wide = enlarged(np.arange(19 * 13), Grid(19, 13), Grid(36, 24)).reshape(36, 24)
    assert (wide[0, 0], wide[-1, -1]) == (0, 19 * 13 - 1)
    assert (np.diff(wide // 13, axis=0) >= 0).all()


def test_settings_and_models_that_do_not_fit_are_refused():
    tiny = MODELS["glm-image"]()
    with pytest.raises(ValueError, match="draws its whole preview first, got 1; set rows=none"):
        drawn_by(tiny.model, "mulo", ("rows=1", "k=none"))
    with pytest.raises(ValueError, match=r"window: expected 1\.\.6 on a grid of 8 x 6"):
        drawn_by(tiny.model, "mulo", ("window=9", "k=none"))
    emu = MODELS["emu3"]()
    with pytest.raises(ValueError, match="expected a model that draws a preview"):
        accelerate(emu.model, "mulo", grid=(6, 6), settings=("k=none",)).generate(emu.prompt)
