"""Numbers that people type are read strictly, and by one reader."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from underpaint.algos.numbers import LEAST_REAL, MOST_REAL, real_number, whole_number


@given(st.integers(-(2**63) + 1, 2**63 - 1))
def test_a_whole_number_is_read_as_it_is_written(value: int) -> None:
    assert whole_number(str(value)) == value


@given(st.one_of(st.just(0.0), st.floats(LEAST_REAL, MOST_REAL), st.floats(-MOST_REAL, -LEAST_REAL)))
def test_a_number_is_read_as_it_is_written(value: float) -> None:
    assert real_number(repr(value)) == value


@pytest.mark.parametrize(
    "text", ["1_0", "\u0663", "\uff13", "1.0", "1e3", "", "-", "0x3", "9" * 20, "9" * 5000, "nan", "\u00b2"]
)
def test_no_whole_number(text: str) -> None:
    with pytest.raises(ValueError, match="expected a whole number from"):
        whole_number(text)


@pytest.mark.parametrize(
    "text",
    [
        "1e-400",
        "1e-31",
        "0.0e0_1",
        "1e308",
        "-1e10",
        "1e999",
        "inf",
        "nan",
        "1_0.5",
        "\u0663.5",
        "",
        ".",
        "1e",
        "1e-1000000",
    ],
)
def test_no_number(text: str) -> None:
    with pytest.raises(ValueError, match="expected 0, or a number of size 1e-30 to 1e"):
        real_number(text)


@given(st.text(alphabet="0123456789.eE+-_ \u0663\uff11naif", max_size=12))
def test_what_is_read_is_what_python_reads_and_never_rounded_to_nothing(text: str) -> None:
    try:
        value = real_number(text)
    except ValueError:
        return
    assert value == float(text)
    assert math.isfinite(value)
    assert "_" not in text
    assert text.isascii()
