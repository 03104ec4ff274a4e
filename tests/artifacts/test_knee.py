"""Where a cost curve bends."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from underpaint.artifacts.knee import find_knee

SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)


@given(st.floats(0.1, 20.0), st.sampled_from((2.0, 5.0, 10.0, 20.0, 40.0)), st.floats(0.05, 0.5))
def test_a_flat_piece_and_a_slope_are_found(floor: float, knee: float, steepness: float) -> None:
    slope = floor * steepness
    estimate = find_knee([(size, floor + slope * max(0.0, size - knee)) for size in SIZES])
    assert estimate.nodes == pytest.approx(knee, abs=0.2)
    assert estimate.floor_ms == pytest.approx(floor, rel=0.03)
    assert estimate.node_ms == pytest.approx(slope, rel=0.03)
    assert f"about {knee:.0f} nodes" in estimate.describe()


def test_a_curve_without_a_bend_says_so() -> None:
    for curve in ([(1, 2.0)], [(1, 2.0), (64, 2.0)], [(1, 2.0), (8, 1.9), (64, 2.1)]):
        estimate = find_knee(curve)
        assert (estimate.nodes, estimate.largest) == (None, curve[-1][0])
        assert "no knee" in estimate.describe()


def test_a_slope_from_the_first_node_on_bends_there() -> None:
    estimate = find_knee([(size, float(size)) for size in SIZES])
    assert estimate.nodes == 1.0
    assert estimate.describe() == "a target pass costs 1.00 ms, and 1.00 ms more for every node but the first"
