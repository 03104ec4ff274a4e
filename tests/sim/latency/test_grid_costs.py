"""What images of ZipAR and MuLo-SD cost by a measured curve."""

import numpy as np
import pytest

from underpaint.artifacts.cost_curve import GridHostCosts, InGridCosts, LowCosts
from underpaint.sim.latency.grid_costs import GridCounts, LowDrafts, grid_times
from underpaint.sim.latency.models import SizeMissing

HOST = GridHostCosts(step=0.1, cell=0.01, judged=0.001)
LOW = (LowCosts(2, True, ((1, 0.5), (4, 0.8)), 0.6), LowCosts(2, False, ((1, 0.9), (4, 1.2)), 1.0))
COSTS = InGridCosts(((1, 2.0), (3, 4.0)), 5.0, HOST, LOW, {"latent/2": 7.0})
ONE = np.ones(1, dtype=np.int64)


def counts(*fed: int, drawn: int, judged: int = 0) -> GridCounts:
    return GridCounts(ONE, np.bincount(fed, minlength=17)[None], drawn * ONE, judged * ONE)


def low(int8: bool | None, resampler: str = "latent", ratio: int = 2) -> LowDrafts:
    return LowDrafts(counts(1, 1, 3, drawn=4), ratio, int8, resampler, ONE)


def test_passes_and_host_of_row_fronts_are_summed() -> None:
    times = grid_times(COSTS, counts(1, 2, 3, drawn=16))
    assert times.target.tolist() == [pytest.approx(5.0 + 2.0 + 3.0 + 4.0)]
    assert times.host.tolist() == [pytest.approx(4 * 0.1 + 16 * 0.01)]
    assert times.drafter.tolist() == [0.0]


@pytest.mark.parametrize(("int8", "passes"), [(None, 0.6 + 0.5 + 0.5 + 0.7), (False, 1.0 + 0.9 + 0.9 + 1.1)])
def test_low_passes_cost_what_their_own_target_does(int8: bool | None, passes: float) -> None:
    times = grid_times(COSTS, counts(3, 2, drawn=5, judged=16), low(int8))
    assert times.drafter.tolist() == [pytest.approx(passes + 7.0)]
    assert times.host.tolist() == [pytest.approx(0.1 * (3 + 4) + 0.01 * (5 + 4) + 0.001 * 16)]


def test_a_curve_without_the_smaller_target_or_the_resampler_says_so() -> None:
    whole = counts(3, drawn=5, judged=16)
    for draft, message in (
        (low(None, ratio=4), "holds no target at 1 / 4 of the side"),
        (low(None, "bicubic"), "holds no resampler 'bicubic/2', but latent/2"),
    ):
        with pytest.raises(SizeMissing, match=message):
            grid_times(COSTS, whole, draft)
    with pytest.raises(SizeMissing, match="measured from 1 to 3 nodes, asked for 15"):
        grid_times(COSTS, counts(15, drawn=1))
