"""Jacobi windows on table models: the engines' loops, their promises, and what they cost."""

import dataclasses
import json
from typing import Any

import numpy as np
import pytest

from underpaint.algos.chance import Chance, enumerate_outcomes, sampling
from underpaint.algos.coupling import EnumeratedNoise
from underpaint.algos.enumeration import total_variation
from underpaint.algos.protocols import Grid
from underpaint.algos.spatial.jacobi import jacobi_cycles
from underpaint.algos.spatial.jacobi_window import JacobiWindow
from underpaint.algos.spatial.zipar import raster
from underpaint.algos.tree import NO_TOKEN, emitted
from underpaint.runtime.methods.registry import METHODS, build_method, resolve
from underpaint.sim.batched.decoding import make_scheme, run_loop
from underpaint.sim.latency.machines import roofline
from underpaint.sim.report.statistics import speedup
from underpaint.sim.synthetic.field import FieldSettings, field_model
from underpaint.sim.synthetic.table_model import TableGridTarget, TableModel, TableTarget
from underpaint.sim.synthetic.windows import (
    WindowRecipe,
    WindowScheme,
    at_zero,
    decode_windows,
    make_window_scheme,
    run_windows,
)

NAMES = [spec.name for spec in METHODS if spec.tuned.sampled.family == "jacobi"]
MODEL = field_model(FieldSettings(vocab_size=24, clusters=4, levels=3, height=6, width=6, images=8))
TINY = field_model(FieldSettings(vocab_size=2, clusters=2, levels=2, height=2, width=2, images=1, sharpness=1.0))


def scheme_of(name: str, temperature: float = 1.0, model: TableModel = MODEL, *settings: str) -> WindowScheme:
    recorded = resolve(name, temperature, settings=settings).to_dict()
    return make_window_scheme(model, WindowRecipe.of(name, recorded, temperature))


def lossless(name: str) -> bool:
    from underpaint.runtime.methods.method import ModelTables

    return build_method(
        name, resolve(name, 1.0), ModelTables(np.zeros((24, 14), dtype=np.int64), MODEL.codebook)
    ).lossless


@pytest.mark.parametrize("name", NAMES)
def test_the_promise_is_the_method_s(name: str) -> None:
    assert scheme_of(name).lossless == lossless(name)


@pytest.mark.parametrize("name", [name for name in NAMES if lossless(name)])
def test_at_temperature_0_the_tokens_are_plain_autoregression_s(name: str) -> None:
    """Plain decoding of the same model by another loop."""
    assert (at_zero(MODEL).target.max(axis=1) == 1.0).all()
    assert (at_zero(MODEL).target.argmax(axis=1) == MODEL.target.argmax(axis=1)).all()
    for image in range(3):
        plain = raster(TableGridTarget(at_zero(MODEL), image), sampling(1, image))
        assert decode_windows(scheme_of(name, 0.0), image, 1).tokens.tolist() == plain.tokens.tolist()


def pictures(model: TableModel) -> dict[tuple[int, ...], float]:
    """The exact distribution of whole pictures, cell by cell along the raster."""
    width, distribution = model.grid.width, {(): 1.0}
    for cell in range(model.grid.cells):
        longer = {}
        for tokens, mass in distribution.items():
            left = tokens[-1] if tokens else NO_TOKEN
            upper = tokens[cell - width] if cell >= width else NO_TOKEN
            row = int(model.rows(*(np.asarray(one) for one in (0, cell, left, upper))))
            longer |= {(*tokens, token): mass * float(model.target[row, token]) for token in range(model.vocab_size)}
        distribution = longer
    return distribution


@pytest.mark.parametrize("name", [name for name in NAMES if lossless(name)])
def test_pictures_have_the_target_s_distribution(name: str) -> None:
    """By enumeration on a grid where a window reaches over a row's end."""
    scheme = scheme_of(name, 1.0, TINY, "window=3")
    assert isinstance(scheme.window, JacobiWindow)
    assert scheme.rule is not None
    window, rule = scheme.window, scheme.rule

    def program(chance: Chance) -> tuple[int, ...]:
        noise = EnumeratedNoise(chance) if window.coupling == "gumbel" else None
        cycles = jacobi_cycles(TableTarget(TINY, 0), rule, chance, window, noise)
        return tuple(token for cycle in cycles for token in emitted(cycle.tree, cycle.verdict))

    exact = pictures(TINY)
    assert max(exact.values()) < 0.9  # a distribution that could be missed
    assert total_variation(enumerate_outcomes(program), exact) < 1e-12


