import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from tests.grid_model import FixedRows, GridWeights, SyntheticGridTarget
from tests.spatial import checks
from tests.spatial.checks import EXACT, draft_rows, repaired
from underpaint.algos.accept import RULES
from underpaint.algos.arrays import BoolArray, FloatArray, IntArray
from underpaint.algos.chance import Chance, sampling
from underpaint.algos.protocols import Grid
from underpaint.algos.spatial.canvas import Canvas
from underpaint.algos.spatial.cell_rule import PooledCells, TreeRuleOnCells
from underpaint.algos.spatial.jacobi_front import JacobiFronts, jacobi_fronts
from underpaint.algos.spatial.mulo import Repair, RowDraft, draft_and_repair
from underpaint.algos.spatial.row_front import front_steps
from underpaint.algos.spatial.target import Feed
from underpaint.algos.spatial.zipar import raster, zipar

QUICK = settings(max_examples=25, deadline=None)
MASKS = arrays(np.bool_, array_shapes(min_dims=2, max_dims=2, max_side=5))


@st.composite
def repairs(draw: st.DrawFn, grid: Grid) -> Repair:
    window = draw(st.none() | st.integers(1, grid.width))
    return Repair(
        draw(st.sampled_from(["raster", "local"])),
        draw(st.integers(0, max(grid) - 1)),
        draw(st.sampled_from(["serial", "islands"])),
        window,
        window is not None and draw(st.booleans()),
        draw(st.sampled_from(["stale", "recompute"])),
    )


@settings(max_examples=60, deadline=None)
@given(MASKS, st.data(), st.integers(0, 99))
def test_repair_touches_what_it_may_and_keeps_the_rest(refused: BoolArray, data: st.DataObject, seed: int) -> None:
    grid = Grid(*refused.shape)
    checks.check_repair(refused, data.draw(repairs(grid)), data.draw(st.integers(1, grid.height)), seed)


def test_a_rejected_token_that_has_become_certain_is_redrawn_as_it_is() -> None:
    rule = TreeRuleOnCells(RULES["point"].make())
    certain, open_row = np.array([0.0, 1.0, 0.0]), np.array([0.5, 0.25, 0.25])
    np.testing.assert_array_equal(rule.residual(4, 1, None, certain), certain)
    weights = rule.residual(4, 1, None, open_row)
    np.testing.assert_allclose(weights / weights.sum(), [2 / 3, 0.0, 1 / 3], rtol=1e-12)


@QUICK
@given(st.integers(1, 4), st.integers(1, 5), st.data(), st.integers(0, 99))
def test_jacobi_rows_stay_behind_each_other(height: int, width: int, data: st.DataObject, seed: int) -> None:
    lead, window = (data.draw(st.integers(1, width)) for _ in range(2))
    refill, redraw = data.draw(st.sampled_from(["uniform", "left"])), data.draw(st.sampled_from(["top", "all"]))
    checks.check_jacobi(Grid(height, width), JacobiFronts(lead, window, refill, redraw), seed)


@QUICK
@given(st.integers(1, 4), st.integers(1, 5), st.data(), st.integers(0, 99))
def test_row_fronts_cost_one_pass_a_step(height: int, width: int, data: st.DataObject, seed: int) -> None:
    grid = Grid(height, width)
    window = data.draw(st.integers(1, width))
    target = checks.Watched(GridWeights.random(grid, 3, seed))
    fixed = zipar(target, window, sampling(seed))
    assert len(fixed.passes) == len(fixed.steps) == front_steps(grid, window)
    assert all(len(tokens) == 1 for tokens in target.committed.values())
    adaptive = zipar(target, window, sampling(seed), adaptive=True)
    assert len(fixed.steps) <= len(adaptive.steps) <= grid.cells
    plain = raster(target, sampling(seed))
    assert plain.steps == tuple((cell,) for cell in range(grid.cells))
    whole = zipar(target, width, sampling(seed), adaptive=True)
    np.testing.assert_array_equal(whole.tokens, plain.tokens)


