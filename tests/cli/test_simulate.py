"""`underpaint simulate` and `underpaint trace`."""

import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from tests.cli.synthetic_pipeline import GRID, VOCAB, SyntheticPipeline, replace_models
from tests.one_core import room_for_ray
from tests.run_logs import log_values
from underpaint.algos import memory
from underpaint.artifacts.results import with_envelope
from underpaint.artifacts.run_log import RunLogInUse
from underpaint.artifacts.workers import check_workers
from underpaint.cli.simulate.commands import app
from underpaint.cli.simulate.trace import trace
from underpaint.cli.simulate.windows import window_recipes
from underpaint.sim.replay.trace import load
from underpaint.sim.sweep import run as sweep_run
from underpaint.sim.sweep.plan import SweepPlan, jobs
from underpaint.sim.sweep.run import Results, run, simulate, workers

FILE_NAME = "results.jsonl"
SMALL = "model.vocab_size=24", "model.clusters=4", "model.height=6", "model.width=6", "model.images=8"
CHAINS = [
    *("sweep", "--model", "field", "--policies", "chain", "--rules", "chain", "--jobs", "1", "--precision", "0.2"),
    *("--machines", "a100/llamagen-b"),
    *(part for setting in SMALL for part in ("--vary", setting)),
]
SWEEP = [
    *("sweep", "--model", "field", "--policies", "chain,eagle2,adt", "--rules", "chain,point,lantern"),
    *("--machines", "a100/llamagen-b,h100/llamagen-b", "--precision", "0.2", "--jobs", "1"),
    *(part for setting in SMALL for part in ("--vary", setting)),
    *("--vary", "policy.depth=2,3", "--vary", "policy.top_k=2,3", "--vary", "policy.max_depth=4"),
    *("--vary", "policy.max_width=6", "--vary", "policy.start_depth=2"),
]
PLAN = SweepPlan(
    models=("field",),
    policies=("chain", "eagle2"),
    rules=("chain", "point", "lantern"),
    machines=("a100/llamagen-b",),
    vary={
        **{f"model.{name}": (value,) for name, value in (("vocab_size", 24), ("clusters", 4), ("height", 6))},
        **{"model.width": (6,), "model.images": (8,), "policy.depth": (2, 3), "policy.top_k": (3,)},
    },
    precision=0.2,
)


def call(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, list(arguments))
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.stdout if "--json" in arguments else result.output


def test_tables_print_published_predicted_and_error() -> None:
    code, text = call("tables", "--format", "markdown")
    assert code == 0
    assert re.search(r"\| ADT\+LANTERN \| Parti \| 3\.05x \| 2\.48x \| -18\.7% \| .*does not fit", text)
    code, text = call("tables", "--json", "-")
    groups = json.loads(text)
    assert code == 0
    assert {"published", "predicted", "error", "verdict", "tag"} <= groups[0][0].keys()


def test_what_is_known_is_listed() -> None:
    code, text = call("known")
    assert code == 0
    for name in ("field", "rtx4090", "b200", "lumina-mgpt-7b", "anole-7b"):
        assert name in text