@pytest.mark.parametrize("name", NAMES)
def test_runs_add_up_and_cost_what_their_passes_do(name: str) -> None:
    scheme, costs = scheme_of(name), roofline("h200/llamagen-b")
    runs = run_windows(scheme, 3, 5)
    again = run_windows(scheme, 1, 5).and_more(run_windows(scheme, 2, 5, 1))
    images = [decode_windows(scheme, image, 5) for image in range(3)]
    for field in dataclasses.fields(runs):
        np.testing.assert_array_equal(getattr(runs, field.name), getattr(again, field.name))
    assert runs.draft.sum() == runs.chained.sum() == 0
    assert (runs.accepted + runs.cycles).tolist() == [36 - (isinstance(scheme.window, JacobiWindow))] * 3
    assert runs.verify.sum(axis=1).tolist() == [one.passes.size for one in images]
    np.testing.assert_allclose(runs.times(costs).total, [float(costs.verify_ms(one.passes).sum()) for one in images])


def test_every_image_has_noise_of_its_own() -> None:
    """The pool of images repeats; what is drawn of it does not."""
    scheme = scheme_of("scd-maximal")
    first, again = (decode_windows(scheme, image, 5).tokens.tolist() for image in (0, MODEL.images))
    assert first == decode_windows(scheme, 0, 5).tokens.tolist()
    assert first != again


def test_a_pass_over_a_window_is_priced_by_its_positions() -> None:
    """On a machine whose passes cost the same up to 64 positions, a window is as fast as it saves passes."""
    scheme = scheme_of("scd-maximal", 1.0, MODEL, "window=12", "refill=left", "last_row=false")
    runs = run_windows(scheme, 4, 0)
    flat = roofline("a100/lumina-mgpt-7b")
    assert speedup(runs, flat).mean == pytest.approx(4 * 36 / runs.verify.sum(), rel=0.05)
    sizes = np.flatnonzero(runs.verify.sum(axis=0))
    assert sizes.max() == 13  # the root and a window of 12
    plain = run_loop(MODEL, make_scheme(MODEL, "chain", "chain", {"length": 4}), 4, 0)
    assert plain.draft.sum() > 0


def test_coupled_drafts_last_longer_than_those_drawn_anew() -> None:
    settings = "window=12", "refill=left"
    runs = {name: run_windows(scheme_of(name, 1.0, MODEL, *settings), 16, 0) for name in ("sjd", "scd-maximal")}
    assert runs["scd-maximal"].verify.sum() < 0.9 * runs["sjd"].verify.sum()


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("sjd", {"window": 0}, "length must be at least 1, got 0"),
        ("sjd", {"window": 128}, "up to 129 positions, simulated ones at most 128; set a smaller window"),
        ("sjd", {"coupling": "tight"}, "coupling must be one of"),
        ("sjd-pac", {"candidates": 9, "levels": 3}, "simulated ones at most 128"),
        ("pjd", {"lead": 7}, r"expected lead in 1..6 on a grid of 6 x 6, got 7"),
    ],
)
def test_settings_that_make_no_sense_are_refused(name: str, settings: dict[str, Any], message: str) -> None:
    recorded = resolve(name, 1.0).to_dict()
    recorded["settings"] |= settings
    with pytest.raises(ValueError, match=message):
        make_window_scheme(MODEL, WindowRecipe.of(name, recorded))


def test_row_windows_larger_than_any_pass_are_refused() -> None:
    tall = field_model(FieldSettings(vocab_size=8, clusters=2, levels=2, height=40, width=8, images=1))
    with pytest.raises(ValueError, match="'pjd': its passes have up to 200 positions"):
        make_window_scheme(tall, WindowRecipe.of("pjd", resolve("pjd", 1.0, settings=["window=4"]).to_dict()))


def test_a_rule_that_looks_ahead_is_refused_in_a_coupled_window() -> None:
    recorded = resolve("scd-maximal", 1.0).to_dict() | {"rule": "block"}
    with pytest.raises(ValueError, match="carries over would be biased"):
        make_window_scheme(MODEL, WindowRecipe.of("scd-maximal", recorded))


def test_other_families_and_temperatures_are_refused() -> None:
    with pytest.raises(ValueError, match="'eagle2' decodes in no Jacobi window"):
        WindowRecipe.of("eagle2", resolve("eagle2", 1.0).to_dict())
    with pytest.raises(ValueError, match=r"temperature 0 or 1, got 0\.5"):
        WindowRecipe.of("sjd", resolve("sjd", 1.0).to_dict(), 0.5)
    with pytest.raises(ValueError, match="at least one image, got 0"):
        run_windows(scheme_of("sjd"), 0, 0)


def test_a_recipe_is_a_value_that_travels() -> None:
    recipe = WindowRecipe.of("gsd", resolve("gsd", 1.0).to_dict())
    assert recipe == WindowRecipe.of("gsd", json.loads(json.dumps(resolve("gsd", 1.0).to_dict())))
    assert hash(recipe) == hash(dataclasses.replace(recipe))
    assert recipe != dataclasses.replace(recipe, temperature=0.0)
    assert Grid(6, 6) == MODEL.grid