@QUICK
@given(st.integers(1, 4), st.integers(1, 5), st.data(), st.integers(0, 99))
def test_thresholds_at_their_ends(height: int, width: int, data: st.DataObject, seed: int) -> None:
    window = data.draw(st.none() | st.integers(1, width))
    checks.check_neutral_thresholds(Grid(height, width), data.draw(st.integers(1, height)), window, seed)


@QUICK
@given(st.integers(1, 4), st.integers(1, 5), st.integers(0, 99))
def test_cached_decoding_reads_the_dense_distributions(height: int, width: int, seed: int) -> None:
    checks.check_distributions_are_dense(Grid(height, width), seed)


def test_stale_keys_change_what_later_rows_see() -> None:
    """Else the choice of keys would be no choice."""
    refused = np.zeros((2, 4), dtype=np.bool_)
    refused[0, 0] = True
    seen = []
    for keys in ("stale", "recompute"):
        rule = checks.Chosen(refused)
        drafter = FixedRows(np.eye(3)[[1, 1, 2, 0, 1, 2, 0, 1]], 4)
        target = SyntheticGridTarget(GridWeights.random(Grid(2, 4), 3, 5))
        done = draft_and_repair(target, drafter, rule, Repair("local", 0, "serial", keys=keys), 1, sampling(4))
        assert done.tokens[0] != 1
        seen.append(rule.distributions[4])
    assert np.abs(seen[0] - seen[1]).max() > 1e-6


def test_raster_rejection_under_an_exact_rule_is_exact() -> None:
    checks.check_raster_is_exact()
    decode = repaired(Repair("raster", 0, "serial"), Grid(2, 2), 2)
    assert draft_rows(Grid(2, 2), 0, 1.5, decode) < EXACT


@pytest.mark.parametrize(
    "name", [spec.name for spec in RULES if spec.promise == "lossless" and not spec.greedy and "iid" in spec.drawn]
)
def test_every_lossless_rule_is_exact_on_cells(name: str) -> None:
    decode = repaired(Repair("raster", 0, "serial"), Grid(1, 2), 1, name, vocab_size=3)
    assert draft_rows(Grid(1, 2), 6, 1.5, decode, vocab_size=3) < EXACT


def test_point_proposals_are_exact_on_cells() -> None:
    decode = repaired(Repair("raster", 0, "serial"), Grid(1, 2), 1, "point", vocab_size=3)
    assert draft_rows(Grid(1, 2), 6, 1.5, decode, vocab_size=3) < EXACT


def test_local_repair_is_biased_by_what_it_keeps_and_by_nothing_else() -> None:
    checks.check_independent_cells_are_exact()
    assert draft_rows(Grid(1, 3), 3, 1.5, repaired(Repair("local", 0, "serial"), Grid(1, 3), 1)) > 1e-3


def test_jacobi_fronts_are_exact_on_one_row_and_row_by_row() -> None:
    checks.check_one_row_of_jacobi_is_exact()
    row_by_row = lambda target, chance: jacobi_fronts(target, JacobiFronts(2, 2), chance)  # noqa: E731
    assert draft_rows(Grid(2, 2), 0, 1.5, row_by_row) < EXACT


def test_rows_that_wait_are_biased_even_if_rows_are_independent() -> None:
    bias = {
        redraw: draft_rows(
            Grid(2, 2),
            1,
            0.0,
            lambda target, chance, way=redraw: jacobi_fronts(target, JacobiFronts(1, 2, "uniform", way), chance),
        )
        for redraw in ("top", "all")
    }
    assert bias["all"] < EXACT
    assert bias["top"] > 1e-3


def test_row_fronts_are_exact_only_at_full_width() -> None:
    def bias(window: int, adaptive: bool, coupling: float = 1.5) -> float:
        return draft_rows(
            Grid(2, 3), 2, coupling, lambda target, chance: zipar(target, window, chance, adaptive=adaptive)
        )

    assert bias(3, False) < EXACT
    assert bias(1, False, coupling=0.0) < EXACT
    assert bias(1, True, coupling=0.0) < EXACT
    assert 1e-6 < bias(1, True) < bias(1, False)


