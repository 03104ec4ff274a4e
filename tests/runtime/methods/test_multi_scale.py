"""MuLo-SD and row fronts on the shipped engines."""

import subprocess
import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from tests.cli.synthetic_pipeline import Repeats
from underpaint.algos.arrays import FloatArray, IntArray
from underpaint.algos.chance import Role, sampling
from underpaint.algos.protocols import Grid
from underpaint.algos.rows import SamplingParams
from underpaint.algos.spatial.resolution import ResolutionMap
from underpaint.algos.spatial.target import Feed, GridTarget
from underpaint.algos.spatial.zipar import raster, zipar
from underpaint.algos.tree import NO_TOKEN
from underpaint.runtime.conditions import Condition, parse_condition
from underpaint.runtime.drawing import Drawing, draw, noise_of
from underpaint.runtime.engines.context import EngineContext
from underpaint.runtime.methods.method import Timed
from underpaint.runtime.methods.multi_scale.low_rows import LowRows
from underpaint.runtime.methods.registry import build_method, resolve
from underpaint.runtime.pipeline import Pipeline

ROOT = Path(__file__).parents[3]
PROMPT = parse_condition("a woolly fox left of an outlined pumpkin", "prompt_grammar")
WARM, COLD = SamplingParams(top_k=10), SamplingParams(temperature=0.0)
"""The likeliest codes alone: what a draft proposes is then kept now and then."""


@cache
def shipped() -> Pipeline:
    return Pipeline.open(context=EngineContext(threads=1))


def drawn(sampler: SamplingParams, *settings: str, method: str = "mulo", seed: int = 5) -> Drawing:
    pipeline = shipped()
    config = resolve(method, sampler.temperature, settings=settings)
    return draw(pipeline, build_method(method, config, pipeline.tables), sampler, PROMPT, seed)


@cache
def plain(sampler: SamplingParams) -> IntArray:
    return raster(shipped().grid_target(PROMPT, sampler).model, noise_of(PROMPT, 5)).tokens


@pytest.mark.parametrize("sampler", [WARM, COLD], ids=["sampled", "greedy"])
@pytest.mark.parametrize("rows", ["none", "2"])
def test_a_threshold_above_one_is_plain_autoregression(sampler: SamplingParams, rows: str) -> None:
    drawing = drawn(sampler, "tau=1.5", "window=none", f"rows={rows}", "draft_window=2")
    assert drawing.tokens == tuple(plain(sampler))
    assert drawing.kept_cells == ()
    assert drawing.rejected == 256
    assert drawing.target_nfe == 1 + 256  # one pass a cycle verifies, and gives the distribution of its first cell


@pytest.mark.parametrize("method", ["mulo", "mulo-islands", "mulo-raster"])
def test_a_threshold_of_zero_keeps_the_whole_draft(method: str) -> None:
    pipeline = shipped()
    drawing = drawn(WARM, "tau=0", "draft_window=2", method=method)
    low = zipar(pipeline.low_target(PROMPT, WARM, 2).model, 2, noise_of(PROMPT, 5).cycle(1), role=Role.DRAFT)
    assert drawing.tokens == tuple(pipeline.resampler("latent", 2).enlarge(low.tokens, range(8)))
    assert (drawing.kept_cells, drawing.rejected) == (tuple(range(256)), 0)
    assert (drawing.target_nfe, drawing.drafter_nfe) == (2, 22)


def test_the_exact_rule_with_raster_rejection_draws_what_ar_draws_at_temperature_zero() -> None:
    ar = drawn(COLD, method="ar")
    assert ar.tokens == tuple(plain(COLD))
    assert drawn(COLD, "rule=exact", "rows=2", method="mulo-raster").tokens == ar.tokens


@pytest.mark.parametrize("rule", ["pooled", "lantern", "exact"])
@pytest.mark.parametrize("sampler", [WARM, COLD], ids=["sampled", "greedy"])
def test_every_rule_draws_with_islands_and_says_what_it_cost(rule: str, sampler: SamplingParams) -> None:
    drawing = drawn(sampler, f"rule={rule}", "rows=4", "keys=recompute", "draft_adaptive=true", method="mulo-islands")
    assert drawing.kept_cells is not None
    assert drawing.rejected is not None
    assert 0 < drawing.rejected <= 256 - len(drawing.kept_cells)
    assert drawing.target_nfe < 256
    assert 22 <= drawing.drafter_nfe <= 2 + 64
    assert drawing.seconds > drawing.target_seconds + drawing.drafter_seconds + drawing.resampler_seconds > 0
    assert drawing.accepted is None
    again = drawn(sampler, f"rule={rule}", "rows=4", "keys=recompute", "draft_adaptive=true", method="mulo-islands")
    assert again.tokens == drawing.tokens


