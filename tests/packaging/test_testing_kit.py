"""`underpaint.testing`: the example project from the wheel in an empty folder, and what the assertions refuse."""

import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import Wheels
from tests.packaging.test_public_api import ROOT, run, site, unpack  # noqa: F401  (a fixture)
from underpaint import testing
from underpaint.algos.accept import RULES
from underpaint.algos.chance import At, Chance, Role
from underpaint.algos.tree import DraftTree, Verdict
from underpaint.sim.certify.case import DraftRequest
from underpaint.sim.certify.mistakes import BY_NAME, RIGHT
from underpaint.testing import assert_bounded, assert_lossless, assert_same_tokens

EXAMPLE = ROOT / "docs" / "examples" / "my_rule"
TRIED = "        weights[token] = 0.0\n"


def test_the_example_project_runs_from_the_wheel_in_an_empty_folder(
    wheels: Wheels,
    site: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    unpack(wheels.core, site)
    work = tmp_path / "project"
    shutil.copytree(EXAMPLE, work)
    assert sum(len(path.read_text().splitlines()) for path in work.iterdir()) <= 35
    command = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "--underpaint-profile", "ci"]
    done = run(site, work, *command, PYTHONDONTWRITEBYTECODE="1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout
    rule = work / "my_rule.py"
    assert TRIED in rule.read_text()
    rule.write_text(rule.read_text().replace(TRIED, ""))
    done = run(site, work, *command, PYTHONDONTWRITEBYTECODE="1")
    assert done.returncode == 1
    assert "keep_one: BIASED on 'top_k' trees" in done.stdout
    assert "the next token should have" in done.stdout


def greedy(tree: DraftTree, probs: np.ndarray, chance: Chance) -> Verdict:
    return Verdict((), int(np.argmax(probs[0])))


def mixed(tree: DraftTree, probs: np.ndarray, chance: Chance) -> Verdict:
    """Off by a tenth at most."""
    row = 0.9 * probs[0]
    row[tree.tokens[1]] += 0.1
    return Verdict((), chance.draw(row, At(Role.BONUS, 0)))


def at_zero(draft: DraftRequest, uniforms: np.ndarray) -> Verdict:
    return BY_NAME["accept-at-zero"].verify(draft, uniforms)


def test_the_assertions_judge_as_the_certificate_does() -> None:
    assert assert_lossless(RULES["point"].make(), drawn="top_k").largest < 1e-12
    assert_lossless(RULES["block"].make(), drawn="iid", chain=True, cycles=2, cases=3)
    with pytest.raises(AssertionError, match=r"greedy: BIASED on 'top_k' trees(.|\n)*the next token should have"):
        assert_lossless(greedy, cases=4)
    assert 0.0 < assert_bounded(mixed, tv=0.1, cases=4).largest <= 0.1 + 1e-9
    with pytest.raises(AssertionError, match=r"BIASED \(promised: total variation 0.05\)"):
        assert_bounded(mixed, tv=0.05, cases=4)


def test_a_boundary_passes_unless_it_is_strict() -> None:
    certificate = assert_lossless(at_zero, drawn="top_k", interface="function", cases=3)
    assert certificate.verdict == "lossless but for a boundary"
    with pytest.raises(AssertionError, match="boundary finding"):
        assert_lossless(at_zero, drawn="top_k", interface="function", cases=3, strict=True)


def test_a_layout_is_judged_on_its_own_trees_alone() -> None:
    def kernel(**arrays: np.ndarray) -> np.ndarray:
        raise AssertionError("it is not called")

    with pytest.raises(ValueError, match=r"'flashinfer' is judged on iid trees, got 'top_k'; pass drawn='iid'"):
        assert_lossless(kernel, interface="flashinfer")
    with pytest.raises(ValueError, match="'sglang' is judged on top_k or without_replacement trees, got 'iid'"):
        assert_bounded(kernel, tv=0.1, drawn="iid", interface="sglang")


def test_two_forms_are_held_together_by_their_tokens() -> None:
    assert_same_tokens(RULES["multi_round"].make(), RULES["multi_round"].make(), drawn="iid", cases=4)
    with pytest.raises(AssertionError, match="greedy and mixed differ on the tree of tokens"):
        assert_same_tokens(greedy, mixed, cases=4)
    with pytest.raises(AssertionError, match=r"differ on the tree of tokens .* noise \[.*0\.0"):
        assert_same_tokens(RIGHT, at_zero, interface="function", cases=4)
    with pytest.raises(ValueError, match="one that takes uniforms"):
        assert_same_tokens(RIGHT, RIGHT, interface="session")


def test_the_strategies_are_documented_and_an_unknown_name_is_refused() -> None:
    page = (ROOT / "docs" / "how-to" / "test-your-own-rule.md").read_text(encoding="utf-8")
    for name in re.findall(r"`(\w+)\(", page):
        assert name == "verify" or name == "rule" or callable(getattr(testing, name))
    assert all(getattr(testing, name) is not None for name in testing.__all__)
    with pytest.raises(AttributeError, match="no attribute 'trees'"):
        testing.trees  # noqa: B018
    with pytest.raises(ValueError, match="expected one of ci, nightly"):
        testing.use_profile("weekly")
