"""The reference of the exact tests is the product along the image, and it is what enumeration gives."""

import numpy as np
import pytest

from tests.exact.distributions import TOLERANCE, images_of, whole_images
from underpaint.algos.enumeration import target_distribution
from underpaint.algos.protocols import Grid
from underpaint.sim.synthetic.models import Blend, PrefixDistribution, RandomDistribution, SyntheticTarget
from underpaint.strategies import PooledDistribution

DISTRIBUTIONS: dict[str, PrefixDistribution] = {
    "two tokens": RandomDistribution(2, seed=9, sharpness=1.5),
    "three tokens": RandomDistribution(3, seed=3),
    "blend": Blend(RandomDistribution(3, seed=3), RandomDistribution(3, seed=4, sharpness=2.0), 0.5),
    "zeros": PooledDistribution(np.array([[0.25, 0.75, 0.0], [0.0, 0.0, 1.0], [0.0, 0.5, 0.5]]), 3),
    "one image": lambda prefix: np.eye(2)[len(prefix) % 2],
}


@pytest.mark.parametrize("grid", [Grid(1, 1), Grid(1, 5), Grid(2, 2)], ids=str)
@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_the_reference_is_the_enumerated_distribution(name: str, grid: Grid) -> None:
    distribution = DISTRIBUTIONS[name]
    expected = target_distribution(SyntheticTarget(distribution, grid))
    for _ in range(2):  # made, and taken from those that are kept
        assert whole_images(distribution, grid) == pytest.approx(expected, rel=0, abs=TOLERANCE)
    assert images_of(SyntheticTarget(distribution, grid)) == whole_images(distribution, grid)
