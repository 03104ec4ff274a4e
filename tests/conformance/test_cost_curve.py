"""The cost curve of this machine: what policies and simulations read, measured on tiny models."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.conformance.conftest import CONFIG, Models
from underpaint.algos.arrays import IntArray
from underpaint.algos.rows import SamplingParams
from underpaint.algos.spatial.resolution import ResolutionMap
from underpaint.artifacts.cost_curve import InGridCosts, engine_costs, read_cost_curve
from underpaint.artifacts.strict_json import build_typed
from underpaint.runtime.costs import in_cycle, in_grid, loops, machine_curve, passes
from underpaint.runtime.costs.machine_curve import cache_folder, curve_of, curve_path, read_stored_curve
from underpaint.runtime.costs.partial import PartialCurve
from underpaint.runtime.costs.samples import (
    FEWEST,
    PLAIN_STEP,
    CycleKind,
    CycleSamples,
    TreeCall,
    at_mean_speed,
    curve,
    host_costs,
    smoothed,
    tree_costs,
)
from underpaint.runtime.engines.context import EngineContext
from underpaint.runtime.engines.drafter import EngineDrafter
from underpaint.runtime.engines.target import EngineTarget

SAMPLING = SamplingParams(top_k=5)


@dataclass(frozen=True)
class Measured:
    """What `curve_of` asks of a pipeline."""

    high: EngineTarget
    loaded_drafter: EngineDrafter | None
    hashes: Mapping[str, str] = field(default_factory=lambda: {"target": "1", "drafter": "2"})
    threads: int = 1
    backend: str = "cpu"

    def fingerprint(self) -> Mapping[str, Any]:
        return {"sha256": self.hashes, "threads": self.threads}

    def folder_models(self) -> None:
        return None


@pytest.fixture
def measured(models: Models, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Measured:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    context = EngineContext(threads=1)
    target = EngineTarget.open("target", SAMPLING, models.folder, context)
    return Measured(target, EngineDrafter.open("drafter", SAMPLING, models.folder, context))


def test_a_curve_is_measured_once_and_kept(measured: Measured) -> None:
    seen: list[tuple[int, int]] = []
    cost_curve = curve_of(measured, SAMPLING, lambda done, most: seen.append((done, most)))
    assert cost_curve is not None
    assert seen[-1][0] == seen[-1][1]
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert dict(cost_curve.model) == {"target": "target", "drafter": "drafter", "rows": 1}
    assert [count for count, _ in cost_curve.verify_ms] == [1, 2, 3, 4, 5, 6, CONFIG.cells // 2]
    assert (cost_curve.measured_on["threads"], cost_curve.measured_on["sha256"]) == (1, {"target": "1", "drafter": "2"})
    costs = engine_costs(cost_curve)
    assert costs.fingerprint == cost_curve.fingerprint
    assert costs.plain_ms is not None
    assert costs.plain_ms > 0
    assert costs.chain_ms is not None
    assert [levels for levels, _ in costs.chain_ms][:2] == [1, 2]
    assert min(ms for _, ms in (*costs.verify_ms, *costs.draft_ms)) > 0
    path = curve_path(measured, SAMPLING)
    assert path.parent == cache_folder()
    assert [file.name for file in path.parent.iterdir()] == [path.name]
    assert read_stored_curve(measured, SAMPLING) == curve_of(measured, SAMPLING) == cost_curve
    assert read_cost_curve(path).fingerprint == cost_curve.fingerprint
    renewed = curve_of(measured, SAMPLING, renew=True)
    assert renewed is not None
    assert renewed.fingerprint != cost_curve.fingerprint


def test_another_machine_model_or_width_has_a_curve_of_its_own(measured: Measured) -> None:
    same = curve_path(measured, SAMPLING)
    others = [
        curve_path(replace(measured, hashes={"target": "1", "drafter": "3"}), SAMPLING),
        curve_path(replace(measured, threads=2), SAMPLING),
        curve_path(measured, SamplingParams(guidance=2.0)),
    ]
    assert len({same, *others}) == 4
    assert curve_path(measured, SamplingParams(top_k=3)) == same


def test_a_damaged_file_is_measured_again_and_a_folder_that_cannot_be_written_is_no_error(
    measured: Measured, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = curve_path(measured, SAMPLING)
    path.parent.mkdir(parents=True)
    path.write_text('{"format": 3, "verify_ms": [[1, ')
    assert read_stored_curve(measured, SAMPLING) is None
    assert curve_of(measured, SAMPLING) == read_stored_curve(measured, SAMPLING)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert curve_of(measured, SAMPLING) is not None
    assert read_stored_curve(measured, SAMPLING) is None
    assert curve_of(replace(measured, loaded_drafter=None), SAMPLING) is None
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert cache_folder() == Path.home() / ".cache" / "underpaint" / "costs"


@pytest.mark.parametrize(("seconds", "rounds"), [(0.0, 1), (inf, machine_curve._IMAGES[False])])
def test_a_slow_engine_is_timed_on_fewer_images_and_the_curve_says_on_how_many(
    measured: Measured, seconds: float, rounds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine_curve, "_SECONDS", {False: seconds, True: inf})
    heard = list[tuple[int, int]]()
    cost_curve = curve_of(measured, SAMPLING, lambda done, most: heard.append((done, most)), renew=True)
    assert cost_curve is not None
    assert json.loads(cost_curve.content)["in_cycle"]["rounds"] == rounds
    assert cost_curve.in_cycle is not None
    done, most = heard[-1]
    assert done == most


def test_a_whole_curve_holds_every_family_and_passes_over_cells(measured: Measured) -> None:
    short = curve_of(measured, SAMPLING)
    assert short is not None
    assert short.in_grid is None
    full_curve = curve_of(measured, SAMPLING, full=True)
    assert full_curve is not None
    assert curve_of(measured, SAMPLING) == full_curve  # the whole one takes the place of the short one
    costs = full_curve.in_cycle
    assert costs is not None
    assert costs.plain_ms > costs.plain.target_ms > 0
    families = {"one_call", "sampled", "ranked", "iid", "iid_paths", "cost_aware"}
    assert costs.host_ms.keys() - {"cost_aware_chain"} == families, "what pays is up to the engine"
    assert {1, 2, 3, 5} <= dict(costs.target_ms).keys()
    assert {1, 2} <= dict(costs.draft_ms).keys()
    assert {1, 2, 4} <= dict(costs.chain_ms).keys()
    assert {1, 2, 4, 6} <= dict(costs.window_ms).keys(), "the shortest windows, and what the picture's end leaves"
    assert short.in_cycle is not None
    assert short.in_cycle.window_ms == ()
    without_windows = replace(full_curve, in_cycle=replace(costs, window_ms=()))
    assert machine_curve._is_full(full_curve)
    assert not machine_curve._is_full(without_windows), "it is measured again"
    assert costs.tree_ms.keys() == {"sampled", "ranked"}
    for tree in costs.tree_ms.values():
        times = [ms for _, ms in tree.levels]
        assert times == sorted(times)
    grid = full_curve.in_grid
    assert grid is not None
    assert grid.target_ms[0][0] == 1
    assert grid.target_ms[-1][0] == CONFIG.cells - 1  # a whole draft, its last cell never fed
    assert all(ms > 0 for _, ms in grid.target_ms)
    assert grid.begin_ms > 0
    assert grid.host_ms.step + grid.host_ms.cell > 0
    assert grid.low == (), "no folder, so nothing smaller"
    for host in costs.host_ms.values():
        assert host.cycle + host.level + host.node > 0
    spread = json.loads(full_curve.content)["verify_spread_ms"]
    for at, (_, median) in enumerate(full_curve.verify_ms):
        assert spread["least"][at][1] <= spread["p10"][at][1] <= median <= spread["p90"][at][1]
        assert 0 < spread["graph"][at][1] <= spread["p90"][at][1]


@given(
    st.lists(st.tuples(st.integers(1, 64), st.integers(FEWEST, 500)), min_size=1, unique_by=lambda one: one[0]),
    st.lists(st.integers(100, 10_000).map(lambda us: us / 1000), min_size=4, max_size=4),
    st.floats(0.1, 10.0),
)
def test_a_ratio_that_all_sizes_share_keeps_every_step_of_passes_alone(
    samples: list[tuple[int, int]], alone: list[float], ratio: float
) -> None:
    alone_curve = [[size, ms] for size, ms in zip((1, 4, 5, 64), sorted(alone), strict=True)]
    sizes, counts = np.array(sorted(samples)).T
    base = np.interp(sizes, *np.array(alone_curve).T)
    np.testing.assert_allclose(smoothed(sizes, ratio * base, counts, alone_curve), ratio * base, rtol=1e-12)


def test_a_disturbed_size_is_drawn_to_similar_ones_by_their_samples() -> None:
    sizes, alone_curve = np.array([2, 12, 14, 16, 18, 255]), [[1, 1.0], [64, 64.0]]
    ms = 1.2 * sizes.astype(np.float64)
    ms[3] *= 1.5
    alike = smoothed(sizes, ms, np.full(6, 100), alone_curve)
    assert 1.2 * 16 * 1.05 < alike[3] < 1.2 * 16 * 1.25, "of three similar sizes and itself"
    assert alike[0] == pytest.approx(1.2 * 2, rel=1e-3), "far sizes hardly count"
    assert alike[5] == ms[5], "no passes alone were as large"
    few = smoothed(sizes, ms, np.array([100, 100, 100, 5, 100, 100]), alone_curve)
    assert few[3] < 1.2 * 16 * 1.02


def test_plain_steps_stand_for_passes_over_the_root_and_move_no_others() -> None:
    samples = CycleSamples()
    samples.passes["plain", 1].extend([1.0] * 9)
    samples.passes["target", 2].extend([4.0] * 9)
    assert curve(samples, "target", [[1, 1.0], [2, 2.0]]) == [[1, 1.0], [2, 4.0]]
    assert curve(samples, "target") == [[1, 1.0], [2, 4.0]]
    samples.passes["target", 1].extend([3.0] * 9)
    assert curve(samples, "target") == [[1, 3.0], [2, 4.0]]


@dataclass(frozen=True)
class SameSize:
    """A `Resampler` between two grids of one size."""

    map: ResolutionMap

    def enlarge(self, low: IntArray, rows: range) -> IntArray:
        return low[rows.start * self.map.low.width : rows.stop * self.map.low.width]

    reduce = enlarge


def test_targets_that_draft_and_resamplers_have_costs_of_their_own(measured: Measured) -> None:
    target = measured.high
    condition = target.encoder.example()
    same = {"same": SameSize(ResolutionMap(target.grid, target.grid))}
    low = [in_grid.LowTarget(1, int8, target.fork(), same) for int8 in (True, False)]
    cells = in_grid.measure(target, low, 2, [condition], lambda: None, 3.0)
    fields = in_grid.to_dict(cells, low, target.grid, 2, [[1, 0.5], [4, 0.75]])
    costs = build_typed(InGridCosts, fields, "in_grid")
    assert [(one.ratio, one.int8) for one in costs.low] == [(1, True), (1, False)]
    for one in (costs, *costs.low):
        assert one.target_ms[0][0] == 1
        assert min(one.begin_ms, *(ms for _, ms in one.target_ms)) > 0
    assert costs.resample_ms.keys() == {"same/1"}
    halved = in_grid.measure(target, low, 1, [condition], lambda: None, 3.0)
    assert halved.plain_ms == pytest.approx(3.0), "all is scaled to this speed"


def timed(family: str, levels: int, nodes: int, pooled: bool) -> float:
    cycle_ms = {"ranked": 0.3, "cost_aware": 0.6, "cost_aware_chain": 0.5}[family]
    return cycle_ms + 0.2 * levels + 0.01 * nodes + (0.5 if pooled else 0.0)


def test_the_host_is_split_into_what_it_is_made_of() -> None:
    samples = CycleSamples()
    shapes = [(1, 2), (2, 5), (4, 7), (4, 13), (0, 1)]
    for family in ("ranked", "cost_aware", "cost_aware_chain"):
        for levels, nodes in shapes:
            for pooled in (False, True):
                ms = timed(family, levels, nodes, pooled)
                if (family, levels) == ("ranked", 0):  # an image's last cell is no part of a cycle that drafts
                    ms = 9.0
                samples.host[CycleKind(family, levels, nodes, pooled)].extend([ms] * 20 + [50.0])
    samples.host[CycleKind("ranked", 3, 6, False)].append(99.0)  # too few to count
    samples.host[CycleKind("cost_aware_chain", 3, 6, False)].append(
        timed("cost_aware_chain", 3, 6, False)
    )  # a policy's own choice counts
    for family, cycle_ms in (("ranked", 0.3), ("cost_aware", 0.6), ("cost_aware_chain", 0.5)):
        costs = host_costs(samples, family)
        assert costs == pytest.approx({"cycle": cycle_ms, "level": 0.2, "node": 0.01, "pooled": 0.5}, abs=1e-4)
    falling = CycleSamples()
    for levels in (1, 2, 3):
        falling.host[CycleKind("ranked", levels, levels + 1, False)].extend([1.0 - 0.1 * levels] * 10)
    assert min(host_costs(falling, "ranked").values()) == 0.0
    with pytest.raises(ValueError, match="too few cycles of 'sampled'"):
        host_costs(falling, "sampled")


def test_a_call_is_told_from_the_levels_in_it() -> None:
    samples = CycleSamples()
    for levels, width in ((1, 1), (2, 1), (4, 1), (6, 1), (4, 3), (3, 8)):
        ms = 0.3 + 0.25 + (levels - 1) * {1: 0.25, 3: 0.4, 8: 0.7}[width]
        samples.tree_calls[TreeCall("sampled", levels, width)].extend([ms] * 10)
    samples.tree_calls[TreeCall("sampled", 2, 2)].append(9.0)  # too few to count
    assert tree_costs(samples, "sampled") == {"call": 0.3, "levels": [[1, 0.25], [3, 0.4], [8, 0.7]]}
    with pytest.raises(ValueError, match="too few trees with ranked siblings"):
        tree_costs(samples, "ranked")


def test_a_drift_of_the_machine_between_bursts_falls_out() -> None:
    bursts = []
    for slower in (1.0, 1.5, 0.5):
        samples = CycleSamples()
        samples.passes["plain", 1].extend([0.75 * slower] * 8)
        samples.host[PLAIN_STEP].extend([0.25 * slower] * 8)
        samples.passes["target", 4].extend([2.0 * slower] * 8)
        samples.tree_calls[TreeCall("ranked", 2, 2)].append(1.0 * slower)
        bursts.append(samples)
    whole = at_mean_speed(bursts)
    assert whole.plain_ms == pytest.approx(1.0)
    assert whole.passes["target", 4] == pytest.approx([2.0] * 24)
    assert whole.tree_calls[TreeCall("ranked", 2, 2)] == pytest.approx([1.0] * 3)


def test_a_stopped_measurement_goes_on_where_it_was(measured: Measured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_curve, "_ROUNDS", {False: 3})
    monkeypatch.setattr(machine_curve, "_IMAGES", {False: 2})
    timed: list[int] = []
    once = passes.verify_once

    def counted(target: EngineTarget, count: int) -> passes.PassSample:
        timed.append(count)
        return once(target, count)

    monkeypatch.setattr(passes, "verify_once", counted)
    sizes, whole = 0, 0

    def stop_at(most: int) -> Callable[[int, int], None]:
        def report(done: int, size: int) -> None:
            if done == most:
                raise KeyboardInterrupt

        return report

    # After two of three rounds that count (two more are warm-up), and then amid the loops.
    with pytest.raises(KeyboardInterrupt):
        curve_of(measured, SAMPLING, stop_at(4))
    sizes, whole = len(timed) // 4, len(timed)
    (part,) = cache_folder().iterdir()
    assert part.name == curve_path(measured, SAMPLING).name + ".part"
    progress = json.loads(part.read_text())
    assert {len(samples) for samples in progress["verify"].values()} == {2}
    assert progress["rounds"] == []
    with pytest.raises(KeyboardInterrupt):
        curve_of(
            measured,
            SAMPLING,
            stop_at(5 + 2 * in_cycle.turns(len(loops.choosing_loops(16, [[1, 1.0]], [[1, 1.0]], True)))),
        )
    assert len(timed) == whole + 3 * sizes  # the third round, and its warm-up
    before = json.loads(part.read_text())["rounds"]
    assert len(before) == 1
    assert PartialCurve.of(curve_path(measured, SAMPLING), ("ranked",)).rounds == [], "of other loops"
    cost_curve = curve_of(measured, SAMPLING)
    assert cost_curve is not None
    assert len(timed) == whole + 3 * sizes  # no pass is timed again
    assert json.loads(cost_curve.content)["in_cycle"]["rounds"] == 2
    assert [file.name for file in cache_folder().iterdir()] == [curve_path(measured, SAMPLING).name]
    part.write_text("{")
    assert curve_of(measured, SAMPLING, renew=True) is not None
