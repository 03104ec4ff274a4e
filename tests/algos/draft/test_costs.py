"""The policies that know what passes cost, against brute force."""

from collections.abc import Iterator
from itertools import accumulate, combinations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.algos.draft.drafters import PathDrafter, dense, drafters
from underpaint.algos.chance import sampling
from underpaint.algos.draft.calibration import BANDS, Calibration, within_one
from underpaint.algos.draft.costs import CostCurve, SizeCosts, draft_table
from underpaint.algos.draft.lookahead import best_tree_size, falling, forecast_level
from underpaint.algos.draft.roofline import Roofline
from underpaint.algos.draft.sequoia import acceptance_by_rank, best_static_tree
from underpaint.algos.draft.tree_builder import TreeBuilder
from underpaint.algos.protocols import Budget, Grid
from underpaint.algos.tree import DraftTree, Shape, Verdict

FLAT = tuple((nodes, 1.0) for nodes in (1, 64))
STEEP = tuple((nodes, float(nodes)) for nodes in (1, 64))


def test_a_line_goes_through_the_measured_sizes() -> None:
    curve = CostCurve(((1, 1.0), (3, 2.0), (5, 6.0)), 0.5)
    assert curve.table().tolist() == [1.0, 1.5, 2.0, 4.0, 6.0]
    assert CostCurve(curve.verify_ms, 0.5, "bucket").table().tolist() == [1.0, 2.0, 2.0, 6.0, 6.0]
    assert curve.max_nodes == 5


def shapes(most: int) -> Iterator[Shape]:
    """Every tree of up to `most` nodes, level by level, the children of a node together."""

    def grown(parents: Shape) -> Iterator[Shape]:
        yield parents
        if len(parents) < most:
            for above in range(max(parents[-1], 0), len(parents)):
                yield from grown((*parents, above))

    yield from grown((-1,))


def value_and_depth(shape: Shape, acceptance: tuple[float, ...]) -> tuple[float, int]:
    """Expected tokens, and levels; minus infinity where a node has more children than there are ranks."""
    values, depths, born = [1.0], [0], [0] * len(shape)
    for above in shape[1:]:
        if born[above] == len(acceptance):
            return -np.inf, 0
        values.append(values[above] * acceptance[born[above]])
        depths.append(depths[above] + 1)
        born[above] += 1
    return sum(values), max(depths)


@given(
    acceptance=st.lists(st.sampled_from([0.0, 0.05, 0.2, 0.45, 0.9]), min_size=1, max_size=3).map(tuple),
    slopes=st.lists(st.sampled_from([0.0, 0.01, 0.1, 0.5]), min_size=5, max_size=5),
    draft_ms=st.sampled_from([0.0, 0.02, 0.1, 1.0]),
    max_depth=st.integers(0, 4),
    max_nodes=st.integers(1, 6),
    call_ms=st.floats(0.0, 3.0),
)
def test_sequoia_finds_the_best_of_all_shapes(
    acceptance: tuple[float, ...],
    slopes: list[float],
    draft_ms: float,
    max_depth: int,
    max_nodes: int,
    call_ms: float,
) -> None:
    sizes = tuple((nodes + 1, cost) for nodes, cost in enumerate(np.cumsum([1.0, *slopes]).tolist()))
    plan = best_static_tree(acceptance, CostCurve(sizes, draft_ms), max_depth, max_nodes, call_ms)
    rates = {}
    for shape in shapes(max_nodes):
        value, depth = value_and_depth(shape, acceptance)
        if depth <= max_depth:
            drafting = call_ms + depth * draft_ms if depth else 0.0
            rates[shape] = value / (drafting + sizes[len(shape) - 1][1])
    assert plan.shape in rates
    assert rates[plan.shape] == pytest.approx(max(rates.values()), rel=1e-12)
    value, depth = value_and_depth(plan.shape, acceptance)
    assert plan.tokens == pytest.approx(value, rel=1e-12)
    assert plan.cost_ms >= depth * draft_ms + sizes[len(plan.shape) - 1][1] - 1e-12


def test_a_call_that_costs_more_than_it_brings_is_not_made() -> None:
    costs = CostCurve(FLAT, 0.1)
    assert len(best_static_tree((0.9,), costs, 8, 16, 0.3).shape) == 9
    assert best_static_tree((0.9,), costs, 8, 16, 9.0).shape == (-1,)


def test_acceptance_by_rank_counts_children_that_could_be_kept() -> None:
    parents = np.array([-1, 0, 0, 1, 1])
    tree = DraftTree(np.array([0, 1, 2, 1, 2]), parents, "top_k", np.empty((0, 3)), np.full(5, -1))
    verified = [(tree, Verdict((1, 4), 0)), (tree, Verdict((2,), 0)), (tree, Verdict((), 0)), (tree, Verdict((1,), 0))]
    assert acceptance_by_rank(verified, 2) == (2 / 6, 2 / 6)
    with pytest.raises(ValueError, match="rank 2 was never tried"):
        acceptance_by_rank(verified, 3)


