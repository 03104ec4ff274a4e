"""Known damage to tokens: as much as was asked for, by the code that was asked for."""

import numpy as np
import pytest

from underpaint.algos.accept.neighbours import nearest_codes
from underpaint.runtime.evaluation.damage import replaced_by_neighbours

NEAREST = nearest_codes(np.random.default_rng(0).normal(0, 1, (24, 3)), 5)


@pytest.mark.parametrize("share", [0.0, 0.25, 1.0])
@pytest.mark.parametrize("rank", [1, 5])
def test_a_share_of_each_row_becomes_that_neighbour(share: float, rank: int) -> None:
    rng = np.random.default_rng(1)
    codes = rng.integers(24, size=(2, 3, 16))
    before = codes.copy()
    found = replaced_by_neighbours(codes, NEAREST, share, rank, rng)
    np.testing.assert_array_equal(codes, before)
    changed = found != codes
    np.testing.assert_array_equal(changed.sum(axis=-1), round(16 * share))
    np.testing.assert_array_equal(found[changed], NEAREST[codes[changed], rank - 1])


def test_which_cells_is_drawn() -> None:
    codes = np.zeros((400, 10), np.int64)
    found = replaced_by_neighbours(codes, NEAREST, 0.3, 1, np.random.default_rng(2))
    shares = (found != 0).mean(axis=0)
    # Six standard deviations of a binomial share.
    assert np.abs(shares - 0.3).max() < 6 * np.sqrt(0.3 * 0.7 / 400)


def test_wrong_damage_is_refused() -> None:
    rng, codes = np.random.default_rng(3), np.zeros((2, 4), np.int64)
    for share, rank in ((1.1, 1), (-0.1, 1), (0.5, 0), (0.5, 6)):
        with pytest.raises(ValueError, match="damage: expected a share"):
            replaced_by_neighbours(codes, NEAREST, share, rank, rng)
    with pytest.raises(ValueError, match="0 <= code < 24"):
        replaced_by_neighbours(codes + 24, NEAREST, 0.5, 1, rng)
