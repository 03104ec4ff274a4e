"""The documented example of a rule of one's own: it joins every command and every test over the registries."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLE = "docs/examples/last_first.py"
RELAXED = "docs/examples/lenient.py"
ON_DEVICE = "docs/examples/first_only.py"
LOSSLESS = "tests/exact/test_lossless.py"
_FAILING = {"HYPOTHESIS_PROFILE": "no_shrink"}
"""For tests that have to fail: how small the case is matters to nobody."""


def run(*command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", *command], cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True
    )


def test_the_distribution_of_the_example_is_the_targets() -> None:
    done = run("underpaint.cli.app", "--plugin", EXAMPLE, "exact", "last_first", "--json", "-")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["total_variation"] < 1e-12


def test_the_property_tests_cover_the_example() -> None:
    command = ("pytest", "-q", "-p", "no:cacheprovider", LOSSLESS, "-k", "last_first")
    done = run(*command, UNDERPAINT_PLUGINS=EXAMPLE)
    assert done.returncode == 0, done.stdout
    assert " passed" in done.stdout


def test_a_wrong_rule_from_outside_is_caught(tmp_path: Path) -> None:
    text = (ROOT / EXAMPLE).read_text().replace("return try_points(", "return _kept_anyway(")
    text += (
        "\n\ndef _kept_anyway(tree, node, children, target, chance):\n    return SiblingOutcome(children[0], target)\n"
    )
    wrong = tmp_path / "wrong.py"
    wrong.write_text(text)
    done = run(
        *("pytest", "-qx", "-p", "no:cacheprovider", LOSSLESS, "-k", "last_first"),
        **_FAILING,
        UNDERPAINT_PLUGINS=str(wrong),
    )
    assert done.returncode == 1, done.stdout


def test_a_rule_from_outside_decides_and_draws_on_the_device_as_on_the_host() -> None:
    modules = [f"tests/runtime/device/test_{name}.py" for name in ("rules", "decoding")]
    done = run("pytest", "-q", "-p", "no:cacheprovider", *modules, "-k", "first_only", UNDERPAINT_PLUGINS=ON_DEVICE)
    assert done.returncode == 0, done.stdout
    assert "3 passed" in done.stdout


def test_the_page_on_policies_shows_a_device_form_that_grows_as_on_the_host(tmp_path: Path) -> None:
    page = (ROOT / "docs/how-to/add-a-policy.md").read_text()
    policy, form = (dedent(block) for block in re.findall(r"\n\n((?:    .*\n|\n)+)Save it as", page))
    form_file = tmp_path / "one_token_device.py"
    form_file.write_text(form)
    spec = 'source="this page", chain=True'
    assert spec in policy
    (tmp_path / "one_token.py").write_text(policy.replace(spec, f'{spec}, device="{form_file}:one_token_plan"'))
    command = ("pytest", "-q", "-p", "no:cacheprovider", "tests/runtime/device/test_growth.py", "-k", "one_token")
    done = run(*command, UNDERPAINT_PLUGINS=str(tmp_path / "one_token.py"))
    assert done.returncode == 0, done.stdout
    assert "1 passed" in done.stdout


def test_a_wrong_device_form_is_caught(tmp_path: Path) -> None:
    for name in ("first_only.py", "first_only_device.py"):
        text = (ROOT / ON_DEVICE).with_name(name).read_text()
        (tmp_path / name).write_text(text.replace("role = residual", "role = bonus"))
    command = ("pytest", "-qx", "-p", "no:cacheprovider", "tests/runtime/device/test_rules.py", "-k", "first_only")
    done = run(*command, **_FAILING, UNDERPAINT_PLUGINS=str(tmp_path / "first_only.py"))
    assert done.returncode == 1, done.stdout


@pytest.mark.parametrize("name", ["no/such/file.py", "no_such_module"])
def test_a_missing_plugin_is_bad_input(name: str) -> None:
    done = run("underpaint.cli.app", "--plugin", name, "methods")
    assert done.returncode == 2
    assert name.rpartition("/")[2] in done.stderr


def test_the_property_tests_cover_a_relaxed_rule_with_a_bound() -> None:
    modules = (LOSSLESS, "tests/exact/test_relaxed.py", "tests/exact/test_bias.py")
    done = run("pytest", "-q", "-p", "no:cacheprovider", *modules, "-k", "lenient", UNDERPAINT_PLUGINS=RELAXED)
    assert done.returncode == 0, done.stdout
    assert " passed" in done.stdout


@pytest.mark.parametrize(
    ("old", "new", "fails"),
    [
        ('1.0 - 1.0 / settings["factor"]', '1.0 - settings["factor"] ** -0.5', "test_the_promised_bound"),
        ('settings["factor"] <= 1.0', 'settings["factor"] <= 2.0', "test_what_the_spec_calls_lossless_is"),
        ('settings["factor"] <= 1.0', 'settings["factor"] < 1.0', "test_what_the_spec_does_not_call_lossless_is_not"),
        ("np.minimum(draft, self.factor * target)", "target * 0.0", "test_the_promised_bound"),
    ],
)
def test_a_wrong_promise_of_a_relaxed_rule_is_caught(tmp_path: Path, old: str, new: str, fails: str) -> None:
    text = (ROOT / RELAXED).read_text()
    assert old in text
    wrong = tmp_path / "lenient.py"
    wrong.write_text(text.replace(old, new))
    command = ("pytest", "-qx", "-p", "no:cacheprovider", "tests/exact/test_relaxed.py", "-k", f"lenient and {fails}")
    done = run(*command, **_FAILING, UNDERPAINT_PLUGINS=str(wrong))
    assert done.returncode == 1, done.stdout
    assert f"FAILED tests/exact/test_relaxed.py::{fails}" in done.stdout


def test_two_plugins_of_one_file_name_are_both_there(tmp_path: Path) -> None:
    for folder in ("one", "other"):
        (tmp_path / folder).mkdir()
        text = (ROOT / EXAMPLE).read_text().replace('"last_first"', f'"{folder}"')
        (tmp_path / folder / "rule.py").write_text(text)
    names = ",".join(str(tmp_path / folder / "rule.py") for folder in ("one", "other"))
    done = run("underpaint.cli.app", "methods", "--json", "-", UNDERPAINT_PLUGINS=names)
    assert done.returncode == 0, done.stderr
    assert {"one", "other"} <= {rule["name"] for rule in json.loads(done.stdout)["rules"]}


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
def test_an_error_in_a_plugin_names_it_and_the_line(tmp_path: Path, text: str, says: str) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text(text)
    done = run("underpaint.cli.app", "--plugin", str(broken), "methods")
    assert done.returncode == 2
    assert f"plug-in {broken}: {says}" in done.stderr
    assert f"{broken}, line 3)" in done.stderr
    assert "Traceback" not in done.stderr


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
