"""The policies that know what passes cost, against brute force."""

from collections.abc import Iterator
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from algos.chance import sampling
from algos.draft import Budget, Grid
from algos.draft.calibration import Calibration
from algos.draft.costs import CostCurve
from algos.draft.grow import Growing
from algos.draft.roofline import Roofline, best_choice, foresee
from algos.draft.sequoia import acceptance_by_rank, best_plan
from algos.draft.shape import Shape
from algos.tree import DraftTree, Verdict
from tests.draft.drafters import PathDrafter, dense, drafters

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
    rises=st.lists(st.sampled_from([0.0, 0.01, 0.1, 0.5]), min_size=5, max_size=5),
    draft_ms=st.sampled_from([0.0, 0.02, 0.1, 1.0]),
    max_depth=st.integers(0, 4),
    max_nodes=st.integers(1, 6),
)
def test_sequoia_finds_the_best_of_all_shapes(
    acceptance: tuple[float, ...], rises: list[float], draft_ms: float, max_depth: int, max_nodes: int
) -> None:
    sizes = tuple((nodes + 1, cost) for nodes, cost in enumerate(np.cumsum([1.0, *rises]).tolist()))
    plan = best_plan(acceptance, CostCurve(sizes, draft_ms), max_depth, max_nodes)
    rates = {}
    for shape in shapes(max_nodes):
        value, depth = value_and_depth(shape, acceptance)
        if depth <= max_depth:
            rates[shape] = value / (depth * draft_ms + sizes[len(shape) - 1][1])
    assert plan.shape in rates
    assert rates[plan.shape] == pytest.approx(max(rates.values()), rel=1e-12)
    value, depth = value_and_depth(plan.shape, acceptance)
    assert plan.tokens == pytest.approx(value, rel=1e-12)
    assert plan.cost_ms >= depth * draft_ms + sizes[len(plan.shape) - 1][1] - 1e-12


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
    rises=st.lists(st.sampled_from([0.0, 0.02, 0.2, 0.7]), min_size=12, max_size=12),
    spent=st.sampled_from([0.0, 0.3, 2.0]),
    most=st.integers(0, 4),
)
def test_the_best_choice_is_the_best_of_all_subtrees(
    drafter: PathDrafter, depth: int, rises: list[float], spent: float, most: int
) -> None:
    costs = np.cumsum([1.0, *rises])
    growing = Growing(drafter, 0)
    for _ in range(depth):
        growing.grow_level(3, 3)
    scores = growing.scores()
    above = [number for level in growing.levels for number in level.expanded for _ in range(level.tokens.shape[1])]
    rates = [
        (1 + scores[list(kept)].sum()) / (spent + costs[count])
        for count in range(most + 1)
        for kept in combinations(range(scores.size), count)
        if all(above[node] == -1 or above[node] in kept for node in kept)
    ]
    choice = best_choice(scores, costs, spent, most)
    assert choice.rate == pytest.approx(max(rates), rel=1e-12)
    tree = growing.tree(choice.nodes)
    assert tree.size == choice.nodes + 1


def test_trust_is_kept_over_promised() -> None:
    grid = Grid(3, 4)
    trust = Calibration(grid, prior=2.0, decay=0.5, above=0.25)
    assert trust.trust(1) == 1.0
    trust.learn(1, 0.8, False)
    trust.learn(2, 0.4, True)
    assert trust.trust(3) == pytest.approx((2 + 1) / (2 + 0.5 * 0.8 + 0.4))
    assert trust.trust(5) == pytest.approx((2 + 1 + 0.25 * 1) / (2 + 0.8 + 0.25 * (0.8 + 0.4)))  # cells 0, 1, 2 above
    assert trust.trust(4) == pytest.approx((2 + 1) / (2 + 0.8 + 0.25 * 0.8))  # no cell at the left of column 0
    assert trust.trust(7) == pytest.approx((2 + 1 + 0.25) / (2 + 0.8 + 0.25 * 0.4))  # nor at the right of the last


