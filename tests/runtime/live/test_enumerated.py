"""Methods judged on a live model by enumeration: right ones keep its distribution, wrong ones are told."""

from __future__ import annotations

import numpy as np
import pytest

from tests.runtime.live.tiny_models import MODELS, grid_of
from underpaint.algos.protocols import Grid
from underpaint.artifacts.decoder_config import DecoderConfig
from underpaint.models.decoder import Decoder
from underpaint.runtime.evaluation.comparison import build_methods, named_variants
from underpaint.runtime.live.enumerated import SmallPictures
from underpaint.runtime.live.generate import accelerate
from underpaint.runtime.live.model import LiveModelError


@pytest.fixture
def small():
    return SmallPictures(accelerate(MODELS["emu3"]().model, grid=grid_of("emu3")).pipeline, Grid(2, 2), 2)


def judged(small, *names):
    plain, *methods = build_methods(small.pipeline, named_variants(("ar", *names)), 1.0, "paper")
    return small.judge(plain, methods)


def test_lossless_methods_keep_the_distribution_of_small_pictures(small):
    rows = judged(small, "speculative", "eagle2", "jacobi-lookup")
    assert all(row.lossless and row.promises and row.pictures == 16 and row.runs >= 16 for row in rows)
    assert rows[0].runs > 16  # drafts are drawn too


def test_a_method_that_draws_otherwise_is_biased(small, monkeypatch):
    from underpaint.runtime.engines.target import EngineTarget

    score = EngineTarget.score

    def sharper(self, tree):
        scored = score(self, tree)
        if tree.size == 1:
            return scored
        probs = np.asarray(scored.probs) ** 2
        return scored._replace(probs=probs / probs.sum(axis=1, keepdims=True))

    monkeypatch.setattr(EngineTarget, "score", sharper)
    (row,) = judged(small, "eagle2")
    assert row.promises
    assert not row.lossless
    assert row.bias > 0.01


def test_what_cannot_be_enumerated_is_refused():
    fast = accelerate(MODELS["emu3"]().model, grid=grid_of("emu3"))
    with pytest.raises(LiveModelError, match=r"got 2\^36 = 68,719,476,736; choose a smaller grid"):
        SmallPictures(fast.pipeline, Grid(6, 6), 2)
    with pytest.raises(LiveModelError, match="expected 2 to 64 codes to choose from, got 65"):
        SmallPictures(fast.pipeline, Grid(2, 2), 65)
    half = accelerate(MODELS["emu3"]().model.bfloat16(), grid=grid_of("emu3"))
    with pytest.raises(LiveModelError, match="expected float32"):
        SmallPictures(half.pipeline, Grid(2, 2), 2)


def test_a_model_whose_grid_cannot_change_is_refused():
    config = DecoderConfig(dim=8, layers=1, heads=2, hidden=16, vocab_size=16, grid_side=4, prefix=1, cond_ids=5)
    fast = accelerate(Decoder(config))
    with pytest.raises(LiveModelError, match=r"expected a model of transformers.*got llamagen-c2i"):
        SmallPictures(fast.pipeline, Grid(2, 2), 2)
