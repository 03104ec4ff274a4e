"""Table models as targets of a grid."""

import numpy as np
import pytest

from underpaint.algos.chance import sampling
from underpaint.algos.spatial.zipar import raster
from underpaint.sim.batched.decoding import make_scheme, run_lockstep
from underpaint.sim.report.statistics import Estimate, ratio
from underpaint.sim.synthetic.field import FieldSettings, field_model
from underpaint.sim.synthetic.table_model import TableGridTarget

SMALL = FieldSettings(vocab_size=24, clusters=4, levels=3, height=8, width=8, images=8)
MODEL = field_model(SMALL)


def test_raster_order_draws_the_same_distribution_as_the_trees_do() -> None:
    images = 24
    raster_tokens = np.stack(
        [raster(TableGridTarget(MODEL, image), sampling(1, image)).tokens for image in range(images)]
    )
    other = run_lockstep(MODEL, make_scheme(MODEL, "chain", "chain"), 2000, 2).canvas
    for cluster in range(4):
        counts = [
            ratio((tokens % 4 == cluster).sum(axis=1), np.full(len(tokens), 64)) for tokens in (raster_tokens, other)
        ]
        assert abs(counts[0].mean - counts[1].mean) < 5 * (counts[0].high - counts[0].mean) / 1.96


def test_estimates_say_how_wide_they_are() -> None:
    assert Estimate(2.0, 1.9, 2.1).half_width == pytest.approx(0.05)
