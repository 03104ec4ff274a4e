"""Table models under the spatial methods, and fields fitted to statistics."""

import dataclasses

import numpy as np
import pytest

from underpaint.algos.chance import sampling
from underpaint.algos.spatial.mulo import Repair
from underpaint.algos.spatial.row_front import front_steps
from underpaint.algos.spatial.zipar import raster
from underpaint.sim.batched.decoding import make_scheme, run_lockstep
from underpaint.sim.latency.models import MeasuredCosts
from underpaint.sim.report.statistics import Estimate, ratio
from underpaint.sim.synthetic.field import FieldSettings, field_model
from underpaint.sim.synthetic.fit import fit_field, model_statistics
from underpaint.sim.synthetic.multi_scale import CoarseRows, TableGridTarget, coarse, run_mulo, run_zipar

SMALL = FieldSettings(vocab_size=24, clusters=4, levels=3, height=8, width=8, images=8)
MODEL = field_model(SMALL)
COSTS = MeasuredCosts("papers", ((1, 1.0), (64, 1.0)), ((1, 0.1), (64, 0.1)))


def test_raster_order_draws_the_same_distribution_as_the_trees_do() -> None:
    images = 24
    drawn = np.stack([raster(TableGridTarget(MODEL, image), sampling(1, image)).tokens for image in range(images)])
    other = run_lockstep(MODEL, make_scheme(MODEL, "chain", "chain"), 2000, 2).canvas
    for cluster in range(4):
        counts = [ratio((tokens % 4 == cluster).sum(axis=1), np.full(len(tokens), 64)) for tokens in (drawn, other)]
        assert abs(counts[0].mean - counts[1].mean) < 5 * (counts[0].high - counts[0].mean) / 1.96


def test_zipar_takes_the_steps_of_its_fronts() -> None:
    found = run_zipar(MODEL, COSTS, 2, 3, 0)
    assert found.passes == front_steps(MODEL.grid, 2)
    assert found.speedup == pytest.approx(64 / front_steps(MODEL.grid, 2))
    assert found.coarse_passes == 0


def test_the_coarse_world_is_the_world_at_half_size() -> None:
    small = coarse(MODEL)
    assert small.grid == (4, 4)
    assert small.target is MODEL.target
    assert np.array_equal(small.starts.reshape(8, 4, 4), MODEL.starts.reshape(8, 8, 8)[:, 1::2, 1::2])
    assert coarse(MODEL, 1).starts.tolist() == MODEL.starts.tolist()
    with pytest.raises(ValueError, match="expected a factor that divides 8 and 8, got 3"):
        coarse(MODEL, 3)
    with pytest.raises(ValueError, match="rows in steps of 2"):
        CoarseRows(MODEL, 0).propose(np.full(64, -1), range(1, 3), sampling(0))
    drafter = CoarseRows(MODEL, 0)
    draft = drafter.propose(np.full(64, -1), range(0, 4), sampling(0)).tokens.reshape(4, 8)
    assert drafter.passes == 8
    assert np.array_equal(draft[::2, ::2], draft[1::2, 1::2])


def test_a_threshold_keeps_all_or_nothing_at_its_ends() -> None:
    serial = Repair(order="serial", radius=0)
    everything = run_mulo(MODEL, COSTS, 0.0, 4, serial, 4, 2, 0)
    nothing = run_mulo(MODEL, COSTS, 2.0, 4, serial, 4, 2, 0)
    between = run_mulo(MODEL, COSTS, 0.4, 4, serial, 4, 2, 0)
    assert everything.kept == 1.0
    assert nothing.kept == 0.0
    assert 0.0 < between.kept < 1.0
    assert everything.passes < between.passes < nothing.passes
    assert everything.coarse_passes == 16
    assert everything.speedup > between.speedup > nothing.speedup
    islands = run_mulo(MODEL, COSTS, 0.4, 4, Repair(order="islands", radius=0), 4, 2, 0)
    assert islands.passes <= between.passes


def test_a_fit_finds_the_statistics_of_another_field() -> None:
    hidden = field_model(
        FieldSettings(
            **{"vocab_size": 64, "clusters": 8, "levels": 3, "height": 8, "width": 8, "images": 16},
            **{"sharpness": 3.0, "contrast": 8.0, "spread": 0.15, "noise": 0.9, "seed": 11},
            **{"drift": 0.4, "depth_known": 3},
        )
    )
    wanted = model_statistics(hidden)
    start = dataclasses.replace(SMALL, vocab_size=64, clusters=8, images=16, seed=3, depth_known=3)
    found = fit_field(wanted, start)
    for name, value in wanted._asdict().items():
        assert getattr(found.reached, name) == pytest.approx(value, rel=0.05), name
    assert wanted.acceptance_later < 0.9 * wanted.acceptance
    assert 0.2 < found.settings.drift < 0.8
    assert found.wanted == wanted


def test_estimates_say_how_wide_they_are() -> None:
    assert Estimate(2.0, 1.9, 2.1).half_width == pytest.approx(0.05)
