"""The transport bound: against a linear programme, against known cases, and above what every lossless rule reaches."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from tests.acceptance import best_acceptance_iid, proposal_sets
from underpaint.algos.accept import RULES, RuleSpec
from underpaint.algos.arrays import FloatArray
from underpaint.algos.enumeration import enumerate_decoding
from underpaint.algos.protocols import Grid
from underpaint.algos.transport import ProposalSets, best_acceptance
from underpaint.algos.tree import DRAWN, Drawn
from underpaint.sim.synthetic.models import SyntheticDrafter, SyntheticTarget
from underpaint.strategies import ShapePolicy, distributions

SAMPLING = [spec for spec in RULES if spec.promise == "lossless" and not spec.greedy]


def programme(target: FloatArray, proposals: ProposalSets) -> float:
    """The transport as a linear programme: a joint distribution of (proposals, output) with both marginals, most mass
    inside."""
    sets, tokens = list(proposals), range(target.size)
    places = {pair: place for place, pair in enumerate(product(range(len(sets)), tokens))}
    gain = np.zeros(len(places))
    equal = np.zeros((len(sets) + target.size, len(places)))
    for (which, token), place in places.items():
        gain[place] = -float(token in sets[which])
        equal[which, place] = equal[len(sets) + token, place] = 1.0
    solved = linprog(gain, A_eq=equal, b_eq=[*(proposals[each] for each in sets), *target], bounds=(0, None))
    assert solved.success
    return -float(solved.fun)


@pytest.mark.parametrize("drawn", DRAWN)
@given(target=distributions(4), draft=distributions(4), count=st.integers(0, 4))
def test_the_minimum_over_sets_solves_the_transport(
    drawn: Drawn, target: FloatArray, draft: FloatArray, count: int
) -> None:
    proposals = proposal_sets(draft, count, drawn)
    assert sum(proposals.values()) == pytest.approx(1.0, abs=1e-12)
    assert best_acceptance(target, proposals) == pytest.approx(programme(target, proposals), abs=1e-7)


@given(target=distributions(6), draft=distributions(6), count=st.integers(0, 5))
def test_independent_proposals_need_only_an_order(target: FloatArray, draft: FloatArray, count: int) -> None:
    exact = best_acceptance(target, proposal_sets(draft, count, "iid"))
    assert best_acceptance_iid(target, draft, count) == pytest.approx(exact, abs=1e-12)


@given(target=distributions(5), draft=distributions(5))
def test_known_cases(target: FloatArray, draft: FloatArray) -> None:
    overlap = float(np.minimum(target, draft).sum())
    for drawn in ("iid", "without_replacement"):
        assert best_acceptance(target, proposal_sets(draft, 1, drawn)) == pytest.approx(overlap, abs=1e-12)
    likeliest = np.argsort(-draft, kind="stable")[:2]
    assert best_acceptance(target, proposal_sets(draft, 2, "top_k")) == pytest.approx(float(target[likeliest].sum()))
    assert best_acceptance(target, proposal_sets(draft, 9, "without_replacement")) == pytest.approx(1.0)
    assert best_acceptance(target, proposal_sets(draft, 0, "iid")) == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize(
    ("spec", "drawn"),
    [pytest.param(spec, drawn, id=f"{spec.name}-{drawn}") for spec in SAMPLING for drawn in sorted(spec.drawn)],
)
@settings(max_examples=25)
@given(target=distributions(3), draft=distributions(3), count=st.integers(1, 3))
def test_no_lossless_rule_beats_the_bound(
    spec: RuleSpec, drawn: Drawn, target: FloatArray, draft: FloatArray, count: int
) -> None:
    count = 1 if spec.needs_chain else count
    traces = enumerate_decoding(
        SyntheticTarget(lambda prefix: target, Grid(1, 3)),
        SyntheticDrafter(lambda prefix: draft),
        ShapePolicy((0,) * count, drawn),
        spec.make(),
        cycle_count=2,
    )
    reached = sum(weight for trace, weight in traces.items() if trace.accepted[1])
    bound = best_acceptance(target, proposal_sets(draft, count, drawn))
    assert reached <= bound + 1e-12
    if drawn == "top_k" or count == 1:  # point proposals and single draws: every exact rule is optimal
        assert reached == pytest.approx(bound, abs=1e-12)


def test_what_cannot_be_enumerated_is_refused() -> None:
    distribution = np.full(17, 1 / 17)
    with pytest.raises(ValueError, match="too many subsets"):
        best_acceptance(distribution, {frozenset({0}): 1.0})
