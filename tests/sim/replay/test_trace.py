"""Traces: recorded through the protocols, saved, replayed as a model, and used to predict."""

import dataclasses
import json
from functools import cache
from pathlib import Path
from typing import TypeVar

import numpy as np
import pytest

from underpaint.algos import memory
from underpaint.algos.accept.neighbours import nearest_codes
from underpaint.algos.batched import sparse_table
from underpaint.algos.chance import sampling
from underpaint.algos.draft.top_tokens import top
from underpaint.algos.enumeration import enumerate_decoding, passes
from underpaint.algos.protocols import Grid
from underpaint.artifacts.cost_curve import (
    CostCurveFile,
    HostCosts,
    HostFamily,
    InCycleCosts,
    PlainCosts,
    read_cost_curve,
)
from underpaint.artifacts.results import with_envelope
from underpaint.sim.batched.decoding import make_scheme, run_lockstep, run_loop
from underpaint.sim.replay import trace as trace_module
from underpaint.sim.replay.comparison import check_belong, check_measured_on, load_comparison
from underpaint.sim.replay.predict import predict
from underpaint.sim.replay.recording import Recorder, entropy
from underpaint.sim.replay.trace import Trace, dense, load, replay, save
from underpaint.sim.report.statistics import mean_depth, tokens_per_cycle
from underpaint.sim.synthetic.field import make_synthetic_model
from underpaint.sim.synthetic.models import Blend, RandomDistribution, SyntheticDrafter, SyntheticTarget
from underpaint.sim.synthetic.table_model import TableDrafter, TableModel, TableTarget

SAMPLER = {"guidance": 1.0, "temperature": 1.0, "top_k": 0, "top_p": 1.0}
CURVE = CostCurveFile("curve", "", {}, ((1, 2.0), (64, 8.0)), ((1, 0.3), (64, 0.6)), 0.5, None, None)


Kept = TypeVar("Kept", TableModel, Trace)


def read_only(kept: Kept) -> Kept:
    """So that no test changes what others read."""
    for part in dataclasses.fields(kept):
        array = getattr(kept, part.name)
        if isinstance(array, np.ndarray):
            array.flags.writeable = False
    return kept


@cache
def recorded(model: TableModel, images: int, keep: int = 24, depths: int = 3, greedy: bool = False) -> Trace:
    recorder = Recorder(model.codebook, nearest_codes(model.codebook, 6), depths, keep)
    for image in range(images):
        recorder.add(TableTarget(model, image), TableDrafter(model, image), sampling(3, image), greedy)
    return read_only(recorder.trace({"model": {"target": "field"}, "sampler": SAMPLER, "prompts": ["a trace's own"]}))


@cache
def field(**settings: object) -> TableModel:
    base = {"vocab_size": 24, "clusters": 4, "levels": 3, "height": 8, "width": 8, "images": 8, "drift": 0.3}
    return read_only(make_synthetic_model("field", {**base, "depth_known": 3, **settings}))


def test_what_is_recorded_is_what_the_models_say() -> None:
    distribution, other = RandomDistribution(6, seed=1, sharpness=2.0), RandomDistribution(6, seed=2, sharpness=2.0)
    target, drafter = SyntheticTarget(distribution, Grid(2, 3)), SyntheticDrafter(Blend(distribution, other, 0.4))
    recorder = Recorder(
        np.random.default_rng(0).standard_normal((6, 2)), np.array([[1], [0], [3], [2], [5], [4]]), 3, 6
    )
    recorder.add(target, drafter, sampling(5), greedy=False)
    trace = recorder.trace({})
    image = tuple(trace.tokens[0].tolist())
    distributions = dense(trace.target_tokens, trace.target_probs, 6)[0]
    drafted = dense(trace.draft_tokens, trace.draft_probs, 6)[0]
    for cell in range(6):
        assert distributions[cell] == pytest.approx(distribution(image[:cell]), abs=1e-6)
        assert trace.target_entropy[0, cell] == pytest.approx(entropy(distribution(image[:cell])))
        assert trace.neighbour_mass[0, cell] == pytest.approx(
            distribution(image[:cell])[[image[cell], image[cell] ^ 1]].sum()
        )
        for depth in range(min(3, cell)):
            expected = drafter.distribution(image[:cell])
            assert drafted[depth, cell] == pytest.approx(expected, abs=1e-6)
            assert trace.acceptance[0, depth, cell] == pytest.approx(
                np.minimum(distribution(image[:cell]), expected).sum()
            )


