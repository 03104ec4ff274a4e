"""The benchmark of evaluations that lose a worker, at its smallest, on a local Ray cluster."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_a_ray_worker_that_is_killed_changes_no_statistics(tmp_path: Path, small_models: Path) -> None:
    pytest.importorskip("ray")
    out = tmp_path / "evaluate.json"
    asked = ("--models", str(small_models), "--pictures", "16", "--on", "ray", "--out", str(out))
    command = [sys.executable, "-m", "benchmarks.evaluate", *asked]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    found = json.loads(out.read_text())
    assert (found["pictures"], found["workers"], found["killed"], found["same"]) == (16, 2, 1, True)
    rows = {run: [row for row in found["rows"] if row["run"] == run] for run in ("undisturbed", "killed")}
    assert [{**row, "run": ""} for row in rows["killed"]] == [{**row, "run": ""} for row in rows["undisturbed"]]
    assert [row["images"] for row in rows["killed"]] == [8, 8]
