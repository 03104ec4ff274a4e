"""The device's prediction is what the simulator reads, and holds what its page says of batches."""

import json
from pathlib import Path

import pytest

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

    for method in ("chain", "block", "sjd", "scd-maximal", "jacobi-lookup"):
        assert min(speedup(method, batch) for batch in (1, 4, 16)) > 1.0
    slower = [
        method for method in ("eagle1", "eagle2", "adt", "opt-tree", "sequoia", "traversal") if speedup(method, 4) < 1
    ]
    assert slower == ["eagle2", "adt", "opt-tree", "sequoia", "traversal"]
    assert max(speedup(method, 16) for method in (*slower, "eagle1", "sjd-pac")) < 1.0