def test_a_trace_comes_back_from_its_file(tmp_path: Path) -> None:
    trace = recorded(field(), 2)
    save(trace, tmp_path / "deep" / "one.npz")
    again = load(tmp_path / "deep" / "one.npz")
    assert again.about == trace.about
    assert again.grid == trace.grid
    for name in ("tokens", "target_tokens", "draft_tokens"):
        assert np.array_equal(getattr(again, name), getattr(trace, name))
    for name in ("target_probs", "draft_probs", "acceptance", "neighbour_mass"):
        assert getattr(again, name) == pytest.approx(getattr(trace, name), abs=1e-6)
    assert [file.name for file in (tmp_path / "deep").iterdir()] == ["one.npz"]


def test_what_is_no_trace_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bad.npz"
    path.write_bytes(b"nothing")
    with pytest.raises(ValueError, match=r"bad\.npz is no trace"):
        load(path)
    np.savez(path, other=np.zeros(3))
    with pytest.raises(ValueError, match="is no trace"):
        load(path)
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "absent.npz")
    with pytest.raises(ValueError, match="nothing was recorded"):
        Recorder(np.zeros((4, 2)), np.zeros((4, 1), dtype=np.int64)).trace({})
    model, few = field(), Recorder(np.zeros((4, 2)), np.zeros((4, 1), dtype=np.int64))
    with pytest.raises(ValueError, match="draws 24 codes, the codebook holds 4"):
        few.add(TableTarget(model, 0), TableDrafter(model, 0), sampling(0), greedy=False)
    trace = recorded(field(), 1)
    with pytest.raises(ValueError, match="expected target_tokens"):
        dataclasses.replace(trace, target_probs=trace.target_probs[:, :, :3])


def test_few_tokens_leave_the_rest_even() -> None:
    distributions = dense(np.array([[3, 1]]), np.array([[0.6, 0.2]]), 6)[0]
    assert distributions == pytest.approx([0.05, 0.2, 0.05, 0.6, 0.05, 0.05])
    short = dense(np.array([[3, 0, 0]]), np.array([[1.0, 0.0, 0.0]]), 6)[0]
    assert short.tolist() == [0, 0, 0, 1, 0, 0]
    starts_at_0 = dense(np.array([[0, 2, 0]]), np.array([[0.7, 0.3, 0.0]]), 4)[0]
    assert starts_at_0 == pytest.approx([0.7, 0.0, 0.3, 0.0])


@pytest.mark.parametrize(
    ("policy", "rule", "settings"),
    [
        ("chain", "chain", {}),
        ("eagle2", "point", {"depth": 3, "top_k": 3, "total_tokens": 8}),
        ("eagle1", "without_replacement", {"widths": (3, 3)}),
        ("eagle2", "lantern", {"depth": 3, "top_k": 3, "total_tokens": 8}),
    ],
)
def test_a_replay_predicts_the_world_it_was_recorded_in(policy: str, rule: str, settings: dict[str, object]) -> None:
    model = field(images=48)
    replayed = replay(recorded(model, 48))
    assert replayed.images == 48
    real = run_lockstep(model, make_scheme(model, policy, rule, settings), 480, 0).runs
    again = run_lockstep(replayed, make_scheme(replayed, policy, rule, settings), 480, 1).runs
    assert tokens_per_cycle(again).mean == pytest.approx(tokens_per_cycle(real).mean, rel=0.05)
    assert mean_depth(again).mean == pytest.approx(mean_depth(real).mean, rel=0.03)


