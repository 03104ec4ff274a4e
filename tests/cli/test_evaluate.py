"""`underpaint evaluate`: figures that do not depend on who drew what, ends of every kind, and bad input."""

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from itertools import count
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.cli.synthetic_pipeline import SyntheticPipeline, replace_models
from underpaint.artifacts import workers
from underpaint.artifacts.cost_curve import parse_cost_curve
from underpaint.artifacts.results import read_results
from underpaint.cli.app import app
from underpaint.runtime.evaluation import plan, worker_costs
from underpaint.runtime.evaluation.report_row import TIMED

ROOT = Path(__file__).parents[2]
SMALL = ("--methods", "eagle2", "--resolution", "64", "--prompts-count", "8", "--seeds", "2")


def called(*arguments):
    return CliRunner().invoke(app, [str(one) for one in arguments])


def statistics(path):
    rows = read_results(path)["rows"]
    return [{name: value for name, value in row.items() if name not in TIMED} for row in rows]


@pytest.fixture
def synthetic(monkeypatch):
    replace_models(monkeypatch, lambda side: SyntheticPipeline())


@pytest.mark.usefixtures("synthetic")
def test_figures_are_those_of_compare(tmp_path):
    options = ("--methods", "eagle2,lantern", "--prompts-count", 8, "--seeds", 2)
    result = called("evaluate", *options, "--jobs", 0, "--out", tmp_path / "jobs")
    assert result.exit_code == 0, result.output
    assert called("compare", *options, "--out", tmp_path / "alone").exit_code == 0
    rows = statistics(tmp_path / "jobs" / "evaluate.json")
    assert rows == statistics(tmp_path / "alone" / "compare.json")
    assert all(row[name] is not None for row in rows for name in ("auc", "log_likelihood"))
    before = {path: path.read_bytes() for path in (tmp_path / "jobs").glob("*.jsonl")}
    assert called("evaluate", *options, "--jobs", 0, "--out", tmp_path / "jobs").exit_code == 0
    assert {path: path.read_bytes() for path in (tmp_path / "jobs").glob("*.jsonl")} == before
    assert len(list((tmp_path / "jobs" / "pictures").rglob("*.png"))) == 3 * 8 * 2


@pytest.mark.usefixtures("synthetic")
@pytest.mark.parametrize("left_out", [False, True])
@pytest.mark.parametrize("command", ["compare", "evaluate --jobs 0"])
def test_likelihoods_are_told_unless_they_are_left_out(tmp_path, command, left_out):
    name, *more = command.split()
    arguments = (name, *more, "--methods", "eagle2", "--prompts-count", 2, "--out", tmp_path)
    result = called(*arguments, *(["--no-likelihood"] if left_out else []))
    assert result.exit_code == 0, result.output
    assert [row["log_likelihood"] is None for row in read_results(tmp_path / f"{name}.json")["rows"]] == [left_out] * 2


@pytest.mark.usefixtures("synthetic")
def test_figures_are_written_when_the_last_part_is_there(tmp_path):
    arguments = ("evaluate", "--methods", "eagle2", "--prompts-count", 3, "--jobs", 0, "--out", tmp_path)
    first = called(*arguments, "--shard", "2/2")
    assert first.exit_code == 0, first.output
    assert "part 2 of 2 is drawn; 3 of 6 are missing" in first.stdout
    assert not (tmp_path / "evaluate.json").exists()
    assert called(*arguments, "--shard", "1/2").exit_code == 0
    results = read_results(tmp_path / "evaluate.json")
    assert results["drawn"] == {"processors": results["drawn"]["processors"], "repeated": 0, "differing": 0}
    assert sum(results["drawn"]["processors"].values()) == 6