def played(policy: Roofline, drafter: PathDrafter, kept: bool, count: int) -> list[DraftTree]:
    """Verdicts that accept a whole path, or nothing and a token that was never proposed."""
    trees, cell = [], 1
    policy.begin(Grid(40, 40))
    for _ in range(count):
        drafter.held.clear()
        tree = policy.grow(drafter, 0, Budget(9, 64), sampling(0))
        path = tree.path_to(int(tree.depths().argmax())) if kept else ()
        least = int(drafter.law((int(tree.tokens[0]),)).argmin())
        policy.observe(tree, Verdict(path, least), cell)
        cell += len(path) + 1
        trees.append(tree)
    return trees


def test_roofline_drafts_all_it_may_where_it_costs_nothing() -> None:
    drafter = dense(0, 30)
    tree = played(Roofline(FLAT, draft_ms=0.0, top_k=5, max_depth=3), drafter, True, 1)[0]
    assert tree.size == 1 + 5 + 25 + 25
    assert len(drafter.passes) == 3


def test_roofline_verifies_nothing_where_it_pays_never_and_still_probes() -> None:
    drafter = dense(0, 30)
    policy = Roofline(STEEP, draft_ms=1.0, top_k=5, probe_every=4)
    trees = played(policy, drafter, False, 9)
    assert {tree.size for tree in trees} == {1}
    assert len(drafter.passes) == 3  # at cycles 0, 4 and 8


def test_roofline_shrinks_after_rejections_and_grows_after_acceptance() -> None:
    curve = tuple((nodes, 1 + 0.02 * nodes) for nodes in (1, 64))
    drafter = PathDrafter(np.random.default_rng(0).dirichlet(np.full(30, 0.2), 31))
    first, sizes = {}, {}
    for kept in (False, True):
        trees = played(Roofline(curve, draft_ms=0.05, top_k=5), drafter, kept, 8)
        first[kept], sizes[kept] = trees[0].size, trees[-1].size
    assert first[True] == first[False]
    assert sizes[False] < first[False] <= sizes[True]


@pytest.mark.parametrize("draft_ms", [0.0, 0.02, 0.2, 2.0])
@pytest.mark.parametrize("seed", range(4))
def test_roofline_adds_a_level_just_where_it_is_foreseen_to_pay(seed: int, draft_ms: float) -> None:
    """On the first cycle the trust is 1; the stopping rule is played by hand, every subtree size tried."""
    curve = tuple((nodes, 1 + 0.03 * nodes) for nodes in (1, 64))
    drafter = PathDrafter(np.random.default_rng(seed).dirichlet(np.full(6, 0.1 * 3**seed), 7))
    tree = played(Roofline(curve, draft_ms=draft_ms, top_k=3, max_depth=4), drafter, True, 1)[0]
    costs = CostCurve(curve, draft_ms).table()

    def best_rate(scores: list[float], levels: int) -> tuple[float, int]:
        falling = sorted((score for score in scores if score > 0), reverse=True)
        sizes = range(min(63, len(falling)) + 1)
        return max(((1 + sum(falling[:size])) / (levels * draft_ms + costs[size]), -size) for size in sizes)

    by_hand = Growing(PathDrafter(drafter.pool), 0)
    by_hand.grow_level(3, 3)
    while by_hand.depth < 4:
        last = by_hand.levels[-1]
        profile = [sum(row[rank] for row in last.probs) / len(last.probs) for rank in range(3)]
        frontier = sorted(last.scores.tolist(), reverse=True)[:3]
        ahead = [score * share for score in frontier for share in profile]
        assert sorted(foresee(last, 3, 1.0)) == pytest.approx(sorted(ahead))
        now = best_rate(by_hand.scores().tolist(), by_hand.depth)[0]
        if best_rate([*by_hand.scores().tolist(), *ahead], by_hand.depth + 1)[0] <= now:
            break
        by_hand.grow_level(3, 3)
    assert len(drafter.passes) == by_hand.depth
    assert tree.size - 1 == -best_rate(by_hand.scores().tolist(), by_hand.depth)[1]
