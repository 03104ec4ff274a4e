"""Many images in lockstep have the statistics of the decoding loop, and both those of theory."""

import functools
import itertools
from collections import Counter
from typing import Any

import numpy as np
import pytest

from tests.acceptance import best_acceptance_iid
from tests.grid_model import GridWeights, SyntheticGridTarget
from tests.sim.batched.closed_forms import chain_tokens, tree_tokens
from underpaint.algos.accept import RULES
from underpaint.algos.chance import sampling
from underpaint.algos.draft import POLICIES
from underpaint.algos.draft.shape import ranked_shape
from underpaint.algos.enumeration import enumerate_decoding, passes
from underpaint.algos.protocols import Grid
from underpaint.algos.spatial.row_front import front_steps
from underpaint.algos.spatial.zipar import zipar
from underpaint.algos.step import Scored, decode
from underpaint.algos.transport import overlap
from underpaint.algos.tree import NO_TOKEN, DraftTree, Verdict
from underpaint.sim.batched import draws as batch_draws
from underpaint.sim.batched import images as batch_images
from underpaint.sim.batched.decoding import MOST_NODES, Scheme, make_scheme, run_lockstep, run_loop, run_plain
from underpaint.sim.latency.models import MeasuredCosts
from underpaint.sim.report.statistics import (
    Estimate,
    Runs,
    Totals,
    mean_depth,
    plain_ms,
    ratio,
    speedup,
    tokens_per_cycle,
)
from underpaint.sim.synthetic.field import SYNTHETIC_MODELS, SyntheticModelSpec, make_synthetic_model
from underpaint.sim.synthetic.table_model import TableDrafter, TableModel, TableTarget

TREE = {"depth": 3, "top_k": 3, "total_tokens": 7}
ADAPTIVE = {"start_width": 3, "max_width": 4, "start_depth": 2, "max_depth": 4, "total_tokens": 7}
WIDTHS = {"widths": (2, 3, 2)}
POOLED = {"k": 6, "delta": 0.2}
CASES: list[tuple[str, str, dict[str, Any], dict[str, Any]]] = [
    ("chain", "chain", {}, {}),
    ("chain", "multi_round", {}, {}),
    ("chain", "lantern", {}, {**POOLED, "residual": "paper"}),
    ("chain_top1", "point", {}, {}),
    ("eagle1", "without_replacement", WIDTHS, {}),
    ("eagle1", "lantern_pp", WIDTHS, {"k": 6, "factor": 3.0, "residual": "standard"}),
    ("eagle1", "lantern_pp", WIDTHS, {"k": 6, "factor": 3.0, "residual": "released"}),
    ("static_top_k", "lantern_pp_greedy", WIDTHS, {"k": 6}),
    ("static_top_k", "mulo", WIDTHS, {"k": 6, "tau": 0.4}),
    ("eagle2", "point", TREE, {}),
    ("eagle2", "greedy", TREE, {}),
    ("eagle2", "lantern", TREE, {**POOLED, "residual": "standard"}),
    ("eagle2", "lantern", TREE, {**POOLED, "residual": "paper"}),
    ("eagle2", "lantern", TREE, {**POOLED, "residual": "released"}),
    ("eagle2", "lantern_greedy", TREE, {**POOLED, "choose": "first"}),
    ("eagle2", "mulo", TREE, {"k": 6, "tau": 0.5, "choose": "first"}),
    ("adt", "point", ADAPTIVE, {}),
    ("adt", "greedy", {**ADAPTIVE, "nodes": "proportional"}, {}),
    ("adt", "lantern_greedy", {**ADAPTIVE, "acceptance": "length", "beta": 1.0}, POOLED),
]


def small(name: str = "field", **settings: Any) -> TableModel:
    base = {"vocab_size": 24, "height": 6, "width": 6, "images": 8}
    if name == "field":
        base |= {"clusters": 4, "levels": 3}
    return make_synthetic_model(name, {**base, **settings})


