"""The command line of an installation that draws and compares, but does not train or export."""

import subprocess
import sys
from pathlib import Path

import pytest

START = "import sys; sys.modules['torch'] = None; from underpaint.cli.app import main; main()"


@pytest.mark.parametrize(
    "arguments",
    [
        ["train", "judge"],
        ["export"],
        ["export", "model.pt", "--kind", "vq", "--out", "folder"],
        ["check", "folder"],
        ["caption", "encoder", "a cat", "--out", "cat.npy"],
        ["engine", "."],
    ],
    ids=" ".join,
)
def test_what_needs_pytorch_says_so(tmp_path: Path, arguments: list[str]) -> None:
    root = str(Path(__file__).parents[2])
    command = [sys.executable, "-c", START, *arguments]
    done = subprocess.run(command, cwd=tmp_path, env={"PYTHONPATH": root}, capture_output=True, text=True)
    assert done.returncode == 2, done.stderr
    assert "needs torch; install it with" in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", ["train", "export", "check", "caption", "engine"])
def test_help_needs_no_pytorch(tmp_path: Path, command: str) -> None:
    root = str(Path(__file__).parents[2])
    shown = [sys.executable, "-c", START, command, "-h"]
    done = subprocess.run(shown, cwd=tmp_path, env={"PYTHONPATH": root}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert len(done.stdout.split()) > 10


def test_passes_are_compared_without_pytorch(tmp_path: Path) -> None:
    root = str(Path(__file__).parents[2])
    shown = [sys.executable, "-c", START, "check", f"{root}/zoo", "--invariance", "--model", "judge"]
    done = subprocess.run(shown, cwd=tmp_path, env={"PYTHONPATH": root}, capture_output=True, text=True)
    assert done.returncode == 2
    assert "it holds target64, drafter64, target128, drafter128" in " ".join(done.stderr.split())
