"""The precision of a verifier is found, or asked for; boundary findings and promises are judged for what they are."""

from types import SimpleNamespace

import numpy as np
import pytest

from underpaint.algos.accept import RULES
from underpaint.sim.certify.adapters import CallableVerifier, Spec, open_verifier, verifier_of
from underpaint.sim.certify.case import VerifierCase
from underpaint.sim.certify.certificate import certify, verdict_of
from underpaint.sim.certify.measure import EXACT, find_bits, measure
from underpaint.sim.certify.measurement import Effort
from underpaint.sim.certify.mistakes import BY_NAME, RIGHT
from underpaint.sim.certify.report import certificate_lines
from underpaint.sim.certify.search import fixed_cases, precision_case
from underpaint.sim.certify.session_mistakes import RIGHT_SESSION
from underpaint.sim.certify.sessions import SessionVerifier
from underpaint.sim.certify.subjects import round_draft, round_to_bits
from underpaint.sim.certify.token_wise import TokenWiseWalk

QUICK = Effort(checks=64)


def in_precision(bits):
    """The right walk, on what is left of its distributions at a lower precision."""
    return lambda draft, uniforms: RIGHT(round_draft(draft, bits), uniforms)


def by_float32(draft, uniforms):
    """It rounds its uniforms as well: one next to 1 becomes 1."""
    return RIGHT(round_draft(draft, 24), uniforms.astype(np.float32))


@pytest.mark.parametrize("drawn", ["iid", "top_k"])
@pytest.mark.parametrize("bits", [8, 11, 24, 53])
def test_the_precision_of_a_function_is_found(bits, drawn):
    verifier = CallableVerifier(in_precision(bits))
    assert find_bits(verifier, precision_case(drawn)) == bits
    certificate = certify(verifier, drawn, count=2, effort=QUICK, shrink_seconds=0)
    assert certificate.verdict == "lossless"
    assert certificate.bits == bits
    assert certificate.largest <= EXACT[bits]


def test_a_function_that_rounds_its_uniforms_is_one_of_float32():
    assert find_bits(CallableVerifier(by_float32), precision_case("top_k")) == 24


def float32_session(models):
    rounded = {
        name: lambda tokens, row=row: round_to_bits(row(tokens), 24)
        for name, row in (("target", models.target), ("draft", models.draft))
    }
    return RIGHT_SESSION(SimpleNamespace(length=models.length, vocab_size=models.vocab_size, **rounded))


def float32_rule(tree, probs, chance):
    return RULES["point"].make()(tree, round_to_bits(probs, 24), chance)


@pytest.mark.parametrize(
    ("verifier", "drawn"), [(SessionVerifier(float32_session), "iid"), (verifier_of(float32_rule, "rule"), "top_k")]
)
def test_a_session_and_a_rule_of_float32_are_found_and_lossless(verifier, drawn):
    assert find_bits(verifier, precision_case(drawn)) == 24
    assert measure(precision_case(drawn), verifier, Effort(checks=64, bits=53)).kind == "biased"
    assert measure(precision_case(drawn), verifier, Effort(checks=64, bits=24)).kind == "lossless"


@pytest.mark.parametrize("bits", EXACT)
def test_a_rule_is_lossless_at_every_precision(bits):
    case = fixed_cases("top_k", False)[0]
    assert measure(case, open_verifier(Spec("rule:point")), Effort(bits=bits)).kind == "lossless"


def test_a_precision_that_is_asked_for_is_kept():
    verifier = CallableVerifier(in_precision(24))
    assert measure(precision_case("top_k"), verifier, Effort(checks=64, bits=53)).kind == "biased"
    assert measure(precision_case("top_k"), verifier, Effort(checks=64, bits=24)).kind == "lossless"


def test_a_wrong_function_of_float32_is_still_biased():
    wrong = CallableVerifier(lambda draft, uniforms: BY_NAME["no-residual"].verify(round_draft(draft, 24), uniforms))
    certificate = certify(wrong, "top_k", count=2, effort=QUICK, shrink_seconds=0)
    assert (certificate.verdict, certificate.bits) == ("biased", 24)


def test_rounding_is_to_nearest_even():
    np.testing.assert_array_equal(round_to_bits(np.array([1.0, 1 / 3, 0.0]), 8), [1.0, 0.333984375, 0.0])
    assert round_to_bits(np.array([1 + 2.0**-8]), 8) == 1.0
    assert round_to_bits(np.array([1 + 3 * 2.0**-8]), 8) == 1 + 2.0**-6
    assert round_to_bits(np.array([1 / 3]), 11) == np.float16(1 / 3)


