"""The instruments themselves: distributions that are known by hand."""

import numpy as np
import pytest
from hypothesis import given

from underpaint.algos.accept import RULES
from underpaint.algos.arrays import FloatArray
from underpaint.algos.enumeration import (
    EnumeratedRun,
    accepted_per_cycle,
    enumerate_decoding,
    enumerate_verdicts,
    marginal,
    mean,
    passes,
    target_distribution,
    tokens_distribution,
    total_variation,
)
from underpaint.algos.protocols import Grid
from underpaint.algos.tree import DraftTree, Verdict, emitted
from underpaint.sim.synthetic.models import SyntheticDrafter, SyntheticTarget
from underpaint.strategies import PooledDistribution, ShapePolicy, distributions, pools


def test_verdicts_of_one_proposal() -> None:
    tree = DraftTree(np.array([7, 1]), np.array([-1, 0]), "iid", np.array([[0.25, 0.75]]), np.array([0, -1]))
    probs = np.array([[0.7, 0.3], [0.2, 0.8]])
    verdicts = enumerate_verdicts(RULES["chain"].make(), tree, probs)
    acceptance = 0.3 / 0.75
    assert verdicts == pytest.approx(
        {Verdict((1,), 0): acceptance * 0.2, Verdict((1,), 1): acceptance * 0.8, Verdict((), 0): 1 - acceptance}
    )
    assert emitted(tree, Verdict((1,), 0)) == (1, 0)
    assert emitted(tree, Verdict((), 0)) == (0,)


@given(pool=pools(3))
def test_the_targets_distribution_is_the_product_along_the_image(pool: PooledDistribution) -> None:
    distribution = target_distribution(SyntheticTarget(pool, Grid(1, 3)))
    for a in range(3):
        for b in range(3):
            for c in range(3):
                product = pool(())[a] * pool((a,))[b] * pool((a, b))[c]
                assert distribution.get((a, b, c), 0.0) == pytest.approx(product, abs=1e-15)


def test_cycles_and_passes_by_hand() -> None:
    """A drafter that is never right (disjoint supports): each cycle emits one token, from the residual."""
    target = SyntheticTarget(lambda prefix: np.array([1.0, 0.0]), Grid(1, 3))
    drafter = SyntheticDrafter(lambda prefix: np.array([0.0, 1.0]))
    traces = enumerate_decoding(target, drafter, ShapePolicy((0, 1), "iid"), RULES["chain"].make())
    assert traces == {EnumeratedRun((0, 0, 0), (0, 0, 0)): 1.0}
    assert passes(traces) == 3.0
    traces = enumerate_decoding(
        target, SyntheticDrafter(target.distribution), ShapePolicy((0,), "iid"), RULES["chain"].make()
    )
    assert traces == {EnumeratedRun((0, 0, 0), (0, 1)): 1.0}
    assert accepted_per_cycle(traces, 1) == 1.0
    with pytest.raises(ValueError, match="no trace reaches cycle 2"):
        accepted_per_cycle(traces, 2)


def test_traces_that_stop_early_go_on_by_the_target() -> None:
    whole = {(0, 0): 0.1, (0, 1): 0.3, (1, 0): 0.6}
    assert tokens_distribution(
        {EnumeratedRun((0,), (0,)): 0.5, EnumeratedRun((1, 0), (1,)): 0.5}, whole
    ) == pytest.approx({(0, 0): 0.125, (0, 1): 0.375, (1, 0): 0.5})
    impossible = tokens_distribution({EnumeratedRun((1, 1), (1,)): 0.25, EnumeratedRun((0,), (0,)): 0.75}, whole)
    assert impossible[1, 1] == 0.25
    assert total_variation(impossible, whole) == pytest.approx(0.6)


@given(first=distributions(4), second=distributions(4))
def test_total_variation(first: FloatArray, second: FloatArray) -> None:
    one, two = dict(enumerate(first)), dict(enumerate(second))
    assert total_variation(one, two) == pytest.approx(1.0 - float(np.minimum(first, second).sum()), abs=1e-12)
    assert total_variation(one, two) == total_variation(two, one)
    assert total_variation(one, one) == 0.0
    assert total_variation({"a": 1.0}, {"b": 1.0}) == 1.0


def test_marginal_and_mean() -> None:
    distribution = {EnumeratedRun((0,), (1,)): 0.25, EnumeratedRun((1,), (1,)): 0.75}
    assert marginal(distribution, lambda trace: trace.accepted) == {(1,): 1.0}
    assert mean(distribution, lambda trace: trace.tokens[0]) == 0.75