def agree(one: Estimate, other: Estimate, deviations: float = 4.5) -> bool:
    errors = np.hypot(one.high - one.mean, other.high - other.mean) / 1.96
    return abs(one.mean - other.mean) <= deviations * errors + 1e-12


@pytest.mark.parametrize(("policy", "rule", "shape", "settings"), CASES, ids=lambda value: str(value))
def test_lockstep_has_the_statistics_of_the_loop(
    policy: str, rule: str, shape: dict[str, Any], settings: dict[str, Any]
) -> None:
    model = small(drift=0.4, depth_known=2)
    scheme = make_scheme(model, policy, rule, shape, settings)
    assert scheme.vectorised
    fast, slow = run_lockstep(model, scheme, 400, 1).runs, run_loop(model, scheme, 40, 2)
    sizes = np.arange(MOST_NODES + 1)
    for figure in (
        tokens_per_cycle,
        mean_depth,
        lambda runs: ratio(runs.verify @ sizes, runs.cycles),
        lambda runs: ratio(runs.draft @ sizes, runs.cycles),
        lambda runs: ratio(runs.draft.sum(axis=1), runs.cycles),
    ):
        assert agree(figure(fast), figure(slow)), (figure(fast), figure(slow))
    assert np.array_equal(fast.accepted + fast.cycles + 1, np.full(400, model.grid.cells))
    assert np.array_equal(fast.verify.sum(axis=1), fast.cycles + 1)


@pytest.mark.parametrize(
    ("policy", "rule", "shape"), [(case[0], case[1], case[2]) for case in CASES if "greedy" in case[1]]
)
def test_greedy_rules_draw_nothing_so_lockstep_is_the_loop(policy: str, rule: str, shape: dict[str, Any]) -> None:
    model = small()
    scheme = make_scheme(model, policy, rule, shape)
    fast, slow = run_lockstep(model, scheme, 8, 0).runs, run_loop(model, scheme, 8, 5)
    for name in ("cycles", "accepted", "depth", "verify", "draft"):
        assert np.array_equal(getattr(fast, name), getattr(slow, name)), name


@pytest.mark.parametrize(
    ("policy", "rule", "shape"),
    [
        ("chain_top1", "greedy", {"length": 3}),
        ("eagle2", "greedy", {**TREE, "top_k": 1}),
        ("eagle2", "greedy", TREE),
        ("static_top_k", "greedy", {"widths": (1, 1)}),
        ("adt", "greedy", {**ADAPTIVE, "start_width": 1}),
    ],
)
def test_lockstep_knows_which_chains_the_loop_drafts_in_one_call(policy: str, rule: str, shape: dict[str, Any]) -> None:
    model = small()
    scheme = make_scheme(model, policy, rule, shape)
    fast, slow = run_lockstep(model, scheme, 8, 0, chains=True).runs, run_loop(model, scheme, 8, 5, chains=True)
    for name in ("cycles", "accepted", "depth", "verify", "draft", "chained"):
        assert np.array_equal(getattr(fast, name), getattr(slow, name)), name
    assert fast.chained.any() == (policy != "static_top_k" and shape is not TREE)
    assert not run_lockstep(model, scheme, 8, 0).runs.chained.any()


def test_the_loop_is_the_decoding_loop() -> None:
    model = small()
    scheme = make_scheme(model, "eagle2", "point", TREE)
    runs = run_loop(model, scheme, 2, seed=7)
    for image in range(2):
        target, drafter = TableTarget(model, image), TableDrafter(model, image)
        decoded = decode(target, drafter, scheme.policy, scheme.rule, sampling(7, image), MOST_NODES)
        assert runs.cycles[image] == len(decoded.cycles) - 1
        assert runs.accepted[image] == sum(len(cycle.verdict.path) for cycle in decoded.cycles)