def test_several_models_are_told_apart_in_one_file(tmp_path, monkeypatch):
    replace_models(monkeypatch, lambda side: SyntheticPipeline(resolution=side or 128, name=f"target{side}"))
    arguments = ("evaluate", "--methods", "ar", "--prompts-count", 2, "--jobs", 0, "--out", tmp_path)
    result = called(*arguments, "--models", "a@64", "--models", "b@128")
    assert result.exit_code == 0, result.output
    results = read_results(tmp_path / "evaluate.json")
    assert results["kind"] == "merged"
    assert [run["results"]["model"]["target"] for run in results["runs"]] == ["target64", "target128"]
    assert called("results", "rank", tmp_path / "evaluate.json").exit_code == 0
    again = called(*arguments, "--models", "a@64", "--models", "b@128", "--format", "json")
    tables = json.loads(again.stdout)  # one value: the rows of each model by its title
    assert [title.partition(" px")[0] for title in tables] == ["a: 64", "b: 128"]
    assert [[row["method"] for row in rows] for rows in tables.values()] == [["ar"], ["ar"]]


def test_tables_of_folders_of_one_name_are_told_apart(tmp_path, monkeypatch):
    replace_models(monkeypatch, lambda side: SyntheticPipeline(name=f"target{next(numbers)}"))
    numbers = count()
    arguments = ("evaluate", "--methods", "ar", "--prompts-count", 2, "--jobs", 0, "--format", "json")
    result = called(*arguments, "--models", "/x/models", "--models", "/y/models", "--out", tmp_path)
    assert result.exit_code == 0, result.output
    assert [title.partition(":")[0] for title in json.loads(result.stdout)] == ["/x/models", "/y/models"]


@pytest.mark.usefixtures("synthetic")
def test_without_workers_the_cores_of_this_process_are_recorded(tmp_path, monkeypatch):
    monkeypatch.setattr(plan, "usable_cores", lambda: 7)
    arguments = ("evaluate", "--methods", "ar", "--prompts-count", 2, "--jobs", 0, "--out", tmp_path)
    result = called(*arguments)
    assert result.exit_code == 0, result.output
    assert read_results(tmp_path / "evaluate.json")["model"]["threads"] == 7
    refused = called(*arguments, "--threads", 1)
    assert refused.exit_code == 2
    assert "--threads is of workers, and --jobs 0 draws without" in refused.stderr


@pytest.mark.usefixtures("synthetic")
def test_a_stop_keeps_what_is_drawn_and_another_run_is_refused(tmp_path, monkeypatch):
    arguments = ("evaluate", "--methods", "eagle2", "--prompts-count", 3, "--jobs", 0, "--out", tmp_path)
    real = workers.ThisProcess.run

    def stopping(self, jobs):
        for place, result in enumerate(real(self, jobs)):
            if place == 4:
                raise KeyboardInterrupt
            yield result

    with monkeypatch.context() as patched:
        patched.setattr(workers.ThisProcess, "run", stopping)
        stopped = called(*arguments)
    assert stopped.exit_code == 130
    assert "the same command continues" in stopped.stderr
    other = called(*arguments, "--temperature", "0.5")
    assert other.exit_code == 2
    assert "belongs to another comparison (it differs in temperature)" in other.stderr
    assert called(*arguments).exit_code == 0
    assert len(list(tmp_path.glob("drawings-*.jsonl"))) == 2


CURVE = {"format": 3, "verify_ms": [[1, 2.0], [8, 5.0]], "draft_ms": [[1, 0.5], [8, 0.75]], "machine": {}}


@pytest.mark.usefixtures("synthetic")
def test_a_method_that_chooses_by_costs_measures_them_once_for_all_parts(tmp_path, monkeypatch):
    measured = []

    def measure(*_):
        measured.append(1)
        return parse_cost_curve(json.dumps({**CURVE, "overhead_ms": len(measured)}).encode(), Path("costs.json"))

    monkeypatch.setattr(worker_costs, "curve_of", measure)
    arguments = ("evaluate", "--methods", "roofline", "--prompts-count", 2, "--jobs", 0, "--out", tmp_path / "x")
    first = called(*arguments, "--shard", "1/2")
    assert first.exit_code == 0, first.output
    assert "measuring what passes cost" in first.stderr
    (curve,) = (tmp_path / "x").glob("costs-*.json")
    content = curve.read_bytes()
    assert called(*arguments, "--shard", "2/2").exit_code == 0
    assert (measured, curve.read_bytes()) == ([1], content)
    config = read_results(tmp_path / "x" / "evaluate.json")["settings"]["methods"]["roofline"]
    assert config["cost_curve"] == hashlib.sha256(content).hexdigest()