def test_a_sweep_writes_results_and_a_page_of_its_own(tmp_path: Path) -> None:
    code, text = call(*SWEEP, "--out", str(tmp_path))
    assert code == 0, text
    lines = log_values(tmp_path / FILE_NAME)[1:]
    # chain: 2 rules; eagle2: 2 rules x 2 depths x 2 widths; adt: 2 rules.
    assert len(lines) == 2 + 8 + 2
    for line in lines:
        assert set(line["speedup"]) == {"a100/llamagen-b", "h100/llamagen-b"}
        mean, low, high = line["speedup"]["a100/llamagen-b"]
        assert low <= mean <= high
        assert (high - low) / 2 <= 0.2 * mean + 1e-9
        assert 0.0 < line["alignment"] <= 1.0
    lossless = {line["token_bias"] for line in lines if line["rule"] in ("chain", "point")}
    assert lossless == {0.0}
    assert all(line["token_bias"] > 0.0 for line in lines if line["rule"] == "lantern")
    page = (tmp_path / "report.html").read_text()
    assert page.count("<svg") == 5
    assert not re.search(r"(src|href)=.https?:", page)
    before = (tmp_path / FILE_NAME).read_bytes()
    assert json.loads(call(*SWEEP, "--out", str(tmp_path), "--json", "-")[1]) == lines
    assert (tmp_path / FILE_NAME).read_bytes() == before
    code, text = call(*SWEEP, "--out", str(tmp_path), "--format", "markdown")
    fastest = {
        among: max(
            line["speedup"]["h100/llamagen-b"][0] for line in lines if among == "any rule" or not line["token_bias"]
        )
        for among in ("any rule", "lossless")
    }
    for among, speed in fastest.items():
        assert re.search(rf"\| field \| h100/llamagen-b \| {among} \| [^|]+ \| {speed:.2f}x \|", text)


WINDOWS = [
    *("sweep", "--model", "field", "--policies", "", "--windows", "scd-maximal,gsd,pjd", "--jobs", "1"),
    *("--machines", "a100/llamagen-b,h200/llamagen-b", "--precision", "0.2", "--most-images", "40"),
    *(part for setting in SMALL for part in ("--vary", setting)),
    *("--vary", "window.refill=left,uniform", "--vary", "window.temperature=0,1", "--vary", "window.group=3"),
]


def test_windows_stand_in_a_sweep_at_every_setting_and_temperature(tmp_path: Path) -> None:
    code, text = call(*WINDOWS, "--out", str(tmp_path))
    assert code == 0, text
    lines = log_values(tmp_path / FILE_NAME)[1:]
    assert len(lines) == 3 * 2 * 2
    assert {line["loop"] for line in lines} == {"jacobi", "jacobi fronts"}
    assert {line["token_bias"] for line in lines if line["policy"] == "scd-maximal"} == {0.0}
    assert {line["token_bias"] for line in lines if line["policy"] != "scd-maximal"} == {None}
    assert {json.loads(line["rule_settings"])["group"] for line in lines if line["policy"] == "gsd"} == {3}
    for line in lines:
        assert line["drafter_passes"] == 0.0
        assert line["target_passes"] == pytest.approx(36 / line["speedup"]["h200/llamagen-b"][0], rel=0.3)
    cold = [line["temperature"] for line in lines]
    assert sorted(set(cold)) == [0.0, 1.0]
    page = (tmp_path / "report.html").read_text()
    assert "scd-maximal + chain, temperature 0" in page
    before = (tmp_path / FILE_NAME).read_bytes()
    assert call(*WINDOWS, "--out", str(tmp_path))[0] == 0
    assert (tmp_path / FILE_NAME).read_bytes() == before


def test_trees_are_simulated_as_they_were_without_windows_beside_them(tmp_path: Path) -> None:
    """A sweep's keys and lines do not change because windows stand beside its trees."""
    alone, beside = tmp_path / "alone", tmp_path / "beside"
    assert call(*CHAINS, "--out", str(alone))[0] == 0
    assert call(*CHAINS, "--windows", "sjd", "--out", str(beside))[0] == 0
    lines = [log_values(out / FILE_NAME) for out in (alone, beside)]
    assert "windows" not in lines[0][0]["settings"]
    assert "loop" not in lines[0][1]
    assert lines[1][1:-1] == lines[0][1:]
    assert lines[1][-1]["policy"] == "sjd"