def test_exact_enumeration_agrees() -> None:
    model = make_synthetic_model(
        "dirichlet", {"vocab_size": 3, "height": 1, "width": 4, "images": 1, "rows": 5, "concentration": 1.0}
    )
    for policy, rule, shape in (
        ("chain", "chain", {"length": 2}),
        ("eagle2", "point", {"depth": 2, "top_k": 2, "total_tokens": 3}),
        ("eagle1", "without_replacement", {"widths": (2, 1)}),
    ):
        scheme = make_scheme(model, policy, rule, shape)
        target, drafter = TableTarget(model, 0), TableDrafter(model, 0)
        exact = passes(enumerate_decoding(target, drafter, scheme.policy, scheme.rule, MOST_NODES))
        runs = run_lockstep(model, scheme, 4000, 3).runs
        measured = ratio(runs.verify.sum(axis=1), np.ones(runs.images))
        assert agree(measured, Estimate(exact, exact, exact)), (policy, measured, exact)


@pytest.mark.parametrize(
    ("policy", "rule", "shape", "settings"),
    [
        ("chain", "chain", {"length": 2}, {}),
        ("chain", "lantern", {"length": 2}, {"k": 1, "delta": 0.3, "residual": "paper"}),
        ("eagle1", "without_replacement", {"widths": (2, 1)}, {}),
        ("eagle1", "lantern_pp", {"widths": (2, 1)}, {"k": 1, "factor": 2.0, "residual": "standard"}),
        ("eagle1", "lantern_pp", {"widths": (2, 1)}, {"k": 1, "factor": 2.0, "residual": "released"}),
        ("eagle2", "point", {"depth": 2, "top_k": 2, "total_tokens": 3}, {}),
        *(
            ("eagle2", "lantern", {"depth": 2, "top_k": 2, "total_tokens": 3}, {"k": 1, "delta": 0.3, "residual": name})
            for name in ("standard", "paper", "released")
        ),
    ],
    ids=lambda value: str(value),
)
@pytest.mark.parametrize("distributions", [{"concentration": 1.0}, {"concentration": 3.0, "seed": 3}], ids=str)
def test_lockstep_draws_from_the_enumerated_distribution(
    policy: str, rule: str, shape: dict[str, Any], settings: dict[str, Any], distributions: dict[str, Any]
) -> None:
    draws_the_enumerated_distribution(policy, rule, shape, settings, distributions)