CUT = np.random.default_rng(5).dirichlet(np.full(30, 0.1), size=(6, 7))
CUT[:2, :, 6:] = 0.0
CUT[2] = 1.0 / 30


@pytest.mark.parametrize("kept", [1, 5, 8, 30])
@pytest.mark.parametrize("at_once", [1, 40, 1 << 22])
def test_a_sparse_table_is_the_dense_one_bit_by_bit(kept: int, at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sparse_table, "MOST_AT_ONCE", at_once)
    rows = (CUT / CUT.sum(axis=-1, keepdims=True)).reshape(42, 30)
    tokens, probs = top(rows, kept)
    table = sparse_table.SparseTable(tokens, probs, 30)
    expected = np.repeat(np.maximum(1.0 - probs.sum(axis=1), 0.0)[:, None] / max(30 - kept, 1), 30, axis=1)
    expected[probs[:, -1] == 0.0] = 0.0
    expected = expected.astype(np.float32)
    for row, (its_tokens, its_probs) in enumerate(zip(tokens, probs, strict=True)):
        expected[row, its_tokens[::-1]] = its_probs[::-1]
    expected /= expected.sum(axis=1, keepdims=True)
    places, codes = np.indices(table.shape)
    assert np.array_equal(table[places[:, 0]], expected)
    assert np.array_equal(table[places, codes], expected)
    assert np.array_equal(table[3], expected[3])
    assert np.array_equal(table.take(places[:6, :7] * 2), expected[places[:6, :7] * 2])
    assert np.array_equal(sparse_table.over_rows(table, lambda some: some.argmax(axis=1)), expected.argmax(axis=1))


