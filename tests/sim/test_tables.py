"""Published tables, latency models and named machines."""

import json
from pathlib import Path

import numpy as np
import pytest

from sim.latency import MeasuredCosts, RatioCosts, load_costs
from sim.machines import MACHINES, MODELS, Machine, Model, Roofline, roofline
from sim.published import TOLERANCE, check, groups, implied_cost

CURVE = MeasuredCosts("curve", ((1, 2.0), (4, 5.0), (16, 8.0)), ((1, 0.5), (8, 1.2)))


def test_a_curve_is_read_on_the_line_and_never_beyond() -> None:
    assert CURVE.verify_ms(np.array([1, 2, 4, 10, 16])) == pytest.approx([2.0, 3.0, 5.0, 6.5, 8.0])
    assert CURVE.draft_ms(np.array([1, 8])) == pytest.approx([0.5, 1.2])
    with pytest.raises(ValueError, match="target passes: measured from 1 to 16 nodes, asked for 17, 60; measure"):
        CURVE.verify_ms(np.array([2, 60, 17]))
    with pytest.raises(ValueError, match="drafter passes: measured from 1 to 8"):
        CURVE.draft_ms(np.array([9]))


def test_a_curve_is_loaded_from_the_benchmark_s_file(tmp_path: Path) -> None:
    path = tmp_path / "here.json"
    held = {"benchmark": "cost_curve", "verify_ms": [[1, 2.0], [4, 5.0]], "draft_ms": [[1, 0.5]], "threads": 2}
    path.write_text(json.dumps(held))
    assert load_costs(path) == MeasuredCosts("here", ((1, 2.0), (4, 5.0)), ((1, 0.5),))
    for broken in ("{}", "[1]", '{"verify_ms": [[1]], "draft_ms": []}', "not json"):
        path.write_text(broken)
        with pytest.raises(ValueError, match=r"here\.json: expected JSON with verify_ms and draft_ms"):
            load_costs(path)
    path.write_text('{"verify_ms": [[2, 1.0]], "draft_ms": [[1, 1.0]]}')
    with pytest.raises(ValueError, match="must name rising sizes from 1 node on"):
        load_costs(path)
    with pytest.raises(ValueError, match="must hold positive times"):
        MeasuredCosts("zero", ((1, 0.0),), ((1, 1.0),))


@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.name)
@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_a_roofline_rises_and_is_bounded_below_by_the_weights(machine: Machine, model: Model) -> None:
    costs = Roofline(machine, model)
    nodes = np.array([1, 2, 8, 60, 2000])
    times = costs.verify_ms(nodes)
    assert np.all(np.diff(times) >= 0.0)
    assert times[-1] > times[0]
    assert times[0] >= model.parameters * machine.weight_bytes / machine.bandwidth / 1e6
    assert np.all(costs.draft_ms(nodes) < times)
    assert np.all(Roofline(machine, model, batch=64).verify_ms(nodes) >= times)
    assert np.all(
        Roofline(machine, model, cached=4096).verify_ms(nodes) >= Roofline(machine, model, cached=0).verify_ms(nodes)
    )


def test_a_roofline_by_hand() -> None:
    costs = roofline("a100/llamagen-xl")
    rows, cached = 2, 512
    moved = 775e6 * 2 + 2 * 36 * 1280 * cached * 2 * rows + (6 * 36 * 1280 + 16384) * 2 * rows
    assert costs.verify_ms(np.array([1]))[0] == pytest.approx(max(moved / 2039e6, 2.5e-3 * (10 * 36 + 4)))
    many = roofline("a100/llamagen-xl/batch8")
    assert (many.batch, many.name) == (8, "a100/llamagen-xl/batch8")
    assert many.verify_ms(np.array([60]))[0] > 4.0 * costs.verify_ms(np.array([60]))[0]
    for wrong in ("a100/llamagen-xl/8", "a100/llamagen-xl/batch", "a100/llamagen-xl/batch0"):
        with pytest.raises(ValueError, match="batch"):
            roofline(wrong)
    with pytest.raises(ValueError, match="machine: there is no 'a10'; did you mean 'a100'"):
        roofline("a10/llamagen-xl")
    with pytest.raises(ValueError, match="model: there is no 'llamagen'; did you mean 'llamagen-"):
        roofline("a100/llamagen")
    with pytest.raises(ValueError, match="expected machine/model"):
        roofline("a100")
    with pytest.raises(ValueError, match="batch must be at least 1"):
        Roofline(MACHINES["a100"], MODELS["llamagen-b"], batch=0)


def test_adt_s_table_has_a_row_that_no_common_ratio_explains() -> None:
    adt = next(group for group in groups() if group.name == "ADT-Tree")
    first, second, third = check(adt, fit_on=0)
    assert first.error == pytest.approx(0.0)
    assert abs(second.error or 1.0) <= TOLERANCE
    assert second.verdict == "fits"
    assert third.verdict == "does not fit"
    assert third.error == pytest.approx(-0.187, abs=1e-3)
    assert first.cost == pytest.approx((3.40 / 2.21 - 1.0) / 3.86)
    by_median = check(adt, fit_on=None)
    assert [one.verdict for one in by_median] == ["fits", "fits", "does not fit"]
    with pytest.raises(ValueError, match="expected a row from 0 to 2"):
        check(adt, fit_on=3)


def test_a_table_made_from_one_ratio_fits() -> None:
    adt = next(group for group in groups() if group.name == "ADT-Tree")
    for row in adt.rows:
        assert implied_cost(adt, row) > 0.0
    for group in groups():
        for one in check(group):
            assert one.row.speedup > 0.0
            assert one.verdict
            if one.error is not None and one.predicted is not None:
                assert one.predicted == pytest.approx(one.row.speedup * (1.0 + one.error))


def test_rows_faster_than_their_own_steps_are_flagged() -> None:
    flagged = {
        (one.group.name, one.row.method) for group in groups() for one in check(group) if "faster" in one.verdict
    }
    assert ("SJD-PAC on Lumina", "GSD") in flagged
    assert ("PJD on LlamaGen-XL", "PJD c=6") in flagged
    assert ("SJD-PAC on Lumina", "SJD-PAC") not in flagged


def test_ratio_costs_are_the_papers_terms() -> None:
    costs = RatioCosts("paper", 0.1)
    assert costs.verify_ms(np.array([1, 60])).tolist() == [1.0, 1.0]
    assert costs.draft_ms(np.array([1, 10])).tolist() == [0.1, 0.1]
