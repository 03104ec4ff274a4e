"""A process that is killed loses nothing that was finished, leaves nothing half-written, and the command goes on."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.program import run_program

ROOT = Path(__file__).resolve().parents[2]


def start(arguments: list[str], folder: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def kill_when(child: subprocess.Popen[bytes], ready: Callable[[], bool]) -> None:
    """Kill it by signal 9 as soon as `ready`; it must not have ended by itself."""
    until = time.monotonic() + 600
    while not ready():
        assert child.poll() is None, "it ended before it was killed"
        assert time.monotonic() < until, "it never got so far"
        time.sleep(0.01)
    child.kill()
    assert child.wait() == -signal.SIGKILL


def lines_of(path: Path) -> int:
    return len(path.read_bytes().splitlines()) if path.exists() else 0


@pytest.mark.parametrize("command", ["compare --methods eagle2", "sweep --vary eagle2.depth=3"])
def test_a_killed_comparison_goes_on(
    tmp_path: Path, small_models: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    line = f"{command} --models {small_models} --prompts-count 12 --resolution 64 --out x"
    log = tmp_path / "x" / "drawings.jsonl"
    kill_when(start(["-m", "underpaint", *line.split()], tmp_path), lambda: lines_of(log) >= 3)
    content = log.read_bytes()
    whole = content[: content.rfind(b"\n") + 1]
    ran = run_program(line, tmp_path, monkeypatch)
    assert ran.code == 0, ran.err
    assert log.read_bytes().startswith(whole)
    assert lines_of(log) == 25
    assert not list(tmp_path.rglob("*.part"))


def test_a_killed_trace_leaves_no_file(tmp_path: Path, small_models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line = f"trace --models {small_models} --prompts-count {{}} --resolution 64 --depths 2 --keep 8 --out x.npz"
    child = start(["-m", "underpaint", *line.format(400).split()], tmp_path)
    time.sleep(2.0)
    assert child.poll() is None
    child.kill()
    child.wait()
    assert list(tmp_path.iterdir()) == []
    assert run_program(line.format(1), tmp_path, monkeypatch).code == 0


TRAINING = """
import sys
from pathlib import Path
import torch
from underpaint.training.loop import Loss, LoopSettings, train
model = torch.nn.Linear(2, 2)
given = torch.ones(1, 2)
settings = LoopSettings(int(sys.argv[1]), 1e-3, checkpoint_seconds=0.0)
done = train(model, lambda step: Loss(model(given).square().sum(), {}), Path("run"), settings, {"kind": "tiny"})
print(done.step)
"""


def test_a_killed_training_goes_on_and_two_in_one_folder_are_refused(tmp_path: Path) -> None:
    checkpoint = tmp_path / "run" / "checkpoint.pt"
    child = start(["-c", TRAINING, "100000000"], tmp_path)
    until = time.monotonic() + 600
    while not checkpoint.exists():
        assert child.poll() is None
        assert time.monotonic() < until
        time.sleep(0.02)
    child.send_signal(signal.SIGSTOP)  # it holds the folder as well, and leaves the processor to the next one
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    second = [sys.executable, "-c", TRAINING, "3"]
    other = subprocess.run(second, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert other.returncode == 1
    assert "another process works in this folder" in other.stderr
    kill_when(child, lambda: True)
    import torch

    reached = torch.load(checkpoint, weights_only=True)["step"]
    more = [sys.executable, "-c", TRAINING, str(reached + 2)]
    after = subprocess.run(more, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert after.returncode == 0, after.stderr
    assert after.stdout.splitlines()[-1] == str(reached + 2)
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["checkpoint.pt"]