@given(
    drafter=drafters(3),
    depth=st.integers(1, 2),
    slopes=st.lists(st.sampled_from([0.0, 0.02, 0.2, 0.7]), min_size=12, max_size=12),
    spent=st.sampled_from([0.0, 0.3, 2.0]),
    most=st.integers(0, 4),
)
def test_the_best_choice_is_the_best_of_all_subtrees(
    drafter: PathDrafter, depth: int, slopes: list[float], spent: float, most: int
) -> None:
    costs = np.cumsum([1.0, *slopes])
    growing = TreeBuilder(drafter, 0)
    for _ in range(depth):
        growing.add_level(3, 3)
    scores = growing.scores()
    above = [number for level in growing.levels for number in level.expanded for _ in range(level.tokens.shape[1])]
    rates = [
        (1 + scores[list(subset)].sum()) / (spent + costs[count])
        for count in range(most + 1)
        for subset in combinations(range(scores.size), count)
        if all(above[node] == -1 or above[node] in subset for node in subset)
    ]
    choice = best_tree_size(falling(scores, most), SizeCosts.of(costs), spent)
    assert choice.rate == pytest.approx(max(rates), rel=1e-12)
    tree = growing.tree(choice.nodes)
    assert tree.size == choice.nodes + 1


@given(
    scores=st.lists(st.sampled_from([0.0, 0.2, 0.5, 1.0]) | st.floats(0, 1), max_size=8),
    passes=st.lists(st.sampled_from([1.0, 1.1, 1.5]) | st.floats(0.1, 3), min_size=9, max_size=9),
    spent=st.sampled_from([0.0, 0.3, 2.0]),
    most=st.integers(0, 8),
)
def test_the_best_choice_is_the_best_of_all_counts_whatever_passes_cost(
    scores: list[float], passes: list[float], spent: float, most: int
) -> None:
    """On curves that fall, and on ones that are level, too: a search that ends early misses nothing."""
    best = [score for score in sorted(scores, reverse=True)[:most] if score]
    rates = [(1 + sum(best[:count])) / (passes[count] + spent) for count in range(len(best) + 1)]
    choice = best_tree_size(falling(np.array(scores), most), SizeCosts.of(passes), spent)
    assert choice.rate == pytest.approx(max(rates), rel=1e-12)
    assert rates[choice.nodes] == pytest.approx(max(rates), rel=1e-12)
    assert not any(rate >= choice.rate * (1 + 1e-12) for rate in rates[: choice.nodes])
    assert choice.least == (best[choice.nodes - 1] if choice.nodes else np.inf)


@given(
    older=st.lists(st.floats(0, 1), max_size=4),
    last=st.lists(st.floats(0, 1), min_size=1, max_size=4),
    shares=st.lists(st.floats(0, 1), min_size=1, max_size=3),
    passes=st.lists(st.floats(0.1, 3), min_size=17, max_size=17),
    draft_ms=st.lists(st.floats(0, 1), min_size=1, max_size=4),
    most=st.integers(0, 16),
)
@example(  # fewer nodes expanded cost more, so that another one pays
    older=[0.3, 0.2], last=[0.6, 0.1], shares=[0.5], passes=[1 + 0.3 * n for n in range(17)], draft_ms=[1, 0], most=16
)
def test_a_level_is_foreseen_as_if_all_of_it_were_worked_out(
    older: list[float], last: list[float], shares: list[float], passes: list[float], draft_ms: list[float], most: int
) -> None:
    """Whether a drafter pass costs more or less by the nodes it expands."""
    profile = [share / max(1.0, sum(shares)) for share in shares]
    frontier = [score for score in sorted(last, reverse=True) if score > 0][: len(draft_ms)]

    def best(expanded: int) -> tuple[float, float]:
        """The rate, and the last score that it takes."""
        coming = [score * share for score in frontier[:expanded] for share in profile]
        falling_scores = sorted((score for score in [*older, *last, *coming] if score > 0), reverse=True)[:most]
        tokens = accumulate(falling_scores, initial=1.0)
        rates = [one / (passes[count] + (0.5 + draft_ms[expanded - 1])) for count, one in enumerate(tokens)]
        nodes = rates.index(max(rates))
        return max(rates), falling_scores[nodes - 1] if nodes else np.inf

    forecast = forecast_level(
        np.array([*older, *last]), np.array(last), np.array(profile), SizeCosts.of(passes), draft_ms, 0.5, most
    )
    if not frontier:
        assert forecast == (0, 0.0)
        return
    needed = max(1, sum(score >= best(len(frontier))[1] for score in frontier))
    assert forecast == (needed, pytest.approx(best(needed)[0], rel=1e-12))


