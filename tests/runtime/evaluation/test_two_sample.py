"""The classifier test: its AUC against closed forms, and what it must and must not tell apart."""

from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from underpaint.runtime.evaluation.two_sample import (
    ClassifierSettings,
    area_under_curve,
    picture_features,
    two_sample_test,
)

FEW = st.lists(st.sampled_from([-1.0, 0.0, 0.5, 2.0]), min_size=1, max_size=9)


@given(FEW, FEW)
def test_the_area_counts_ordered_pairs(negative: list[float], positive: list[float]) -> None:
    area = area_under_curve(np.array(negative), np.array(positive))
    pairs = [(high > low) + 0.5 * (high == low) for low in negative for high in positive]
    assert area == pytest.approx(np.mean(pairs), abs=1e-12)
    assert area_under_curve(np.array(positive), np.array(negative)) == pytest.approx(1 - area, abs=1e-12)


@pytest.mark.parametrize("shift", [0.5, 1.5])
def test_shifted_normals_reach_the_closed_form(shift: float) -> None:
    """No classifier ranks N(0, 1) and N(shift, 1) better than Phi(shift / sqrt(2))."""
    rng = np.random.default_rng(0)
    rows = rng.normal(0, 1, (2, 1200, 4))
    rows[1, :, 0] += shift
    estimate = two_sample_test(rows[0], rows[1], ClassifierSettings(hidden=4, steps=80))
    best = NormalDist().cdf(shift / 2**0.5)
    assert best - 0.05 < estimate.value < best + 0.03
    assert estimate.low < estimate.value < estimate.high
    assert estimate.low < best


def test_sets_of_one_distribution_are_not_told_apart() -> None:
    inside = 0
    for seed in range(12):
        rows = np.random.default_rng([seed, 5]).normal(0, 1, (2, 100, 10))
        estimate = two_sample_test(rows[0], rows[1])
        inside += estimate.low <= 0.5 <= estimate.high
        assert abs(estimate.value - 0.5) < 0.2
    assert inside >= 8


def test_equal_pictures_give_exactly_a_half() -> None:
    rows = np.random.default_rng(3).normal(0, 1, (20, 5))
    assert two_sample_test(rows, rows) == (0.5, 0.5, 0.5)


def test_the_halves_share_no_prompt() -> None:
    """A feature that names the prompt's number tells nothing of held-out prompts, however well it is learnt."""
    rng = np.random.default_rng(1)
    rows = np.repeat(np.eye(40)[None], 2, axis=0) + 0.01 * rng.normal(0, 1, (2, 40, 40))
    assert abs(two_sample_test(rows[0], rows[1], ClassifierSettings(steps=300, decay=0)).value - 0.5) < 0.2


def test_several_seeds_of_a_prompt_stay_in_one_half() -> None:
    """A mark of the prompt that differs between the sets helps on no prompt that was held out."""
    rng = np.random.default_rng(4)
    marks = rng.permutation(np.repeat(np.eye(30)[:, None], 6, axis=1), axis=0)
    base = np.concatenate([marks, np.zeros((30, 6, 30))], axis=-1) + 0.01 * rng.normal(0, 1, (30, 6, 60))
    other_set = np.concatenate([np.zeros((30, 6, 30)), marks], axis=-1) + 0.01 * rng.normal(0, 1, (30, 6, 60))
    leaked = two_sample_test(base.reshape(180, 1, 60), other_set.reshape(180, 1, 60), ClassifierSettings(decay=0))
    assert leaked.value > 0.95
    assert abs(two_sample_test(base, other_set, ClassifierSettings(decay=0)).value - 0.5) < 0.3
    flat = rng.normal(0, 1, (2, 30, 5))
    assert two_sample_test(flat[0], flat[1]) == two_sample_test(flat[0][:, None], flat[1][:, None])


def test_finer_texture_is_seen_though_no_colour_moves() -> None:
    rng = np.random.default_rng(2)
    noise = rng.normal(0, 20, (2, 40, 32, 32, 1))
    noise -= noise.reshape(2, 40, 16, 2, 16, 2).mean(axis=(3, 5)).repeat(2, axis=2).repeat(2, axis=3)[..., None]
    calm, busy = 128 + noise[0] * np.ones(3), 128 + 1.3 * noise[1] * np.ones(3)
    colours = picture_features(calm)[:, : 8 * 8 * 3]
    np.testing.assert_allclose(colours, 128 / 255, atol=1e-12)
    assert two_sample_test(picture_features(calm), picture_features(busy)).value > 0.95


def test_features_of_a_plain_picture() -> None:
    plain = np.full((2, 16, 16, 3), 51, np.uint8)
    features = picture_features(plain)
    assert features.shape == (2, 8 * 8 * 3 + 4 * 4)
    np.testing.assert_allclose(features[:, : 8 * 8 * 3], 0.2)
    np.testing.assert_allclose(features[:, 8 * 8 * 3 :], 0, atol=1e-12)
    with pytest.raises(ValueError, match="multiple of 16"):
        picture_features(np.zeros((2, 20, 20, 3)))


def test_wrong_sets_are_refused() -> None:
    rows = np.zeros((20, 3))
    for left, right in ((rows, rows[:10]), (rows[:4], rows[:4]), (rows, np.full((20, 3), np.nan))):
        with pytest.raises(ValueError, match="two-sample test"):
            two_sample_test(left, right)
    with pytest.raises(ValueError, match="classifier"):
        ClassifierSettings(hidden=0)
