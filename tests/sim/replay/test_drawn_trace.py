"""Pictures that a method drew where no replay can: recorded as counts of passes, stored, and priced by a curve."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from tests.sim.replay.test_trace import field, recorded
from underpaint.algos.protocols import PassKind
from underpaint.artifacts.cost_curve import CostCurveFile, parse_cost_curve
from underpaint.sim.latency.models import SizeMissing
from underpaint.sim.replay.drawn_trace import DrawnRecorder, DrawnTrace, drawn_times, missing_costs
from underpaint.sim.replay.trace import load, save

BEGIN, ONE, FIVE = PassKind("begin", 1, 7), PassKind("pass", 1, 1), PassKind("pass", 1, 5)
LONG = PassKind("pass", 1, 90)
CHAIN, TREE = PassKind("chain", 3, 2), PassKind("ranked", 4, 2)
RECIPE = {"loop": "jacobi", "settings": {"window": (4, 2)}}
CELLS = 36
CURVE = {
    "format": 3,
    "verify_ms": [[1, 1.0]],
    "draft_ms": [[1, 0.1]],
    "in_cycle": {
        "plain": {"target_ms": 1.0, "host_ms": 0.5},
        "target_ms": [[1, 2.0], [5, 4.0]],
        "draft_ms": [[1, 0.25], [5, 1.25]],
        "chain_ms": [[1, 0.5], [4, 2.0]],
        "tree_ms": {"ranked": {"call": 0.5, "levels": [[1, 0.125], [2, 0.25]]}},
        "host_ms": {},
    },
    "in_grid": {
        "target_ms": [[1, 3.0], [5, 7.0]],
        "begin_ms": 11.0,
        "host_ms": {"step": 0.1, "cell": 0.1, "judged": 0.1},
    },
}


def curve(**changed: object) -> CostCurveFile:
    return parse_cost_curve(json.dumps({**CURVE, **changed}).encode(), Path("curve.json"))


def drawn(by_cycles: bool = True) -> DrawnTrace:
    recorder = DrawnRecorder(RECIPE)
    depths = ([4, 4, 0], [4]) if by_cycles else (None, None)
    recorder.add(depths[0], {BEGIN: 1, FIVE: 2, ONE: 1}, {CHAIN: 2, BEGIN: 1}, 3.0)
    recorder.add(depths[1], {BEGIN: 1, FIVE: 1}, {TREE: 1, FIVE: 1, LONG: 1}, 2.0)
    return recorder.trace()


def test_calls_are_counted_by_kind_and_picture() -> None:
    trace = drawn()
    assert trace.cycles.tolist() == [3, 1]
    assert trace.levels.tolist() == [8, 4]
    assert trace.passes.tolist() == [4, 2]
    assert dict(zip(trace.target_kinds, trace.target.T.tolist(), strict=True)) == {
        BEGIN: [1, 1],
        ONE: [1, 0],
        FIVE: [2, 1],
    }
    assert dict(zip(trace.drafter_kinds, trace.drafter.T.tolist(), strict=True))[TREE] == [0, 1]
    assert trace.is_by({"loop": "jacobi", "settings": {"window": [4, 2]}})
    assert not trace.is_by({"loop": "jacobi", "settings": {"window": [4, 3]}})


def test_pictures_of_cycles_cost_what_cycles_do() -> None:
    times = drawn_times(drawn(), curve(), CELLS)
    assert times.target.tolist() == [1.0 + 2 * 4.0 + 2.0, 1.0 + 4.0]
    assert times.drafter.tolist() == [2 * 1.5 + 0.25, 0.5 + 0.125 + 3 * 0.25 + 2 * 1.25]
    assert times.host.tolist() == [3.0 * CELLS * 0.5, 2.0 * CELLS * 0.5]


def test_pictures_of_cells_in_any_order_cost_what_loops_over_cells_do() -> None:
    times = drawn_times(drawn(by_cycles=False), curve(), CELLS)
    assert times.target.tolist() == [11.0 + 2 * 7.0 + 3.0, 11.0 + 7.0]
    assert times.host.tolist() == [3.0 * CELLS * 0.5, 2.0 * CELLS * 0.5]


def test_loops_of_jacobi_windows_alone_cost_what_passes_over_windows_do() -> None:
    in_cycle: dict[str, object] = {**CURVE["in_cycle"], "window_ms": [[1, 1.5], [5, 2.5]]}  # type: ignore[dict-item]
    measured = curve(in_cycle=in_cycle)
    assert drawn_times(drawn(), measured, CELLS).target.tolist() == [1.0 + 2 * 2.5 + 1.5, 1.0 + 2.5]
    fronts = dataclasses.replace(drawn(by_cycles=False), recipe={"loop": "jacobi fronts"})
    assert drawn_times(fronts, measured, CELLS).target.tolist() == [11.0 + 2 * 2.5 + 1.5, 11.0 + 2.5]
    rows = dataclasses.replace(drawn(by_cycles=False), recipe={"loop": "zipar"})
    assert drawn_times(rows, measured, CELLS).target.tolist() == [11.0 + 2 * 7.0 + 3.0, 11.0 + 7.0]
    trees = dataclasses.replace(drawn(), recipe={"policy": "eagle2", "window": {"length": 4}})
    assert drawn_times(trees, measured, CELLS).target.tolist() == [1.0 + 2 * 4.0 + 2.0, 1.0 + 4.0]
    shorter = curve(in_cycle={**in_cycle, "window_ms": [[1, 1.5], [4, 2.25]]})
    assert drawn_times(drawn(), shorter, CELLS).target.tolist() == [1.0 + 2 * 4.0 + 1.5, 1.0 + 4.0]
    with pytest.raises(ValueError, match="window_ms must name rising sizes from 1"):
        curve(in_cycle={**in_cycle, "window_ms": [[5, 2.5]]})


def test_what_the_curve_lacks_is_named() -> None:
    assert missing_costs(drawn(), curve(in_grid=None)) == ""
    assert "holds no in_grid; measure a whole curve" in missing_costs(drawn(by_cycles=False), curve(in_grid=None))
    assert "holds no in_cycle" in missing_costs(drawn(), curve(in_cycle=None))
    with pytest.raises(SizeMissing, match="no in_cycle"):
        drawn_times(drawn(), curve(in_cycle=None), CELLS)
    short = {**CURVE["in_cycle"], "target_ms": [[1, 2.0], [4, 4.0]]}  # type: ignore[dict-item]
    with pytest.raises(SizeMissing, match="measured from 1 to 4 nodes, asked for 5"):
        drawn_times(drawn(), curve(in_cycle=short), CELLS)
    for part, message in (({"chain_ms": []}, "no chains in one call"), ({"tree_ms": {}}, "ranked siblings")):
        with pytest.raises(SizeMissing, match=message):
            drawn_times(drawn(), curve(in_cycle={**CURVE["in_cycle"], **part}), CELLS)  # type: ignore[dict-item]


def test_a_trace_keeps_them(tmp_path: Path) -> None:
    trace = recorded(field(images=2), 2)
    save(dataclasses.replace(trace, drawn=(drawn(), drawn(by_cycles=False))), tmp_path / "one.npz")
    first, second = load(tmp_path / "one.npz").drawn
    assert first.is_by(RECIPE)
    assert first.target_kinds == drawn().target_kinds
    for name in ("cycles", "levels", "target", "drafter", "host"):
        assert np.array_equal(getattr(first, name), getattr(drawn(), name))
        assert np.array_equal(getattr(second, name), getattr(drawn(by_cycles=False), name))
    with pytest.raises(ValueError, match="expected 3 drawn pictures, got 2"):
        dataclasses.replace(recorded(field(images=3), 3), drawn=(drawn(),))
    with pytest.raises(ValueError, match=r"expected host \(2,\), got \(1,\)"):
        dataclasses.replace(drawn(), host=np.ones(1))
