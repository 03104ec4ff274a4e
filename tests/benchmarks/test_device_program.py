"""The device's prediction is what the simulator reads."""

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
