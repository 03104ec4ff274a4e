"""Live models at temperature 1, prompts, `custom_generate`, a family of one's own, and bad input."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from tests.runtime.live.own_family import family
from tests.runtime.live.tiny_models import MODELS, SIDE, family_for, grid_of, randomise
from underpaint.algos.chance import enumerate_outcomes
from underpaint.algos.protocols import Grid
from underpaint.algos.rows import SamplingParams
from underpaint.runtime.live.custom_generate import custom_generate
from underpaint.runtime.live.generate import accelerate
from underpaint.runtime.live.glm_image import glm_image_preview, glm_image_prior
from underpaint.runtime.live.memory import StaticCache
from underpaint.runtime.live.model import LiveModelError
from underpaint.runtime.live.pipeline import LivePipeline
from underpaint.runtime.methods import method as method_module
from underpaint.runtime.methods.registry import PRESETS, build_method, resolve

PROMPT = (1, 2, 7)


def one_layer(name, **options):
    """One layer of 16 numbers, by the architecture's name in `transformers`."""
    config = getattr(transformers, f"{name}Config")(
        vocab_size=12,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        **options,
    )
    return getattr(transformers, f"{name}ForCausalLM")(config)


def tiny_llama():
    return randomise(one_layer("Llama", max_position_embeddings=64), scale=0.6)


def pictures(fast, name, settings=()):
    """The exact distribution of whole pictures that a method draws on a live model."""
    pipeline, params = fast.pipeline, dataclasses.replace(fast.live.sampling, temperature=1.0)
    condition = fast.condition(PROMPT)
    method = build_method(name, resolve(name, 1.0, None, settings, "paper"), pipeline.tables)

    def program(chance):
        return tuple(method.open(pipeline, condition, params).decode(chance).tokens.tolist())

    return enumerate_outcomes(program)


@pytest.mark.parametrize(
    ("method", "settings"),
    [("sjd", ("window=2",)), ("scd-maximal", ("window=2",)), ("sjd-pac", ("window=2", "candidates=2", "levels=1"))],
)
def test_lossless_methods_keep_the_distribution_of_a_live_model(method, settings):
    fast = accelerate(tiny_llama(), "ar", family=family)
    expected = pictures(fast, "ar")
    assert len(expected) == 8
    assert max(expected.values()) < 0.9
    actual = pictures(fast, method, settings)
    assert actual.keys() == expected.keys()
    # float32 passes of different widths round differently; the distributions agree to that rounding
    assert max(abs(actual[picture] - expected[picture]) for picture in expected) < 1e-6


def test_ar_draws_from_the_models_own_distributions_under_guidance():
    model = tiny_llama()
    fast = accelerate(model, "ar", family=family)
    distribution = pictures(fast, "ar")
    with torch.inference_mode():
        for picture, weight in distribution.items():
            codes = [code + 8 for code in picture]
            product = 1.0
            for cell in range(3):
                rows = [
                    model(torch.tensor([[*start, *codes[:cell]]])).logits[0, -1, 8:10].double().log_softmax(-1)
                    for start in (PROMPT, PROMPT[-1:])
                ]
                probs = (rows[1] + 2.0 * (rows[0] - rows[1])).softmax(-1)
                product *= float(probs[picture[cell]])
            assert weight == pytest.approx(product, abs=1e-5)


@pytest.mark.parametrize("name", ["chameleon", "lumina-mgpt", "emu3", "glm-image"])
def test_custom_generate_returns_what_generate_returns(name):
    tiny = MODELS[name]()
    fast = accelerate(tiny.model, family=name, grid=grid_of(name))
    ids = torch.tensor([tiny.prompt])
    grids = (
        {
            "image_grid_thw": torch.tensor([[1, 8, 6], [1, *glm_image_preview(Grid(8, 6))]]),
            "images_per_sample": torch.tensor([2]),
        }
        if name == "glm-image"
        else {}
    )
    output = tiny.model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        custom_generate=custom_generate,
        underpaint=fast,
        do_sample=False,
        max_new_tokens=5,
        **grids,
    )
    expected = fast.generate(tiny.prompt, temperature=0, top_k=50, top_p=1).token_ids
    assert output[0].tolist() == [*tiny.prompt, *expected.tolist()]


def test_custom_generate_samples_as_the_generation_config_says():
    tiny = MODELS["emu3"]()
    fast = accelerate(tiny.model, grid=(SIDE, SIDE))
    ids = torch.tensor([tiny.prompt])
    output = tiny.model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        custom_generate=custom_generate,
        underpaint=fast,
        do_sample=True,
        max_new_tokens=5,
        temperature=0.5,
        top_k=7,
        top_p=0.8,
        seed=5,
    )
    expected = fast.generate(tiny.prompt, temperature=0.5, top_k=7, top_p=0.8, seed=5).token_ids
    assert output[0, len(tiny.prompt) :].tolist() == expected.tolist()