@pytest.mark.usefixtures("synthetic")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--shard", "3/2"], "expected i/n"),
        (["--on", "rai"], "did you mean 'ray'"),
        (["--address", "auto"], "--address needs --on ray; add it"),
        (["--methods", "adtt"], "did you mean 'adt'"),
        (["--models", "a", "--models", "a"], "two of those named are the same"),
        (["--models", "a@64", "--models", "b", "--low", "c"], "--low: expected one model, got several"),
        (["--prompts", "none.txt"], "there is no such file of prompts"),
        (["a pandda"], "did you mean 'panda'"),
    ],
)
def test_bad_input_is_refused_before_any_work(tmp_path, arguments, message):
    result = called("evaluate", "--prompts-count", "2", *arguments, "--out", tmp_path / "out")
    if "a pandda" in arguments:
        result = called("evaluate", *arguments, "--out", tmp_path / "out")
    assert result.exit_code == 2, result.output
    assert message in result.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds the workers in /proc, which this system lacks")
def test_a_run_killed_twice_has_the_figures_of_one_that_was_not(tmp_path, small_models):
    """A worker dies and its job is drawn again; then the whole run dies, and the same command goes on."""

    options = (*SMALL, "--models", str(small_models))
    command = [
        sys.executable,
        "-m",
        "underpaint",
        "evaluate",
        *options,
        "--jobs",
        "2",
        "--out",
        str(tmp_path / "killed"),
    ]

    def finished():
        return sum(path.read_bytes().count(b"\n") - 1 for path in (tmp_path / "killed").glob("drawings-*.jsonl"))

    def wait_for(count):
        until = time.monotonic() + 600.0
        while finished() < count:
            assert time.monotonic() < until
            time.sleep(0.02)

    running = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL)
    wait_for(2)
    os.kill(children_of(running.pid)[-1], signal.SIGKILL)
    wait_for(5)
    running.kill()
    running.wait()
    assert 5 <= finished() < 32
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    assert called("evaluate", *options, "--jobs", 0, "--out", tmp_path / "whole").exit_code == 0
    assert statistics(tmp_path / "killed" / "evaluate.json") == statistics(tmp_path / "whole" / "evaluate.json")


def children_of(pid):
    """Worker processes of a process: those that multiprocessing spawned."""
    children = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(status.read_text().rpartition(")")[2].split()[1])
            words = (status.parent / "cmdline").read_bytes()
        except OSError:
            continue
        if parent == pid and b"spawn_main" in words:
            children.append(int(status.parent.name))
    return sorted(children)


def test_an_evaluation_becomes_a_page(tmp_path, small_models):
    options = ("--methods", "eagle2", "--resolution", 64, "--prompts-count", 1, "--jobs", 0, "--out", tmp_path)
    assert called("evaluate", *options, "--models", small_models).exit_code == 0
    result = called("report", tmp_path)
    assert result.exit_code == 0, result.output
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    (prompt,) = read_results(tmp_path / "evaluate.json")["settings"]["prompts"]
    assert prompt in text
    assert text.count("data:image/png;base64,") + text.count("data:image/webp;base64,") >= 2
    changed = json.loads((tmp_path / "evaluate.json").read_text())
    changed["settings"]["temperature"] = 0.5
    (tmp_path / "evaluate.json").write_text(json.dumps(changed))
    refused = called("report", tmp_path)
    assert refused.exit_code == 2
    assert "are of two runs (they differ in temperature)" in refused.output


def test_a_page_shows_one_model(tmp_path, monkeypatch):
    replace_models(monkeypatch, lambda side: SyntheticPipeline(resolution=side or 128, name=f"target{side}"))
    arguments = ("evaluate", "--methods", "ar", "--prompts-count", 2, "--jobs", 0, "--out", tmp_path)
    assert called(*arguments, "--models", "a@64", "--models", "b@128").exit_code == 0
    refused = called("report", tmp_path)
    assert refused.exit_code == 2
    assert "expected results of one model" in refused.output
