"""The judge and its recipe: shapes, damage, learning, and going on where a run stopped."""

from collections.abc import Iterator
from copy import deepcopy
from functools import cache
from pathlib import Path

import pytest
import torch
from torch.nn import functional

from tests.training.sprites import made_up_sprites
from underpaint.models.judge import Judge, JudgeConfig, load_judge, to_judge_side
from underpaint.models.vq import VQConfig, VQModel
from underpaint.training.data.batches import numbered_batch
from underpaint.training.data.textured_render import TexturedSheet
from underpaint.training.judge import JudgeSettings, accuracy, damage, judge_loss, reconstructed, train_judge
from underpaint.training.loop import LoopSettings
from underpaint.zoo.textured_prompts import TEXTURED_SLOTS

SMALL = JudgeConfig(channels=(8, 8, 8, 8), features=16)
TINY_VQ = VQConfig(8, 4, (1, 1), (1, 1), z_channels=4, ch=4, num_res_blocks=1)


@pytest.fixture(scope="module")
def sheet() -> Iterator[TexturedSheet]:
    """While it lives, a batch of scenes is rendered once: the runs of this module have the same seed."""
    with pytest.MonkeyPatch.context() as patch:
        rendered = cache(numbered_batch)
        patch.setattr("underpaint.training.judge.numbered_batch", lambda *args: deepcopy(rendered(*args)))
        yield TexturedSheet(made_up_sprites())


def test_the_default_judge_is_small_and_scores_every_slot() -> None:
    judge = Judge().eval()
    assert sum(parameter.numel() for parameter in judge.parameters()) < 800_000
    with torch.no_grad():
        output = judge(torch.zeros(3, 3, 64, 64))
    assert list(output.by_slot) == list(TEXTURED_SLOTS)
    for score, values in zip(output.scores(), TEXTURED_SLOTS.values(), strict=True):
        assert score.shape == (3, len(values))
    assert output.features.shape == (3, 160)
    assert output.classes().shape == (3, 11)


def test_large_pictures_are_averaged() -> None:
    large = torch.rand(2, 3, 128, 128)
    torch.testing.assert_close(to_judge_side(large), large.reshape(2, 3, 64, 2, 64, 2).mean(dim=(3, 5)))
    assert to_judge_side(large[..., :64, :64]).shape == (2, 3, 64, 64)
    with pytest.raises(ValueError, match="multiple of 64"):
        to_judge_side(torch.zeros(1, 3, 96, 96))


def test_damage_is_seeded_mild_and_leaves_the_clean_share_alone() -> None:
    pixels = torch.rand(16, 3, 64, 64, generator=torch.Generator().manual_seed(1)) * 1.6 - 0.8
    settings = JudgeSettings()
    first, second = (damage(pixels, settings, torch.Generator().manual_seed(2)) for _ in range(2))
    assert torch.equal(first, second)
    untouched = (first == pixels).flatten(1).all(dim=1)
    assert 0 < untouched.sum() < 16
    assert first.abs().max() <= 1
    clean = damage(pixels, JudgeSettings(clean_share=1.0), torch.Generator().manual_seed(2))
    assert torch.equal(clean, pixels)


def test_harmless_damage_changes_nothing_visible() -> None:
    settings = JudgeSettings(clean_share=0.0, blur=0.0, noise=0.0, block_step=0.0, colour_shift=0.0)
    pixels = torch.rand(4, 3, 64, 64) * 1.8 - 0.9
    hurt = damage(pixels, settings, torch.Generator().manual_seed(0))
    assert (hurt - pixels).abs().max() < 0.01


def test_wrong_settings_are_refused() -> None:
    with pytest.raises(ValueError, match="clean_share and reconstructed_share in"):
        JudgeSettings(clean_share=1.5)
    with pytest.raises(ValueError, match="four channel counts and features from 1"):
        JudgeConfig(channels=(8, 8, 0, 8))


