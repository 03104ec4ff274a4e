"""Matrices in 8 bits with a scale a row: how far they are from what was rounded, and that rounding again is nothing."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from underpaint.artifacts.scaled_rows import scaled_rows


@given(
    st.integers(0, 2**32), st.sampled_from([1e-6, 2e-4, 4e-4, 1e-3, 0.1, 30.0]), st.integers(1, 6), st.integers(1, 9)
)
def test_each_number_is_within_half_a_step_and_rounding_again_changes_nothing(
    seed: int, size: float, rows: int, columns: int
) -> None:
    values = (size * np.random.default_rng(seed).standard_normal((rows, columns))).astype(np.float32)
    int8_rows = scaled_rows(values)
    wide = int8_rows.widened()
    assert (int8_rows.steps.dtype, int8_rows.scale.dtype, wide.dtype) == (np.int8, np.float16, np.float32)
    assert int8_rows.scale.shape == (rows, 1)
    # Half a step, and what the scale itself loses in float16: 2**-11 of it, or 2**-25 where it has no more bits.
    scale = np.abs(values).max(axis=1, keepdims=True) / 127
    lost = 127 * np.maximum(scale * 2.0**-11, 2.0**-25)
    assert np.all(np.abs(wide - values) <= 0.5 * scale * (1 + 2.0**-10) + lost + 1e-12)
    again = scaled_rows(wide)
    np.testing.assert_array_equal(again.steps, int8_rows.steps)
    np.testing.assert_array_equal(again.widened(), wide)


def test_rows_lie_along_the_axis_asked_for() -> None:
    values = np.array([[1.0, 100.0], [-0.5, 25.0], [0.25, -49.0]], np.float32)
    by_column = scaled_rows(values, axis=1)
    assert by_column.scale.shape == (1, 2)
    np.testing.assert_array_equal(by_column.widened(), scaled_rows(values.T).widened().T)
    assert by_column.steps[:, 1].tolist() == [127, 32, -62]


def test_a_row_of_zeros_stays_one() -> None:
    int8_rows = scaled_rows(np.array([[0.0, 0.0], [1.0, -1.0]], np.float32))
    assert int8_rows.widened().tolist() == [[0.0, 0.0], pytest.approx([1.0, -1.0], rel=1e-3)]


def test_convolutions_have_a_scale_an_output_channel() -> None:
    values = np.random.default_rng(0).standard_normal((4, 3, 2, 2)).astype(np.float32)
    int8_rows = scaled_rows(values)
    assert int8_rows.scale.shape == (4, 1, 1, 1)
    flat = scaled_rows(values.reshape(4, -1)).widened()
    np.testing.assert_array_equal(int8_rows.widened().reshape(4, -1), flat)
