"""What the certificate must find, and what it must pass: the gallery, and this project's own lossless rules."""

from pathlib import Path

import numpy as np
import pytest

from underpaint.algos.accept import RULES
from underpaint.algos.tree import DRAWN, Verdict
from underpaint.sim.certify.adapters import CallableVerifier, Spec, drawn_by, needs_chain, open_verifier
from underpaint.sim.certify.case import VerifierCase
from underpaint.sim.certify.certificate import certify, failing_node
from underpaint.sim.certify.measure import measure
from underpaint.sim.certify.measurement import Effort
from underpaint.sim.certify.mistakes import BY_NAME, MISTAKES, RIGHT
from underpaint.sim.certify.search import case_size, seeded_cases

QUICK = Effort(checks=256)
KERNELS = Path(__file__).parents[3] / "docs" / "examples" / "kernels.py"
LAYOUT_OF = {"tree": "sglang", "chain": "flashinfer", "flat": "vllm"}
WRONG_KERNELS = (
    *("tree_at_zero", "tree_mass_kept", "tree_rejected_drawn", "tree_wrong_slice"),
    *("chain_wrong_slice", "chain_no_residual", "flat_chain_capped", "flat_chain_from_target"),
)
RIGHT_KERNELS = ("tree_target_only", "chain_rejection", "flat_chain_rejection")


def kernel(name):
    return Spec(f"{KERNELS}:{name}", LAYOUT_OF[name.partition("_")[0]])


def judged(target, drawn=None, effort=QUICK, count=6, **options):
    spec = Spec(target) if isinstance(target, str) else target
    drawn = drawn or drawn_by(spec)
    return certify(open_verifier(spec), drawn, needs_chain(spec), count, effort=effort, shrink_seconds=0.5, **options)


def test_the_gallery_is_large_enough():
    assert len(MISTAKES) >= 12
    assert sum(mistake.report != "mutant" for mistake in MISTAKES) >= 6


@pytest.mark.parametrize(
    ("name", "drawn"), [(one.name, sorted(one.drawn)[turn % len(one.drawn)]) for turn, one in enumerate(MISTAKES)]
)
def test_every_mistake_is_caught_and_named(name, drawn):
    # One kind of trees each, in turn; docs/results/exactness.md has a record of all of them.
    certificate = judged(f"gallery:{name}", drawn)
    assert not certificate.lossless
    assert failing_node(certificate.first.measured) is not None
    assert certificate.looks_like is not None
    assert name in certificate.looks_like.names
    assert certificate.looks_like.same


@pytest.mark.parametrize("name", WRONG_KERNELS)
def test_every_wrong_kernel_is_caught(name):
    certificate = judged(kernel(name), count=2 if name.startswith("flat") else 6)
    assert not certificate.lossless
    assert failing_node(certificate.first.measured) is not None


@pytest.mark.parametrize(("name", "count"), [(name, 4 if name.startswith("flat") else 12) for name in RIGHT_KERNELS])
def test_every_right_kernel_passes(name, count):
    certificate = judged(kernel(name), count=count)
    assert certificate.lossless
    assert certificate.cases == count


@pytest.mark.parametrize("drawn", DRAWN)
def test_the_walk_with_nothing_exchanged_passes(drawn):
    certificate = judged("gallery:right", drawn, seed=1)
    assert certificate.lossless
    assert certificate.largest < 1e-12


@pytest.mark.parametrize(
    ("name", "drawn"),
    [
        (rule.name, drawn)
        for rule in RULES
        if rule.promise == "lossless" and not rule.greedy and not rule.codebook
        for drawn in sorted(rule.drawn)
    ],
)
def test_our_lossless_rules_pass(name, drawn):
    certificate = judged(f"rule:{name}", drawn, seed=2)
    assert certificate.lossless
    assert certificate.how == ("decisions",)


@pytest.mark.parametrize("drawn", DRAWN)
def test_quantiles_agree_with_recorded_decisions(drawn):
    rule = {"iid": "multi_round", "without_replacement": "without_replacement", "top_k": "point"}[drawn]
    exact = open_verifier(Spec(f"rule:{rule}"))
    for case in seeded_cases(drawn, False, 6, seed=3):
        ours = measure(case, CallableVerifier(RIGHT), QUICK)
        for one, other in zip(ours.decisions, measure(case, exact).decisions, strict=True):
            assert one.keys() == other.keys()
            np.testing.assert_allclose([one[key] for key in other], list(other.values()), rtol=0, atol=1e-12)


def test_the_smallest_case_is_small():
    pytest.importorskip("hypothesis")
    certificate = certify(CallableVerifier(BY_NAME["no-residual"].verify), "top_k", effort=QUICK, shrink_seconds=20)
    assert certificate.first.shrunk
    assert len(certificate.first.case.parents) == 2
    assert certificate.first.case.vocab_size == 2
    assert case_size(certificate.first.case) < case_size(seeded_cases("top_k", False, 24)[0])
    assert "no-residual" in certificate.looks_like.names


def test_a_right_verifier_of_diagonals_is_judged_by_samples():
    def turned(draft, uniforms):
        return RIGHT(draft, np.append(uniforms[:-1], (uniforms[-1] + uniforms[0]) % 1.0))

    certificate = certify(CallableVerifier(turned), "top_k", count=3, effort=Effort(checks=64, most=2000, margin=0.1))
    assert certificate.lossless
    assert "samples" in certificate.how


@pytest.mark.parametrize("margin", [0.05, 0.1])
def test_samples_find_what_is_off_by_the_margin(margin):
    def biased(draft, seed):
        random = np.random.default_rng(seed)
        token = int(random.random() < 0.5 + 1.2 * margin)
        return Verdict((), token)

    case = VerifierCase(2, (-1, 0), "top_k", ((1, 1),), ((1, 0),))
    effort = Effort(margin=margin)
    measurement = measure(case, CallableVerifier(biased, "seeds"), effort)
    assert measurement.failed
    assert 0.0 < measurement.difference.lowest <= measurement.difference.total_variation
    right = CallableVerifier(lambda draft, seed: Verdict((), int(np.random.default_rng(seed).random() < 0.5)), "seeds")
    assert not measure(case, right, effort).failed


def test_no_sample_of_a_certain_token_is_an_alarm():
    case = VerifierCase(2, (-1, 0), "top_k", ((1, 0),), ((0, 1),))
    measurement = measure(case, CallableVerifier(lambda draft, seed: Verdict((), 0), "seeds"), Effort(margin=0.2))
    assert not measurement.failed
    assert measure(case, CallableVerifier(lambda draft, seed: Verdict((1,), 0), "seeds"), Effort(margin=0.2)).failed
