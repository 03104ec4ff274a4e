"""How much deeper one method drafts than another."""

import pytest

from benchmarks.paired_speed import deeper
from underpaint.runtime.drawing import Drawing


def drawing(*depths: int) -> Drawing:
    return Drawing("adt", "a fox", 0, (1,), (1,) * len(depths), depths or None, 1, 1, 1.0, 0.5, 0.5)


def test_depth_is_compared_picture_by_picture():
    difference = deeper([drawing(1, 3), drawing(2)], [drawing(4), drawing(3, 5)])
    assert difference is not None
    assert difference.value == pytest.approx(2.0)  # 4 less 2, and 4 less 2
    assert difference.low == difference.high == pytest.approx(2.0)
    assert deeper([drawing(1)], [drawing()]) is None
    assert deeper([drawing()], [drawing(1)]) is None
    assert deeper([drawing(0, 0)], [drawing(1)]) is None  # plain decoding: cycles without a draft