def test_windows_are_not_priced_inside_cycles_that_draft(tmp_path: Path) -> None:
    curve = tmp_path / "curve.json"
    costs = {"format": 3, "verify_ms": [[1, 1.0], [128, 1.5]], "draft_ms": [[1, 0.2], [128, 0.3]]}
    curve.write_text(json.dumps(costs))
    arguments = (*WINDOWS, "--machines", str(curve))
    assert call(*arguments, "--out", str(tmp_path / "alone"))[0] == 0
    host = {"cycle": 0.1, "level": 0.1, "node": 0.01, "pooled": 0.0}
    inside = {
        "plain": {"target_ms": 1.0, "host_ms": 0.1},
        **{"target_ms": [[1, 1.0], [128, 1.5]], "draft_ms": [[1, 0.2]], "chain_ms": [], "host_ms": {"sampled": host}},
    }
    curve.write_text(json.dumps({**costs, "in_cycle": inside}))
    code, text = call(*arguments, "--out", str(tmp_path / "inside"))
    assert code == 2
    assert "without the host's time of Jacobi windows" in text
    curve.write_text(json.dumps({**costs, "verify_ms": [[1, 1.0], [4, 1.5]]}))
    code, text = call(*arguments, "--out", str(tmp_path / "short"))
    assert code == 2
    assert "measured from 1 to 4 nodes" in text


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (("--windows", "sdj"), "did you mean 'sjd'|there is no 'sdj'"),
        (("--windows", "eagle2"), "'eagle2' decodes in no Jacobi window"),
        (("--windows", "sjd,sjd"), "each once"),
        (("--windows", "sjd"), "none of sjd has this setting"),
        (("--vary", "window.window=0"), "length must be at least 1, got 0"),
        (("--vary", "window.window=x"), "setting 'window' is a whole number, got 'x'"),
        (("--vary", "window.refill=left"), "each setting and value once"),
        (("--vary", "window.lead=99"), r"expected lead in 1\.\.6"),
        (("--windows", "scd-maximal,gsd", "--vary", "window.rule=block"), "would be biased"),
        (("--windows", ""), "expected names separated by commas"),
        (("--windows", "", "--policies", "chain", "--rules", "chain"), "expected --windows METHODS as well, got none"),
    ],
)
def test_bad_windows_are_named_before_any_work(tmp_path: Path, extra: tuple[str, ...], message: str) -> None:
    with pytest.raises(ValueError, match="two spellings of one value"):
        window_recipes(("sjd",), ["window.temperature=0,0.0"])
    code, text = call(*WINDOWS, "--out", str(tmp_path / "out"), *extra)
    assert code == 2, text
    assert re.search(message, text)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (("--model", "feild"), "did you mean 'field'"),
        (("--machines", "a1000/llamagen-b"), "did you mean 'a100'"),
        (("--machines", "a100/llama"), "there is no 'llama'"),
        (("--machines", "absent.json"), "absent.json"),
        (("--rules", "pointt"), "did you mean 'point'"),
        (("--policies", "eagle"), "did you mean"),
        (("--vary", "policy.depht=2"), "did you mean 'depth'"),
        (("--vary", "tree.depth=2"), "expected model.setting"),
        (("--vary", "rule.delta=7"), r"delta must be in \[0, 1\]"),
        (("--vary", "model.noise=-1"), "noise must be at least 0"),
        (("--precision", "0"), "--precision"),
        (("--on", "slurm"), "there is no 'slurm'"),
        (("--model", "field,field"), "each once"),
        (("--model", "field,absent.npz"), "absent.npz"),
        (("--model", "absent.npz", "--vary", "model.noise=1"), "no model of the sweep has it; none has settings"),
        (("--model", "dirichlet,field", "--vary", "model.noise=-1"), "noise must be at least 0"),
        (("--vary", "model.noise=abc"), "model 'field': setting 'noise' is a number, got 'abc'"),
        (("--vary", "model.seed=-1"), "seed must be at least 0"),
        (("--vary", "policy.length=1.5"), "policy 'chain': setting 'length' is a whole number, got '1.5'"),
        (("--vary", "policy.length=2,3,2"), "at least one value, each once"),
        (("--out", "/dev/null/sweep"), "/dev/null is not a folder"),
    ],
)
def test_bad_input_is_named_before_any_work(tmp_path: Path, extra: tuple[str, ...], message: str) -> None:
    code, text = call(*SWEEP, "--out", str(tmp_path / "out"), *extra)
    assert code == 2, text
    assert re.search(message, text)
    assert not (tmp_path / "out").exists()


