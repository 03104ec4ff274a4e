"""The fixed cases show every known mistake by themselves, whatever the seed, and a failing case gets smaller."""

import pytest

from underpaint.algos.tree import DRAWN
from underpaint.sim.certify.adapters import WalkVerifier
from underpaint.sim.certify.case import VerifierCase
from underpaint.sim.certify.certificate import certify
from underpaint.sim.certify.measure import measure
from underpaint.sim.certify.measurement import Effort
from underpaint.sim.certify.mistakes import BY_NAME, MISTAKES, RIGHT
from underpaint.sim.certify.search import case_size, cases_to_judge, fixed_cases, shrink
from underpaint.sim.certify.verifier import Verifier

REPORTED = VerifierCase(4, (-1, 0, 0), "iid", ((3, 2, 5, 1),), ((5, 1, 3, 3),))


class AskedOnce(Verifier):
    """Decides each draft once at the same uniforms: seeds share the corners and the thresholds."""

    def __init__(self, walk):
        self.verifier, self.known = WalkVerifier(walk), {}

    def decide(self, drafts, noise):
        keys = [(id(draft), row.tobytes()) for draft, row in zip(drafts, noise, strict=True)]
        new = [place for place, key in enumerate(keys) if key not in self.known]
        decisions = self.verifier.decide([drafts[place] for place in new], noise[new])
        self.known.update(zip([keys[place] for place in new], decisions, strict=True))
        return [self.known[key] for key in keys]


@pytest.mark.parametrize(("name", "drawn"), [(one.name, drawn) for one in MISTAKES for drawn in sorted(one.drawn)])
def test_every_mistake_is_caught_by_a_fixed_case_at_every_seed(name, drawn):
    verifier = AskedOnce(BY_NAME[name].verify)
    cases = fixed_cases(drawn, False)
    for seed in range(10):
        effort = Effort(checks=64, seed=seed)
        caught = next((case for case in cases if measure(case, verifier, effort).failed), None)
        assert caught is not None, seed
        cases.sort(key=lambda case: case != caught)  # the next seed asks it first


@pytest.mark.parametrize("drawn", DRAWN)
@pytest.mark.parametrize("chain", [False, True])
def test_a_right_verifier_passes_the_fixed_cases(drawn, chain):
    for case in fixed_cases(drawn, chain):
        measurement = measure(case, WalkVerifier(RIGHT), Effort(checks=64))
        assert not measurement.failed
        assert measurement.total_variation < 1e-12


def test_a_residual_that_is_not_normalised_where_it_has_two_tokens_is_biased_as_reported():
    measurement = measure(REPORTED, WalkVerifier(BY_NAME["pair-not-normalised"].verify))
    assert measurement.total_variation == pytest.approx(1 / 7, abs=0.01)
    assert REPORTED in fixed_cases("iid", False)
    assert not certify(WalkVerifier(BY_NAME["pair-not-normalised"].verify), "iid", count=3, shrink_seconds=0).lossless


@pytest.mark.parametrize("count", [1, 5, 24])
def test_fixed_cases_come_first_and_those_of_the_seed_follow(count):
    first, second = (cases_to_judge("iid", False, count, seed) for seed in (0, 1))
    fixed = fixed_cases("iid", False)
    assert len(first) == len(second) == count
    assert first[: len(fixed)] == second[: len(fixed)] == fixed[:count]
    assert count <= len(fixed) or first[len(fixed) :] != second[len(fixed) :]


def test_shrinking_takes_away_every_part_that_the_failure_does_not_need():
    large = fixed_cases("iid", False)[4]

    def fails(case):
        return case.parents.count(0) >= 2 and any(row[0] >= 2 for row in case.target)

    result, smallest = shrink(fails, large, 10.0)
    assert smallest
    assert result == VerifierCase(2, (-1, 0, 0), "iid", ((2, 0),), ((1, 0),)) or case_size(result) <= (3, 2, 2, 0, 3)


def test_shrinking_leaves_a_draft():
    assert shrink(lambda case: True, fixed_cases("iid", True)[0], 10.0)[0].parents == (-1, 0)


def test_shrinking_stops_in_time():
    large = fixed_cases("top_k", False)[4]
    assert shrink(lambda case: True, large, 0.0) == (large, False)
