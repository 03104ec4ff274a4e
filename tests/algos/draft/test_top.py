"""The likeliest tokens, against sorting."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from underpaint.algos.draft.top_tokens import top


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@given(
    rows=st.integers(1, 4),
    vocab_size=st.sampled_from([1, 2, 7, 64, 200, 1000]),
    count=st.sampled_from([1, 2, 3, 10, 70]),
    levels=st.sampled_from([1, 2, 5, 50, 10**6]),
    empty=st.sampled_from([0.0, 0.5, 0.99]),
    seed=st.integers(0, 2**32 - 1),
)
def test_top_is_what_sorting_finds(
    dtype: type, rows: int, vocab_size: int, count: int, levels: int, empty: float, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    weights = rng.integers(1, levels + 1, (rows, vocab_size)) * (rng.random((rows, vocab_size)) >= empty)
    weights[:, rng.integers(vocab_size)] += 1
    distributions = (weights / weights.sum(axis=1, keepdims=True)).astype(dtype)
    likeliest = top(distributions, count)
    assert likeliest.tokens.shape == likeliest.probs.shape == (rows, min(count, vocab_size))
    assert likeliest.tokens.dtype == np.int64
    assert likeliest.probs.dtype == np.float64
    for distribution, tokens, probs in zip(distributions, likeliest.tokens, likeliest.probs, strict=True):
        expected = np.argsort(-distribution, kind="stable")[:count]
        expected = expected[distribution[expected] > 0]
        np.testing.assert_array_equal(tokens[: expected.size], expected)
        np.testing.assert_array_equal(probs[: expected.size], distribution[expected].astype(np.float64))
        assert not probs[expected.size :].any()


def test_a_distribution_that_rounds_above_one_is_cut_at_one() -> None:
    distributions = np.array([[np.nextafter(np.float32(1), np.float32(2)), 0.0]], dtype=np.float32)
    assert top(distributions, 1).probs.max() == top(distributions, 2).probs.max() == 1.0
