"""The documented example of a rule of one's own: it joins every command and every test over the registries."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLE = "docs/examples/last_first.py"


def run(*command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", *command], cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True
    )


def test_the_distribution_of_the_example_is_the_targets() -> None:
    done = run("underpaint.cli.app", "--plugin", EXAMPLE, "distribution", "last_first", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["total_variation"] < 1e-12


def test_the_property_tests_cover_the_example() -> None:
    done = run("pytest", "-q", "-p", "no:cacheprovider", "tests/exact", "-k", "last_first", UNDERPAINT_PLUGINS=EXAMPLE)
    assert done.returncode == 0, done.stdout
    assert " passed" in done.stdout


def test_a_wrong_rule_from_outside_is_caught(tmp_path: Path) -> None:
    text = (ROOT / EXAMPLE).read_text().replace("return try_points(", "return _kept_anyway(")
    text += "\n\ndef _kept_anyway(tree, node, children, target, chance):\n    return Tried(children[0], target)\n"
    wrong = tmp_path / "wrong.py"
    wrong.write_text(text)
    done = run(
        "pytest", "-q", "-p", "no:cacheprovider", "tests/exact", "-k", "last_first", UNDERPAINT_PLUGINS=str(wrong)
    )
    assert done.returncode == 1, done.stdout


@pytest.mark.parametrize("name", ["no/such/file.py", "no_such_module"])
def test_a_missing_plugin_is_bad_input(name: str) -> None:
    done = run("underpaint.cli.app", "--plugin", name, "methods")
    assert done.returncode == 2
    assert name.rpartition("/")[2] in done.stderr
