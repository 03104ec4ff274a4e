"""PublishedRow tables, latency models and named machines."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from underpaint.artifacts.cost_curve import read_cost_curve
from underpaint.sim.latency.machines import DECODER_SIZES, MACHINES, DecoderSize, Machine, RooflineCosts, roofline
from underpaint.sim.latency.models import MeasuredCosts
from underpaint.sim.report.published import TOLERANCE, check, groups, implied_cost
from underpaint.sim.report.statistics import plain_ms

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
    values = {"format": 3, "verify_ms": [[1, 2.0], [4, 5.0]], "draft_ms": [[1, 0.5]], "threads": 2}
    path.write_text(json.dumps(values))
    assert MeasuredCosts.of(read_cost_curve(path)) == MeasuredCosts("here", ((1, 2.0), (4, 5.0)), ((1, 0.5),))
    damaged = (
        json.dumps({**values, "in_grid": 3}),
        json.dumps({**values, "in_cycle": 3}),
        '{"format": 3, "verify_ms": [[1]], "draft_ms": []}',
    )
    curve = r"the curve: (in_cycle|in_grid|verify_ms): expected"
    message = rf"here\.json: (no cost curve|expected format 3|{curve})"
    for broken in ("{}", "[1]", *damaged, "not json"):
        path.write_text(broken)
        with pytest.raises(ValueError, match=message):
            MeasuredCosts.of(read_cost_curve(path))
    path.write_text('{"format": 3, "verify_ms": [[2, 1.0]], "draft_ms": [[1, 1.0]]}')
    with pytest.raises(ValueError, match="must name rising sizes from 1 node on"):
        MeasuredCosts.of(read_cost_curve(path))
    with pytest.raises(ValueError, match="must hold positive times"):
        MeasuredCosts("zero", ((1, 0.0),), ((1, 1.0),))
    grid = {"target_ms": [[2, 1.0]], "begin_ms": 1.0, "host_ms": {"step": 0.1, "cell": 0.1, "judged": 0.0}}
    path.write_text(json.dumps({**values, "in_grid": grid}))
    with pytest.raises(ValueError, match="in_grid: target_ms must name rising sizes"):
        read_cost_curve(path)


@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.name)
@pytest.mark.parametrize("model", DECODER_SIZES, ids=lambda model: model.name)
def test_a_roofline_rises_and_is_bounded_below_by_the_weights(machine: Machine, model: DecoderSize) -> None:
    costs = RooflineCosts(machine, model)
    nodes = np.array([1, 2, 8, 60, 2000])
    times = costs.verify_ms(nodes)
    assert np.all(np.diff(times) >= 0.0)
    assert times[-1] > times[0]
    assert times[0] >= model.parameters * machine.weight_bytes / machine.bandwidth / 1e6
    assert np.all(costs.draft_ms(nodes) < times)
    assert np.all(RooflineCosts(machine, model, batch=64).verify_ms(nodes) >= times)
    assert np.all(
        RooflineCosts(machine, model, cached=4096).verify_ms(nodes)
        >= RooflineCosts(machine, model, cached=0).verify_ms(nodes)
    )


def test_a_roofline_by_hand() -> None:
    costs = roofline("a100/llamagen-xl")
    rows, cached = 2, 512
    moved = 775e6 * 2 + 2 * 36 * 1280 * cached * 2 * rows + (42 * 36 * 1280 + 16384) * 2 * rows
    launches = 2.75e-3 * (10 * 36 + 4)
    assert costs.verify_ms(np.array([1]))[0] == pytest.approx(launches + moved / (0.77 * 2039e6))
    sixty = rows * 60
    products = 2 * 775e6 * 128 / (0.7 * 312e9)  # two tiles of 64 positions
    assert products < 775e6 * 2 / (0.77 * 2039e6), "reading the weights still takes longer"
    attention = max(2 * 36 * 1280 * cached * 2 * rows / (0.77 * 2039e6), 4 * 36 * 1280 * sixty * 542.5 / (0.7 * 312e9))
    moved = 775e6 * 2 + (42 * 36 * 1280 + 16384) * 2 * sixty
    assert costs.verify_ms(np.array([60]))[0] == pytest.approx(launches + moved / (0.77 * 2039e6) + attention)
    many = roofline("a100/llamagen-xl/batch8")
    assert (many.batch, many.name, many.waits_for) == (8, "a100/llamagen-xl/batch8", 1)
    assert many.verify_ms(np.array([60]))[0] > 4.0 * costs.verify_ms(np.array([60]))[0]
    fixed = roofline("a100/llamagen-xl/batch8-fixed")
    assert (fixed.batch, fixed.name, fixed.waits_for) == (8, "a100/llamagen-xl/batch8-fixed", 8)
    for wrong in ("a100/llamagen-xl/8", "a100/llamagen-xl/batch", "a100/llamagen-xl/batch0", "a100/llamagen-xl/fixed"):
        with pytest.raises(ValueError, match="batch"):
            roofline(wrong)
    with pytest.raises(ValueError, match="machine: there is no 'a1000'; did you mean 'a100'"):
        roofline("a1000/llamagen-xl")
    with pytest.raises(ValueError, match="decoder: there is no 'llamagen'; did you mean 'llamagen-"):
        roofline("a100/llamagen")
    with pytest.raises(ValueError, match="expected machine/model"):
        roofline("a100")
    with pytest.raises(ValueError, match="batch must be at least 1"):
        RooflineCosts(MACHINES["a100"], DECODER_SIZES["llamagen-b"], batch=0)


MY_GPU = """
bandwidth = 1000.0
peak = 200.0
weight_bytes = 1.0
value_bytes = 1.0
launch_us = 0.0
bandwidth_share = 0.8
kernels = 5
host_ms = 0.25
"""


def test_a_machine_is_a_file(tmp_path: Path) -> None:
    path = tmp_path / "my-gpu.toml"
    path.write_text(MY_GPU)
    costs = roofline(f"{path}/llamagen-xl/batch2")
    assert (costs.name, costs.overhead_ms, costs.step_overhead_ms) == ("my-gpu/llamagen-xl/batch2", 0.25, 0.25)
    rows, cached = 4, 512
    moved = 775e6 + 2 * 36 * 1280 * cached * rows + (42 * 36 * 1280 + 16384) * rows
    assert costs.verify_ms(np.array([1]))[0] == pytest.approx(moved / (0.8 * 1000e6))
    path.write_text(MY_GPU.replace("launch_us = 0.0", "launch_us = 1e4\nhost_step_ms = 0.0"))
    dear = roofline(f"{path}/llamagen-xl/batch2")
    assert dear.verify_ms(np.array([1])) == pytest.approx(costs.verify_ms(np.array([1])) + 10.0 * (5 * 36 + 4))
    assert plain_ms(dear) == dear.verify_ms(np.array([1]))[0]


def test_a_machine_s_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"none\.toml': expected a file that describes it, there is none; name one of"):
        roofline(f"{tmp_path}/none.toml/llamagen-xl")


def test_a_machine_file_may_be_named_by_any_spelling_of_its_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lab").mkdir()
    for place in ("gpu.toml", "lab/gpu.toml"):
        (tmp_path / place).write_text("bandwidth = 864.0\npeak = 362.0\nlaunch_us = 2.75\n")
    costs = [roofline(name) for name in ("./gpu.toml/llamagen-xl", "lab//gpu.toml/llamagen-xl", "gpu.toml/llamagen-xl")]
    assert {one.name for one in costs} == {"gpu/llamagen-xl"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("bandwidth = [", "Invalid value"),
        (MY_GPU.replace("peak = 200.0", ""), "peak"),
        (MY_GPU + "memory = 80", "memory"),
        (MY_GPU.replace("1000.0", "nan"), "bandwidth"),
        (MY_GPU.replace("0.8", "1.8"), "bandwidth_share"),
        (MY_GPU.replace("= 5", "= -5"), "kernels"),
        (MY_GPU + "overlap_us = 0.5", "expected overlap_us of at most launch_us (0), got 0.5"),
    ],
)
def test_a_file_that_describes_no_machine_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "gpu.toml"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"gpu\.toml: expected a machine with bandwidth") as caught:
        roofline(f"{path}/llamagen-xl")
    assert message in str(caught.value)


def test_adt_s_table_has_a_row_that_no_common_ratio_explains() -> None:
    adt = next(group for group in groups() if group.name == "ADT-Tree")
    first, second, third = check(adt)
    assert first.error == pytest.approx(0.0)
    assert abs(second.error or 1.0) <= TOLERANCE
    assert second.verdict == "fits"
    assert third.verdict == "does not fit"
    assert third.error == pytest.approx(-0.187, abs=1e-3)
    assert first.cost == pytest.approx((3.40 / 2.21 - 1.0) / 3.86)


PUBLISHED = {
    # The latency speedups of section 8 of the methods' notes, in the order of its rows; those in steps stand below.
    "EAGLE-2": (1.29, 0.93, 0.87, 0.92, 1.62, 0.72, 0.78, 0.96),
    "LANTERN": (2.26, 1.69, 1.45, 1.26, 3.03, 1.08, 1.42, 1.59, 1.20, 1.45),
    "VVS": (1.63, 1.76),
    "EAGLE-1": (2.03, 2.37),
    "LANTERN++": (2.15, 2.48, 2.28),
    "Cool-SD 1.1": (2.27,),
    "Cool-SD 2": (2.72,),
    "Cool-SD": (2.69,),
    "EAGLE": (2.10,),
    "LANTERN++ (best claim)": (2.56,),
    "ADT": (2.21,),
    "ADT+LANTERN": (3.13, 3.05),
    "MuLo-SD v1": (1.22, 1.68),
    "ZipAR-16": (1.88, 3.65),
    "MuLo-SD CVPR": (1.40, 1.94, 3.90, 2.03, 5.33),
    "ZipAR": (11.487, 4.0, 5.535),
    "SJD": (2.23, 2.372, 2.0, 1.25),
    "SJD, low end": (2.05,),
    "SJD, high end": (2.3,),
    "SCD": (4.18, 2.45),
    "SJD-PAC": (3.80, 3.97, 3.25, 3.51),
    "GSD": (3.62, 3.38, 2.67),
    "GSD G=50": (4.65,),
    "GSD, average": (3.7,),
    "PJD c=16": (4.95,),
    "PJD c=11": (6.35,),
    "PJD c=6": (4.81,),
    "SJD2": (2.63, 2.54),
    "SSD": (12.19, 13.28, 5.70),
    "Hawk": (1.71,),
    "CIAR": (2.53, 2.13, 1.87),
    "HB-SJD, low end": (1.48,),
    "HB-SJD, high end": (1.65,),
}
IN_STEPS = {
    "EAGLE": (2.94,),
    "EAGLE-2": (1.22, 1.22),
    "LANTERN": (2.10, 1.83),
    "LANTERN++": (3.19,),
    "LANTERN++ (best claim)": (3.63,),
    "ADT": (3.40,),
    "ADT+LANTERN": (4.86, 3.97),
    "SJD-PAC": (4.51, 4.62, 4.31, 4.59),
    "SJD": (3.72, 2.307),
    "SCD": (4.208,),
    "GSD": (3.39, 5.74, 2.57),
    "PJD c=16": (5.99,),
    "PJD c=11": (7.96,),
    "PJD c=6": (4.19,),
    "SJD2": (4.02, 5.63),
}


def test_every_published_number_is_held_with_its_source() -> None:
    speedups: dict[str, list[float]] = {}
    steps: dict[str, list[float]] = {}
    for group in groups():
        for one in check(group):
            speedups.setdefault(one.row.method, []).append(one.row.speedup)
            if one.row.tokens_per_cycle:
                steps.setdefault(one.row.method, []).append(one.row.tokens_per_cycle)
            assert set(one.tag.removesuffix("; ratios D").split(",")) <= {"S", "N"}, one
            assert re.search(r"arXiv \d{4}\.\d{5}", one.paper) or one.paper == one.row.method == "CIAR", one
    assert {name: sorted(values) for name, values in speedups.items()} == {
        name: sorted(values) for name, values in PUBLISHED.items()
    }
    assert {name: sorted(values) for name, values in steps.items()} == {
        name: sorted(values) for name, values in IN_STEPS.items()
    }


def test_a_roofline_predicts_what_tells_its_tokens_and_depth() -> None:
    predictions = {(one.row.method, one.row.data): one for group in groups() for one in check(group) if one.by_roofline}
    assert len(predictions) == 10
    adt, costs = predictions["ADT", "COCO"], roofline("a100/anole-7b")
    one, sixty = costs.verify_ms(np.array([1, 60]))
    first, ten = costs.draft_ms(np.array([1, 10]))
    assert adt.by_roofline == pytest.approx(3.40 / ((sixty + first + 2.86 * ten) / one))
    assert adt.roofline_error == pytest.approx((adt.by_roofline or 0.0) / 2.21 - 1.0)
    for method in ("EAGLE", "LANTERN++", "LANTERN++ (best claim)"):
        assert 0.0 < abs(predictions[method, ""].roofline_error or 0.0) < 0.05
    assert all(one.roofline_error is None for group in groups() if not group.latency for one in check(group))


def test_a_front_without_a_window_is_held_to_the_nearest() -> None:
    (lumina,) = (one for group in groups() for one in check(group) if one.row.data == "Lumina, no window given")
    assert lumina.predicted == pytest.approx(2352 / 566)
    assert lumina.verdict == "fits (the nearest window, 11, takes 566 steps)"


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


def test_zipar_on_tar_follows_from_its_grid_and_window() -> None:
    rows = {one.row.data: one for group in groups() if group.name == "ZipAR" for one in check(group)}
    for data, side, published in (("Tar-1.5B 512 px", 32, 1.88), ("Tar-1.5B 1024 px", 64, 3.65)):
        predicted = side**2 / (side + 16 * (side - 1))
        assert rows[data].predicted == pytest.approx(predicted)
        assert rows[data].row.speedup == published
        assert 0.02 < predicted / published - 1.0 < 0.05
        assert rows[data].verdict == "fits"


def test_published_tokens_a_pass_are_priced_and_what_is_missing_is_named() -> None:
    rows = {(one.row.method, one.row.data): one for group in groups() for one in check(group)}
    eagle = rows["EAGLE-2", "stage I"]
    assert eagle.cost is not None
    assert eagle.by_roofline == pytest.approx(1.22 / eagle.cost)
    assert eagle.verdict.endswith("published 1.22")
    assert rows["VVS", "stage I"].by_roofline is None
    for (method, _), one in rows.items():
        assert ("missing: " in one.verdict) == (method.startswith(("MuLo-SD", "VVS"))), method
