"""How samples of passes become a curve."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from underpaint.algos.chance import sampling
from underpaint.algos.protocols import Grid
from underpaint.algos.step import decode
from underpaint.runtime.costs.loops import choosing_loops
from underpaint.runtime.costs.passes import rising
from underpaint.runtime.costs.samples import ENOUGH, typical
from underpaint.sim.synthetic.models import RandomDistribution, SyntheticDrafter, SyntheticTarget


@given(st.lists(st.tuples(st.floats(0.01, 50.0), st.integers(1, 400)), min_size=1, max_size=12))
def test_a_curve_never_falls_and_keeps_its_mean(samples: list[tuple[float, int]]) -> None:
    curve, weights = [[size, ms] for size, (ms, _) in enumerate(samples, start=1)], [weight for _, weight in samples]
    rising_curve = rising(curve, weights)
    times = [ms for _, ms in rising_curve]
    assert [size for size, _ in rising_curve] == [size for size, _ in curve]
    assert times == sorted(times)
    total = sum(weight * ms for (ms, weight) in samples)
    assert sum(weight * ms for weight, ms in zip(weights, times, strict=True)) == pytest.approx(total, rel=1e-2)
    if [ms for ms, _ in samples] == sorted(ms for ms, _ in samples):
        assert times == [round(ms, 4) for ms, _ in samples]


def test_a_size_that_was_disturbed_takes_part_in_its_neighbours() -> None:
    assert rising([[1, 1.0], [2, 4.0], [4, 2.0], [8, 5.0]], [10, 1, 9, 10]) == [[1, 1.0], [2, 2.2], [4, 2.2], [8, 5.0]]


def test_few_samples_are_told_by_their_median_and_many_by_a_mean() -> None:
    assert typical([1.0] * 20 + [50.0] * 9) == 1.0
    assert typical([1.0] * (ENOUGH // 2) + [3.0] * (ENOUGH // 2)) == 2.0
    assert typical([1.0] * ENOUGH + [50.0] * (ENOUGH // 40)) == 1.0


def test_policies_that_choose_go_on_trying_where_nothing_pays() -> None:
    """What their trials cost is to be measured on every engine, so no loss ends them."""
    target = SyntheticTarget(RandomDistribution(30, seed=1), Grid(16, 16))
    loops = choosing_loops(30, [[1, 1.0], [64, 2.0]], [[1, 8.0], [8, 8.0]], chains=False)
    for loop in [one for one in loops if one.family == "cost_aware" and not one.pooled]:
        drafter = SyntheticDrafter(RandomDistribution(30, seed=2))
        cycles = decode(target, drafter, loop.policy, loop.rule, sampling(0), 64).cycles
        assert sum(cycle.tree.size > 1 for cycle in cycles[len(cycles) // 2 :]) > 3