def test_a_boundary_is_no_bias_and_a_bias_behind_one_is_not_hidden():
    at_zero = BY_NAME["accept-at-zero"].verify
    certificate = certify(CallableVerifier(at_zero), "top_k", count=3, effort=QUICK, shrink_seconds=1)
    assert certificate.verdict == "lossless but for a boundary"
    assert [one.kind for one in certificate.findings] == ["boundary"]
    both = TokenWiseWalk(
        accept=lambda uniform, target, draft: uniform * draft <= target,
        bonus=lambda draft, node: draft.raw_probs[node],  # shows with a banned token only
    )
    certificate = certify(CallableVerifier(both), "top_k", count=4, effort=QUICK, shrink_seconds=3)
    assert certificate.verdict == "biased"
    assert [one.kind for one in certificate.findings] == ["biased", "boundary"]
    assert certificate.first.total_variation == certificate.largest > 0.05
    assert certificate.first.measured.total_variation >= 0.5 * certificate.largest  # the smallest case still shows it
    assert sum(one.count for one in certificate.findings) <= certificate.cases


def test_a_promise_is_judged_by_the_largest_case():
    def mixed(draft, uniforms):
        row = 0.9 * draft.target_probs[0]
        row[0] += 0.1
        return (), min(int(np.searchsorted(np.cumsum(row), uniforms[-1], side="right")), len(row) - 1)

    for promise, verdict in ((None, "biased"), (0.05, "biased"), (0.1, "within its bound")):
        certificate = certify(
            CallableVerifier(mixed), "top_k", count=3, effort=QUICK, shrink_seconds=0, promise=promise
        )  # fmt: skip
        assert certificate.verdict == verdict
        assert certificate.largest <= 0.1 + 1e-9


def seeded(row_of):
    """A verifier that draws one token from a row of its own."""

    def verify(draft, seed):
        uniform = np.random.default_rng(seed).random()
        return (), int(np.searchsorted(np.cumsum(row_of(draft.target_probs[0])), uniform, side="right"))

    return CallableVerifier(verify, "seeds")


@pytest.mark.parametrize(
    ("promise", "verdict"), [(0.1, "biased"), (0.15, "within its bound"), (0.3, "within its bound")]
)
def test_a_promise_by_samples_is_judged_by_all_tokens_together(promise, verdict):
    # Off by 0.08 at each of four tokens: a total variation of 0.16.
    verifier = seeded(lambda row: row + np.array([0.08, 0.08, -0.08, -0.08]))
    effort = Effort(margin=0.05)
    certificate = certify(verifier, "top_k", count=1, effort=effort, shrink_seconds=0, promise=promise)
    assert certificate.verdict == verdict
    assert certificate.first.measured.difference.lowest < 0.16 < certificate.at_most < 0.3
    warned = any(
        "warning: samples leave a total variation of up to" in line for line in certificate_lines(certificate, "")
    )
    assert warned == (promise == 0.15)  # at 0.3 the samples show that it is kept


def test_samples_of_an_impossible_token_break_the_promise_of_none():
    case = VerifierCase(2, (-1, 0), "top_k", ((0, 1),), ((0, 1),))
    measurement = measure(case, seeded(lambda row: np.array([0.015, 0.985])), Effort(margin=0.1))
    assert 0.0 < measurement.at_least < 0.015
    assert verdict_of([measurement], 0.0, 53) == "biased"


def test_one_sample_of_an_impossible_token_beside_a_certain_one_is_a_boundary():
    case = VerifierCase(2, (-1, 0), "top_k", ((0, 1),), ((0, 1),))
    calls = []

    def verify(draft, seed):
        calls.append(seed)
        return (), int(len(calls) != 7)

    assert measure(case, CallableVerifier(verify, "seeds"), Effort(margin=0.1)).kind == "boundary"


def test_a_smaller_case_breaks_the_promise_too():
    def mixed(draft, uniforms):
        row = draft.target_probs[0]
        share = 0.2 if len(row) > 2 else 0.12
        row = (1.0 - share) * row + share * np.eye(len(row))[0]
        return (), min(int(np.searchsorted(np.cumsum(row), uniforms[-1], side="right")), len(row) - 1)

    options = {"count": 2, "effort": QUICK, "shrink_seconds": 60, "promise": 0.15}
    certificate = certify(CallableVerifier(mixed), "top_k", **options)
    assert certificate.verdict == "biased"
    assert certificate.first.shrunk
    assert certificate.first.measured.at_least > 0.15
    assert certificate.first.case.vocab_size == 3


def test_a_smaller_case_raises_the_same_exception():
    def fails(draft, uniforms):
        if draft.target_probs.shape[1] == 2:
            raise KeyError(0)
        raise RuntimeError(f"out of memory at token {draft.tree.tokens[1]}")

    certificate = certify(CallableVerifier(fails), "top_k", count=1, effort=QUICK, shrink_seconds=60)
    assert certificate.first.shrunk
    assert certificate.first.measured.fault.detail.startswith("RuntimeError: out of memory at token")
    assert (len(certificate.first.case.parents), certificate.first.case.vocab_size) == (2, 3)


def test_every_case_is_judged_and_counted():
    case = VerifierCase(2, (-1, 0), "top_k", ((1, 1),), ((1, 0),))
    assert case in [case, *fixed_cases("top_k", False)]
    certificate = certify(
        CallableVerifier(BY_NAME["no-residual"].verify), "top_k", count=5, effort=QUICK, shrink_seconds=0
    )
    assert certificate.cases == 5
    assert 1 <= certificate.count("biased") <= 5