def test_prices_rise_by_the_least_of_all_rises() -> None:
    assert SizeCosts.of([1.0]) == ([1.0], [np.inf])
    assert SizeCosts.of([1.0, 3.0, 2.0]) == ([1.0, 3.0, 2.0], [pytest.approx(0.5), pytest.approx(-1.0), np.inf])
    assert SizeCosts.of([]) == ([], [])


def test_drafter_passes_cost_by_what_they_expand() -> None:
    assert draft_table(0.5, "line", 3).tolist() == [0.5, 0.5, 0.5]
    assert draft_table(((1, 1.0), (3, 2.0)), "line", 2).tolist() == [1.0, 1.5]
    assert draft_table(((1, 1.0), (3, 2.0)), "bucket", 9).tolist() == [1.0, 2.0, 2.0]  # nothing is extrapolated
    for wrong in ((), ((2, 1.0),), ((1, 1.0), (1, 2.0))):
        with pytest.raises(ValueError, match="rising sizes from 1 node on"):
            draft_table(wrong, "line", 4)
    with pytest.raises(ValueError, match="draft_ms at 3 nodes must be at least 0"):
        draft_table(((1, 1.0), (3, -2.0)), "line", 4)


def test_the_factor_is_observed_over_expected_acceptance() -> None:
    grid = Grid(3, 4)
    calibration = Calibration(grid, prior=2.0, decay=0.5, above=0.25, band_prior=1e12)  # bands stay worth what they say
    assert calibration.factor(1) == 1.0
    calibration.learn(1, np.array([0.5, 0.3]), None)
    calibration.learn(2, np.array([0.4]), 0)
    assert calibration.factor(3) == pytest.approx((2 + 1) / (2 + 0.5 * 0.8 + 0.4))
    assert calibration.factor(5) == pytest.approx(
        (2 + 1 + 0.25 * 1) / (2 + 0.8 + 0.25 * (0.8 + 0.4))
    )  # cells 0, 1, 2 above
    assert calibration.factor(4) == pytest.approx((2 + 1) / (2 + 0.8 + 0.25 * 0.8))  # no cell at the left of column 0
    assert calibration.factor(7) == pytest.approx(
        (2 + 1 + 0.25) / (2 + 0.8 + 0.25 * 0.4)
    )  # nor at the right of the last
    assert calibration.at(3)(np.array([[0.1, 0.2], [0.9, 0.9]])) == pytest.approx(
        np.array([[0.1, 0.2], [0.5, 0.5]]) * [[calibration.factor(3)], [1.0]]
    )


def test_bands_of_probability_are_worth_what_was_kept() -> None:
    calibration = Calibration(Grid(1, 50), prior=1e12, decay=0.0, above=0.0, band_prior=1.0)  # the factor stays 1
    for cell in range(1, 11):
        calibration.learn(cell, np.array([0.7, 0.15]), 1 if cell % 2 else None)
    sure, unsure = 1 / (1 + 10 * 0.7), (1 + 5) / (1 + 10 * 0.15)
    assert calibration.at(20)(np.array([[0.75, 0.19, 0.3]])) == pytest.approx(
        within_one(np.array([[0.75 * sure, 0.19 * unsure, 0.3]]))
    )
    assert list(BANDS) == sorted(BANDS)


def test_calibration_finds_the_target_s_chances() -> None:
    """A drafter that is too sure: 0.9 and 0.05 where the target says 0.5 and 0.2."""
    draws, calibration = np.random.default_rng(0), Calibration(Grid(40, 40), 6.0, 0.8, 0.5, 4.0)
    estimates = []
    for cell in range(1, 1600):
        uniform, probs = draws.random(), np.array([0.9, 0.05])
        estimates.append(calibration.at(cell)(probs[None])[0])
        calibration.learn(cell, probs, 0 if uniform < 0.5 else 1 if uniform < 0.7 else None)
    assert np.mean(estimates[800:], axis=0) == pytest.approx([0.5, 0.2], rel=0.08)


def test_what_a_cell_should_be_offered_is_the_mean_of_its_neighbours() -> None:
    calibration = Calibration(Grid(3, 4), 2.0, 0.5, 0.25, 4.0)
    assert calibration.neighbour_probs(1) is None
    rows = {cell: np.array([0.1 * cell, 0.01 * cell]) for cell in (1, 2, 3, 4)}
    for cell, row in rows.items():
        calibration.learn(cell, row, None)
    assert calibration.neighbour_probs(5) == pytest.approx(
        (rows[4] + rows[1] + rows[2]) / 3
    )  # cell 0 was never drafted for
    assert calibration.neighbour_probs(4) == pytest.approx(rows[1])  # at the start of a row nothing is on the left
    assert calibration.neighbour_probs(11) == pytest.approx(rows[4])  # no neighbour is known: the last one