def test_a_picture_depends_on_prompt_and_seed_alone():
    tiny = MODELS["janus"]()
    fast = accelerate(tiny.model)
    first = fast.generate(tiny.prompt, seed=3)
    other = fast.generate(tiny.prompt, seed=4)
    again = fast.generate(tiny.prompt, seed=3)
    assert first.drawing.tokens == again.drawing.tokens != other.drawing.tokens
    assert first.pixels.shape == (4 * SIDE, 4 * SIDE, 3)
    assert first.pixels.std() > 0
    assert first.image.size == (4 * SIDE, 4 * SIDE)


def test_weights_that_change_after_a_picture_change_the_next_one():
    tiny = MODELS["chameleon"]()
    fast = accelerate(tiny.model, "ar", grid=(SIDE, SIDE))
    before = fast.generate(tiny.prompt, temperature=0).drawing.tokens
    with torch.no_grad():
        tiny.model.lm_head.weight.mul_(-1)
    after = fast.generate(tiny.prompt, temperature=0).drawing.tokens
    fresh = accelerate(tiny.model, "ar", grid=(SIDE, SIDE)).generate(tiny.prompt, temperature=0).drawing.tokens
    assert before != after == fresh


def test_sampling_is_the_familys_where_the_user_says_none():
    tiny = MODELS["chameleon"]()
    fast = accelerate(tiny.model, "ar", grid=(SIDE, SIDE))
    assert (fast.live.sampling.guidance, fast.live.sampling.temperature, fast.live.sampling.top_p) == (3.0, 0.7, 0.9)
    unsaid = fast.generate(tiny.prompt, seed=3).drawing.tokens
    assert unsaid == fast.generate(tiny.prompt, seed=3, guidance=3.0, temperature=0.7, top_p=0.9).drawing.tokens
    assert unsaid != fast.generate(tiny.prompt, seed=3, guidance=1.0, temperature=1.0, top_p=1.0).drawing.tokens


SAMPLING = {
    "janus": SamplingParams(guidance=5.0),
    "chameleon": SamplingParams(guidance=3.0, temperature=0.7, top_p=0.9),
    "lumina-mgpt": SamplingParams(guidance=3.0, top_k=2000),
    "emu3": SamplingParams(guidance=3.0, top_k=2048),
    "glm-image": SamplingParams(temperature=0.9, top_p=0.75),
    "liquid": SamplingParams(guidance=7.0, temperature=0.99, top_k=4096, top_p=0.96),
    "simplear": SamplingParams(guidance=6.0),
    "lumina-mgpt-2": SamplingParams(guidance=4.0, top_k=4096),
    "emu3.5": SamplingParams(guidance=5.0, top_k=5120),
}


def test_every_family_is_sampled_as_published():
    assert SAMPLING.keys() == MODELS.keys()
    for name, expected in SAMPLING.items():
        assert accelerate(MODELS[name]().model, family=family_for(name), grid=grid_of(name)).live.sampling == expected


def test_glm_images_large_grid_is_what_diffusers_takes():
    large = Grid(8, 6)
    tokens = np.arange(glm_image_preview(large).cells + large.cells)
    prior = glm_image_prior(tokens, large)
    cells = torch.from_numpy(tokens[-large.cells :]).view(1, 1, *large).float()
    wanted = torch.nn.functional.interpolate(cells, scale_factor=2, mode="nearest").long().view(1, -1)
    assert prior.dtype == torch.int64
    assert prior.tolist() == wanted.tolist()


def test_a_picture_of_lumina_begins_with_its_sides_in_32_pixels_and_ends_with_its_mark():
    tiny = MODELS["lumina-mgpt"]()
    fast = accelerate(tiny.model, family="lumina-mgpt", grid=(SIDE, SIDE))
    names = tiny.model.config.vocabulary_map
    sides = [names[f"<reserved{8800 + SIDE * 16 // 32:05d}>"]] * 2
    assert fast.live.image_start == (names["<racm3:break>"], *sides)
    ids = fast.generate(tiny.prompt, seed=1).token_ids.tolist()
    assert ids[-2:] == [names["<reserved08799>"], names["<eoss>"]]
    assert len(ids) == SIDE * (SIDE + 1) + 1


@pytest.mark.parametrize(("name", "unit"), [("janus", True), ("glm-image", True), ("chameleon", False)])
def test_codebooks_hold_codes_as_pictures_are_decoded_from_them(name, unit):
    tiny = MODELS[name]()
    codebook = accelerate(tiny.model, family=name, grid=grid_of(name)).live.codebook
    weight = tiny.model.model.vqmodel.quantize.embedding.weight.detach()
    expected = weight / weight.norm(dim=-1, keepdim=True) if unit else weight
    assert np.allclose(codebook, expected.numpy(), rtol=1e-6, atol=0)


