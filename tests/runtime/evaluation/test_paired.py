"""Paired figures against their closed forms."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from underpaint.runtime.evaluation.paired import (
    attribute_log_probability,
    paired_difference,
    resampled,
)


def test_the_interval_of_a_mean_is_that_of_normal_theory() -> None:
    rng = np.random.default_rng(0)
    baseline = rng.normal(0, 5, (1, 400))
    apart = rng.normal(0.3, 1, (1, 400))
    difference = paired_difference(baseline, baseline + apart)
    assert difference.low is not None
    assert difference.high is not None
    assert difference.value == pytest.approx(apart.mean())
    half = 1.96 * apart.std() / 20
    assert difference.high - difference.low == pytest.approx(2 * half, rel=0.06)
    assert (difference.high + difference.low) / 2 == pytest.approx(difference.value, abs=0.1 * half)


def test_seeds_of_a_prompt_are_resampled_together() -> None:
    rng = np.random.default_rng(1)
    apart = rng.normal(0.3, 1, (1, 60))
    once = paired_difference(np.zeros((1, 60)), apart)
    thrice = paired_difference(np.zeros((3, 60)), np.repeat(apart, 3, axis=0))
    np.testing.assert_allclose(np.array(once, float), np.array(thrice, float), atol=1e-12)
    assert paired_difference(np.zeros((3, 1)), np.ones((3, 1))) == (1.0, None, None)


def test_wrong_figures_are_refused() -> None:
    with pytest.raises(ValueError, match="expected two of"):
        paired_difference(np.zeros((1, 3)), np.zeros((1, 4)))
    with pytest.raises(ValueError, match="finite"):
        paired_difference(np.zeros((1, 3)), np.array([[0, np.nan, 1]]))


def test_resampling_is_repeatable() -> None:
    np.testing.assert_array_equal(resampled(9), resampled(9))
    assert not np.array_equal(resampled(9, 1), resampled(9)), "streams are independent"


@given(st.lists(st.floats(-900, 900), min_size=2, max_size=6), st.data())
def test_log_probability_is_the_log_of_softmax(logits: list[float], data: st.DataObject) -> None:
    label = data.draw(st.integers(0, len(logits) - 1))
    log_probability = attribute_log_probability({"a": np.array([logits])}, {"a": label})[0]
    shifted = np.array(logits) - max(logits)
    assert log_probability == pytest.approx(shifted[label] - np.log(np.exp(shifted).sum()), abs=1e-9)
    assert log_probability <= 1e-12


def test_log_probability_is_the_mean_over_the_prompts_slots() -> None:
    scores = {"a": np.log([[0.25, 0.75], [0.5, 0.5]]), "b": np.log([[0.1, 0.9], [0.2, 0.8]]), "c": np.zeros((2, 3))}
    log_probabilities = attribute_log_probability(scores, {"a": 1, "b": 0})
    np.testing.assert_allclose(log_probabilities, [np.log(0.75 * 0.1) / 2, np.log(0.5 * 0.2) / 2])
    for wrong in ({}, {"d": 0}, {"a": 2}, {"a": -1}):
        with pytest.raises(ValueError, match="attribute"):
            attribute_log_probability(scores, wrong)