@pytest.mark.parametrize(
    ("policy", "rule", "shape"),
    [
        ("chain", "chain", {"length": 2}),
        ("eagle1", "without_replacement", {"widths": (2, 1)}),
        ("eagle1", "without_replacement", {"widths": (3, 2)}),
    ],
)
@pytest.mark.parametrize("most", [0, 2**19], ids=["large tables", "small tables"])
def test_tables_too_large_to_prepare_draw_by_the_same_distribution(
    policy: str, rule: str, shape: dict[str, Any], most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (batch_images, batch_draws):
        monkeypatch.setattr(module, "MOST_LOOKED_UP", most)
    draws_the_enumerated_distribution(policy, rule, shape, {}, {"concentration": 1.0, "seed": 2})


def draws_the_enumerated_distribution(
    policy: str, rule: str, shape: dict[str, Any], settings: dict[str, Any], distributions: dict[str, Any]
) -> None:
    size = {"vocab_size": 3, "height": 1, "width": 4, "images": 1, "rows": 5}
    model = make_synthetic_model("dirichlet", {**size, "error": 0.8, **distributions})
    scheme = make_scheme(model, policy, rule, shape, settings)
    models = TableTarget(model, 0), TableDrafter(model, 0)
    exact: dict[tuple[int, ...], float] = {}
    for trace, weight in enumerate_decoding(*models, scheme.policy, scheme.rule, MOST_NODES).items():
        outcome = (*trace.tokens, len(trace.accepted))
        exact[outcome] = exact.get(outcome, 0.0) + weight
    samples = run_lockstep(model, scheme, 60000, 1)
    seen = Counter(map(tuple, np.column_stack([samples.canvas, samples.runs.cycles + 1]).tolist()))
    assert sum(exact.values()) == pytest.approx(1.0)
    expected = {outcome: samples.runs.images * weight for outcome, weight in exact.items() if weight > 1e-12}
    assert seen.keys() <= expected.keys()
    squares = sum((seen[outcome] - count) ** 2 / count for outcome, count in expected.items())
    assert squares < len(expected) + 5.0 * np.sqrt(2.0 * len(expected)), (squares, len(expected))


@pytest.mark.parametrize(("height", "width"), [(1, 4), (2, 2), (4, 1), (1, 2)])
def test_plain_runs_draw_from_the_targets_own_distribution(height: int, width: int) -> None:
    """In grids that are too narrow for any draft to run in lockstep too."""
    size = {"vocab_size": 3, "height": height, "width": width, "images": 1, "rows": 5}
    model = make_synthetic_model("dirichlet", size)
    exact: dict[tuple[int, ...], float] = {(): 1.0}
    for cell in range(model.grid.cells):
        longer: dict[tuple[int, ...], float] = {}
        for tokens, weight in exact.items():
            left = np.array([tokens[-1] if cell else NO_TOKEN])
            upper = np.array([tokens[cell - width] if cell >= width else NO_TOKEN])
            row = model.target[model.rows(np.zeros(1, dtype=np.int64), np.array([cell]), left, upper)[0]]
            longer |= {(*tokens, token): weight * float(row[token] / row.sum()) for token in range(3)}
        exact = longer
    samples = run_plain(model, 40_000, 1)
    assert (samples.runs.verify.sum(axis=1) == model.grid.cells).all()
    assert (samples.canvas >= 0).all()
    seen = Counter(map(tuple, samples.canvas.tolist()))
    expected = {tokens: samples.runs.images * weight for tokens, weight in exact.items() if weight > 1e-12}
    assert sum(exact.values()) == pytest.approx(1.0)
    assert seen.keys() <= expected.keys()
    squares = sum((seen[tokens] - count) ** 2 / count for tokens, count in expected.items())
    assert squares < len(expected) + 5.0 * np.sqrt(2.0 * len(expected)), (squares, len(expected))


def one_row(error: float, vocab_size: int = 12) -> TableModel:
    return make_synthetic_model(
        "dirichlet",
        {"rows": 1, "error": error, "vocab_size": vocab_size, "height": 16, "width": 16, "images": 1, "seed": 4},
    )


@pytest.mark.parametrize("length", [1, 3, 6])
def test_a_chain_on_one_row_follows_the_closed_form(length: int) -> None:
    model = one_row(0.6)
    acceptance = float(overlap(model.target[0], model.draft[0, 0]))
    assert acceptance == pytest.approx(best_acceptance_iid(model.target[0], model.draft[0, 0], 1))
    runs = run_lockstep(model, make_scheme(model, "chain", "chain", {"length": length}), 300, 0).runs
    # Near the image's end chains are cut: leave room for one chain's worth of tokens.
    assert tokens_per_cycle(runs).mean == pytest.approx(chain_tokens(acceptance, length), rel=0.03)


def test_a_static_tree_on_one_row_follows_its_acceptance_vector() -> None:
    model = one_row(0.6)
    order = np.argsort(-model.draft[0, 0], kind="stable")
    by_rank = model.target[0][order][:3].astype(float)
    runs = run_lockstep(model, make_scheme(model, "static_top_k", "point", {"widths": (3, 3)}), 300, 0).runs
    expected = tree_tokens(ranked_shape((3, 3)), by_rank.tolist())
    assert tokens_per_cycle(runs).mean == pytest.approx(expected, rel=0.02)


def test_no_lossless_rule_beats_the_transport_bound() -> None:
    model = one_row(0.9)
    bound = best_acceptance_iid(model.target[0], model.draft[0, 0], 1)
    runs = run_lockstep(model, make_scheme(model, "chain", "chain", {"length": 1}), 400, 0).runs
    accepted = ratio(runs.accepted, runs.depth)
    assert agree(accepted, Estimate(bound, bound, bound))


@pytest.mark.parametrize("window", [1, 2, 4])
def test_row_fronts_take_the_steps_of_the_closed_form(window: int) -> None:
    grid = Grid(4, 4)
    done = zipar(SyntheticGridTarget(GridWeights.random(grid, 3, seed=1)), window, sampling(0))
    assert len(done.steps) == front_steps(grid, window)


@pytest.mark.parametrize("grid", [(6, 6), (3, 2), (5, 1), (1, 7)])
def test_contexts_found_at_once_are_those_found_one_by_one(grid: tuple[int, int]) -> None:
    """Deep trees read the upper token from their own path, and the last cell repeats past the image's end."""
    model, draws = small(height=grid[0], width=grid[1]), np.random.default_rng(0)
    tokens, length = draws.integers(24, size=model.grid.cells), 0
    target, drafter = TableTarget(model, 3), TableDrafter(model, 3)
    drafter.begin(target.begin())
    while length < model.grid.cells:
        parents = np.array([-1, 0, 0, 1, 1, 3, 5, 6])
        tree = DraftTree(draws.integers(24, size=8), parents, "top_k", np.empty((0, 24)), np.full(8, -1))
        paths = [[int(tree.tokens[node]) for node in (0, *tree.path_to(node))] for node in range(8)]
        rows = []
        for path in paths:
            before = [*tokens[:length].tolist(), *path]
            cell = min(len(before), model.grid.cells - 1)
            above = cell - model.grid.width
            upper = before[above] if above >= 0 else NO_TOKEN
            at = (np.array(one) for one in (3, cell, path[-1], upper))
            rows.append(int(model.rows(*at)))
        assert np.array_equal(target.score(tree).probs, model.target[rows])
        drafted = [drafter.expand(tree.tokens[some], parents[some]) for some in (slice(0, 1), slice(1, 3), slice(3, 8))]
        assert np.array_equal(np.concatenate(drafted), model.draft[0][rows])
        accepted = (1,) if length + 2 <= model.grid.cells else ()
        verdict = Verdict(accepted, 0)
        target.commit(tree, verdict)
        drafter.commit(tree, verdict, Scored(model.target[:1]))
        tokens[length : length + 1 + len(accepted)] = tree.tokens[[0, *accepted]]
        length += 1 + len(accepted)


def test_closed_forms() -> None:
    assert chain_tokens(1.0, 4) == 5.0
    assert chain_tokens(0.0, 4) == 1.0
    assert chain_tokens(0.5, 2) == 1.75
    assert tree_tokens((-1, 0, 1, 2), [0.5]) == chain_tokens(0.5, 3)
    assert tree_tokens((-1, 0, 0), [0.5, 0.25]) == 1.75


def test_runs_are_priced_pass_by_pass() -> None:
    counts = np.zeros((2, 5), dtype=np.int64)
    verify, draft = counts.copy(), counts.copy()
    verify[:, 1], verify[:, 3], draft[:, 2] = 1, (4, 5), (8, 10)
    runs = Runs(16, np.array([4, 5]), np.array([11, 10]), np.array([8, 10]), verify, draft, counts)
    costs = MeasuredCosts("m", ((1, 2.0), (3, 4.0)), ((1, 0.5), (2, 1.0)), overhead_ms=0.25)
    assert runs.times(costs).total.tolist() == [2 + 16 + 8 + 5 * 0.25, 2 + 20 + 10 + 6 * 0.25]
    assert speedup(runs, costs).mean == pytest.approx(2 * 16 * 2.25 / (27.25 + 33.5))
    assert tokens_per_cycle(runs).mean == pytest.approx(30 / 9)
    assert runs.and_more(runs).images == 4
    with pytest.raises(ValueError, match="expected images of 16 cells, got 9"):
        runs.and_more(Runs(9, *(np.array([1]),) * 3, verify[:1], draft[:1], counts[:1]))


def some(runs: Runs, chosen: slice) -> Runs:
    parts = (getattr(runs, name)[chosen] for name in ("cycles", "accepted", "depth", "verify", "draft", "chained"))
    return Runs(runs.cells, *parts)


@pytest.mark.parametrize("size", [1, 2, 90])
def test_sums_of_blocks_tell_what_counts_of_images_tell(size: int) -> None:
    model, costs = small(), MeasuredCosts("m", ((1, 2.0), (6, 4.0)), ((1, 0.5), (2, 1.0)), overhead_ms=0.25)
    scheme = make_scheme(model, "eagle2", "point", {"depth": 3, "top_k": 2, "total_tokens": 5})
    runs = run_lockstep(model, scheme, 90, 1).runs
    blocks = [some(runs, slice(at, at + size)) for at in range(0, 90, size)]
    totals = functools.reduce(Totals.and_more, (Totals.of(one, {"m": one.times(costs)}) for one in blocks))
    assert totals.speedup("m", plain_ms(costs)) == pytest.approx(speedup(runs, costs), rel=1e-12)
    assert (totals.accepted + totals.cycles) / totals.cycles == tokens_per_cycle(runs).mean
    assert totals.depth / totals.cycles == mean_depth(runs).mean
    assert totals.target_passes == runs.verify.sum()
    assert totals.nodes == (runs.verify @ np.arange(MOST_NODES + 1)).sum()


def test_an_interval_covers_the_truth_as_often_as_it_says() -> None:
    runs = run_lockstep(one_row(0.5), make_scheme(one_row(0.5), "chain", "chain", {"length": 2}), 1200, 99).runs
    costs = MeasuredCosts("papers", ((1, 1.0), (8, 1.0)), ((1, 0.1), (8, 0.1)))
    truth = speedup(runs, costs).mean
    intervals = [speedup(some(runs, slice(start, start + 30)), costs) for start in range(0, 1200, 30)]
    covered = sum(one.low <= truth <= one.high for one in intervals)
    assert covered >= 33  # of 40 at 95 %; fewer has a chance below 1 in 500
    figures = np.array([1.0, 2.0, 4.0, 9.0])
    plain = ratio(figures, np.ones(4))
    assert plain.high - plain.mean == pytest.approx(1.96 * figures.std(ddof=1) / 2.0)


def test_what_has_no_lockstep_form_says_so() -> None:
    model = small()
    for policy, rule, shape in (
        ("roofline", "point", {}),
        ("eagle1", "traversal", {}),
        ("adt", "point", {"init": "vertical"}),
    ):
        scheme = make_scheme(model, policy, rule, shape)
        assert not scheme.vectorised
        with pytest.raises(ValueError, match="has no vectorised form"):
            run_lockstep(model, scheme, 2, 0)
    assert not make_scheme(model, "eagle2", "point", {"depth": 6}).vectorised  # deeper than the grid is wide
    assert run_loop(model, make_scheme(model, "chain", "block"), 2, 0).images == 2


def test_every_fitting_pair_builds() -> None:
    model = small()
    built: list[Scheme] = []
    for rule, policy in itertools.product(RULES, POLICIES):
        if policy.drawn in rule.drawn and (policy.chain or not rule.needs_chain):
            built.append(make_scheme(model, policy.name, rule.name))
        else:
            with pytest.raises(ValueError, match="covers"):
                make_scheme(model, policy.name, rule.name)
    assert sum(scheme.vectorised for scheme in built) >= 15


@pytest.mark.parametrize("spec", SYNTHETIC_MODELS, ids=lambda spec: spec.name)
def test_worlds_are_what_they_say(spec: SyntheticModelSpec) -> None:
    model = make_synthetic_model(spec.name, {})
    again = make_synthetic_model(spec.name, {})
    assert np.array_equal(model.target, again.target)
    assert np.array_equal(model.starts, again.starts)
    assert model.target.min() > 0.0
    assert model.grid.cells == 256


def test_the_field_has_its_structure() -> None:
    model = small(height=12, width=12, images=16, levels=4, smoothness=2.0)
    levels = (model.starts // model.starts[model.starts > 0].min()).reshape(16, 12, 12).astype(float)
    beside = np.corrcoef(levels[:, :, 1:].ravel(), levels[:, :, :-1].ravel())[0, 1]
    apart = np.corrcoef(levels[:, :, 6:].ravel(), levels[:, :, :-6].ravel())[0, 1]
    assert beside > 0.7 > apart
    assert overlap(
        small(noise=0.0, context_loss=0.0).target, small(noise=0.0, context_loss=0.0).draft[0]
    ) == pytest.approx(1.0)
    closeness = [overlap(model.target, model.draft[0]).mean() for model in (small(noise=x) for x in (0.1, 0.5, 1.5))]
    assert closeness == sorted(closeness, reverse=True)
    near, far = small(spread=0.02), small(spread=1.0)
    token, twin = 0, 4  # one cluster
    assert (
        np.abs(near.target[:, token] - near.target[:, twin]).max()
        < np.abs(far.target[:, token] - far.target[:, twin]).max()
    )


def test_bad_worlds_are_named() -> None:
    with pytest.raises(ValueError, match="synthetic model: there is no 'feild'; did you mean 'field'"):
        make_synthetic_model("feild", {})
    with pytest.raises(ValueError, match="unknown setting 'noize'; did you mean 'noise'"):
        make_synthetic_model("field", {"noize": 1})
    with pytest.raises(ValueError, match="multiple of clusters"):
        make_synthetic_model("field", {"vocab_size": 30})
    with pytest.raises(ValueError, match=r"context_loss must be in \[0, 1\]"):
        make_synthetic_model("field", {"context_loss": 2})
    with pytest.raises(ValueError, match="height must be a whole number"):
        make_synthetic_model("field", {"height": 1.5})
    with pytest.raises(ValueError, match="expected at least one image"):
        run_loop(small(), make_scheme(small(), "chain", "chain"), 0, 0)


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        *(
            ("field", {key: 1e308}, f"{key} must be at most 1e\\+06")
            for key in ("noise", "sharpness", "spread", "texture")
        ),
        ("field", {"contrast": 1e308}, r"contrast must be at most 1e\+06"),
        ("field", {"temperature": 1e308}, r"temperature must be at most 1e\+06"),
        ("field", {"smoothness": 1e-320}, "smoothness must be 0 .none. or at least 0.001"),
        ("field", {"drift": 1e5, "depth_known": 20}, "grows the drafter's noise by more than"),
        ("dirichlet", {"concentration": 1e308}, r"concentration must be at most 1e\+06"),
        ("zipf", {"concentration": 1e5}, "concentration must be at most 60"),
        ("field", {"height": 1, "width": 1}, "expected two cells or more, got height 1 and width 1"),
        ("zipf", {"height": 1, "width": 1}, "expected two cells or more"),
    ],
)
def test_sizes_beyond_floating_numbers_are_named_without_a_warning(
    name: str, settings: dict[str, Any], message: str
) -> None:
    """Warnings are errors in tests: NumPy gives none before the message."""
    with pytest.raises(ValueError, match=message):
        make_synthetic_model(name, {"vocab_size": 32, **settings})


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        *(("field", {key: 1e6}) for key in ("noise", "sharpness", "spread", "texture", "contrast", "temperature")),
        ("field", {"smoothness": 1e-3}),
        ("field", {"drift": 9.0, "depth_known": 6, "noise": 1e6}),
        ("dirichlet", {"concentration": 1e6}),
        ("zipf", {"concentration": 60.0}),
    ],
)
def test_the_largest_sizes_make_distributions_without_a_warning(name: str, settings: dict[str, Any]) -> None:
    model = make_synthetic_model(name, {"vocab_size": 32, "images": 2, **settings})
    np.testing.assert_allclose(model.target.sum(axis=1), 1.0, atol=1e-9)
    np.testing.assert_allclose(model.draft.sum(axis=2), 1.0, atol=1e-9)
