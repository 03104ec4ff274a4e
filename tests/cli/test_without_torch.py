"""The command line of an installation that draws and compares, but does not train or export."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.cli.program import subcommands
from underpaint.cli.app import app

START = "import sys; sys.modules['torch'] = None; from underpaint.cli.app import main; main()"
ALL = [[], *(name.split() for name in subcommands(groups=True))]


@pytest.mark.parametrize(
    "arguments",
    [
        ["train", "judge"],
        ["export"],
        ["export", "model.pt", "--kind", "vq", "--out", "folder"],
        ["check", "folder"],
        ["engine", "."],
        ["compare", "--backend", "device", "--out", "folder"],
    ],
    ids=" ".join,
)
def test_what_needs_pytorch_says_so(tmp_path: Path, arguments: list[str]) -> None:
    root = str(Path(__file__).parents[2])
    command = [sys.executable, "-c", START, *arguments]
    done = subprocess.run(command, cwd=tmp_path, env={"PYTHONPATH": root}, capture_output=True, text=True)
    assert done.returncode == 2, done.stderr
    assert "needs torch; install it with" in done.stderr
    assert "cpu" not in done.stderr.rpartition("[")[2], "it may be ONNX Runtime's wheel for the GPU that is installed"
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def without_torch(code: str, tmp_path: Path, **more: str) -> subprocess.CompletedProcess[str]:
    """Run Python where PyTorch cannot be imported."""
    program = f"import sys; sys.modules['torch'] = None; {code}"
    env = {"PYTHONPATH": str(Path(__file__).parents[2]), "COLUMNS": "200", **more}
    return subprocess.run([sys.executable, "-c", program], cwd=tmp_path, env=env, capture_output=True, text=True)


def test_every_help_is_whole_without_pytorch(tmp_path: Path) -> None:
    """The help of every command, of `train` and of `export` with them, is what it is where PyTorch is."""
    expected = {" ".join(command): helped(command) for command in ALL}
    code = (
        "import json; from typer.testing import CliRunner; from underpaint.cli.app import app; "
        f"print(json.dumps([CliRunner().invoke(app, [*words, '--help']).output for words in {ALL!r}]))"
    )
    done = without_torch(code, tmp_path)
    assert done.returncode == 0, done.stderr
    assert dict(zip(expected, json.loads(done.stdout), strict=True)) == expected
    for command, option in (("train sampler", "--direction"), ("export", "--target")):
        assert "PyTorch is installed" not in expected[command]
        assert option in expected[command]
    assert "--first-code" in expected["export"]
    assert "superres_64_256" in expected["export"]
    assert len([name for name in expected if name.startswith("train ")]) == 6


def helped(command: list[str]) -> str:
    done = CliRunner().invoke(app, [*command, "--help"], env={"COLUMNS": "200"})
    assert done.exit_code == 0
    return done.output


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("underpaint train sam", ["sampler"]),
        ("underpaint train sampler --los", ["--losses"]),
        ("underpaint train sampler --losses p", ["pixel"]),
        ("underpaint export --prec", ["--precision"]),
        ("underpaint export superres_64", ["superres_64_256"]),
        ("underpaint check --inv", ["--invariance"]),
        ("underpaint engine --buck", ["--buckets"]),
    ],
)
def test_a_shell_completes_without_pytorch(tmp_path: Path, typed: str, offered: list[str]) -> None:
    words = {"COMP_WORDS": typed, "COMP_CWORD": str(len(typed.split()) - 1)}
    code = "from underpaint.cli.app import main; main()"
    done = without_torch(code, tmp_path, _UNDERPAINT_COMPLETE="complete_bash", **words)
    assert done.stdout.split() == offered, done.stderr


def test_passes_are_compared_without_pytorch(tmp_path: Path) -> None:
    root = str(Path(__file__).parents[2])
    command = [sys.executable, "-c", START, "check", f"{root}/zoo", "--invariance", "--model", "judge"]
    done = subprocess.run(command, cwd=tmp_path, env={"PYTHONPATH": root}, capture_output=True, text=True)
    assert done.returncode == 2
    assert "it holds target64, drafter64, target64_int8, target128, drafter128" in " ".join(done.stderr.split())
