"""Every command of the documents that no tag excuses is run as written, on the wheel, outside the checkout.

A page is run from top to bottom in a folder of its own, as a reader would. What a reader has to bring lies there. A
page's first commands are left out where an earlier page has them. The README's commands, except its comparison, run on
the shipped models, and so do those of check-invariance.md, which fail on unsound models. All other commands run on
models with a small target and drafter, with which they do the same.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.conftest import Wheels
from tests.made_once import made_once
from tests.packaging.documents import ROOT, Command, documented_commands

SECONDS = 3600
PARTI = (
    "Prompt\tCategory\na woolly fox left of an outlined pumpkin\tAnimals\n"
    "an oil painting of a robot\tArts\na stone drum above a glossy whale\tArtifacts\n"
)
POLICY_PAGE = ROOT / "docs" / "how-to" / "add-a-policy.md"


def saved_policy() -> str:
    """The code that the page on policies asks to save."""
    (block,) = re.findall(r"\n\n((?:    .*\n|\n)+)Save it as `one_token.py`", POLICY_PAGE.read_text(encoding="utf-8"))
    return re.sub(r"^    ", "", block, flags=re.MULTILINE)


BROUGHT: Mapping[str, Mapping[str, str]] = {
    "docs/how-to/draw-a-file-of-prompts.md": {"PartiPrompts.tsv": PARTI},
    "docs/how-to/add-a-policy.md": {"one_token.py": saved_policy()},
}
"""Files that a page takes as given, beside the examples and the recorded results."""
ON_SHIPPED = ("README.md", "docs/how-to/check-invariance.md")


def commands_to_run() -> dict[str, list[Command]]:
    """By page, the commands that no tag excuses, without the first ones of a page that an earlier page has too."""
    by_page: dict[str, list[Command]] = {}
    first_page: dict[tuple[str, int], str] = {}
    for one in documented_commands():
        if one.why_not_run is not None:
            continue
        command = re.sub(r"\s+#[^\"']*$", "", one.line), one.exit_code
        if first_page.setdefault(command, one.page) == one.page or one.page in by_page:
            by_page.setdefault(one.page, []).append(one)
    return by_page


RUN = commands_to_run()


def environment(site: Path, home: Path) -> dict[str, str]:
    """The variables of a shell that finds the packages and programs of `site`."""
    paths = os.pathsep.join((str(site / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]))
    return {**os.environ, "PATH": paths, "PYTHONPATH": str(site), "HOME": str(home), "COLUMNS": "120"}


@pytest.fixture(scope="module")
def installed(wheels: Wheels, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheels, unpacked once for all workers."""

    def install(site: Path) -> None:
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", site, *wheels]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr

    return made_once(tmp_path_factory.getbasetemp(), "installed_wheel", install)


@pytest.fixture(scope="module")
def with_small_models(installed: Path, small_models: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The unpacked wheels, had they shipped a small target and drafter."""

    def place(site: Path) -> None:
        shutil.copytree(installed, site, dirs_exist_ok=True)
        shutil.copytree(small_models, site / "underpaint_zoo" / "models", dirs_exist_ok=True)

    return made_once(tmp_path_factory.getbasetemp(), "wheel_of_small_models", place)


def test_the_commands_are_those_of_the_wheel(installed: Path, with_small_models: Path, tmp_path: Path) -> None:
    for site in (installed, with_small_models):
        where = ["python", "-c", "import underpaint; print(underpaint.__file__)"]
        env = environment(site, tmp_path)
        process = subprocess.run(where, cwd=tmp_path, env=env, capture_output=True, text=True, check=True)
        assert process.stdout.startswith(str(site))


@pytest.mark.slow
@pytest.mark.usefixtures("cost_curves")
@pytest.mark.parametrize("page", RUN)
def test_the_commands_of_a_page_run(page: str, installed: Path, with_small_models: Path, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "docs" / "examples", tmp_path / "docs" / "examples")
    shutil.copytree(ROOT / "benchmarks" / "results" / "device", tmp_path / "benchmarks" / "results" / "device")
    for name, text in BROUGHT.get(page, {}).items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    for one in RUN[page]:
        on_shipped = page in ON_SHIPPED and not one.line.startswith("underpaint compare ")
        env = environment(installed if on_shipped else with_small_models, tmp_path)
        done = subprocess.run(
            ["bash", "-c", one.line], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=SECONDS
        )
        assert done.returncode == one.exit_code, f"{one.line}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
        assert "Traceback" not in done.stderr
