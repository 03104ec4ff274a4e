"""Drafters that draft a chain in one call: policies that use it still draw exactly the target's distribution."""

from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.exact.distributions import assert_argmax, assert_exact
from underpaint.algos.accept import RULES, RuleSpec
from underpaint.algos.arrays import IntArray
from underpaint.algos.draft.roofline import Roofline
from underpaint.algos.protocols import Grid
from underpaint.sim.synthetic.models import (
    Blend,
    PrefixDistribution,
    RandomDistribution,
    SyntheticDrafter,
    SyntheticTarget,
)
from underpaint.strategies import pools

LOSSLESS = [
    pytest.param(spec, id=spec.name)
    for spec in RULES
    if spec.promise == "lossless" and "top_k" in spec.drawn and not spec.needs_chain
]
CHEAP_CALLS = Roofline(((1, 1.0), (5, 1.1)), 5.0, ((1, 0.01), (2, 0.02)), top_k=2)


@dataclass(slots=True)
class ChainingDrafter(SyntheticDrafter):
    """`chained` keeps the levels of each call."""

    fuses_chains: bool = True
    chained: list[int] = field(default_factory=list)

    def expand_chain(self, root: int, levels: int) -> IntArray:
        self.chained.append(levels)
        prefix = (*self._committed, root)
        for _ in range(levels):
            prefix = (*prefix, int(np.argmax(self.distribution(prefix))))
        return np.array(prefix[-levels:], dtype=np.int64)


def check(spec: RuleSpec, target: SyntheticTarget, distribution: PrefixDistribution, max_nodes: int) -> list[int]:
    drafter = ChainingDrafter(distribution)
    holds = assert_argmax if spec.greedy else assert_exact
    holds(target, drafter, CHEAP_CALLS, spec.make(), max_nodes)
    return drafter.chained


@pytest.mark.parametrize("spec", LOSSLESS)
def test_dense_distributions(spec: RuleSpec) -> None:
    chained: list[int] = []
    for grid, vocab_size in ((Grid(2, 3), 2), (Grid(1, 5), 2), (Grid(1, 4), 3)):
        likely = RandomDistribution(vocab_size, seed=5)
        distribution = Blend(likely, RandomDistribution(vocab_size, seed=6, sharpness=2.0), 0.5)
        chained += check(spec, SyntheticTarget(likely, grid), distribution, 5)
    assert chained, "no chain came up: the test says nothing"


@pytest.mark.parametrize("spec", LOSSLESS)
@settings(max_examples=10)
@given(data=st.data())
def test_any_distributions(spec: RuleSpec, data: st.DataObject) -> None:
    target = SyntheticTarget(data.draw(pools(3), label="target"), Grid(1, 4))
    check(spec, target, data.draw(pools(3), label="drafter"), 4)
