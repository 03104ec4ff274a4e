"""A cost curve that is measured between drawings, on tiny models."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conformance.test_cost_curve import SAMPLING, Measured
from tests.conformance.test_cost_curve import measured as measured  # the fixture
from underpaint.artifacts.cost_curve import CostCurveFile, read_cost_curve
from underpaint.artifacts.run_log import RunLogError
from underpaint.runtime.costs import in_cycle, interleaved
from underpaint.runtime.costs.interleaved import CURVE, PIECES, SHARE, InterleavedCurve
from underpaint.runtime.costs.machine_curve import curve_of
from underpaint.runtime.costs.samples import FEWEST, PLAIN_STEP, CycleSamples, at_mean_speed


@pytest.fixture
def first(measured: Measured) -> CostCurveFile:
    curve = curve_of(measured, SAMPLING)
    assert curve is not None
    return curve


def test_a_round_of_pieces_makes_a_whole_curve_and_a_stopped_run_goes_on_with_its_own(
    measured: Measured, first: CostCurveFile, tmp_path: Path
) -> None:
    curve = InterleavedCurve(measured, SAMPLING, first, tmp_path)
    assert curve.finish() is None
    before = measured.high.params
    for _ in range(4):
        assert curve.measure_piece() > 0.0
    assert measured.high.params == before
    again = InterleavedCurve(measured, SAMPLING, first, tmp_path)
    assert again.pieces == 4
    for _ in range(again.pieces_in_a_round - 5):
        again.measure_piece()
    assert again.finish() is None
    assert not (tmp_path / CURVE).exists()
    for _ in range(2):  # the last of the round, and the first of the next
        again.measure_piece()
    whole = again.finish()
    assert whole is not None
    assert whole == read_cost_curve(tmp_path / CURVE)
    assert whole.measured_on == first.measured_on
    assert whole.in_cycle is not None
    assert whole.in_grid is not None
    assert whole.in_cycle.host_ms.keys() - {"cost_aware_chain"} == {
        "one_call",
        "sampled",
        "ranked",
        "iid",
        "iid_paths",
        "cost_aware",
    }
    assert whole.in_cycle.tree_ms.keys() == {"sampled", "ranked"}
    assert [size for size, _ in whole.verify_ms] == [size for size, _ in first.verify_ms]
    content = json.loads(whole.content)
    lines = [json.loads(line) for line in (tmp_path / PIECES).read_text().splitlines()]
    assert content["in_cycle"]["rounds"] == 1
    assert content["seconds"] == pytest.approx(sum(line["seconds"] for line in lines[1:]), abs=0.01)
    # The passes alone before every piece count: the least of their samples is one of them.
    samples = [line["passes"][0]["1"][0] for line in lines[1:]]
    assert len(samples) == again.pieces_in_a_round + 1
    assert content["verify_spread_ms"]["least"][0][1] == pytest.approx(min(samples), abs=1e-4)


def at_speed(piece: Mapping[str, Any], ms: float) -> dict[str, Any]:
    """A piece all of whose samples are `ms`, and of whose calls each level is."""
    new_piece = {**piece, "passes": [dict.fromkeys(some, (ms, ms)) for some in piece["passes"]]}
    for kind in {"in_cycle", "in_grid"} & piece.keys():
        parts = {name: [[*key, [ms] * len(times)] for *key, times in rows] for name, rows in piece[kind].items()}
        parts["tree_calls"] = [[*key, [ms * key[1]] * len(times)] for *key, times in parts["tree_calls"]]
        new_piece[kind] = parts
    return new_piece


def test_pieces_of_slow_minutes_change_no_ratio(measured: Measured, first: CostCurveFile, tmp_path: Path) -> None:
    curve = InterleavedCurve(measured, SAMPLING, first, tmp_path)
    for _ in range(curve.pieces_in_a_round):
        curve.measure_piece()
    # The second round stops before its last pieces, and all of it is at half the speed.
    pieces = curve._pieces
    curve._pieces = [at_speed(piece, 1.0) for piece in pieces] + [at_speed(piece, 2.0) for piece in pieces[:-2]]
    whole = curve.finish()
    assert whole is not None
    assert whole.in_cycle is not None
    assert whole.in_grid is not None
    plain = whole.in_cycle.plain
    groups = len(pieces) - 1
    step = (groups * 2.0 + (groups - 1) * 4.0) / (2 * groups - 1)  # of a pass and of the host, over all bursts
    assert plain.target_ms == plain.host_ms == pytest.approx(step / 2, abs=1e-4)
    assert [ms for _, ms in whole.in_cycle.target_ms] == pytest.approx(
        [step / 2] * len(whole.in_cycle.target_ms), abs=1e-4
    )
    assert whole.in_grid.begin_ms == pytest.approx(step / 2, abs=1e-4)


def burst_at(step: float, passes: Mapping[int, list[float]]) -> CycleSamples:
    burst = CycleSamples()
    burst.passes["plain", 1], burst.host[PLAIN_STEP] = [step - 0.5], [0.5]
    for size, times in passes.items():
        burst.passes["target", size] = list(times)
    return burst


def test_a_state_of_the_machine_may_slow_small_passes_and_speed_up_large_ones() -> None:
    """Plain steps of 2 and 3 ms take turns; passes over 4 nodes go with them, passes over 64 against them."""
    states = [(2.0, {4: [3.0, 3.2], 64: [40.0]}), (3.0, {4: [4.0, 4.2], 64: [30.0]})]
    bursts = [burst_at(*states[turn % 2]) for turn in range(2 * FEWEST)]
    whole = at_mean_speed(bursts)
    assert whole.plain_ms == pytest.approx(2.5)
    assert whole.passes["target", 64] == pytest.approx([35.0] * 2 * FEWEST)
    assert np.mean(whole.passes["target", 4]) == pytest.approx(3.6)
    assert at_mean_speed(bursts, 2.0).passes["target", 64] == pytest.approx([40.0] * 2 * FEWEST)
    few = at_mean_speed(bursts[: FEWEST - 1]).passes["target", 64]
    assert few == pytest.approx([40.0 * 2.5 / 2.0, 30.0 * 2.5 / 3.0] * ((FEWEST - 1) // 2)), "in proportion"
    falling = [burst_at(step, {64: [ms]}) for step, ms in [*[(2.0, 40.0)] * 20, (3.0, 1.0), (9.0, 1.0)]]
    assert min(at_mean_speed(falling).passes["target", 64]) > 0.0


def test_pieces_of_other_models_are_replaced_and_edited_ones_are_refused(
    measured: Measured, first: CostCurveFile, tmp_path: Path
) -> None:
    InterleavedCurve(measured, SAMPLING, first, tmp_path).measure_piece()
    other = replace(measured, hashes={"target": "1", "drafter": "3"})
    assert InterleavedCurve(other, SAMPLING, first, tmp_path).pieces == 0
    assert InterleavedCurve(measured, SAMPLING, first, tmp_path).pieces == 1
    replaced = InterleavedCurve(other, SAMPLING, first, tmp_path)
    replaced.measure_piece()
    assert InterleavedCurve(other, SAMPLING, first, tmp_path).pieces == 1
    assert InterleavedCurve(measured, SAMPLING, first, tmp_path).pieces == 0
    path = tmp_path / PIECES
    path.write_text(path.read_text().replace('"seconds": ', '"seconds": 1'))
    with pytest.raises(RunLogError, match="edited"):
        InterleavedCurve(other, SAMPLING, first, tmp_path)


def test_pieces_take_their_share_of_the_time(
    measured: Measured, first: CostCurveFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    curve = InterleavedCurve(measured, SAMPLING, first, tmp_path)
    now, events = [0.0], list[str]()

    def piece() -> float:
        now[0] += 5.0
        events.append("piece")
        return 5.0

    def draw(seconds: float) -> float:
        now[0] += seconds
        events.append("drawing")
        return seconds

    monkeypatch.setattr(curve, "measure_piece", piece)
    monkeypatch.setattr(interleaved, "perf_counter", lambda: now[0])
    interleaved_draw = curve.between(draw)
    assert [interleaved_draw(2.0) for _ in range(1000)] == [2.0] * 1000
    assert events[:3] == ["drawing", "piece", "drawing"], "the first drawing waits for nothing"
    assert 5.0 * events.count("piece") / now[0] == pytest.approx(SHARE, rel=0.03)


def test_groups_hold_every_loop_once() -> None:
    run = [object() for _ in range(8)]
    groups = in_cycle.grouped(run)  # type: ignore[arg-type]
    assert [one for group in groups for one in group] == run
    assert {len(group) for group in groups} <= {2, in_cycle.PLAIN_EVERY}
    assert in_cycle.grouped([]) == [()]
