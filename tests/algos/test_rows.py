"""Row maths against plain definitions."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from underpaint.algos.arrays import FloatArray
from underpaint.algos.rows import SamplingParams, sampling_probs

LOGITS = np.array([[[0.0, 1.0, 1.0, -2.0, 3.0], [0.5, 0.5, 0.5, 0.5, 0.5]]])


def draft_rows(logits: FloatArray, **settings: Any) -> FloatArray:
    rows = sampling_probs(logits, SamplingParams(**settings))
    assert rows.dtype == logits.dtype
    return np.asarray(rows)


def softmax(logits: FloatArray) -> FloatArray:
    masses = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return masses / masses.sum(axis=-1, keepdims=True)


def test_plain_softmax_and_temperature() -> None:
    assert draft_rows(LOGITS) == pytest.approx(softmax(LOGITS[0]))
    assert draft_rows(LOGITS, temperature=0.5) == pytest.approx(softmax(LOGITS[0] * 2))
    assert draft_rows(LOGITS, temperature=0.0).tolist() == [[0, 0, 0, 0, 1], [1, 0, 0, 0, 0]]


def test_guidance_mixes_the_pair() -> None:
    pair = np.concatenate([LOGITS, LOGITS[:, ::-1]])
    mixed = LOGITS[0, ::-1] + 3.0 * (LOGITS[0] - LOGITS[0, ::-1])
    assert draft_rows(pair, guidance=3.0) == pytest.approx(softmax(mixed))
    assert draft_rows(pair, guidance=1.0) == pytest.approx(softmax(LOGITS[0]))
    assert draft_rows(pair, guidance=0.0) == pytest.approx(softmax(LOGITS[0, ::-1]))


def test_top_k_keeps_ties_with_the_last() -> None:
    assert np.flatnonzero(draft_rows(LOGITS, top_k=1)[0]).tolist() == [4]
    assert np.flatnonzero(draft_rows(LOGITS, top_k=2)[0]).tolist() == [1, 2, 4]
    assert np.flatnonzero(draft_rows(LOGITS, top_k=2)[1]).size == 5
    assert draft_rows(LOGITS, top_k=9) == pytest.approx(softmax(LOGITS[0]))


def test_top_p_keeps_the_smallest_set_of_that_mass() -> None:
    probs = np.array([[0.5, 0.2, 0.15, 0.1, 0.05]])
    logits = np.log(probs)[None]
    for top_p, count in ((0.3, 1), (0.6, 2), (0.8, 3), (0.9, 4), (1.0, 5)):
        distribution = draft_rows(logits, top_p=top_p)[0]
        assert np.flatnonzero(distribution).tolist() == list(range(count))
        assert distribution[:count] == pytest.approx(probs[0, :count] / probs[0, :count].sum())


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@given(
    seed=st.integers(0, 999),
    temperature=st.sampled_from([0.0, 0.3, 1.0]),
    top_k=st.integers(0, 9),
    top_p=st.sampled_from([0.2, 0.9, 1.0]),
)
def test_rows_are_distributions_of_the_dtype_of_logits(
    dtype: type, seed: int, temperature: float, top_k: int, top_p: float
) -> None:
    logits = np.random.default_rng(seed).normal(size=(2, 3, 8), scale=4.0).astype(dtype)
    chosen: dict[str, Any] = {"guidance": 2.0, "temperature": temperature, "top_k": top_k, "top_p": top_p}
    plain = draft_rows(logits, **chosen)
    assert plain.dtype == dtype
    assert np.all(plain >= 0.0)
    assert plain.sum(axis=-1) == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_logits_that_are_not_finite_are_refused(value: float) -> None:
    spoilt = LOGITS.copy()
    spoilt[0, 1, 2] = value
    with pytest.raises(ValueError, match="sampling_probs: expected finite logits"):
        sampling_probs(spoilt, SamplingParams())


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_masks_of_the_least_number_are_finite_though_their_sum_is_not(temperature: float) -> None:
    logits = np.full((1, 1, 4), np.finfo(np.float32).min, dtype=np.float32)
    logits[0, 0, 1] = 2.0
    params = SamplingParams(temperature=temperature)
    expected = [[0.0, 1.0, 0.0, 0.0]]
    assert sampling_probs(logits, params).tolist() == expected
    torch = pytest.importorskip("torch")
    from underpaint.runtime.engines.torch_sampling import sampled_probs

    assert sampled_probs(torch.from_numpy(logits), params).tolist() == expected


@pytest.mark.parametrize("shape", [(2, 5), (3, 2, 5), (0, 2, 5)])
def test_logits_of_the_wrong_shape_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"sampling_probs: expected logits \[B, N, V\]"):
        sampling_probs(np.zeros(shape), SamplingParams())


@pytest.mark.parametrize(
    "setting", [{"guidance": -1.0}, {"temperature": -0.1}, {"top_k": -1}, {"top_p": 0.0}, {"top_p": 1.1}]
)
def test_settings_out_of_range_are_named(setting: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"sampler: {next(iter(setting))} must be"):
        SamplingParams(**setting)