def test_another_sweep_s_folder_is_refused(tmp_path: Path) -> None:
    assert call(*CHAINS, "--out", str(tmp_path))[0] == 0
    code, text = call(*CHAINS, "--seed", "1", "--out", str(tmp_path))
    assert code == 2
    assert "belongs to another sweep (it differs in seed)" in text
    for content in ("what\n", "[1]\n", '{"hash": 3}\n'):
        (tmp_path / FILE_NAME).write_text(content)
        code, text = call(*CHAINS, "--out", str(tmp_path))
        assert code == 2
        assert "is no record of a sweep" in text
        assert (tmp_path / FILE_NAME).read_text() == content
    (tmp_path / FILE_NAME).unlink()
    (tmp_path / "blocks.jsonl").write_text("what\n")
    code, text = call(*CHAINS, "--out", str(tmp_path))
    assert code == 2
    assert "blocks.jsonl is no record of a sweep" in text


def test_a_file_that_has_changed_makes_another_sweep(tmp_path: Path) -> None:
    curve, out = tmp_path / "curve.json", tmp_path / "out"
    arguments = (*CHAINS, "--machines", str(curve), "--out", str(out))
    curve.write_text(json.dumps({"format": 3, "verify_ms": [[1, 1.0], [8, 1.5]], "draft_ms": [[1, 0.2]]}))
    assert call(*arguments)[0] == 0
    before = (out / FILE_NAME).read_bytes()
    assert call(*arguments)[0] == 0
    curve.write_text(json.dumps({"format": 3, "verify_ms": [[1, 1.0], [8, 1.5]], "draft_ms": [[1, 0.4]]}))
    code, text = call(*arguments)
    assert code == 2
    assert "belongs to another sweep (it differs in files)" in text
    assert (out / FILE_NAME).read_bytes() == before


def test_a_curve_without_a_size_says_which(tmp_path: Path) -> None:
    curve = tmp_path / "small.json"
    curve.write_text(json.dumps({"format": 3, "verify_ms": [[1, 1.0], [2, 1.5]], "draft_ms": [[1, 0.2], [16, 0.4]]}))
    code, text = call(*CHAINS, "--vary", "policy.length=3", "--machines", str(curve), "--out", str(tmp_path / "out"))
    assert code == 2
    assert re.search(r"measured from 1 to 2 nodes, asked for\s+.*4; measure those sizes", text, re.S)
    assert not (tmp_path / "out").exists()


def test_a_sweep_takes_the_costs_inside_cycles_where_a_curve_holds_them(tmp_path: Path) -> None:
    alone = {"format": 3, "verify_ms": [[1, 1.0], [64, 1.0]], "draft_ms": [[1, 0.5], [64, 0.5]]}
    within = {
        "plain": {"target_ms": 2.0, "host_ms": 1.0},
        "target_ms": [[1, 4.0], [64, 4.0]],
        "draft_ms": [[1, 9.0]],
        "chain_ms": [[1, 1.0], [8, 1.0]],
        "host_ms": {"one_call": {"cycle": 1.0, "level": 0.0, "node": 0.0, "pooled": 0.0}},
    }
    chains = ("--policies", "chain_top1", "--rules", "point", "--vary", "policy.length=3")
    speedups = {}
    for name, costs in (("alone", alone), ("within", {**alone, "in_cycle": within})):
        curve = tmp_path / f"{name}.json"
        curve.write_text(json.dumps(costs))
        out = tmp_path / name
        code, text = call(*CHAINS, *chains, "--machines", str(curve), "--out", str(out))
        assert code == 0, text
        line = log_values(out / FILE_NAME)[1]
        assert line["engine"] == "lockstep"
        speedups[name] = line["speedup"][str(curve)][0]
        passes, drafted = line["target_passes"], line["drafter_passes"]
    assert speedups["alone"] == pytest.approx(36.0 / (passes + 0.5 * drafted), rel=1e-3)
    # The first pass is a plain step; near the image's end a cycle may draft nothing, and asks nothing of the drafter.
    cycles = passes - 1.0
    assert 36.0 * 3.0 / (3.0 + 6.0 * cycles) <= speedups["within"] < 36.0 * 3.0 / (3.0 + 6.0 * (cycles - 1.0))
    sampled = tmp_path / "sampled"
    code, text = call(*CHAINS, "--machines", str(tmp_path / "within.json"), "--out", str(sampled))
    assert code == 2
    assert "not for 'sampled'" in text
    assert not sampled.exists()


