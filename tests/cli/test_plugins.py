"""The documented example of a rule of one's own: it joins every command and every test over the registries."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from textwrap import dedent

import pytest

from tests.cli.program import run_program

ROOT = Path(__file__).parents[2]
EXAMPLE = "docs/examples/last_first.py"
RELAXED = "docs/examples/lenient.py"
ON_DEVICE = "docs/examples/first_only.py"
MODULES = (
    *(f"tests/exact/test_{name}.py" for name in ("lossless", "relaxed", "bias")),
    *(f"tests/runtime/device/test_{name}.py" for name in ("rules", "decoding", "growth")),
)
WRONG_PROMISES = (
    ('1.0 - 1.0 / settings["factor"]', '1.0 - settings["factor"] ** -0.5', "test_the_promised_bound"),
    ('settings["factor"] <= 1.0', 'settings["factor"] <= 2.0', "test_what_the_spec_calls_lossless_is"),
    ('settings["factor"] <= 1.0', 'settings["factor"] < 1.0', "test_what_the_spec_does_not_call_lossless_is_not"),
    ("np.minimum(draft, self.factor * target)", "target * 0.0", "test_the_promised_bound"),
)


def run(*command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", *command], cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True
    )


def outcomes_with(plugins: Iterable[str | Path], only: str, code: int, **environment: str) -> list[tuple[str, str]]:
    """Run the tests that `only` selects with plug-ins, and return each one's outcome and id. code: of pytest."""
    command = ("pytest", "-q", "--tb=no", "-rpfE", "-p", "no:cacheprovider", *MODULES, "-k", only)
    done = run(*command, **environment, UNDERPAINT_PLUGINS=",".join(map(str, plugins)))
    assert done.returncode == code, done.stdout + done.stderr
    return re.findall(r"^(PASSED|FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)


def test_the_distribution_of_the_example_is_the_targets() -> None:
    done = run("underpaint.cli.app", "--plugin", EXAMPLE, "exact", "last_first", "--json", "-")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["total_variation"] < 1e-12


def right_plugins(folder: Path) -> tuple[list[str | Path], str]:
    """Plug-ins and the expression that selects their tests. The policy and its device form are those that the page on
    policies shows."""
    page = (ROOT / "docs/how-to/add-a-policy.md").read_text()
    policy, form = (dedent(block) for block in re.findall(r"\n\n((?:    .*\n|\n)+)Save it as", page))
    form_file = folder / "one_token_device.py"
    form_file.write_text(form)
    spec = 'source="this page", chain=True'
    assert spec in policy
    (folder / "one_token.py").write_text(policy.replace(spec, f'{spec}, device="{form_file}:one_token_plan"'))
    renamed = folder / "lenient_right.py"  # a wrong rule below fails for what it does, and not for its new name
    renamed.write_text((ROOT / RELAXED).read_text().replace('"lenient"', '"lenient_right"'))
    only = (
        "test_lossless and last_first or (test_lossless or test_relaxed or test_bias) and lenient and not lenient_ "
        "or (test_rules or test_decoding) and first_only or test_growth and one_token "
        "or test_relaxed and lenient_right"
    )
    return [EXAMPLE, RELAXED, ON_DEVICE, folder / "one_token.py", renamed], only


def wrong_plugins(folder: Path) -> tuple[list[str | Path], list[tuple[str, str, str]]]:
    """Plug-ins, and for each its rule's name, the module that catches it and how the test's name begins."""
    text = (ROOT / EXAMPLE).read_text().replace("return try_points(", "return _kept_anyway(")
    assert "_kept_anyway" in text
    text += (
        "\n\ndef _kept_anyway(tree, node, children, target, chance):\n    return SiblingOutcome(children[0], target)\n"
    )
    plugins: list[str | Path] = [folder / name for name in ("kept_anyway.py", "extra_by_bonus.py")]
    (folder / "kept_anyway.py").write_text(text.replace('"last_first"', '"kept_anyway"'))
    (folder / "extra_by_bonus.py").write_text(
        (ROOT / ON_DEVICE).read_text().replace('"first_only"', '"extra_by_bonus"')
    )
    text = (ROOT / ON_DEVICE).with_name("first_only_device.py").read_text()
    assert "role = residual" in text
    (folder / "first_only_device.py").write_text(text.replace("role = residual", "role = bonus"))
    caught = [("kept_anyway", "test_lossless", "test_"), ("extra_by_bonus", "test_rules", "test_")]
    for place, (old, new, fails) in enumerate(WRONG_PROMISES):
        text = (ROOT / RELAXED).read_text()
        assert old in text
        plugins.append(folder / f"lenient_{place}.py")
        (folder / f"lenient_{place}.py").write_text(text.replace(old, new).replace('"lenient"', f'"lenient_{place}"'))
        caught.append((f"lenient_{place}", "test_relaxed", fails))
    return plugins, caught


def test_the_tests_over_the_registries_cover_plug_ins_and_catch_wrong_ones(tmp_path: Path) -> None:
    """All in one run: no right one fails for the wrong ones beside it."""
    right, only = right_plugins(tmp_path)
    wrong, caught = wrong_plugins(tmp_path)
    only = " or ".join([only, *(" and ".join(one) for one in caught)])
    outcomes = outcomes_with([*right, *wrong], only, 1, HYPOTHESIS_PROFILE="no_shrink")  # no smallest case is needed
    assert {outcome for outcome, _ in outcomes} == {"PASSED", "FAILED"}, outcomes
    of_right = [(outcome, test) for outcome, test in outcomes if not any(name in test for name, _, _ in caught)]
    assert {outcome for outcome, _ in of_right} == {"PASSED"}, outcomes
    ids = [test for _, test in of_right]
    for name in ("last_first", "lenient-", "lenient_right"):
        assert any(name in test and "exact" in test for test in ids), name
    assert len([test for test in ids if "first_only" in test and "device" in test]) == 3
    assert len([test for test in ids if "one_token" in test and "device" in test]) == 1
    for name, module, test in caught:
        failed = [one for outcome, one in outcomes if outcome == "FAILED" and name in one]
        assert any(f"{module}.py::{test}" in one for one in failed), (name, outcomes)


@pytest.mark.parametrize("name", ["no/such/file.py", "no_such_module"])
def test_a_missing_plugin_is_bad_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    done = run_program(f"--plugin {name} methods", tmp_path, monkeypatch)
    assert (done.code, done.crash) == (2, "")
    assert name.rpartition("/")[2] in done.err


def test_two_plugins_of_one_file_name_are_both_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("one", "other"):
        (tmp_path / folder).mkdir()
        text = (ROOT / EXAMPLE).read_text().replace('"last_first"', f'"{folder}"')
        (tmp_path / folder / "rule.py").write_text(text)
    names = ",".join(str(tmp_path / folder / "rule.py") for folder in ("one", "other"))
    monkeypatch.setenv("UNDERPAINT_PLUGINS", names)
    done = run_program("methods --json -", tmp_path, monkeypatch)
    assert (done.code, done.crash) == (0, ""), done.err
    assert {"one", "other"} <= {rule["name"] for rule in json.loads(done.out)["rules"]}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("\n\nnot_there\n", "NameError: name 'not_there' is not defined"),
        ("\n\nimport no_such_package\n", "ModuleNotFoundError: No module named 'no_such_package'"),
        ("\n\ndef (:\n", "SyntaxError"),
        (
            "from underpaint.algos.accept import RULES\nspec = RULES['point']\nRULES.register(spec)\n",
            "ValueError: rule: 'point' is registered already",
        ),
    ],
)
def test_an_error_in_a_plugin_names_it_and_the_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, says: str
) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text(text)
    done = run_program(f"--plugin {broken} methods", tmp_path, monkeypatch)
    assert (done.code, done.crash) == (2, "")
    assert f"plug-in {broken}: {says}" in done.err
    assert f"{broken}, line 3)" in done.err
    assert "Traceback" not in done.err


