"""A target with guidance baked in draws by one row what a pair drew."""

from pathlib import Path

import pytest
import torch

from tests.models.tiny import save_target, tiny_target, tiny_tokens
from underpaint.models.checkpoints import load_target, read
from underpaint.models.train.guided import divergence, guided_distribution, train_guided
from underpaint.models.train.loop import CHECKPOINT, LoopSettings
from underpaint.models.train.precision import autocast
from underpaint.models.train.target import TargetSettings
from underpaint.zoo.prompts import PAD_WORD

SETTINGS = TargetSettings(batch=16, validated=32)
GUIDANCE = 3.0


def saved_teacher(folder: Path) -> Path:
    """A random target as `underpaint train target` leaves one."""
    return save_target(folder / CHECKPOINT, tiny_target())


@torch.no_grad()
def test_the_distribution_is_the_pair_s() -> None:
    teacher, data = tiny_target(), tiny_tokens(4)
    codes, words = torch.from_numpy(data.codes.astype("int64")), torch.from_numpy(data.words)
    words[0] = PAD_WORD
    found = guided_distribution(teacher, codes, words, GUIDANCE)
    given = teacher(codes, words)[0].float()
    absent = teacher(codes, torch.zeros_like(words))[0].float()
    expected = torch.log_softmax(absent + GUIDANCE * (given - absent), dim=-1)
    torch.testing.assert_close(found.exp(), expected.exp(), atol=0.05, rtol=0)  # the recipe runs in bfloat16
    torch.testing.assert_close(found[0].exp(), torch.softmax(absent[0], dim=-1), atol=0.05, rtol=0)
    assert float((found.exp() - torch.softmax(given, dim=-1)).abs().max()) > 0.1


@torch.no_grad()
def test_divergence_is_kullback_leibler_in_nats_a_token() -> None:
    teacher, data = tiny_target(), tiny_tokens(4)
    codes, words = torch.from_numpy(data.codes.astype("int64")), torch.from_numpy(data.words)
    wanted = guided_distribution(teacher, codes, words, GUIDANCE)
    with autocast("cpu"):
        found = torch.log_softmax(teacher(codes, words)[0].float(), dim=-1)
    expected = (wanted.exp() * (wanted - found)).sum(-1).mean()
    torch.testing.assert_close(divergence(teacher, codes, words, wanted), expected)


def test_a_guided_target_learns_resumes_and_loads(tmp_path: Path) -> None:
    teacher_path, data = saved_teacher(tmp_path), tiny_tokens()
    codes, words = torch.from_numpy(data.codes.astype("int64")), torch.from_numpy(data.words)
    wanted = guided_distribution(tiny_target(), codes, words, GUIDANCE)
    before = float(divergence(tiny_target(), codes, words, wanted).detach())
    loop = LoopSettings(steps=40, learning_rate=2e-3, warmup_steps=2, validate_every=40)
    out = tmp_path / "guided"
    outcome = train_guided(out, data, data, teacher_path, 64, GUIDANCE, settings=SETTINGS, loop=loop)
    assert outcome.validation["validation_kl"] < 0.5 * before
    again = train_guided(out, data, data, teacher_path, 64, GUIDANCE, settings=SETTINGS, loop=loop)
    assert again.step == 40
    assert read(out / CHECKPOINT, "target")["config"]["guidance"] == GUIDANCE
    logits, _ = load_target(out / CHECKPOINT)(codes, words)
    one_row = torch.log_softmax(logits.detach().float(), dim=-1)
    gap = (wanted.exp() * (wanted - one_row)).sum(-1).mean()
    assert float(gap) < 0.5 * before


def test_what_cannot_be_baked_in_is_refused(tmp_path: Path) -> None:
    teacher_path, data = saved_teacher(tmp_path), tiny_tokens()
    for guidance in (1.0, 0.5, float("nan")):
        with pytest.raises(ValueError, match="expected more than 1"):
            train_guided(tmp_path / "g", data, data, teacher_path, 64, guidance)
    wide = data._replace(codes=data.codes.repeat(4, axis=1))
    with pytest.raises(ValueError, match="16 cells"):
        train_guided(tmp_path / "g", wide, wide, teacher_path, 128, GUIDANCE)
    assert not (tmp_path / "g").exists()