@QUICK
@given(st.integers(0, 999))
def test_the_adaptive_window_has_the_stated_distribution(seed: int) -> None:
    checks.check_adaptive_distribution(seed)


def test_the_adaptive_window_is_exact_when_nothing_changes() -> None:
    distribution = np.array([0.5, 0.3, 0.2])
    np.testing.assert_allclose(
        checks.adaptive_distribution([distribution, distribution, distribution]), distribution, atol=EXACT
    )


class Words:
    """A drafter that proposes what it is told."""

    def __init__(self, draft: RowDraft) -> None:
        self.draft = draft

    def propose(self, tokens: IntArray, rows: range, chance: Chance) -> RowDraft:
        return self.draft


class Unnormalised(SyntheticGridTarget):
    def score(self, feed: Feed) -> FloatArray:
        return 2.0 * super().score(feed)


@pytest.mark.parametrize(
    ("repair", "told"),
    [
        (Repair(radius=-1), r"radius: expected 0..2"),
        (Repair(radius=3), r"radius: expected 0..2"),
        (Repair(window=0), r"window: expected 1..3"),
        (Repair(window=4), r"window: expected 1..3"),
        (Repair(reject="some"), "reject must be one of raster, local"),  # type: ignore[arg-type]
        (Repair(order="none"), "order must be one of serial, islands"),  # type: ignore[arg-type]
        (Repair(keys="new"), "keys must be one of stale, recompute"),  # type: ignore[arg-type]
        (Repair(adaptive=True), "set window"),
    ],
)
def test_repairs_that_make_no_sense(repair: Repair, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        repair.check(Grid(2, 3))


def test_input_that_makes_no_sense() -> None:
    weights = GridWeights.random(Grid(2, 2), 3, 0)
    rule, noise = TreeRuleOnCells(RULES["chain"].make()), sampling(0)
    for tau in (float("nan"), -0.1):
        with pytest.raises(ValueError, match="expected a threshold tau >= 0"):
            PooledCells(np.empty((3, 0), dtype=np.int64), tau)
    for settings_, message in (
        (JacobiFronts(0, 1), "lead in 1..2"),
        (JacobiFronts(1, 3), "window in 1..2"),
        (JacobiFronts(1, 1, "zeros"), "refill must be"),  # type: ignore[arg-type]
        (JacobiFronts(1, 1, redraw="none"), "redraw must be"),  # type: ignore[arg-type]
    ):
        with pytest.raises(ValueError, match=message):
            jacobi_fronts(SyntheticGridTarget(weights), settings_, noise)
    for rows in (0, 3):
        with pytest.raises(ValueError, match=r"rows_per_cycle: expected 1..2"):
            draft_and_repair(SyntheticGridTarget(weights), FixedRows(np.ones((4, 3)), 2), rule, Repair(), rows, noise)
    for draft, message in (
        (RowDraft(np.array([0, 1, 3, 0])), "tokens in 0..2"),
        (RowDraft(np.array([0, 1])), r"expected \[4\] tokens"),
        (RowDraft(np.array([0, 1, 2, 0]), np.ones((4, 2))), "draft.distributions"),
    ):
        with pytest.raises(ValueError, match=message):
            draft_and_repair(SyntheticGridTarget(weights), Words(draft), rule, Repair(), 2, noise)
    with pytest.raises(ValueError, match="sum to 1"):
        raster(Unnormalised(weights), noise)
    for prefix in (np.array([5]), np.zeros(5, dtype=np.int64), np.zeros((1, 1), dtype=np.int64)):
        with pytest.raises(ValueError, match="prefix: expected"):
            zipar(SyntheticGridTarget(weights), 1, noise, prefix=prefix)
    with pytest.raises(ValueError, match=r"stop_row in 0..2"):
        zipar(SyntheticGridTarget(weights), 1, noise, stop_row=3)
    canvas = Canvas.begin(SyntheticGridTarget(weights))
    with pytest.raises(ValueError, match="no cell is decided before"):
        canvas.distributions(np.array([1]))
    canvas.put(0, 1)
    with pytest.raises(RuntimeError, match="decided already"):
        canvas.put(0, 2)
