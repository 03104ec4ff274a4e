"""`benchmarks.device` in Triton's interpreter: it runs, a check that fails ends it, and it needs few packages."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks import device, device_checks
from benchmarks.device_models import TINY, shipped_method, shipped_tables
from benchmarks.device_times import RandomWeights
from underpaint.algos.rows import SamplingParams

ROOT = Path(__file__).parents[2]
SMALL = ["--device", "cpu", "--batches", "1", "--methods", "ar", "--shipped", "speculative,jacobi-lookup"]
ALONE = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in BLOCKED:
            raise ImportError(f"{name} is not installed")

BLOCKED = {"onnx", "onnxruntime", "resvg_py", "safetensors", "typer", "rich", "matplotlib", "PIL",
           "scipy", "hypothesis"}
sys.meta_path.insert(0, Missing())
sys.path[:0] = [ROOT]
from benchmarks.device import main
main(["--device", "cpu", "--batches", "1", "--parts", "correct,parity,copy"])
"""


def test_every_part_runs_and_its_checks_hold(tmp_path: Path) -> None:
    out = tmp_path / "device.json"
    parts = "parity,identity,copy,shipped,plain,cycles,breakdown"
    device.main([*SMALL, "--parts", parts, "--out", str(out)])
    report = json.loads(out.read_text(encoding="utf-8"))
    assert report["failed"] == []
    logits = {f"{weights} logits" for weights in ("float32", "int8", "int8/64", "fp8")}
    assert set(report["parity"]["checks"]) == {*logits, "float16 total variation"}
    assert all(check["holds"] for check in report["parity"]["checks"].values())
    assert set(report["identity"]["checks"]) == {"speculative", "jacobi-lookup"}
    assert report["copy"]["gb_s"] > 0
    shipped = report["shipped speculative, batch 1"]
    assert set(shipped) == {"ar", "speculative", "ar-eager", "seconds"}
    assert shipped["ar"]["tokens_per_cycle"] == 1.0 <= shipped["speculative"]["tokens_per_cycle"]
    plain, cycle = report["plain, batch 1"], report["cycles ar, batch 1"]
    assert min(plain["cycle_ms"], plain["eager_ms"], plain["bound_ms"], cycle["cycle_ms"]) > 0
    assert sum(report["breakdown ar, batch 1"]["parts_ms"].values()) > 0


def test_a_timed_cycle_begins_in_a_picture_whose_first_half_was_drawn() -> None:
    """What a lookup finds there was said of a cell: a picture goes on to its end by it, and no row of it is empty."""
    weights = RandomWeights(torch.device("cpu"), TINY, torch.float32, 1, 1)
    runner = weights.runner("jacobi-lookup")
    progress, half = runner.cycle.state.progress, TINY.cells // 2
    assert half <= int(progress.cells[0]) < TINY.cells
    assert len(set(progress.decided[0, :half].tolist())) > 1
    (image,) = runner.finish(1)
    assert image.error is None


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_every_method_of_the_shipped_models_is_drawn_by_default(temperature: float) -> None:
    tables = shipped_tables()
    for name in device.SHIPPED.split(","):
        assert shipped_method(name, temperature, SamplingParams(), tables) is not None


def test_a_cycle_without_parts_is_timed_as_a_whole() -> None:
    names = ["ar", "zipar", "zipar-adaptive", "pjd"]
    assert [name for *_, name in device.runs_of("breakdown", [1], names, [])] == ["ar"]
    assert [name for *_, name in device.runs_of("cycles", [1], names, [])] == names


def test_a_check_that_does_not_hold_fails_the_run_and_nothing_is_timed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(device_checks, "LOGITS_APART", -1.0)
    out = tmp_path / "device.json"
    with pytest.raises(SystemExit) as ended:
        device.main([*SMALL, "--parts", "parity,copy", "--out", str(out)])
    assert ended.value.code == 1
    assert "parity: float32 logits is " in capsys.readouterr().err
    report = json.loads(out.read_text(encoding="utf-8"))
    assert len(report["failed"]) == 4  # float32, int8 twice and fp8
    assert "copy" not in report


@pytest.mark.parametrize(("value", "holds"), [(1.0, True), (1.1, False), (float("nan"), False)])
def test_a_figure_beyond_its_bound_or_none_at_all_does_not_hold(value: float, holds: bool) -> None:
    assert device_checks.Check(value, 1.0).holds is holds


def test_it_runs_on_pytorch_triton_and_numpy_alone() -> None:
    environment = {**os.environ, "PYTHONPATH": "", "UNDERPAINT_TRITON": "interpret"}
    done = subprocess.run(
        [sys.executable, "-c", ALONE.replace("ROOT", repr(str(ROOT)))],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=1200,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout.splitlines()[-1])["failed"] == []


def test_a_call_that_ends_in_time_is_gone_on_with(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    device.main(["--plan", "--batches", "1,4", "--methods", "ar,eagle2", "--parts", "correct,cycles"])
    assert "cycles       4 runs,   1.2 minutes" in capsys.readouterr().out
    out = tmp_path / "device.json"
    arguments = [*SMALL, "--parts", "copy", "--out", str(out)]
    with pytest.raises(SystemExit) as ended:
        device.main([*arguments, "--minutes", "0"])
    assert ended.value.code == 0
    assert json.loads(out.read_text())["left"] == "copy"
    device.main(arguments)
    report = json.loads(out.read_text())
    assert "left" not in report
    device.main(arguments)
    assert json.loads(out.read_text()) == report, "what is there is not run again"
    with pytest.raises(SystemExit) as refused:
        device.main([*arguments, "--model", "7b"])
    assert refused.value.code == 2
    assert "its 'model' is another one than this call's; name another file" in capsys.readouterr().err


def test_a_late_check_that_failed_earlier_does_not_end_the_next_call(tmp_path: Path) -> None:
    out = tmp_path / "device.json"
    arguments = [*SMALL, "--out", str(out)]
    device.main([*arguments, "--parts", "copy"])
    report = json.loads(out.read_text())
    done = {"checks": {}, "seconds": 1.0}
    out.write_text(
        json.dumps({**report, "correct": done, "parity": done, "failed": ["identity: eagle2 is 1, bound 0"]})
    )
    with pytest.raises(SystemExit) as ended:
        device.main([*arguments, "--parts", "correct,parity,copy,cycles"])
    assert ended.value.code == 1
    assert "cycles ar, batch 1" in json.loads(out.read_text())