def test_a_sweep_of_nothing_is_refused(tmp_path: Path) -> None:
    code, text = call(*CHAINS, "--rules", "point", "--out", str(tmp_path / "out"))
    assert code == 2
    assert "no rule of point fits a policy of chain" in text


def test_a_sweep_varies_the_grid_down_to_two_cells(tmp_path: Path) -> None:
    others = [setting for setting in SMALL if not setting.startswith(("model.height", "model.width"))]
    vary_options = [part for setting in others for part in ("--vary", setting)]
    sizes = ("--vary", "model.height=1,2,4,8", "--vary", "model.width=2,4,8", "--jobs", "1", "--precision", "0.5")
    options = ("--model", "field", "--policies", "chain,eagle2", "--rules", "chain,point", "--windows", "sjd", *sizes)
    code, text = call("sweep", *options, "--most-images", "4", *vary_options, "--out", str(tmp_path / "out"))
    assert code == 0, text
    lines = [json.loads(line) for line in (tmp_path / "out" / FILE_NAME).read_text().splitlines()[1:]]
    assert len(lines) == 12 * 3
    assert all(0.0 <= line["alignment"] <= 1.0 for line in lines)
    assert {line["engine"] for line in lines} == {"loop", "lockstep"}
    code, text = call(
        "sweep", *options[:4], *vary_options, *("--vary", "model.height=1", "--vary", "model.width=1"), "--out", "x"
    )
    assert code == 2
    assert "expected two cells or more, got height 1 and width 1" in text


def test_a_torn_line_is_dropped_and_done_again(tmp_path: Path) -> None:
    results = Results(tmp_path, PLAN)
    run(PLAN, results, workers(jobs=1), lambda line: None)
    path = tmp_path / FILE_NAME
    whole = path.read_bytes()
    path.write_bytes(whole[:-40])
    again = Results(tmp_path, PLAN)
    missing = again.missing(jobs(PLAN))
    assert len(missing) == 1
    run(PLAN, again, workers(jobs=1), lambda line: None)
    assert path.read_bytes() == whole


LONG = SweepPlan(
    ("field",),
    ("chain", "eagle1"),
    ("chain", "without_replacement", "cool"),
    ("a100/llamagen-b", "h200/llamagen-b"),
    {"model.vocab_size": (24,), "model.clusters": (4,), "model.height": (4,), "model.width": (6,)},
    precision=1e-5,
    most_images=300,
)


def drawn(folder: Path, jobs_wanted: int = 1, stop_after: int | None = None) -> tuple[list[dict[str, Any]], int]:
    """The lines of the long sweep in `folder`, and how many blocks it drew until it was done or stopped."""
    blocks: list[str] = []

    def report(block: str) -> None:
        blocks.append(block)
        if len(blocks) == stop_after:
            raise KeyboardInterrupt

    results = Results(folder, LONG)
    with pytest.raises(KeyboardInterrupt) if stop_after else nullcontext():
        run(LONG, results, workers(jobs=jobs_wanted), report)
    return sorted(results.lines, key=lambda line: str(line["key"])), len(blocks)


