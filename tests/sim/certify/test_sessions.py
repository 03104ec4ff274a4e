"""Drafter and verifier judged together, over one cycle and several."""

import numpy as np
import pytest

from underpaint.sim.certify.adapters import Spec, drawn_by, interface_of, needs_chain, open_verifier
from underpaint.sim.certify.case import VerifierCase
from underpaint.sim.certify.certificate import certify
from underpaint.sim.certify.measure import measure
from underpaint.sim.certify.measurement import Effort
from underpaint.sim.certify.search import fixed_cases, repeated_cases
from underpaint.sim.certify.session_mistakes import RIGHT_SESSION, SESSION_MISTAKES, SESSIONS
from underpaint.sim.certify.sessions import SessionVerifier

CHAINS = fixed_cases("iid", True)
ONE = repeated_cases("iid", True, 2)[-1]


def cases_of(mistake):
    """Small cases: one drafted token of three, whose residual has two; two drafted tokens of two."""
    return [ONE, CHAINS[-1]] if mistake.cycles == 1 else repeated_cases("iid", True, mistake.cycles)[:1]


@pytest.mark.parametrize("mistake", SESSION_MISTAKES, ids=lambda mistake: mistake.name)
def test_every_mistake_of_drafter_and_verifier_is_caught_at_every_seed(mistake):
    verifier = SessionVerifier(mistake.session)
    cases = cases_of(mistake)
    for seed in range(10):
        effort = Effort(checks=64, seed=seed, cycles=mistake.cycles)
        assert any(measure(case, verifier, effort).kind == "biased" for case in cases), seed


@pytest.mark.parametrize("mistake", SESSION_MISTAKES, ids=lambda mistake: mistake.name)
def test_every_mistake_of_drafter_and_verifier_is_named(mistake):
    effort = Effort(checks=64, cycles=mistake.cycles)
    certificate = certify(SessionVerifier(mistake.session), "iid", True, 2, effort=effort, shrink_seconds=0)
    assert certificate.verdict == "biased"
    assert mistake.name in certificate.looks_like.names
    assert certificate.looks_like.same


def test_noise_shared_by_drafter_and_recovery_has_the_size_that_was_reported():
    # Drafted from (.6, .2, .2) for a target of (.2, .4, .4). A rejected token 0 had a uniform below .6; five in six of
    # those lie below .5 and recover token 1, whose share becomes .2 + .4 * 5 / 6.
    case = VerifierCase(3, (-1, 0), "iid", ((1, 2, 2),), ((3, 1, 1),))
    measurement = measure(case, SessionVerifier(SESSIONS["noise-shared-with-recovery"].session), Effort(checks=64))
    assert measurement.difference.found == pytest.approx((0.2, 0.2 + 0.4 * 5 / 6, 0.2 + 0.4 / 6), abs=1e-9)


def test_what_is_kept_between_cycles_shows_over_two_cycles_only():
    mistake = SESSIONS["noise-kept-between-cycles"]
    case = repeated_cases("iid", True, 2)[0]
    assert measure(case, SessionVerifier(mistake.session), Effort(checks=64)).kind == "lossless"
    assert measure(case, SessionVerifier(mistake.session), Effort(checks=64, cycles=2)).kind == "biased"


@pytest.mark.parametrize("cycles", [1, 2, 3])
def test_a_right_session_is_lossless(cycles):
    cases = CHAINS[-1:] if cycles == 1 else repeated_cases("iid", True, cycles)[:2]
    for case in cases:
        measurement = measure(case, SessionVerifier(RIGHT_SESSION), Effort(checks=64, cycles=cycles))
        assert measurement.kind == "lossless"
        assert measurement.how == "quantiles"
        assert measurement.total_variation < 1e-12


@pytest.mark.parametrize("cycles", [2, 3])
def test_a_rule_is_enumerated_over_cycles(cycles):
    for rule in ("multi_round", "block"):
        verifier = open_verifier(Spec(f"rule:{rule}"))
        for case in repeated_cases("iid", True, cycles):
            measurement = measure(case, verifier, Effort(cycles=cycles))
            assert measurement.how == "decisions"
            assert measurement.total_variation < 1e-12


@pytest.mark.parametrize(
    ("step", "kind"),
    [
        (lambda tokens, uniforms: [], "bad reply"),
        (lambda tokens, uniforms: [0, 0, 0, 0, 0], "bad reply"),
        (lambda tokens, uniforms: [9], "bad token"),
        (lambda tokens, uniforms: uniforms[99], "crash"),
    ],
)
def test_what_no_session_may_do_is_a_finding(step, kind):
    measurement = measure(CHAINS[-1], SessionVerifier(lambda models: step), Effort(checks=64))
    assert measurement.kind == "faulty"
    assert measurement.fault.kind == kind


def test_a_session_cannot_change_what_it_is_judged_by():
    def step(models):
        def cycle(tokens, uniforms):
            models.target(())[:] = [1.0, 0.0]
            uniforms[:] = np.nan
            return [int(uniforms[0] > models.target(tokens)[0])]

        return cycle

    assert measure(CHAINS[-1], SessionVerifier(step), Effort(checks=64)).kind == "biased"


@pytest.mark.parametrize("name", ["right-session", *SESSIONS])
def test_sessions_of_the_gallery_are_judged_on_sampled_chains(name):
    spec = Spec(f"gallery:{name}")
    assert (interface_of(spec), drawn_by(spec), needs_chain(spec)) == ("session", "iid", True)
