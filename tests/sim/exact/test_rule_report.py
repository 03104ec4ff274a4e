"""The distribution report: every rule on a synthetic model, held to what its promise and the transport bound allow."""

import json
from dataclasses import replace

import pytest

from underpaint.algos.accept import RULES, RuleSpec
from underpaint.sim.exact import rule_report
from underpaint.sim.exact.promise import keeps_promise
from underpaint.sim.exact.rule_report import MODELS, exact_report


@pytest.mark.parametrize("spec", RULES, ids=lambda spec: spec.name)
def test_every_rule_is_reported(spec: RuleSpec) -> None:
    report = exact_report(spec.name, "peaked", max_nodes=3)
    assert json.loads(json.dumps(report._asdict()))["rule"] == spec.name
    assert report.promise == spec.promise
    if spec.promise == "lossless":
        assert report.total_variation <= 1e-12
        assert report.total_variation_cycle <= 1e-12
    # An output distribution that is off by t can be inside the proposals at most t more often than the target's own.
    assert report.acceptance <= report.transport_bound + report.total_variation_cycle + 1e-12
    assert 0.0 <= report.acceptance <= report.accepted_tokens + 1e-12
    assert report.transport_gap == report.transport_bound - report.acceptance
    assert 2.0 <= report.passes <= 4.0


@pytest.mark.parametrize("spec", [spec for spec in RULES if spec.residuals], ids=lambda spec: spec.name)
def test_all_residuals_stand_side_by_side(spec: RuleSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    report = exact_report(spec.name, "peaked", max_nodes=3)
    assert set(report.residuals) == {name for name, kinds in spec.residuals.items() if report.drawn in kinds}
    # Without residuals, a report measures only the one that it is asked for.
    monkeypatch.setattr(rule_report, "RULES", {spec.name: replace(spec, residuals={})})
    for name, one in report.residuals.items():
        alone = exact_report(spec.name, "peaked", settings={"residual": name}, max_nodes=3)
        assert (one.total_variation, one.passes) == (alone.total_variation, alone.passes)


def test_the_models_are_what_their_names_say() -> None:
    reached = {model.name: exact_report("chain", model.name).acceptance for model in MODELS}
    assert reached["near"] > reached["flat"] > reached["far"]
    assert reached["near"] > reached["peaked"]


def test_judging_whole_paths_saves_passes() -> None:
    token_wise, block = exact_report("chain", "far"), exact_report("block", "far")
    assert block.accepted_tokens > token_wise.accepted_tokens + 0.01
    assert block.passes < token_wise.passes
    assert token_wise.transport_gap == pytest.approx(0.0, abs=1e-12)


def test_a_relaxed_rule_pays_for_what_it_gains() -> None:
    neutral = exact_report("lantern_pp", "flat", settings={"factor": 1.0})
    relaxed = exact_report("lantern_pp", "flat", settings={"factor": 4.0})
    assert neutral.total_variation <= 1e-12
    assert relaxed.total_variation > 0.01
    assert relaxed.acceptance > neutral.acceptance
    assert relaxed.transport_gap < 0.0


def test_siblings_without_replacement_leave_a_gap() -> None:
    report = exact_report("without_replacement", policy="eagle1", policy_settings={"widths": (2,)}, max_nodes=3)
    assert report.drawn == "without_replacement"
    assert report.transport_gap > 1e-3


def test_what_does_not_fit_is_named() -> None:
    with pytest.raises(ValueError, match="rule: there is no 'chian'; did you mean 'chain'"):
        exact_report("chian")
    with pytest.raises(ValueError, match="model: there is no 'flatt'; did you mean 'flat'"):
        exact_report("chain", "flatt")
    with pytest.raises(ValueError, match="policy: there is no 'eagle'; did you mean"):
        exact_report("point", policy="eagle")
    with pytest.raises(ValueError, match="rule 'chain' covers iid trees, not 'top_k' ones"):
        exact_report("chain", policy="eagle2")
    with pytest.raises(ValueError, match="unknown setting 'delta'"):
        exact_report("chain", settings={"delta": 1})
    with pytest.raises(ValueError, match="max_nodes must be at least 2"):
        exact_report("chain", max_nodes=1)


@pytest.mark.parametrize("model", ["flat", "peaked", "near", "far"])
@pytest.mark.parametrize("rule", [spec.name for spec in RULES if spec.promise == "bounded" and not spec.greedy])
def test_bounded_rules_keep_what_they_promise(rule: str, model: str) -> None:
    report = exact_report(rule, model)
    assert report.beyond_bound is not None
    assert report.beyond_bound <= 1e-9
    assert keeps_promise(report) is True


def test_a_bound_that_is_not_kept_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = RULES["lantern"]
    generous = {"delta": 0.9}
    assert keeps_promise(exact_report("lantern", "far", settings=generous)) is True
    narrow = replace(spec, bound_at=lambda settings, node: 0.01)
    monkeypatch.setattr(rule_report, "RULES", {"lantern": narrow})
    report = exact_report("lantern", "far", settings=generous)
    assert report.beyond_bound is not None
    assert report.beyond_bound > 0.05
    assert keeps_promise(report) is False