def test_figures_do_not_depend_on_blocks_or_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop draws the same images however they are split; lockstep splits them by the plan alone."""
    alone = drawn(tmp_path / "alone")[0]
    assert {line["engine"] for line in alone} == {"loop", "lockstep"}
    assert {line["images"] for line in alone} == {300}
    assert drawn(tmp_path / "shared", 2)[0] == alone
    monkeypatch.setattr(sweep_run, "_LOOP_BLOCK", 7)
    for one, other in zip(alone, drawn(tmp_path / "small")[0], strict=True):
        exact = {name for name in one if name != "speedup"}
        assert {name: one[name] for name in exact} == {name: other[name] for name in exact}
        for machine, figures in one["speedup"].items():
            assert figures == pytest.approx(other["speedup"][machine], abs=2e-5)


def test_a_long_sweep_goes_on_with_the_blocks_that_are_done(tmp_path: Path) -> None:
    whole, blocks = drawn(tmp_path / "alone")
    finished, _ = drawn(tmp_path / "stopped", stop_after=8)
    assert len(finished) == 1
    lines, after = drawn(tmp_path / "stopped")
    assert lines == whole
    assert after == blocks - 3 - 3  # a job of three blocks, and three whole blocks of another
    path = tmp_path / "stopped" / "blocks.jsonl"
    records = log_values(path)
    assert records[0]["settings"]["most_images"] == 300
    assert all(line["totals"]["images"] == line["block"] == 64 for line in records[1:])
    path.write_bytes(path.read_bytes().replace(b'"images": 64', b'"images": 65', 1))
    with pytest.raises(ValueError, match="is no record of a sweep, or was edited"):
        run(LONG, Results(tmp_path / "stopped", LONG), workers(jobs=1), lambda block: None)


def test_a_sweep_beyond_this_machines_memory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "free_bytes", lambda: 10_000_000)
    code, text = call(*CHAINS, "--jobs", "1000", "--out", str(tmp_path / "out"))
    assert code == 2
    assert re.search(r"--jobs: simulating field: chain chain would take .* at 1,000, this machine has", text)
    assert not (tmp_path / "out").exists()


def test_two_sweeps_do_not_write_over_each_other(tmp_path: Path) -> None:
    one, other = Results(tmp_path, PLAN), Results(tmp_path, PLAN)
    run(PLAN, one, workers(jobs=1), lambda line: None)
    before = one.path.read_bytes()
    with pytest.raises(RunLogInUse, match="written by another process"):
        run(PLAN, other, workers(jobs=1), lambda line: None)
    assert one.path.read_bytes() == before


@pytest.mark.slow
def test_a_killed_sweep_loses_nothing_that_was_finished(tmp_path: Path) -> None:
    program = "from underpaint.cli.simulate.commands import app; app()"
    command = [sys.executable, "-c", program, *SWEEP, "--precision", "0.03"]
    child = subprocess.Popen([*command, "--out", str(tmp_path)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    path = tmp_path / FILE_NAME
    end = time.monotonic() + 600
    while time.monotonic() < end and not (path.exists() and path.read_bytes().count(b"\n") >= 3):
        assert child.poll() is None
        time.sleep(0.02)
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    content = path.read_bytes()
    finished = content[: content.rfind(b"\n") + 1]
    assert finished.count(b"\n") >= 3
    assert call(*SWEEP, "--precision", "0.03", "--out", str(tmp_path))[0] == 0
    assert path.read_bytes().startswith(finished)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="no /proc to see other processes by")
def test_a_killed_sweep_leaves_no_process_behind(tmp_path: Path) -> None:
    mark = f"UNDERPAINT_TEST={tmp_path.name}{os.getpid()}"
    name, _, value = mark.partition("=")

    def running() -> list[str]:
        pids = []
        for process in Path("/proc").glob("[0-9]*"):
            try:
                if mark.encode() in (process / "environ").read_bytes().split(b"\0"):
                    pids.append(process.name)
            except OSError:
                continue
        return pids

    command = [
        sys.executable,
        "-c",
        "from underpaint.cli.simulate.commands import app; app()",
        *SWEEP,
        "--precision",
        "0.01",
        "--jobs",
        "2",
    ]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    child = subprocess.Popen([*command, "--out", str(tmp_path)], env={**os.environ, name: value}, **quiet)
    end = time.monotonic() + 600
    while time.monotonic() < end and not ((tmp_path / FILE_NAME).exists() and len(running()) > 2):
        assert child.poll() is None
        time.sleep(0.02)
    assert len(running()) > 2
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    end = time.monotonic() + 600
    while time.monotonic() < end and running():
        time.sleep(0.1)
    assert not running()


def swept(folder: Path, engine: str, count: int) -> list[dict[str, object]]:
    """The lines of a sweep by so many workers, in order."""
    results = Results(folder, PLAN)
    with room_for_ray():
        run(PLAN, results, workers(engine, count), lambda line: None)
    return sorted(results.lines, key=lambda line: str(line["key"]))


@pytest.mark.slow
@pytest.mark.parametrize(
    "engine",
    [
        "local",
        pytest.param(
            "ray",
            marks=pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray (extra 'cluster') is absent"),
        ),
    ],
)
def test_workers_of_every_kind_find_the_same(tmp_path: Path, engine: str) -> None:
    with ProcessPoolExecutor(1, get_context("spawn")) as apart:  # Ray's warnings and threads stay out of this process
        actual = apart.submit(swept, tmp_path / "two", engine, 2).result()
    assert actual == swept(tmp_path / "one", "local", 1)


def test_ray_is_asked_for_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ValueError, match=r"need Ray; install it with: pip install -e '.*\[cluster\]'"):
        check_workers("ray", None)


def test_a_job_is_the_same_every_time() -> None:
    from underpaint.sim.sweep.run import Work

    job = jobs(PLAN)[-1]
    work = Work(job, PLAN.machines, 3, 0, 64)
    assert simulate(work) == simulate(work)


def traced(monkeypatch: pytest.MonkeyPatch, path: Path, *extra: str) -> tuple[int, str]:
    replace_models(monkeypatch, lambda side: SyntheticPipeline())
    alone = typer.Typer()
    alone.command()(trace)
    result = CliRunner().invoke(alone, ["--prompts-count", "3", "--depths", "3", *extra, "--out", str(path)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.output


@pytest.mark.parametrize("temperature", ["1", "0"])
def test_a_trace_is_recorded_from_a_pipeline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, temperature: str) -> None:
    code, text = traced(monkeypatch, tmp_path / "one.npz", "--temperature", temperature)
    assert code == 0, text
    trace = load(tmp_path / "one.npz")
    assert trace.grid == GRID
    assert trace.vocab_size == VOCAB
    assert trace.tokens.shape == (3, GRID.cells)
    assert len(set(trace.about["prompts"])) == 3
    assert trace.about["sampler"]["temperature"] == float(temperature)
    greedy = (trace.tokens == trace.target_tokens[..., 0]).all()
    assert greedy == (temperature == "0")
    swept = ["sweep", "--model", str(tmp_path / "one.npz"), "--policies", "chain", "--rules", "chain", "--jobs", "1"]
    assert call(*swept, "--vary", "policy.length=2", "--precision", "0.3", "--out", str(tmp_path / "sweep"))[0] == 0


def test_bad_traces_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert traced(monkeypatch, tmp_path, "--temperature", "1")[0] == 2
    assert traced(monkeypatch, tmp_path / "x.npz", "--temperature", "-1")[0] == 2
    (tmp_path / "no.npz").write_bytes(b"no")
    (tmp_path / "curve.json").write_text("{}")
    arguments = ("--costs", str(tmp_path / "curve.json"), "--compare", str(tmp_path / "curve.json"))
    for name, message in (("no.npz", "is no trace"), ("absent.npz", "absent.npz")):
        code, text = call("predict", "--trace", str(tmp_path / name), *arguments)
        assert code == 2
        assert message in text


def test_bad_costs_and_comparisons_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert traced(monkeypatch, tmp_path / "one.npz")[0] == 0
    costs, compare = tmp_path / "costs.json", tmp_path / "compare.json"
    options = ("--trace", tmp_path / "one.npz", "--costs", costs, "--compare", compare)

    def refused(path: Path, content: str | None, message: str) -> None:
        costs.write_text('{"format": 3, "verify_ms": [[1, 1.0]], "draft_ms": [[1, 0.1]]}')
        path.unlink() if content is None else path.write_text(content)
        code, text = call("predict", *map(str, options))
        assert code == 2
        assert message in text

    refused(costs, None, "costs.json")
    refused(costs, "{", "no cost curve: expected JSON")
    for content in ("[1]", "{}", '{"format": 3, "verify_ms": [1], "draft_ms": []}'):
        refused(costs, content, "costs.json: ")
    refused(costs, '{"format": 3, "verify_ms": [[1, -2]], "draft_ms": [[1, 1]]}', "verify_ms")
    compare.touch()
    refused(compare, None, "compare.json")
    for content in ("", "{"):
        refused(compare, content, "expected JSON")
    refused(compare, '{"settings": {}, "rows": []}', "without 'results_version'")
    values = {"model": {"target": "field", "engine": "cpu", "sha256": {}}, "settings": {"temperature": 1}, "rows": []}
    refused(
        compare,
        json.dumps(with_envelope("compare", {"processor": "one"}, "", values)),
        "rows: expected 1 or more of them",
    )


def test_a_prediction_says_which_costs_it_took(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert traced(monkeypatch, tmp_path / "one.npz", "--prompts-skip", "3")[0] == 0
    about = load(tmp_path / "one.npz").about
    assert traced(monkeypatch, tmp_path / "other.npz", "--prompts-skip", "0")[0] == 0
    assert not set(about["prompts"]) & set(load(tmp_path / "other.npz").about["prompts"])
    chain = {"policy": "chain", "policy_settings": {"length": 2}, "rule": "chain", "rule_settings": {}}
    row = {"method": "mine", "target_nfe": 9.0, "tokens_per_cycle": 2.0, "mean_depth": 2.0, "speedup": 1.25}
    row |= {"lossless": True, "images": 1}
    settings = {**about["sampler"], "methods": {"mine": chain}, "prompts": ["another"]}
    values = {"settings": settings, "rows": [row], "model": about["model"]}
    compared = with_envelope("compare", {"processor": "one"}, "a test", values)
    (tmp_path / "compare.json").write_text(json.dumps(compared))
    alone = {"format": 3, "verify_ms": [[1, 1.0], [3, 2.0]], "draft_ms": [[1, 0.1]], "overhead_ms": 0.1}
    within = {
        "plain": {"target_ms": 2.0, "host_ms": 0.5},
        "target_ms": alone["verify_ms"],
        "draft_ms": alone["draft_ms"],
        "chain_ms": [],
        "host_ms": {"sampled": {"cycle": 0.25, "level": 0.125, "node": 0.0, "pooled": 0.0}},
    }
    files = (
        "--trace",
        tmp_path / "one.npz",
        "--costs",
        tmp_path / "costs.json",
        "--compare",
        tmp_path / "compare.json",
    )
    predictions = {}
    for name, costs in (("alone", alone), ("within", {**alone, "in_cycle": within})):
        (tmp_path / "costs.json").write_text(json.dumps(costs))
        code, text = call("predict", *map(str, files))
        assert code == 0, text
        assert ("costs.json holds no in_cycle" in text) == (name == "alone")
        assert "chance alone" in text
        (predictions[name],) = json.loads(call("predict", *map(str, files), "--json", "-")[1])
        assert predictions[name]["in_cycle"] == (name == "within")
    assert predictions["within"]["tokens_per_cycle"] == predictions["alone"]["tokens_per_cycle"]
    assert predictions["within"]["overhead_ms"] == pytest.approx(0.5, abs=0.05)
    assert predictions["within"]["speedup"][0] > predictions["alone"]["speedup"][0]
    (tmp_path / "costs.json").write_text(json.dumps({**alone, "in_cycle": {**within, "host_ms": {}}}))
    code, text = call("predict", *map(str, files))
    assert code == 2
    assert "not for 'sampled'" in text
