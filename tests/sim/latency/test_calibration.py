"""The latency model is within 15 % of published times that give their settings; batches wait for their slowest."""

import dataclasses
import itertools
from collections.abc import Callable

import numpy as np
import pytest

from underpaint.sim.latency import machines, published_latencies
from underpaint.sim.latency.machines import DECODER_SIZES, MACHINES, RooflineCosts, roofline
from underpaint.sim.latency.published_latencies import WITHIN, CheckedPass, check_latencies
from underpaint.sim.report.statistics import Runs, slowest_of, speedup

FITTED = 0.08
"""The relative error of the rows that machines were fitted on, at most."""


def missed() -> list[CheckedPass]:
    return [one for one in check_latencies() if abs(one.error) > WITHIN]


def test_published_times_are_met_or_the_reason_is_said() -> None:
    checked = check_latencies()
    assert [one.row for one in checked if not one.row.reason and abs(one.error) > WITHIN] == []
    assert {one.row.reason for one in missed()} == {one.row.reason for one in checked if one.row.reason}
    held_out = [one for one in checked if not one.row.fitted and not one.row.reason]
    assert len(held_out) >= 20
    assert np.median([abs(one.error) for one in held_out]) < 0.03
    assert all(abs(one.error) < FITTED for one in checked if one.row.fitted)


@pytest.mark.parametrize(
    "change",
    [
        lambda machine: dataclasses.replace(machine, launch_us=0.0, overlap_us=0.0),
        lambda machine: dataclasses.replace(machine, bandwidth_share=1.0),
        lambda machine: dataclasses.replace(machine, host_step_ms=0.0),
        lambda machine: dataclasses.replace(machine, value_bytes=16.0),
        lambda machine: dataclasses.replace(machine, peak_share=0.3),
        lambda machine: dataclasses.replace(machine, kernels=1),
    ],
    ids=["launches are free", "nominal bandwidth", "host is free", "cache of 16 bytes", "slow products", "one kernel"],
)
def test_another_machine_misses_them(
    change: Callable[[machines.Machine], machines.Machine], monkeypatch: pytest.MonkeyPatch
) -> None:
    changed_machines = {machine.name: change(machine) for machine in MACHINES}
    before = len(missed())
    monkeypatch.setattr(published_latencies, "MACHINES", changed_machines)
    assert len(missed()) > before


@pytest.mark.parametrize("name", ["a100/llamagen-xl", "h100/llamagen-xl", "a100/lumina-mgpt-7b"])
def test_the_knee_is_where_products_outlast_the_weights_by_whole_tiles(name: str) -> None:
    costs = roofline(name)
    machine, rows = costs.machine, 2
    ridge = machine.peak * machine.peak_share * 1e3 / (machine.bandwidth * machine.bandwidth_share)  # operations a byte
    tiles = int(ridge // machine.tile)
    within, beyond = (count * machine.tile // rows for count in (tiles, tiles + 1))
    first, at, past, more = costs.verify_ms(np.array([1, within, within + 1, beyond]))
    assert at < 1.25 * first, "up to there only what is handed on between kernels grows"
    assert past - at > 5.0 * (more - past) / (beyond - within - 1), "a node more takes a tile more"
    assert costs.knee().nodes is not None
    assert 0.3 * within < (costs.knee().nodes or 0.0) < 1.5 * beyond


def test_small_products_take_small_tiles() -> None:
    small = RooflineCosts(
        dataclasses.replace(MACHINES["rtx3090-llamacpp"], weight_bytes=0.5), DECODER_SIZES["llamagen-3b"]
    )
    one = small.verify_ms(np.array([1]))[0]
    whole = dataclasses.replace(small, machine=dataclasses.replace(small.machine, peak=1e6)).verify_ms(np.array([1]))[0]
    assert one == pytest.approx(whole), "a pass over two rows computes two, not a tile of 64"


@pytest.mark.parametrize("batch", [2, 3, 4, 6])
def test_the_slowest_of_a_batch_is_that_of_all_batches(batch: int) -> None:
    ms = np.random.default_rng(0).gamma(4.0, size=6)
    mean = np.mean([max(one) for one in itertools.combinations(ms, batch)])
    assert slowest_of(ms, batch) == pytest.approx(mean / ms.mean(), abs=1e-12)


def test_the_slowest_of_a_batch_larger_than_the_sample_is_drawn_with_replacement() -> None:
    ms = np.array([1.0, 2.0, 4.0])
    mean = np.mean([max(one) for one in itertools.product(ms, repeat=4)])
    assert slowest_of(ms, 4) == pytest.approx(mean / ms.mean(), abs=1e-12)
    assert slowest_of(ms, 1) == slowest_of(np.array([3.0]), 8) == 1.0


def test_a_batch_that_waits_is_slower_and_plain_decoding_never_waits() -> None:
    cycles = np.random.default_rng(0).normal(300, 12, 64).astype(np.int64)
    verify, none = np.zeros((64, 7), dtype=np.int64), np.zeros((64, 7), dtype=np.int64)
    verify[:, 1], verify[:, 6] = 1, cycles
    runs = Runs(1024, cycles, 1024 - cycles, 5 * cycles, verify, none, none)
    for batch, low, high in ((4, 0.02, 0.06), (16, 0.04, 0.12)):
        refilled, fixed = (speedup(runs, roofline(f"a100/llamagen-xl/batch{batch}{end}")) for end in ("", "-fixed"))
        assert low < refilled.mean / fixed.mean - 1.0 < high
    plain = Runs(
        6,
        np.array([5, 5]),
        np.array([0, 0]),
        np.array([0, 0]),
        6 * np.eye(7, dtype=np.int64)[[1, 1]],
        none[:2],
        none[:2],
    )
    assert speedup(plain, roofline("a100/llamagen-xl/batch4-fixed")).mean == pytest.approx(1.0)
