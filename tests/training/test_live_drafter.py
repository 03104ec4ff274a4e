"""Drafters of live targets: drawing, training, loading, and drafting without changing what is drawn."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
import transformers

from tests.runtime.live.tiny_models import CODES, MODELS, grid_of, randomise
from underpaint.algos.protocols import Grid
from underpaint.artifacts.decoder_graph import MASKED_SCORE
from underpaint.runtime.live.drafter import LiveDrafter, new_drafter, new_eagle3, read_drafter, target_layers
from underpaint.runtime.live.generate import accelerate
from underpaint.runtime.live.model import LiveModel, LiveModelError, is_target, target_fingerprint, weights_digest
from underpaint.training.distillation import DrafterSettings, acceptance, distribution_loss, unroll
from underpaint.training.drafter_costs import MachineSpeed, drafter_costs
from underpaint.training.live_drafter import (
    DRAWN,
    DrawnPictures,
    common_codes,
    draw_pictures,
    teach,
    train_live_drafter,
)
from underpaint.training.loop import LoopSettings

SETTINGS = DrafterSettings(batch=4, passes=2, validated=4, validated_passes=2)
LOOP = LoopSettings(steps=20, learning_rate=3e-3, warmup_steps=5, validate_every=20, log_every=10)
DRAFTED = 40


@pytest.fixture(scope="module", params=[("chameleon", 1), ("janus", 1), ("emu3", 3)], ids=str)
def trained(request, tmp_path_factory):
    """A live target, pictures that it drew, and the folder of a drafter that was trained on them."""
    torch.set_num_threads(1)
    name, eagle = request.param
    tiny = MODELS[name]()
    fast = accelerate(tiny.model, family=name, grid=grid_of(name))
    out = tmp_path_factory.mktemp(name)
    prompts = [tiny.prompt, *[(tiny.prompt[0], 100 + each, *tiny.prompt[2:]) for each in range(4, 15)]]
    pictures = draw_pictures(fast, prompts, out)
    settings = SETTINGS if eagle == 1 else DrafterSettings(**{**vars_of(SETTINGS), "loss": "lk-lambda"})
    result = train_live_drafter(
        fast.live,
        pictures,
        out,
        settings=settings,
        loop=LOOP,
        eagle=eagle,
        drafted_codes=DRAFTED if eagle == 3 else None,
    )
    return SimpleNamespace(name=name, eagle=eagle, tiny=tiny, fast=fast, drawn=pictures, out=out, result=result)


def vars_of(settings: DrafterSettings) -> dict[str, object]:
    return {name: getattr(settings, name) for name in settings.__slots__}


def test_teaching_gives_the_features_and_distributions_of_decoding(trained):
    live, pictures = trained.fast.live, trained.drawn
    taught = teach(live, [*pictures.prompts[:2], live.uncond(pictures.prompts[0])], pictures.codes[:3])
    assert taught.features.shape[:2] == (3, live.grid.cells)
    assert taught.tokens.shape == taught.seen.shape[:2] == (3, taught.prompt + live.grid.cells - 1)
    plain = accelerate(trained.tiny.model, "ar", family=trained.name, grid=grid_of(trained.name))
    greedy = plain.generate(trained.tiny.prompt, temperature=0, guidance=1).drawing.tokens_array()
    alone = teach(live, [trained.tiny.prompt], greedy[None])
    assert alone.logits[0].argmax(dim=-1).tolist() == greedy.tolist()
    assert torch.equal(alone.seen[:, alone.prompt :], alone.features[:, :-1])
    assert taught.logits.isfinite().all()


def test_a_trained_drafter_learns_and_changes_no_token(trained):
    assert trained.result.finished
    assert trained.result.validation["top1_1"] > 0.02
    assert 0 < trained.result.validation["acceptance_2"] < 1
    prompt, options = trained.tiny.prompt, {"family": trained.name, "grid": grid_of(trained.name)}
    expected = accelerate(trained.tiny.model, "ar", **options).generate(prompt, temperature=0).drawing
    for method in ("speculative", "eagle1", "eagle2", "adt"):
        fast = accelerate(trained.tiny.model, method, drafter=trained.out, **options)
        drawing = fast.generate(prompt, temperature=0).drawing
        assert drawing.tokens == expected.tokens
        assert drawing.drafter_nfe > 0


def test_drafting_reads_what_training_read(trained):
    """The levels of a draft are the passes of `unroll`, under guidance, whose rows have prompts of other lengths."""
    live = trained.fast.live
    fast = accelerate(
        trained.tiny.model, "eagle2", family=trained.name, grid=grid_of(trained.name), drafter=trained.out
    )
    drafter, target = fast.pipeline.loaded_drafter, fast.pipeline.high
    sampling = live.sampling
    condition = fast.condition(trained.tiny.prompt)
    fast.pipeline.target(condition, sampling)
    drafter.sample_by(sampling)
    drafter.begin(target.begin())
    tokens = trained.drawn.codes[0]
    outputs = []
    engine = drafter.engine
    run = engine._forward
    engine._forward = lambda *args: outputs.append(run(*args)) or outputs[-1]
    drafter.expand(tokens[:1], np.array([-1]))
    drafter.expand(tokens[1:2], np.array([0]))
    prompts = [trained.tiny.prompt, live.uncond(trained.tiny.prompt)]
    module = read_drafter(live, trained.out).eval()
    taught = teach(live, prompts, np.stack([tokens, tokens]), target_layers(module))
    with torch.no_grad():
        passes = unroll(module, taught.seen, taught.tokens, 2, prompt=taught.prompt, padding=taught.padding)
    for level, (logits, _) in enumerate(outputs):
        expected = passes[level].logits[:, taught.prompt + level]
        torch.testing.assert_close(logits[:, -1], expected, atol=2e-4, rtol=1e-4)


def test_drawing_goes_on_where_it_was_stopped(trained, tmp_path):
    fast, pictures = trained.fast, trained.drawn

    def stop(done: int, whole: int) -> None:
        if done == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        draw_pictures(fast, pictures.prompts, tmp_path, progress=stop)
    assert (np.load(tmp_path / DRAWN)[:, 0] >= 0).sum() == 5
    calls = []
    again = draw_pictures(fast, pictures.prompts, tmp_path, progress=lambda done, whole: calls.append((done, whole)))
    assert calls == [(index + 1, 12) for index in range(5, 12)]
    assert np.array_equal(again.codes, pictures.codes)


def test_other_drawings_and_too_few_are_refused(trained, tmp_path):
    fast, pictures = trained.fast, trained.drawn
    draw_pictures(fast, pictures.prompts[:1], tmp_path)
    with pytest.raises(ValueError, match=r"expected drawings of prompts .* or another --out"):
        draw_pictures(fast, pictures.prompts, tmp_path)
    few = DrawnPictures(pictures.prompts[:4], pictures.codes[:4])
    with pytest.raises(ValueError, match="more than the 4 kept for validation, of other prompts, got 4"):
        train_live_drafter(fast.live, few, tmp_path, settings=SETTINGS, loop=LOOP)
    with pytest.raises(ValueError, match="expected 1 to 64, of an EAGLE-3 drafter, got 65"):
        train_live_drafter(fast.live, pictures, tmp_path, settings=SETTINGS, loop=LOOP, eagle=3, drafted_codes=65)


def test_a_drafter_of_another_target_is_refused(trained):
    other = MODELS[trained.name]()
    randomise(other.model, seed=9)
    with pytest.raises(LiveModelError, match="got one of another target"):
        accelerate(other.model, family=trained.name, grid=grid_of(trained.name), drafter=trained.out)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_drafter_is_its_targets_in_any_precision(trained, dtype):
    model = MODELS[trained.name]().model.to(dtype)
    fast = accelerate(model, "eagle2", family=trained.name, grid=grid_of(trained.name), drafter=trained.out)
    assert is_target(fast.live, target_fingerprint(trained.fast.live))
    assert weights_digest(fast.live, fast.live.body) != weights_digest(trained.fast.live, trained.fast.live.body)


@pytest.mark.parametrize("name", ["chameleon", "janus"])
def test_a_float32_drafter_drafts_for_a_bfloat16_target(name):
    tiny, options = MODELS[name](), {"family": name, "grid": grid_of(name)}
    live = accelerate(tiny.model.bfloat16(), **options).live
    drafter = new_drafter(live)
    features = torch.randn(2, live.config.hidden_size)
    assert torch.equal(drafter.head(features), live.head(features.bfloat16()).float())
    fast = accelerate(tiny.model, "eagle2", drafter=LiveDrafter(drafter, live.sampling), **options)
    assert fast.generate(tiny.prompt, temperature=0).drawing.drafter_nfe > 0


def test_costs_count_the_weights_that_are_learnt(trained):
    saved = torch.load(trained.out / "checkpoint.pt", weights_only=True)
    learnt = sum(weight.numel() for weight in saved["model"].values() if weight.is_floating_point())
    costs = drafter_costs(trained.fast.live, SETTINGS, trained.eagle, DRAFTED if trained.eagle == 3 else None)
    assert costs.drafter_parameters == learnt


def test_costs_of_a_target_of_7b_are_known_before_it_is_loaded():
    config = transformers.LlamaConfig(hidden_size=4096, intermediate_size=11008, num_hidden_layers=30)
    with torch.device("meta"):
        body = transformers.LlamaModel(config).bfloat16()
    live = LiveModel(
        family="7b",
        body=body,
        config=config,
        grid=Grid(24, 24),
        codes=16384,
        vocabulary=config.vocab_size,
        embed_codes=lambda codes: codes,
        embed_ids=body.get_input_embeddings(),
        head=lambda hidden: hidden,
        uncond=lambda ids: ids,
    )
    costs = drafter_costs(live, DrafterSettings(batch=16), 3, 8192)
    assert 12e9 < costs.target_bytes < 13e9
    assert 0.2e9 < costs.drafter_parameters < 0.4e9
    drawing, training = costs.hours(MachineSpeed(4e14, 3e12), pictures=10_000, steps=10_000)
    # A pass is bound by reading 12.5 GB: 4 ms, 576 times a picture. A step is bound by arithmetic.
    assert drawing == pytest.approx(10_000 * 576 * costs.target_bytes / 3e12 / 3600)
    assert 1 < training < 10


@pytest.mark.parametrize("loss", ["distillation", "lk-alpha", "lk-lambda"])
def test_losses_are_those_of_their_definitions(loss):
    random = torch.Generator().manual_seed(2)
    target = torch.randn(5, 6, generator=random, dtype=torch.float64)
    drafted = torch.randn(5, 6, generator=random, dtype=torch.float64)
    drafted[:, 4] = float(MASKED_SCORE)
    p, q = target.softmax(-1), drafted.softmax(-1)
    among = p[:, [0, 1, 2, 3, 5]] / p[:, [0, 1, 2, 3, 5]].sum(-1, keepdim=True)
    mine = q[:, [0, 1, 2, 3, 5]]
    alpha = torch.minimum(p, q).sum(-1)
    kl = (among * (among.log() - mine.log())).sum(-1)
    weight = (-3 * alpha).exp()
    expected = {
        "distillation": -(among * mine.log()).sum(-1),
        "lk-alpha": -alpha.log(),
        "lk-lambda": weight * kl + (1 - weight) * (1 - alpha),
    }[loss].mean()
    assert distribution_loss(drafted, target, loss).item() == pytest.approx(expected.item(), abs=1e-12)
    assert acceptance(target, target).tolist() == pytest.approx([1.0] * 5)


def test_an_eagle3_drafter_starts_with_its_targets_head_and_drafts_common_codes_alone():
    tiny = MODELS["chameleon"]()
    live = accelerate(tiny.model, grid=grid_of("chameleon")).live
    codes = common_codes(np.array([[5, 5, 9, 1, 9, 5]]), 3, CODES)
    assert codes.tolist() == [1, 5, 9]
    drafter = new_eagle3(live, codes)
    hidden = torch.randn(2, live.config.hidden_size)
    torch.testing.assert_close(drafter.head(hidden), live.head(hidden)[:, codes])
    out = drafter.step(
        torch.tensor([[5, 7]]),
        torch.arange(2),
        torch.zeros(2, 2),
        drafter.empty_cache(1),
        drafter.empty_cache(1),
        features=torch.randn(1, 2, 3 * live.config.hidden_size),
    )
    assert (out.logits > MASKED_SCORE / 2).nonzero()[:, 2].unique().tolist() == [1, 5, 9]
    assert new_drafter(live).fc.in_features == 2 * live.config.hidden_size