@pytest.mark.parametrize(
    ("policy", "rule", "settings", "loop_images"),
    [
        ("chain", "chain", {}, 3),
        ("eagle2", "lantern", {"depth": 3, "top_k": 3, "total_tokens": 8}, 3),
        ("eagle1", "lantern_pp", {"widths": (3, 3)}, 3),
        ("eagle1", "neighbour_budget", {"widths": (2, 2)}, 0),
        ("chain", "block", {}, 3),
    ],
)
def test_a_sparse_replay_draws_what_the_dense_one_draws(
    policy: str, rule: str, settings: dict[str, object], loop_images: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = recorded(field(images=6), 6)
    models = [replay(trace)]
    monkeypatch.setattr(trace_module, "MOST_DENSE", 0)
    models.append(replay(trace))
    assert not isinstance(models[1].target, np.ndarray)
    outputs = []
    for model in models:
        scheme = make_scheme(model, policy, rule, settings)
        runs = [run_loop(model, scheme, loop_images, 4)] if loop_images else []
        if scheme.vectorised:
            done = run_lockstep(model, scheme, 12, 4)
            runs.append(done.runs)
            outputs.append(done.canvas)
        outputs += [count for one in runs for count in (one.cycles, one.accepted, one.verify, one.draft)]
    half = len(outputs) // 2
    assert half
    assert all(np.array_equal(one, other) for one, other in zip(outputs[:half], outputs[half:], strict=True))


def test_a_trace_beyond_this_machines_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = recorded(field(images=2), 2)
    monkeypatch.setattr(memory, "free_bytes", lambda: 1000)
    with pytest.raises(ValueError, match=r"pictures: the tables of trace 'lab' would take .* at 2, .* at most 0"):
        replay(trace, "lab")


@pytest.fixture(scope="module")
def unlike() -> tuple[SyntheticTarget, SyntheticDrafter, TableModel]:
    """Models whose distributions depend on every token before, and a replay of plain decoding's own path, all a trace
    sees."""
    distribution, other, grid = (
        RandomDistribution(3, seed=1, sharpness=1.5),
        RandomDistribution(3, seed=2, sharpness=1.5),
        Grid(1, 4),
    )
    target, drafter = SyntheticTarget(distribution, grid), SyntheticDrafter(Blend(distribution, other, 0.5))
    recorder = Recorder(np.random.default_rng(0).standard_normal((3, 2)), np.array([[1], [2], [0]]), 2, 3)
    for image in range(600):
        recorder.add(target, drafter, sampling(0, image), greedy=False)
    return target, drafter, replay(recorder.trace({}))


@pytest.mark.parametrize(
    ("policy", "rule", "settings", "near"),
    [
        ("chain", "chain", {"length": 2}, 0.02),
        ("chain_top1", "point", {"length": 2}, 0.02),
        ("eagle2", "point", {"depth": 2, "top_k": 2, "total_tokens": 6}, 0.02),
        # Which nodes stay depends on the drafter's distributions off the path, which no trace holds.
        ("eagle2", "point", {"depth": 2, "top_k": 2, "total_tokens": 3}, 0.05),
    ],
)
def test_a_replay_agrees_with_decoding_enumerated(
    unlike: tuple[SyntheticTarget, SyntheticDrafter, TableModel],
    policy: str,
    rule: str,
    settings: dict[str, object],
    near: float,
) -> None:
    target, drafter, replayed = unlike
    scheme = make_scheme(replayed, policy, rule, settings)
    truth = enumerate_decoding(target, drafter, scheme.policy, scheme.rule)
    estimate = tokens_per_cycle(run_lockstep(replayed, scheme, 6000, 0).runs.pooled(replayed.images))
    assert estimate.mean == pytest.approx((target.grid.cells - 1) / (passes(truth) - 1.0), rel=near)
    assert estimate.half_width < 0.02


def test_a_curve_of_another_model_is_refused(tmp_path: Path) -> None:
    loaded_comparison = load_comparison(comparison(tmp_path / "compare.json", {"ar": (1.0, 0.0, 1.0)}))
    path, alone = tmp_path / "curve.json", {"format": 3, "verify_ms": [[1, 1.0]], "draft_ms": [[1, 0.5]]}
    rows = 1 if SAMPLER["guidance"] == 1.0 else 2
    for model in ({}, {"target": "field"}, {"target": "field", "drafter": "unnamed there", "rows": rows}):
        path.write_text(json.dumps({**alone, **({"model": model} if model else {})}))
        check_measured_on(read_cost_curve(path), loaded_comparison)
    for model, match in (
        ({"target": "another"}, r"curve\.json is the curve of another model .*\(target: another and field\)"),
        ({"rows": 3 - rows}, rf"\(rows: {3 - rows} and {rows}\)"),
    ):
        path.write_text(json.dumps({**alone, "model": model}))
        with pytest.raises(ValueError, match=match):
            check_measured_on(read_cost_curve(path), loaded_comparison)


def comparison(path: Path, measured: dict[str, tuple[float, float, float]]) -> Path:
    tree = {"depth": 3, "top_k": 3, "total_tokens": 8}
    methods = {
        "ar": {"policy": "none", "policy_settings": {}, "rule": "point", "rule_settings": {}},
        "speculative": {"policy": "chain", "policy_settings": {"length": 3}, "rule": "chain", "rule_settings": {}},
        "eagle2": {"policy": "eagle2", "policy_settings": tree, "rule": "point", "rule_settings": {}},
    }
    rows = [
        {
            **{"method": name, "lossless": True, "target_nfe": 100.0, "tokens_per_cycle": tokens},
            **{"mean_depth": depth, "speedup": speed, "images": 4},
        }
        for name, (tokens, depth, speed) in measured.items()
    ]
    model = {"target": "field", "engine": "synthetic", "sha256": {}}
    settings = {"methods": methods, "prompts": ["a compared one"], "seeds": [0], **SAMPLER}
    values = {"model": model, "settings": settings, "rows": rows}
    path.write_text(json.dumps(with_envelope("compare", {"processor": "one"}, "a test", values)))
    return path


def test_a_prediction_stands_beside_the_measurement(tmp_path: Path) -> None:
    model = field(images=32)
    measured = {"ar": (1.0, 0.0, 1.0)}
    for name, policy, rule, settings in (
        ("speculative", "chain", "chain", {"length": 3}),
        ("eagle2", "eagle2", "point", {"depth": 3, "top_k": 3, "total_tokens": 8}),
    ):
        runs = run_loop(model, make_scheme(model, policy, rule, settings), 32, 9)
        measured[name] = tokens_per_cycle(runs).mean, mean_depth(runs).mean, 1.5
    loaded_comparison = load_comparison(comparison(tmp_path / "compare.json", measured))
    predictions = predict(recorded(model, 16), CURVE, loaded_comparison, seeds=2)
    assert [one.method for one in predictions] == ["speculative", "eagle2"]
    for one in predictions:
        assert abs(one.tokens_error) < 0.1
        assert one.overhead_ms == pytest.approx(0.5, rel=0.06), "the first pass counts too"
        cycle = one.tokens_per_cycle.mean * 2.5 / one.speedup.mean
        assert 2.5 < cycle < 8.5 + 3 * 0.6
        assert one.speedup_error == pytest.approx(one.speedup.mean / 1.5 - 1.0)
        assert 0.0 < one.tokens_chance < 0.3
        assert model.grid.cells / one.speedup.mean == pytest.approx(sum(one.parts.values()))
        assert one.measured_parts == {}, "the comparison tells no shares"


def test_costs_inside_cycles_go_before_those_of_passes_alone(tmp_path: Path) -> None:
    loaded_comparison = load_comparison(
        comparison(tmp_path / "compare.json", {"ar": (1.0, 0.0, 1.0), "speculative": (2.0, 3, 1.5)})
    )
    trace = recorded(field(images=8), 8)
    free: dict[HostFamily, HostCosts] = {"sampled": HostCosts(0.0, 0.0, 0.0, 0.0)}
    same = InCycleCosts(PlainCosts(2.0, 0.5), CURVE.verify_ms, CURVE.draft_ms, (), free)

    def at(host_ms: dict[HostFamily, HostCosts]) -> CostCurveFile:
        return dataclasses.replace(CURVE, in_cycle=dataclasses.replace(same, host_ms=host_ms))

    (alone,) = predict(trace, CURVE, loaded_comparison)
    (within,) = predict(trace, at({"sampled": HostCosts(0.5, 0, 0, 0)}), loaded_comparison)
    assert within.tokens_per_cycle == alone.tokens_per_cycle
    assert within.overhead_ms == pytest.approx(0.5)
    assert within.speedup == pytest.approx(alone.speedup)
    (faster,) = predict(trace, at(free), loaded_comparison)
    assert faster.speedup.mean > within.speedup.mean
    with pytest.raises(ValueError, match="not for 'sampled'"):
        predict(trace, at({}), loaded_comparison)


def test_a_trace_and_a_comparison_that_do_not_belong_together(tmp_path: Path) -> None:
    loaded_comparison = load_comparison(comparison(tmp_path / "compare.json", {"ar": (1.0, 0.0, 1.0)}))
    trace = recorded(field(), 1)
    check_belong(trace, loaded_comparison)
    for about, match in (
        ({**trace.about, "model": {"target": "another"}}, "of another model"),
        ({**trace.about, "sampler": {**SAMPLER, "temperature": 0.0}}, "was sampled with"),
        ({**trace.about, "prompts": ["a compared one"]}, "holds prompts of the comparison"),
    ):
        with pytest.raises(ValueError, match=match):
            check_belong(dataclasses.replace(trace, about=about), loaded_comparison)
    hashes = {"target128": "old", "judge": "same"}
    retrained = loaded_comparison._replace(
        model={**loaded_comparison.model, "sha256": {**hashes, "target128": "new", "sampler": "x"}}
    )
    of_old = {**trace.about, "model": {**trace.about["model"], "sha256": hashes}}
    with pytest.raises(ValueError, match=r"\(another training of target128\); record both again"):
        check_belong(dataclasses.replace(trace, about=of_old), retrained)
    (tmp_path / "none.json").write_text("{}")
    with pytest.raises(
        ValueError, match=r"none\.json: expected results of version 1, got a file without 'results_version'"
    ):
        load_comparison(tmp_path / "none.json")