def installed(folder: Path, text: str, points: str) -> str:
    """A package that holds the module `house_rule` and these entry points; what PYTHONPATH has to name."""
    (folder / "house_rule.py").write_text(text)
    about = folder / "house_rule-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: house-rule\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(points)
    return f"{folder}{os.pathsep}{ROOT}"


@pytest.mark.parametrize("value", ["house_rule", "house_rule:SPEC"])
def test_an_installed_package_adds_a_rule_by_an_entry_point(tmp_path: Path, value: str) -> None:
    points = f"[underpaint.rules]\nlenient = {value}\n"
    path = installed(tmp_path, (ROOT / RELAXED).read_text(), points)
    done = run("underpaint.cli.app", "exact", "lenient", "--json", "-", PYTHONPATH=path)
    assert done.returncode == 0, done.stderr
    listed = run("underpaint.cli.app", "methods", "--json", "-", PYTHONPATH=path)
    assert "lenient" in {rule["name"] for rule in json.loads(listed.stdout)["rules"]}


def test_an_installed_package_adds_a_method_by_an_entry_point(tmp_path: Path) -> None:
    text = (
        "import dataclasses\n"
        "from underpaint.runtime.methods.registry import METHODS\n"
        "SPEC = dataclasses.replace(METHODS['eagle2'], name='of_the_house')\n"
    )
    path = installed(tmp_path, text, "[underpaint.methods]\nof_the_house = house_rule:SPEC\n")
    listed = run("underpaint.cli.app", "methods", "--json", "-", PYTHONPATH=path)
    assert listed.returncode == 0, listed.stderr
    assert "of_the_house" in {method["name"] for method in json.loads(listed.stdout)["methods"]}


@pytest.mark.parametrize(
    ("text", "value", "says"),
    [
        ("SPEC = 3\n", "house_rule:SPEC", "expected a module or a RuleSpec, got 3"),
        ("SPEC = 1 / 0\n", "house_rule", "ZeroDivisionError: division by zero"),
    ],
)
def test_an_entry_point_that_fails_names_its_package(tmp_path: Path, text: str, value: str, says: str) -> None:
    path = installed(tmp_path, text, f"[underpaint.rules]\nlenient = {value}\n")
    done = run("underpaint.cli.app", "methods", PYTHONPATH=path)
    assert done.returncode == 2
    assert says in done.stderr
    assert "of package house-rule (entry point 'lenient' of underpaint.rules)" in done.stderr
    assert "Traceback" not in done.stderr