def test_committing_the_first_positions_of_a_pass_copies_nothing(monkeypatch):
    fast = accelerate(MODELS["emu3"]().model, "ar", grid=(SIDE, SIDE))
    copied = []
    write = torch.Tensor.index_select
    monkeypatch.setattr(torch.Tensor, "index_select", lambda *args: copied.append(1) or write(*args))
    fast.generate(MODELS["emu3"]().prompt, seed=1)
    assert not copied


def test_a_longer_pass_than_there_is_room_for_makes_room():
    config = accelerate(tiny_llama(), "ar", family=family).live.decoder
    cache = StaticCache(config, 1, torch.zeros(1))
    key = torch.rand(1, config.kv_heads, 200, config.head_dim)
    read, _ = cache.update(key, key, 0)
    assert torch.equal(read, key)


class Unknown(torch.nn.Module):
    pass


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (lambda: accelerate(Unknown()), "expected one of JanusForConditionalGeneration"),
        (lambda: accelerate(tiny_llama(), family="llama"), "expected one of janus, emu3"),
        (lambda: accelerate(MODELS["janus"]().model, grid=(3, 3)), "the only one it draws"),
        (lambda: accelerate(MODELS["chameleon"]().model, family="lumina-mgpt", grid=(6, 6)), "<reserved08799>"),
        (lambda: accelerate(tiny_llama(), "jacobi-lokup", family=family), "jacobi-lookup"),
    ],
)
def test_models_that_do_not_fit_are_refused(call, expected):
    with pytest.raises(ValueError, match=expected):
        call()


@pytest.mark.parametrize(
    ("prompt", "options", "expected"),
    [
        ("a red bicycle", {}, "pass processor=AutoProcessor"),
        ((1, 2), {}, r"end with \[7\], which begin a picture"),
        ((1, 99, 7), {}, "ids from 0 to 11"),
        ((), {}, "ids from 0 to 11"),
        ((1,) * 40 + (7,), {}, "at most 16 ids, got 41"),
        (PROMPT, {"negative_prompt": (99,)}, "negative prompt: expected ids"),
        (PROMPT, {"temperature": -1}, "temperature must be"),
        (PROMPT, {"top_k": 9}, "this model has 2 codes, so at most 2 can be kept, got 9"),
    ],
)
def test_prompts_that_do_not_fit_are_refused(prompt, options, expected):
    fast = accelerate(tiny_llama(), "ar", family=family, longest_prompt=16)
    with pytest.raises(ValueError, match=expected):
        fast.generate(prompt, **options)


def test_a_repository_of_the_hub_draws_what_the_function_draws(tmp_path, monkeypatch):
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path))
    tiny = MODELS["emu3"]()
    fast = accelerate(tiny.model, grid=(3, 3))
    ids = torch.tensor([tiny.prompt])
    about = {"attention_mask": torch.ones_like(ids), "do_sample": False, "max_new_tokens": 5, "underpaint": fast}
    repository = Path(__file__).parents[3] / "docs" / "examples" / "custom_generate_repository"
    output = tiny.model.generate(ids, **about, custom_generate=str(repository), trust_remote_code=True)
    assert output.tolist() == tiny.model.generate(ids, **about, custom_generate=custom_generate).tolist()


def test_attention_that_takes_no_4d_masks_is_refused():
    model = MODELS["emu3"]().model
    model.set_attn_implementation("flex_attention")
    with pytest.raises(LiveModelError, match=r"takes 4-D masks \(sdpa or eager\), got flex_attention"):
        accelerate(model)


@pytest.mark.parametrize(
    ("name", "options"), [("Qwen2", {"use_sliding_window": True, "max_window_layers": 0}), ("Mistral", {})]
)
def test_layers_with_a_window_shorter_than_prompt_and_picture_are_refused(name, options):
    def model(window):
        return one_layer(name, sliding_window=window, **options)

    accelerate(model(19), family=family, longest_prompt=16)
    with pytest.raises(
        LiveModelError, match=r"attend to all 19 positions .* got sliding_attention with sliding_window 18"
    ):
        accelerate(model(18), family=family, longest_prompt=16)


def test_nearest_codes_are_as_many_as_a_paper_pools_and_found_for_rules_that_need_them(monkeypatch):
    live = accelerate(MODELS["emu3"]().model, grid=grid_of("emu3")).live
    codebook = np.random.default_rng(0).standard_normal((2048, 3))
    pipeline = LivePipeline(dataclasses.replace(live, codes=len(codebook), codebook=codebook))
    with monkeypatch.context() as patch:
        patch.setattr(method_module, "nearest_codes", None)
        build_method("eagle2", resolve("eagle2", 1.0), pipeline.tables)
    for preset in PRESETS:
        build_method("lantern", resolve("lantern", 1.0, preset=preset), pipeline.tables)
    assert pipeline.tables.neighbours.shape == (2048, 125)


def test_two_prompts_at_once_are_refused():
    with pytest.raises(LiveModelError, match="expected one prompt"):
        custom_generate(None, torch.zeros(2, 3))
