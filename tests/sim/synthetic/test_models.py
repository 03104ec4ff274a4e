"""Synthetic models keep the protocols of a target and a drafter."""

import numpy as np
import pytest

from underpaint.algos.protocols import Grid
from underpaint.algos.tree import NO_TOKEN, DraftTree, Verdict, root_only
from underpaint.sim.synthetic.field import make_synthetic_model
from underpaint.sim.synthetic.models import (
    Blend,
    RandomDistribution,
    SyntheticDrafter,
    SyntheticTarget,
)
from underpaint.strategies import PooledDistribution

LAW = RandomDistribution(3, seed=4)


def test_a_distribution_is_a_function_of_the_prefix_and_the_seed() -> None:
    prefixes = [(), (0,), (1,), (0, 1), (1, 0), (10,), (1, 0, 0)]
    rows = [LAW(prefix) for prefix in prefixes]
    assert all(
        np.array_equal(row, RandomDistribution(3, seed=4)(prefix)) for row, prefix in zip(rows, prefixes, strict=True)
    )
    assert len({row.tobytes() for row in rows}) == len(rows)
    assert not np.array_equal(RandomDistribution(3, seed=5)(()), LAW(()))
    assert all(row.sum() == pytest.approx(1.0) for row in rows)
    pool = PooledDistribution(np.eye(3))
    assert {pool((token,)).argmax() for token in range(30)} == {0, 1, 2}


def test_a_blend() -> None:
    other = RandomDistribution(3, seed=9)
    assert Blend(LAW, other, 0.25)((1,)) == pytest.approx(0.75 * LAW((1,)) + 0.25 * other((1,)))
    with pytest.raises(ValueError, match="share must be in"):
        Blend(LAW, other, 1.5)


def test_target_and_drafter_follow_the_committed_tokens() -> None:
    target, drafter = SyntheticTarget(LAW, Grid(2, 3)), SyntheticDrafter(LAW)
    for _ in range(2):
        scored = target.begin()
        drafter.begin(scored)
        assert np.array_equal(scored.probs, LAW(())[None])
        tree = DraftTree(
            tokens=np.array([2, 0, 1, 1]),
            parents=np.array([-1, 0, 0, 2]),
            drawn="top_k",
            draft_probs=np.empty((0, 3)),
            draft_rows=np.full(4, -1),
        )
        rows = np.stack([LAW((2,)), LAW((2, 0)), LAW((2, 1)), LAW((2, 1, 1))])
        scored = target.score(tree)
        assert np.array_equal(scored.probs, rows)
        assert np.array_equal(drafter.expand(tree.tokens[:1], tree.parents[:1]), rows[:1])
        assert np.array_equal(drafter.expand(tree.tokens[1:], tree.parents[1:]), rows[1:])
        verdict = Verdict((2,), 0)
        target.commit(tree, verdict)
        drafter.commit(tree, verdict, scored)
        assert np.array_equal(target.score(root_only(0, 3)).probs[0], LAW((2, 1, 0)))
        assert np.array_equal(drafter.expand(np.array([0]), np.array([-1]))[0], LAW((2, 1, 0)))


def test_a_field_of_one_level_is_as_sharp_as_the_middle_level_of_three() -> None:
    one, three = (
        make_synthetic_model("field", {"vocab_size": 24, "clusters": 4, "images": 2, "levels": levels}).target
        for levels in (1, 3)
    )
    assert isinstance(one, np.ndarray)
    assert isinstance(three, np.ndarray)
    np.testing.assert_allclose(one, three[len(one) : 2 * len(one)], rtol=0, atol=1e-12)


def test_the_empty_root_counts_for_nothing() -> None:
    assert np.array_equal(SyntheticTarget(LAW, Grid(1, 1)).score(root_only(NO_TOKEN, 3)).probs[0], LAW(()))
