"""Cells of pictures whose regions are known."""

import numpy as np
import pytest

from underpaint.algos.protocols import Grid
from underpaint.sim.premises.regions import REGIONS, cell_regions

GRID = Grid(6, 6)


def scene(scale: int) -> tuple[np.ndarray, np.ndarray]:
    """A calm sky over busy ground, both up to the border, with a red thing between: the picture and its regions."""
    rng = np.random.default_rng(0)
    side = 6 * scale
    picture = np.zeros((side, side, 3))
    picture[: side // 2] = (120, 160, 220)
    grain = rng.normal(0, 30, (side // 2, side, 1))
    picture[side // 2 :] = np.array((110, 100, 90)) + grain
    picture[2 * scale : 4 * scale, 2 * scale : 4 * scale] = (220, 40, 40)
    regions = np.zeros((6, 6), dtype=np.int64)
    regions[3:] = REGIONS.index("busy")
    regions[2:4, 2:4] = REGIONS.index("object")
    return picture.clip(0, 255).astype(np.uint8), regions.reshape(-1)


@pytest.mark.parametrize("scale", [8, 16])
def test_sky_ground_and_thing_are_told_apart(scale: int) -> None:
    picture, expected = scene(scale)
    np.testing.assert_array_equal(cell_regions(picture, GRID), expected)


def test_a_picture_of_one_colour_is_calm():
    assert not cell_regions(np.full((12, 12, 3), 77, np.uint8), GRID).any()


def test_a_picture_that_holds_no_whole_cells_is_refused():
    with pytest.raises(ValueError, match="whole cells of 6 x 6"):
        cell_regions(np.zeros((13, 12, 3), np.uint8), GRID)
