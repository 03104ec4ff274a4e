"""Trees of drawn siblings that roofline plans: what it learns of verdicts, by hand, and the trees that follow."""

from collections.abc import Sequence
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from underpaint.algos.draft import drawn_trees
from underpaint.algos.draft.acceptance_estimator import FIRST_ACCEPTANCE, AcceptanceEstimator
from underpaint.algos.draft.costs import CostCurve
from underpaint.algos.draft.drawn_trees import DrawnTrees
from underpaint.algos.protocols import Grid
from underpaint.algos.tree import DraftTree, Shape, Verdict

GRID = Grid(30, 30)
FREE = CostCurve(((1, 1.0), (20, 1.001)), 0.0)
STEEP = CostCurve(((1, 1.0), (20, 20.0)), 0.5)
SHAPES: list[Shape] = [(-1, 0), (-1, 0, 1), (-1, 0, 0), (-1, 0, 0, 1, 1, 2), (-1, 0, 0, 0, 1)]


def planner(module: ModuleType, costs: CostCurve = FREE, siblings: int = 3, depth: int = 3) -> DrawnTrees:
    first = AcceptanceEstimator(GRID, 2.0, 0.6, 0.5, 4.0)
    tree_planner: DrawnTrees = module.DrawnTrees(first, costs, 0.0, siblings, depth, 2.0)
    return tree_planner


def tree_of(shape: Shape) -> DraftTree:
    size = len(shape)
    return DraftTree(np.arange(size), np.array(shape), "without_replacement", np.empty((0, size)), np.full(size, -1))


def check_learned(module: ModuleType, history: Sequence[tuple[Shape, int]]) -> None:
    """Verdicts that stop below the leaf or node of the given number: a second reading of the whole history."""
    tree_planner, cell = planner(module), 1
    tried, accepted_counts, firsts = [0, 0, 0], [0, 0, 0], AcceptanceEstimator(GRID, 2.0, 0.6, 0.5, 4.0)
    for shape, last in history:
        tree = tree_of(shape)
        path = tree.path_to(last % len(shape))
        tree_planner.learn(tree, Verdict(path, 0), cell)
        hits, node = [], 0
        for accepted in (*path, None):
            children = [child for child, above in enumerate(shape) if above == node]
            if not children:
                break
            judged = children if accepted is None else children[: children.index(accepted) + 1]
            for rank in range(len(judged)):
                tried[rank] += 1
            if accepted is not None:
                accepted_counts[len(judged) - 1] += 1
                node = accepted
            hits.append(accepted == children[0])
        firsts.learn(cell, hits)
        cell += len(path) + 1
    acceptance = tree_planner.acceptance(cell)
    assert acceptance[0] == pytest.approx(firsts.first_chance(cell))
    remaining = 1.0 - acceptance[0]
    for rank in (1, 2):
        share = (2.0 * 0.25 + accepted_counts[rank]) / (2.0 + tried[rank])
        assert acceptance[rank] == pytest.approx(remaining * share)
        remaining -= acceptance[rank]


@given(st.lists(st.tuples(st.sampled_from(SHAPES), st.integers(0, 5)), max_size=12))
def test_acceptance_by_rank_is_what_was_tried_and_accepted(told: list[tuple[Shape, int]]) -> None:
    check_learned(drawn_trees, told)


def test_before_anything_is_tried() -> None:
    first, second, third = planner(drawn_trees).acceptance(1)
    assert first == pytest.approx(FIRST_ACCEPTANCE)
    assert (second, third) == (pytest.approx(0.125), pytest.approx(0.09375))


def test_trees_follow_what_is_accepted() -> None:
    """Where nodes are free all are drafted; where they are dear, what is accepted says how deep."""
    assert len(planner(drawn_trees).best(1).shape) == 20
    tree_planner, cell = planner(drawn_trees, STEEP), 1
    assert tree_planner.best(1).shape == (-1,)
    tree_planner = planner(drawn_trees, CostCurve(((1, 1.0), (20, 3.0)), 0.02), depth=5)
    depths = []
    for accepted in (0, 1):
        for _ in range(12):
            tree_planner.learn(tree_of((-1, 0, 1)), Verdict((1, 2)[: 2 * accepted], 0), cell)
            cell += 2 * accepted + 1
        depths.append(tree_of(tree_planner.best(cell).shape).depth)
    assert depths[0] < depths[1]


def test_a_trial_drafts_something_whatever_it_costs() -> None:
    assert len(planner(drawn_trees, STEEP).trial_tree().shape) == 2
    assert len(planner(drawn_trees).trial_tree().shape) > 2
