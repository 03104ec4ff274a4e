"""docs/reference/methods.md says what the registries say."""

from pathlib import Path

import pytest

from underpaint.algos.accept import RULES, RuleSpec
from underpaint.algos.draft import POLICIES, PolicySpec
from underpaint.runtime.methods.registry import METHODS, MethodSpec

TEXT = (Path(__file__).parents[2] / "docs" / "reference" / "methods.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("spec", RULES, ids=lambda spec: spec.name)
def test_every_rule_has_its_row(spec: RuleSpec) -> None:
    trees = ", ".join(sorted(spec.drawn)) + ("; chains only" if spec.needs_chain else "")
    assert f"| `{spec.name}` | {spec.promise} | {trees} | {spec.source} |" in TEXT


@pytest.mark.parametrize("spec", POLICIES, ids=lambda spec: spec.name)
def test_every_policy_has_its_row(spec: PolicySpec) -> None:
    assert f"| `{spec.name}` | {spec.drawn} | {spec.source} | {spec.deviations or 'none'} |" in TEXT


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_every_method_has_its_row(method: MethodSpec) -> None:
    by = f"{method.tuned.sampled.draws_by} | {method.tuned.greedy.draws_by}"
    assert f"| `{method.name}` | {method.tuned.sampled.family} | {by} | {method.summary} |" in TEXT


def test_every_relaxed_rule_is_explained() -> None:
    section = TEXT.split("## The relaxed rules, one by one")[1]
    for spec in RULES:
        if spec.promise != "lossless":
            assert f"`{spec.name}`" in section


def test_no_row_is_left_over() -> None:
    named = {line.split("`")[1] for line in TEXT.splitlines() if line.startswith("| `") and line.count("|") == 5}
    assert named - {"paper", "standard", "released"} == {spec.name for spec in [*RULES, *POLICIES]}
    methods = {line.split("`")[1] for line in TEXT.splitlines() if line.startswith("| `") and line.count("|") == 6}
    assert methods == {method.name for method in METHODS}
