"""The device's prediction is what the simulator reads, and holds what its page says of batches."""

import json
from pathlib import Path

import pytest

from benchmarks.device import AR_BOUNDS
from underpaint.artifacts.cost_curve import read_cost_curve

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"


@pytest.mark.parametrize("path", sorted((RESULTS / "device").glob("*.json")), ids=lambda path: path.stem)
def test_the_simulator_reads_the_device_s_curves(path: Path) -> None:
    curve = read_cost_curve(path)
    assert curve.in_cycle is not None
    assert curve.in_cycle.plain.host_ms < 0.04
    assert curve.overhead_ms < 0.15
    assert [size for size, _ in curve.verify_ms][-1] == 60


def test_the_page_says_which_methods_gain_in_batches() -> None:
    rows = json.loads((RESULTS / "device-batches.json").read_text())["rows"]
    measured = json.loads((RESULTS / "protocol-predictions.json").read_text())["rows"]
    tokens = {row["method"]: row.get("measured_tokens_per_cycle") for row in measured if row["temperature"] == 1}
    ms = {(row["method"], row["batch"]): row["h100_ms"] for row in rows}

    def speedup(method: str, batch: int) -> float:
        name = method.replace("chain", "speculative")
        return (tokens.get(f"{name} (paper)") or tokens[name]) * ms["ar", batch] / ms[method, batch]

    for method in ("chain", "block", "sjd", "scd-maximal", "jacobi-lookup", "sjd-pac"):
        assert min(speedup(method, batch) for batch in (1, 4, 16)) > 1.0
    trees = ("eagle1", "eagle2", "adt", "opt-tree", "sequoia", "traversal")
    slower = {batch: [method for method in trees if speedup(method, batch) < 1] for batch in (1, 4, 16)}
    assert slower == {1: ["eagle2", "adt", "opt-tree"], 4: [*trees], 16: [*trees]}


def test_a_plain_step_is_as_near_its_bytes_as_its_check_asks() -> None:
    """By the cost model: within the ratios that `benchmarks.device` asks of a GPU, of bytes at a copy's bandwidth."""
    batched = json.loads((RESULTS / "device-batches.json").read_text())["rows"]
    single = json.loads((RESULTS / "device-predictions.json").read_text())["rows"]
    steps = [row for row in (*batched, *single) if row["method"] == "ar" and row["batch"] == 1]
    assert {row["model"] for row in steps} == {"llamagen-xl at 384 px", "llamagen-xl", "7b"}
    for row in steps:
        for gpu in ("h100", "h200"):
            assert row[f"{gpu}_ms"] / row[f"{gpu}_bytes_ms"] < AR_BOUNDS[row["model"].split()[0]], row
            assert row[f"{gpu}_ms"] < row[f"{gpu}_unprefetched_ms"] < row[f"{gpu}_sequential_ms"]


def test_no_program_takes_longer_outside_the_models_than_asked() -> None:
    rows = json.loads((RESULTS / "device-predictions.json").read_text())["rows"]
    assert {row["model"] for row in rows} == {"llamagen-xl", "7b"}
    assert len(rows) > 80
    assert {row["method"] for row in rows if max(row["h100_outside_ms"], row["h200_outside_ms"]) > 0.1} == set()