def played(policy: Roofline, drafter: PathDrafter, accept: bool, count: int) -> list[DraftTree]:
    """Verdicts that accept a whole path, or nothing and a token that was never proposed."""
    trees, cell = [], 1
    policy.begin(Grid(40, 40))
    for _ in range(count):
        drafter.held.clear()
        tree = policy.grow(drafter, 0, Budget(9, 64), sampling(0))
        path = tree.path_to(int(tree.depths().argmax())) if accept else ()
        least = int(drafter.distribution((int(tree.tokens[0]),)).argmin())
        policy.observe(tree, Verdict(path, least), cell)
        cell += len(path) + 1
        trees.append(tree)
    return trees


def test_roofline_drafts_all_it_may_where_it_costs_nothing() -> None:
    drafter = dense(0, 30)
    tree = played(Roofline(FLAT, draft_ms=0.0, top_k=5, max_depth=3), drafter, True, 1)[0]
    assert tree.size == 1 + 5 + 25 + 25
    assert len(drafter.passes) == 3


def test_roofline_verifies_nothing_where_it_pays_never_and_probes_ever_less() -> None:
    drafter = dense(0, 30)
    policy = Roofline(STEEP, draft_ms=1.0, top_k=5, probe_first=2, probe_most=4)
    trees = played(policy, drafter, False, 16)
    assert {tree.size for tree in trees} == {1}
    assert len(drafter.passes) == 5  # at cycles 0, 2, 6, 10 and 14


def test_roofline_shrinks_after_rejections_and_reaches_deeper_after_acceptance() -> None:
    curve = tuple((nodes, 1 + 0.02 * nodes) for nodes in (1, 64))
    drafter = PathDrafter(np.random.default_rng(0).dirichlet(np.full(30, 0.2), 31))
    first, last = {}, {}
    for accept in (False, True):
        trees = played(Roofline(curve, draft_ms=0.05, top_k=5), drafter, accept, 8)
        first[accept], last[accept] = trees[0], trees[-1]
    assert first[True].size == first[False].size
    assert last[False].size < first[False].size
    assert last[False].depth < first[True].depth < last[True].depth


@pytest.mark.parametrize("draft_ms", [0.0, 0.02, 0.2, 2.0])
@pytest.mark.parametrize("seed", range(4))
def test_roofline_adds_a_level_just_where_it_is_foreseen_to_pay(seed: int, draft_ms: float) -> None:
    """On the first cycle the factor is 1; the stopping rule is played by hand, every subtree size tried."""
    curve = tuple((nodes, 1 + 0.03 * nodes) for nodes in (1, 64))
    drafter = PathDrafter(np.random.default_rng(seed).dirichlet(np.full(6, 0.1 * 3**seed), 7))
    tree = played(Roofline(curve, draft_ms=draft_ms, top_k=3, max_depth=4), drafter, True, 1)[0]
    costs = CostCurve(curve, draft_ms).table()

    def best_rate(scores: list[float], levels: int) -> tuple[float, int]:
        falling = sorted((score for score in scores if score > 0), reverse=True)
        sizes = range(min(63, len(falling)) + 1)
        return max(((1 + sum(falling[:size])) / (levels * draft_ms + costs[size]), -size) for size in sizes)

    by_hand = TreeBuilder(PathDrafter(drafter.pool), 0)
    by_hand.add_level(3, 3)
    while by_hand.depth < 4:
        last, current_scores = by_hand.levels[-1], by_hand.scores().tolist()
        profile = [sum(row[rank] for row in last.probs) / len(last.probs) for rank in range(3)]
        frontier = sorted(last.scores.tolist(), reverse=True)[:3]

        def ahead(expanded: int, best: list[float] = frontier, shares: list[float] = profile) -> list[float]:
            return [score * share for score in best[:expanded] for share in shares]

        size = -best_rate([*current_scores, *ahead(3)], by_hand.depth + 1)[1]
        chosen = sorted([*current_scores, *ahead(3)], reverse=True)[:size]
        needed = max(1, sum(score >= min(chosen, default=2.0) for score in frontier))
        coming = best_rate([*current_scores, *ahead(needed)], by_hand.depth + 1)[0]
        forecast_inputs = by_hand.scores(), last.scores, np.array(profile), SizeCosts.of(costs)
        foreseen = forecast_level(*forecast_inputs, [draft_ms] * 3, draft_ms * by_hand.depth, 63)
        assert foreseen == (needed, pytest.approx(coming))
        if coming <= best_rate(current_scores, by_hand.depth)[0]:
            break
        by_hand.add_level(needed, 3)
    assert len(drafter.passes) == by_hand.depth
    assert tree.size - 1 == -best_rate(by_hand.scores().tolist(), by_hand.depth)[1]
