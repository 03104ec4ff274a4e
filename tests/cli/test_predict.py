"""From a trace of plain decoding to what a comparison on other prompts measures."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import typer
from click.testing import Result
from typer.testing import CliRunner

from tests.cli.synthetic_pipeline import SyntheticPipeline, replace_models
from underpaint.algos.spatial.mulo import draft_and_repair
from underpaint.cli.simulate.commands import app
from underpaint.cli.simulate.trace import trace
from underpaint.runtime.drawing import draw, noise_of
from underpaint.runtime.evaluation.comparison import ComparisonPlan, choose_prompts
from underpaint.runtime.evaluation.drawer import run
from underpaint.runtime.evaluation.plan import RunPlan
from underpaint.runtime.evaluation.report import make_report, to_results
from underpaint.runtime.methods.multi_scale.method import MuloMethod
from underpaint.runtime.methods.registry import build_method, resolve
from underpaint.runtime.methods.settings import overridden
from underpaint.sim.replay.predict_rows import rows_for, run_rows
from underpaint.sim.replay.trace import load

LOW = ("mulo", "mulo-islands", "mulo-raster")
DRAWN = ("sjd", "gsd", "sjd-pac", "vvs", "zipar-adaptive", "pjd")
"""Methods that no replay of plain autoregression can draw."""
METHODS = ("ar", "speculative", "eagle1", "eagle2", "adt", "lantern", "roofline", "zipar", *LOW, *DRAWN)
SETTINGS = {
    "mulo": ("k=30",),
    "mulo-raster": ("k=30",),
    "mulo-islands": ("k=30", "draft_window=2"),
    "roofline": ("windows=0", "siblings=0"),
    "zipar": ("window=2",),
    "zipar-adaptive": ("window=3",),
}
"""The grid of the synthetic pipeline is 4 x 4, and the low one 2 x 2."""
NARROW = ("--set", "mulo-islands.draft_window=2")
PIPELINE = SyntheticPipeline()
CURVE = {"format": 3, "verify_ms": [[1, 1.0], [64, 3.0]], "draft_ms": [[1, 0.1], [64, 0.3]], "overhead_ms": 0.1}
PASSES = {"target_ms": [[1, 1.0], [16, 3.0]], "begin_ms": 1.5}
LOW_CURVES = [
    {"ratio": 2, "int8": int8, "target_ms": [[1, ms], [4, ms]], "begin_ms": ms}
    for int8, ms in ((True, 0.5), (False, 0.9))
]
GRID = {
    **PASSES,
    "host_ms": {"step": 0.1, "cell": 0.02, "judged": 0.01},
    "low": LOW_CURVES,
    "resample_ms": {"latent/2": 2.0},
}
CURVE["in_grid"] = GRID
HOST = {"cycle": 0.1, "level": 0.0, "node": 0.0, "pooled": 0.0}
IN_CYCLE = {
    "plain": {"target_ms": 1.0, "host_ms": 0.1},
    "target_ms": [[1, 1.0], [32, 3.0]],
    "draft_ms": [[1, 0.1], [16, 0.3]],
    "chain_ms": [],
    "host_ms": {"sampled": HOST, "ranked": HOST, "cost_aware": HOST},
}


def recorded(monkeypatch: pytest.MonkeyPatch, path: Path, *options: str) -> Result:
    replace_models(monkeypatch, lambda side: PIPELINE)
    alone = typer.Typer()
    alone.command()(trace)
    return CliRunner().invoke(alone, [*options, "--out", str(path)])


def compared(folder: Path, temperature: float, prompts: int, methods: tuple[str, ...] = METHODS) -> Path:
    sampler = dataclasses.replace(PIPELINE.sampling, temperature=temperature)
    built = tuple(
        build_method(name, resolve(name, temperature, None, SETTINGS.get(name, ())), PIPELINE.tables)
        for name in methods
    )
    plan = RunPlan.of(PIPELINE, ComparisonPlan(built, choose_prompts(prompts), (0,), sampler), PIPELINE.judge)
    store = plan.open_log(folder)
    run(plan, store, lambda state: None)
    results = to_results(plan, make_report(plan, store), "a test")
    path = folder / "compare.json"
    path.write_text(json.dumps(results))
    return path


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [1.0, 0.0])
def test_tokens_per_cycle_are_predicted_for_every_method(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, temperature: float
) -> None:
    options = ("--prompts-count", "48", "--temperature", str(temperature), "--methods", ",".join(METHODS))
    options += (*NARROW, "--set", "zipar-adaptive.window=3")
    done = recorded(monkeypatch, tmp_path / "one.npz", *options)
    assert done.exit_code == 0, done.output
    comparison = compared(tmp_path, temperature, 48)
    (tmp_path / "curve.json").write_text(json.dumps({**CURVE, "in_cycle": IN_CYCLE}))
    files = ("--trace", tmp_path / "one.npz", "--costs", tmp_path / "curve.json", "--compare", comparison)
    arguments = ["predict", *map(str, files)]
    result = CliRunner().invoke(app, [*arguments, "--seeds", "2", "--json", "-"])
    assert result.exit_code == 0, result.output
    rows = {row["method"]: row for row in json.loads(result.output)}
    assert set(rows) == set(METHODS) - {"ar"}
    assert rows["zipar"]["tokens_error"] == 0.0
    # Images of 16 cells: 48 of them carry a few per cent of noise on both sides, and far more where whole drafts stay.
    for name, row in rows.items():
        near = row["tokens_chance"] * (1.0 + (name in DRAWN)) if name in (*LOW, *DRAWN) else 0.12
        assert abs(row["tokens_error"]) <= near, (name, row)
        if name in LOW:
            assert row["mean_depth"] == pytest.approx(row["measured_mean_depth"], rel=near)
    text_result = CliRunner().invoke(app, arguments)
    assert "Tokens per cycle within 5%" in text_result.output
    assert "Not predicted" not in text_result.output
    wrong = json.loads(comparison.read_text())
    wrong["settings"]["temperature"] = 0.5
    comparison.write_text(json.dumps(wrong))
    refused = CliRunner().invoke(app, arguments)
    assert refused.exit_code == 2
    assert "was sampled with" in refused.output


@pytest.mark.parametrize("temperature", [1.0, 0.0])
def test_a_draft_of_the_whole_image_is_repaired_as_the_method_does_pass_by_pass(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, temperature: float
) -> None:
    """Of its own prompts a trace misses nothing: which cells are refused decides every pass, and it holds that."""
    options = (
        "--prompts-count",
        "6",
        "--temperature",
        str(temperature),
        "--keep",
        "40",
        "--methods",
        ",".join(LOW),
        *NARROW,
    )
    assert recorded(monkeypatch, tmp_path / "one.npz", *options).exit_code == 0
    trace = load(tmp_path / "one.npz")
    ways = [(rows.settings["draft_window"], rows.settings["draft_int8"]) for rows in trace.rows]
    assert ways == [(None, None), (2, None), (None, False)], "as at both presets; a window of 8 does not fit"
    sampler = dataclasses.replace(PIPELINE.sampling, temperature=temperature)
    for method, settings in (
        *((name, ()) for name in LOW),
        ("mulo", ("tau=0.5", "radius=0", "keys=recompute")),
        ("mulo-islands", ("tau=0.1", "k=4", "window=1")),
        ("mulo-raster", ("tau=0.4", "k=none", "rows=none")),
    ):
        built = build_method(
            method, resolve(method, temperature, None, overridden(SETTINGS.get(method, ()), settings)), PIPELINE.tables
        )
        assert isinstance(built, MuloMethod)
        plain = built.config.to_dict()["settings"]
        rows = rows_for(trace, plain)
        assert rows is not None
        runs = run_rows(trace, rows, plain, seeds=1, seed=0)
        for image, prompt in enumerate(choose_prompts(6, 64)):
            session = built.open(PIPELINE, prompt, sampler)
            rule, repair = built.rule, built.config
            done = draft_and_repair(
                *(session.target, session.drafter, rule, repair, session.rows_per_cycle, noise_of(prompt, 0))
            )
            assert runs.target.begun[image] == runs.low.counts.begun[image] == 1
            assert np.array_equal(runs.target.fed[image], np.bincount(done.passes[1:], minlength=17))
            assert runs.target.drawn[image] == sum(len(step) for cycle in done.cycles for step in cycle.steps)
            assert np.array_equal(runs.low.counts.fed[image], np.bincount(session.drafter.passes[1:], minlength=17))


def test_rows_drafted_a_few_at_a_time_are_recorded_beside_the_plain_picture(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    options = ("--prompts-count", "2", "--methods", "mulo", "--set", "mulo.rows=1", "--keep", "40")
    assert recorded(monkeypatch, tmp_path / "one.npz", *options).exit_code == 0
    trace = load(tmp_path / "one.npz")
    rows = trace.rows[0]
    assert rows.rows_per_cycle == 2
    assert rows.low_passes[0, :4].tolist() == [0, 4, 1, 0]  # the second block is fed the first one's two cells at once
    plain = resolve("mulo", 1.0, None, ("rows=1", "tau=1.5", "window=none")).to_dict()["settings"]
    assert run_rows(trace, rows, plain, seeds=1, seed=0).target.passes.tolist() == [17, 17]
    everything = {**plain, "tau": 0.0}
    assert run_rows(trace, rows, everything, seeds=3, seed=0).target.passes.tolist() == [9, 9]


def test_a_method_that_the_trace_says_too_little_of_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert recorded(monkeypatch, tmp_path / "one.npz", "--prompts-count", "2").exit_code == 0
    assert load(tmp_path / "one.npz").rows == ()
    comparison = compared(tmp_path, 1.0, 2, ("ar", "zipar", "mulo"))
    (tmp_path / "curve.json").write_text(json.dumps(CURVE))
    files = ("--trace", tmp_path / "one.npz", "--costs", tmp_path / "curve.json", "--compare", comparison)
    arguments = ["predict", *map(str, files)]
    text_result = CliRunner().invoke(app, arguments)
    assert text_result.exit_code == 0, text_result.output
    assert "Not predicted: mulo. The trace holds no rows drafted by its settings" in text_result.output
    for methods, message in (
        ("zipar,mulo", "underpaint trace --methods mulo"),
        ("zpar", "did you mean 'zipar'?"),
        ("ar", "holds no method 'ar' to predict"),
    ):
        refused = CliRunner().invoke(app, [*arguments, "--methods", methods])
        assert refused.exit_code == 2
        assert message in " ".join(refused.output.split())
    wrong = json.loads(comparison.read_text())
    wrong["settings"]["methods"]["mulo"]["settings"]["adaptive"] = True
    comparison.write_text(json.dumps(wrong))
    text_result = CliRunner().invoke(app, arguments)
    assert "Its adaptive window tests distributions that change" in text_result.output
    assert "record what it draws with `underpaint trace --methods mulo`" in " ".join(text_result.output.split())
    del wrong["settings"]["methods"]["mulo"]["settings"]["tau"]
    comparison.write_text(json.dumps(wrong))
    assert CliRunner().invoke(app, arguments).exit_code == 2


def test_a_curve_that_stops_short_of_a_whole_draft_says_which_size(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert recorded(monkeypatch, tmp_path / "one.npz", "--prompts-count", "2", "--methods", "mulo").exit_code == 0
    comparison = compared(tmp_path, 1.0, 2, ("ar", "mulo"))
    (tmp_path / "curve.json").write_text(json.dumps({**CURVE, "in_grid": {**GRID, "target_ms": [[1, 1.0], [12, 3.0]]}}))
    files = ("--trace", tmp_path / "one.npz", "--costs", tmp_path / "curve.json", "--compare", comparison)
    refused = CliRunner().invoke(app, ["predict", *map(str, files)])
    assert refused.exit_code == 2
    assert "measured from 1 to 12 nodes, asked for" in refused.output
    both = compared(tmp_path / "both", 1.0, 2, ("ar", "zipar", "mulo"))
    arguments = ["predict", *map(str, (*files[:-1], both))]
    others = CliRunner().invoke(app, arguments)
    assert others.exit_code == 0, others.output
    said = " ".join(others.output.split())
    assert "Speedup within 15%" in said
    assert "of 1." in said
    assert "Not predicted: mulo. In_grid, target passes: measured from 1 to 12 nodes" in said
    assert CliRunner().invoke(app, [*arguments, "--methods", "mulo"]).exit_code == 2


def test_bad_methods_of_a_trace_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for options, message in (
        (("--methods", "molu"), "did you mean 'mulo'?"),
        (("--methods", "mulo", "--set", "mulo.resampler=bicubc"), "there is no 'bicubc'"),
        (("--set", "mulo.tau=0.1"), "with a method of --methods"),
        (("--methods", "mulo", "--set", "mulo.rows=9"), "expected 1..2 low rows"),
    ):
        refused = recorded(monkeypatch, tmp_path / "one.npz", "--prompts-count", "1", *options)
        assert refused.exit_code == 2, refused.output
        assert message in " ".join(refused.output.split())
    assert not (tmp_path / "one.npz").exists()


def test_windows_beside_trees_are_not_predicted_and_the_reason_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert recorded(monkeypatch, tmp_path / "one.npz", "--prompts-count", "4").exit_code == 0
    monkeypatch.setitem(SETTINGS, "roofline", ())
    comparison = compared(tmp_path, 1.0, 2, ("ar", "adt", "roofline"))
    (tmp_path / "curve.json").write_text(json.dumps(CURVE))
    files = ("--trace", tmp_path / "one.npz", "--costs", tmp_path / "curve.json", "--compare", comparison)
    result = CliRunner().invoke(app, ["predict", *map(str, files)])
    assert result.exit_code == 0, result.output
    assert "Jacobi windows read the target behind tokens that no trace holds; windows=0" in result.output
    refused = CliRunner().invoke(app, ["predict", *map(str, files), "--methods", "roofline"])
    assert refused.exit_code == 2


def test_pictures_of_its_own_prompts_are_predicted_pass_by_pass(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    options = ("--prompts-count", "3", "--depths", "1", "--methods", ",".join(DRAWN))
    assert recorded(monkeypatch, tmp_path / "one.npz", *options).exit_code == 0
    trace = load(tmp_path / "one.npz")
    for name in DRAWN:
        built = build_method(name, resolve(name, PIPELINE.sampling.temperature), PIPELINE.tables)
        (drawn_trace,) = [one for one in trace.drawn if one.is_by(built.config.to_dict())]
        for image, prompt in enumerate(choose_prompts(3, 64)):
            one = draw(PIPELINE, built, PIPELINE.sampling, prompt, 0)
            assert drawn_trace.passes[image] == one.target_nfe
            assert drawn_trace.cycles[image] == len(one.depths or ())
            assert drawn_trace.levels[image] == sum(one.depths or ())
        assert drawn_trace.target_kinds[0].form == "begin"
        assert np.all(drawn_trace.target[:, 0] == 1)
