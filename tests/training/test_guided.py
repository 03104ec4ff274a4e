"""Guidance baked into a target: one row draws what a pair drew, by the same codes and head."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.models.tiny import tiny_target, tiny_tokens
from tests.training.test_drafter import target
from tests.training.test_target import SETTINGS, data
from underpaint.models.checkpoints import load_target, load_whole
from underpaint.training.drawn import fingerprint
from underpaint.training.grids import on_grid
from underpaint.training.guided import divergence, guided_distribution, train_guided
from underpaint.training.loop import CHECKPOINT, LoopSettings
from underpaint.training.precision import autocast
from underpaint.training.target import TargetSettings
from underpaint.training.tokens import TokenSet
from underpaint.zoo.textured_prompts import PAD_WORD

__all__ = ["target"]
LOOP = LoopSettings(steps=1, learning_rate=5e-3, matrix_rate=1e-2, warmup_steps=1, validate_every=1000)
GRIDS = {side: data(side) for side in (2, 4)}
PLAIN = replace(SETTINGS, condition_dropout=0.0)


def gap(path: Path, teacher: Path, side: int, token_set: TokenSet | None = None) -> float:
    """Mean divergence of one row from the teacher's pair, over the scenes that are learnt from or `token_set`."""
    pair, student = (on_grid(load_target(one), side).eval() for one in (teacher, path))
    token_set = token_set or GRIDS[side].data
    codes, words = torch.from_numpy(token_set.codes.astype("int64")), torch.from_numpy(token_set.words)
    with torch.no_grad():
        return float(divergence(student, codes, words, guided_distribution(pair, codes, words, 3.0)))


def absent(side: int) -> TokenSet:
    """The same scenes without a caption, where a pair of rows mixes nothing."""
    codes, words = GRIDS[side].data
    return TokenSet(codes, np.zeros_like(words))


@torch.no_grad()
def test_the_distribution_is_the_pair_s() -> None:
    teacher, data = tiny_target(), tiny_tokens(4)
    codes, words = torch.from_numpy(data.codes.astype("int64")), torch.from_numpy(data.words)
    words[0] = PAD_WORD
    distribution = guided_distribution(teacher, codes, words, 3.0)
    conditional = teacher(codes, words)[0].float()
    absent = teacher(codes, torch.zeros_like(words))[0].float()
    expected = torch.log_softmax(absent + 3.0 * (conditional - absent), dim=-1)
    torch.testing.assert_close(distribution.exp(), expected.exp(), atol=0.05, rtol=0)  # the recipe runs in bfloat16
    torch.testing.assert_close(distribution[0].exp(), torch.softmax(absent[0], dim=-1), atol=0.05, rtol=0)
    assert float((distribution.exp() - torch.softmax(conditional, dim=-1)).abs().max()) > 0.1


@torch.no_grad()
def test_divergence_is_kullback_leibler_in_nats_a_token() -> None:
    teacher, data = tiny_target(), tiny_tokens(4)
    codes, words = torch.from_numpy(data.codes.astype("int64")), torch.from_numpy(data.words)
    guided_log_probs = guided_distribution(teacher, codes, words, 3.0)
    with autocast("cpu"):
        plain_log_probs = torch.log_softmax(teacher(codes, words)[0].float(), dim=-1)
    expected = (guided_log_probs.exp() * (guided_log_probs - plain_log_probs)).sum(-1).mean()
    torch.testing.assert_close(divergence(teacher, codes, words, guided_log_probs), expected)


def test_one_row_learns_what_the_pair_draws_on_every_grid(tmp_path: Path, target: Path) -> None:
    outcome = train_guided(tmp_path / "guided", GRIDS, target, 3.0, settings=PLAIN, loop=replace(LOOP, steps=60))
    student = tmp_path / "guided" / CHECKPOINT
    for side in GRIDS:
        assert gap(student, target, side) < 0.4 * gap(target, target, side)
        validated = gap(student, target, side, GRIDS[side].validation)
        assert outcome.validation[f"validation_kl_{8 * side}"] == pytest.approx(validated, rel=1e-3)
    saved, before = load_whole(student), load_whole(target)
    assert saved["config"] == {**before["config"], "guidance": 3.0}
    for part in ("codes", "head"):
        name = f"decoder.{part}.weight"
        assert torch.equal(saved["model"][name], before["model"][name]), "one drafter serves both"
    assert not torch.equal(saved["model"]["decoder.norm.weight"], before["model"]["decoder.norm.weight"])


def test_rows_without_a_condition_keep_their_distribution(tmp_path: Path, target: Path) -> None:
    gaps = {}
    for dropout in (0.0, 0.5):
        named = {"settings": replace(SETTINGS, condition_dropout=dropout), "loop": replace(LOOP, steps=60)}
        train_guided(tmp_path / str(dropout), GRIDS, target, 3.0, **named)  # type: ignore[arg-type]
        gaps[dropout] = [gap(tmp_path / str(dropout) / CHECKPOINT, target, side, absent(side)) for side in GRIDS]
    for dropped, never in zip(gaps[0.5], gaps[0.0], strict=True):
        assert dropped < 0.5 * never


def test_a_stopped_run_goes_on_and_another_is_refused(tmp_path: Path, target: Path) -> None:
    def run(steps: int, guidance: float = 3.0, settings: TargetSettings = SETTINGS) -> None:
        loop = replace(LOOP, steps=steps)
        train_guided(tmp_path / "guided", GRIDS, target, guidance, settings=settings, loop=loop)

    run(2)
    run(4)
    assert load_whole(tmp_path / "guided" / CHECKPOINT)["step"] == 4
    with pytest.raises(ValueError, match=r"was trained with guidance 3\.0, now wanted 2\.0\. Give the same"):
        run(6, guidance=2.0)
    with pytest.raises(ValueError, match="Give the same to continue it"):
        run(6, settings=replace(SETTINGS, batch=5))
    saved = load_whole(target)
    saved["model"]["decoder.head.weight"] *= 2
    torch.save(saved, target)
    with pytest.raises(ValueError, match=r"was trained with target '\w+', now wanted '\w+'\."):
        run(6)


def test_what_cannot_be_baked_in_is_refused(tmp_path: Path, target: Path) -> None:
    digest = fingerprint(load_target(target))
    for guidance in (1.0, 0.5, float("nan")):
        with pytest.raises(ValueError, match="expected more than 1"):
            train_guided(tmp_path / "g", GRIDS, target, guidance, settings=SETTINGS)
    with pytest.raises(ValueError, match="expected 9 codes a scene on a grid of 3"):
        train_guided(tmp_path / "g", {3: data(4)}, target, 3.0, settings=SETTINGS)
    saved = load_whole(target)
    del saved["config"]["grids"]
    torch.save(saved, target)
    with pytest.raises(ValueError, match=r"expected a target of the grids \[2, 4\], got one of one grid"):
        train_guided(tmp_path / "g", GRIDS, target, 3.0, settings=SETTINGS)
    assert not (tmp_path / "g").exists()
    assert fingerprint(load_target(target)) == digest
