"""What a loss of accuracy is worth in log-probability, and how much deeper one method drafts than another."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from benchmarks.paired_speed import deeper
from benchmarks.quality_damage import POINTS, worth_of_points
from underpaint.runtime.drawing import Drawing


@given(arrays(np.float64, (3, 8), elements=st.sampled_from([-1.0, 0.0, 1.0])), st.floats(0.1, 5.0))
def test_a_loss_in_proportion_is_worth_its_factor(accuracy, factor):
    found = worth_of_points(accuracy, factor * accuracy)
    if not np.any(accuracy.mean(axis=1)):
        assert found is None
        return
    assert found is not None
    assert found["points"] == POINTS
    for name in ("nats", "nats_low", "nats_high"):
        assert found[name] == pytest.approx(POINTS * factor, rel=1e-9)


def test_the_line_goes_through_nought_and_the_larger_losses_weigh_more():
    accuracy = np.array([[-0.1] * 4, [-0.3] * 4])
    log_probability = np.array([[-0.4] * 4, [-0.6] * 4])
    found = worth_of_points(accuracy, log_probability)
    assert found is not None
    assert found["nats"] == pytest.approx(0.02 * (0.1 * 0.4 + 0.3 * 0.6) / (0.1**2 + 0.3**2), rel=1e-12)
    assert worth_of_points(np.zeros((2, 4)), log_probability) is None


def drawing(*depths: int) -> Drawing:
    return Drawing("adt", "a fox", 0, (1,), (1,) * len(depths), depths or None, 1, 1, 1.0, 0.5, 0.5)


def test_depth_is_compared_picture_by_picture():
    found = deeper([drawing(1, 3), drawing(2)], [drawing(4), drawing(3, 5)])
    assert found is not None
    assert found.mean == pytest.approx(2.0)  # 4 less 2, and 4 less 2
    assert found.low == found.high == pytest.approx(2.0)
    assert deeper([drawing(1)], [drawing()]) is None
    assert deeper([drawing()], [drawing(1)]) is None
    assert deeper([drawing(0, 0)], [drawing(1)]) is None  # plain decoding: cycles without a draft