def test_the_loss_falls_when_the_scores_are_right() -> None:
    output = Judge(SMALL)(torch.zeros(2, 3, 64, 64))
    labels = torch.zeros(2, 11, dtype=torch.int64)
    scores = {slot: functional.one_hot(labels[:, 0], len(values)) * 9.0 for slot, values in TEXTURED_SLOTS.items()}
    right = output._replace(by_slot=scores)
    assert judge_loss(right, labels, 0.5) < 0.1 < judge_loss(output, labels, 0.5)


def test_a_run_learns_goes_on_and_is_loaded(sheet: TexturedSheet, tmp_path: Path) -> None:
    settings = JudgeSettings(batch=16, validation_scenes=40, place_weight=4)

    def run(out: Path, steps: int) -> dict[str, float]:
        loop = LoopSettings(steps=steps, learning_rate=1e-2, warmup_steps=2, validate_every=1000)
        return train_judge(out, sheet, config=SMALL, settings=settings, loop=loop).validation

    figures = run(tmp_path, 2)
    assert set(figures) == {
        f"{split}_{size}_{slot}"
        for split in ("seen", "held_out")
        for size in (64, 128)
        for slot in (*TEXTURED_SLOTS, "things_and_finishes")
    }
    figures = run(tmp_path, 140)
    assert figures["seen_64_sky"] > 0.9
    judge = load_judge(tmp_path / "checkpoint.pt")
    assert accuracy(judge, sheet, "seen", 64, 40)["sky"] == figures["seen_64_sky"]
    with pytest.raises(ValueError, match="holds another model"):
        train_judge(tmp_path, sheet, loop=LoopSettings(steps=150, learning_rate=1e-3))
    loop = LoopSettings(steps=140, learning_rate=1e-2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("underpaint.training.judge.load_vq", lambda path: VQModel(TINY_VQ))
        with pytest.raises(ValueError, match=r"is finished, .* with tokenizer None, now wanted '[0-9a-f]+'"):
            train_judge(tmp_path, sheet, config=SMALL, settings=settings, loop=loop, tokenizer=tmp_path / "vq.pt")


def test_a_judge_of_other_scenes_is_refused(tmp_path: Path) -> None:
    judge = Judge(SMALL)
    torch.save({"config": {"kind": "judge", "judge": SMALL.to_dict()}, "model": judge.state_dict()}, tmp_path / "a.pt")
    with pytest.raises(ValueError, match=r"a\.pt: expected a judge of textured scenes, got one of scenes of no name"):
        load_judge(tmp_path / "a.pt")


def test_a_judge_learns_what_a_tokenizer_leaves(sheet: TexturedSheet, tmp_path: Path) -> None:
    """A tokenizer that shows colours upside down: a judge that saw its pictures alone reads those, and no others."""

    class Upside(VQModel):
        def encode(self, pixels: torch.Tensor) -> torch.Tensor:
            return pixels

        def decode_codes(self, codes: torch.Tensor) -> torch.Tensor:
            return -codes.flip(2)

    upside = Upside(TINY_VQ)
    pixels = torch.rand(2, 3, 64, 64)
    assert torch.equal(reconstructed(pixels, upside), -pixels.flip(2))
    loop = LoopSettings(steps=200, learning_rate=1e-2, warmup_steps=2, validate_every=1000)
    accuracies = {}
    for share in (0.0, 1.0):
        settings = JudgeSettings(batch=16, validation_scenes=40, place_weight=4, reconstructed_share=share)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("underpaint.training.judge.load_vq", lambda path: upside)
            figures = train_judge(
                tmp_path / str(share), sheet, config=SMALL, settings=settings, loop=loop, tokenizer=tmp_path
            ).validation
        accuracies[share] = figures["seen_64_sky"], figures["reconstructed_64_sky"]
    assert accuracies[0.0][0] > 0.9
    assert accuracies[0.0][1] < 0.7
    assert accuracies[1.0][1] > 0.9
    with pytest.raises(ValueError, match="reconstructed_share"):
        JudgeSettings(reconstructed_share=-0.1)
