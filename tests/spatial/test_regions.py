import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from tests.spatial.checks import check_fronts, check_islands, check_regions, check_whole_grid
from underpaint.algos.arrays import BoolArray
from underpaint.algos.protocols import Grid
from underpaint.algos.spatial.islands import island_fronts, label_islands
from underpaint.algos.spatial.neighbourhood import expanded
from underpaint.algos.spatial.resolution import ResolutionMap
from underpaint.algos.spatial.row_front import RowFront, front_steps

MASKS = arrays(np.bool_, array_shapes(min_dims=2, max_dims=2, max_side=7))
QUICK = settings(max_examples=60, deadline=None)


@QUICK
@given(MASKS, st.data())
def test_neighbourhoods_follow_the_equations(rejected: BoolArray, data: st.DataObject) -> None:
    check_regions(rejected, data.draw(st.integers(0, max(rejected.shape) - 1)))


@QUICK
@given(MASKS)
def test_islands_partition_the_region(region: BoolArray) -> None:
    check_islands(region)


@QUICK
@given(MASKS, st.data())
def test_no_cell_goes_before_those_it_may_depend_on(region: BoolArray, data: st.DataObject) -> None:
    check_fronts(region, data.draw(st.integers(1, region.shape[1])))


@QUICK
@given(st.integers(1, 8), st.integers(1, 8), st.data())
def test_a_fixed_window_takes_the_steps_of_the_formula(height: int, width: int, data: st.DataObject) -> None:
    check_whole_grid(Grid(height, width), data.draw(st.integers(1, width)))


def test_published_step_counts() -> None:
    assert front_steps(Grid(32, 32), 5) == 187
    assert front_steps(Grid(90, 91), 7) == 714


def test_diagonal_cells_are_one_island() -> None:
    assert label_islands(np.eye(4, dtype=np.bool_)).max() == 0
    assert label_islands(np.array([[True, False, True]])).tolist() == [[0, -1, 1]]


def test_radius_zero_and_the_cells_before_the_first_rejection() -> None:
    rejected = np.zeros((4, 4), dtype=np.bool_)
    rejected[1, 2] = True
    np.testing.assert_array_equal(expanded(rejected, 0), rejected)
    assert np.flatnonzero(expanded(rejected, 1)).tolist() == [6, 7, 9, 10, 11]


@QUICK
@given(st.integers(1, 5), st.integers(1, 5), st.integers(1, 4))
def test_blocks_lie_under_their_low_cells(height: int, width: int, ratio: int) -> None:
    grids = ResolutionMap(Grid(height, width), Grid(height * ratio, width * ratio))
    blocks = grids.blocks()
    assert sorted(blocks.reshape(-1).tolist()) == list(range(grids.high.cells))
    for low, block in enumerate(blocks):
        assert {(cell // grids.high.width // ratio, cell % grids.high.width // ratio) for cell in block.tolist()} == {
            divmod(low, width)
        }
    for start in range(height + 1):
        rows = range(start, height)
        assert grids.low_rows(grids.high_rows(rows)) == rows


def test_resolutions_that_do_not_divide() -> None:
    for low, high in (((4, 4), (6, 6)), ((4, 4), (8, 12)), ((4, 4), (2, 2)), ((0, 4), (0, 4)), ((4, 4), (9, 8))):
        with pytest.raises(ValueError, match="whole multiple"):
            ResolutionMap(Grid(*low), Grid(*high))
    grids = ResolutionMap(Grid(4, 4), Grid(8, 8))
    with pytest.raises(ValueError, match="multiples of 2"):
        grids.low_rows(range(0, 3))
    for rows in (range(0, 9), range(-1, 3), range(0, 8, 2), range(5, 4)):
        with pytest.raises(ValueError, match="consecutive high rows"):
            grids.low_rows(rows)
    with pytest.raises(ValueError, match="consecutive low rows"):
        grids.high_rows(range(0, 5))


@pytest.mark.parametrize("radius", [-1, 5])
def test_a_radius_below_zero_or_beyond_the_grid(radius: int) -> None:
    with pytest.raises(ValueError, match=r"radius: expected 0..4"):
        expanded(np.ones((3, 5), dtype=np.bool_), radius)


@pytest.mark.parametrize("window", [-1, 0, 6])
def test_a_window_below_one_or_beyond_the_grid(window: int) -> None:
    whole = np.ones((3, 5), dtype=np.bool_)
    with pytest.raises(ValueError, match=r"window: expected 1..5"):
        RowFront.over(whole, window)
    with pytest.raises(ValueError, match=r"window: expected 1..5"):
        island_fronts(np.zeros((3, 5), dtype=np.int64), window)
    with pytest.raises(ValueError, match=r"window: expected 1..5"):
        front_steps(Grid(3, 5), window)


def test_masks_that_are_none() -> None:
    for mask in (np.ones((2, 2)), np.ones(4, dtype=np.bool_), np.ones((0, 3), dtype=np.bool_)):
        with pytest.raises(ValueError, match="expected a bool grid"):
            label_islands(mask)
    with pytest.raises(ValueError, match="not ready"):
        RowFront.over(np.ones((2, 2), dtype=np.bool_), 1).after([2])