@pytest.mark.parametrize(
    ("name", "settings", "most"),
    [
        ("mulo", ["rows=2", "keys=stale"], 2 * 2 * 2 * 16),
        ("mulo", ["rows=2", "keys=recompute"], 2 * 2 * 2 * 16),
        ("zipar", ["window=2"], 9),
        ("zipar", ["window=4"], 5),
        ("zipar", ["window=5"], 4),
        ("zipar", ["window=16"], 1),
    ],
)
def test_no_pass_is_larger_than_was_declared(
    name: str, settings: list[str], most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Engines with fixed sizes are checked once, before the picture."""
    pipeline = shipped()
    declared, passed = list[int](), list[int]()
    grid_target = Pipeline.grid_target

    def noted(self: Pipeline, condition: Condition, sampling: SamplingParams, cells: int = 1) -> Timed[GridTarget]:
        declared.append(cells)
        timed = grid_target(self, condition, sampling, cells)
        inner = timed.model.score

        def score(feed: Feed) -> FloatArray:
            passed.append(len(feed.cells))
            return inner(feed)

        monkeypatch.setattr(timed.model, "score", score)
        return timed

    monkeypatch.setattr(Pipeline, "grid_target", noted)
    method = build_method(name, resolve(name, 1.0, settings=settings), pipeline.tables)
    draw(pipeline, method, WARM, PROMPT, 5)
    assert declared == [most]
    if name == "mulo":
        assert 64 < max(passed) <= most
    else:
        assert max(passed) == most


def test_the_high_prefix_becomes_the_low_prefix() -> None:
    pipeline = shipped()
    repeats = Repeats(ResolutionMap(Grid(8, 8), Grid(16, 16)))
    drafter = LowRows(pipeline.low_target(PROMPT, WARM, 2).model, repeats, window=8)
    high = np.full(256, NO_TOKEN, dtype=np.int64)
    high[:128] = np.arange(128)
    draft = drafter.propose(high, range(8, 12), sampling(1))
    assert drafter.low is not None
    first = high.reshape(16, 16)[0:8:2, 0::2].ravel()
    np.testing.assert_array_equal(repeats.read[0], first)
    np.testing.assert_array_equal(drafter.low[:32], first)
    assert np.all(drafter.low[32:48] != NO_TOKEN)
    assert np.all(drafter.low[48:] == NO_TOKEN)
    assert draft.tokens.shape == (64,)
    assert draft.distributions is None
    with pytest.raises(ValueError, match="do not start and end with low rows"):
        drafter.propose(high, range(8, 11), sampling(1))


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("ratio=3", "whole number from 2 that divides 16 x 16, got 3"),
        ("ratio=1", "ratio must be at least 2, got 1"),
        ("ratio=4", "ratio 4: .* holds no target of 4 x 4 codes to draft with; it holds a target at 1 / 2"),
        ("resampler=latant", "did you mean 'latent'"),
        ("radius=-1", "radius must be at least 0, got -1"),
        ("radius=16", "radius: expected 0..15"),
        ("window=0", "window must be at least 1, got 0"),
        ("window=17", "window: expected 1..16"),
        ("draft_window=9", "draft_window: expected 1..8"),
        ("rows=0", "rows must be at least 1, got 0"),
        ("rows=9", "rows: expected 1..8"),
        ("adaptive=true", "set window"),
    ],
)
def test_settings_that_do_not_fit_the_models_are_refused_before_any_pass(setting: str, message: str) -> None:
    pipeline = shipped()
    alone = ["window=none"] if setting == "adaptive=true" else []
    with pytest.raises(ValueError, match=message):
        build_method("mulo", resolve("mulo", 1.0, settings=[*alone, setting]), pipeline.tables).open(
            pipeline, PROMPT, WARM
        )


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("tau=nan", "tau must be at least 0, got nan"),
        ("tau=-0.1", "tau must be at least 0, got -0.1"),
        ("delta=nan", "delta must be at least 0, got nan"),
        ("k=-1", r"k must be at least 0, got -1"),
        ("k=251", r"expected k in 0..250"),
        ("draft_adaptive=true", "needs draft_window"),
        ("draft_int8=some", "setting .draft_int8. is true or false or none"),
    ],
)
def test_settings_out_of_range_are_refused(setting: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build_method("mulo", resolve("mulo", 1.0, settings=[setting]), shipped().tables)


def test_models_of_two_resolutions_must_belong_together() -> None:
    low = shipped().low_target(PROMPT, WARM, 2).model
    with pytest.raises(ValueError, match="choose two of one resolution"):
        LowRows(low, Repeats(ResolutionMap(Grid(4, 4), Grid(16, 16))), window=4)


LINGERING = """
from underpaint.runtime.pipeline import Pipeline
from underpaint.runtime.methods.registry import build_method, resolve
from underpaint.runtime.engines.context import EngineContext
from tests.runtime.methods.test_multi_scale import PROMPT, WARM

pipeline = Pipeline.open(context=EngineContext(threads=1))
build_method("mulo", resolve("mulo", 1.0), pipeline.tables).open(pipeline, PROMPT, WARM)
for side, target in ((128, pipeline.high), (64, pipeline.low.target(2))):
    options = target.decoder.session.get_session_options()
    try:
        print(side, options.get_session_config_entry("session.force_spinning_stop"))
    except RuntimeError:
        print(side, "lingers")
"""


def test_models_that_take_turns_with_the_target_leave_it_the_cores() -> None:
    # In a process of its own: one that shares its threads already, as the other tests of this one may, cannot show it.
    command = [sys.executable, "-c", LINGERING]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["128 lingers", "64 1"]
