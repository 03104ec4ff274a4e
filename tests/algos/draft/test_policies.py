"""Every registered policy keeps the contract, whatever the drafter and the budget."""

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.algos.draft.drafters import GrowingDrafter, PathDrafter, dense, drafters, path_of
from underpaint.algos.chance import enumerate_outcomes, sampling
from underpaint.algos.draft import POLICIES, PolicySpec
from underpaint.algos.draft.chain import Chain
from underpaint.algos.draft.eagle1 import Eagle1
from underpaint.algos.draft.settings import check_limits
from underpaint.algos.protocols import Budget, Grid
from underpaint.algos.registry import build
from underpaint.algos.tree import DraftTree, Verdict

ALL = [pytest.param(spec, id=spec.name) for spec in POLICIES]
NOT_ADAPTED = [
    pytest.param(name, id=name)
    for name in ("chain", "chain_top1", "eagle1", "static_top_k", "sequoia", "sequoia_top_k")
]


@st.composite
def cycles(draw: st.DrawFn) -> tuple[PathDrafter, list[tuple[Budget, float]]]:
    """A drafter, and per cycle a budget and the share of the deepest path that is accepted."""
    budgets = st.builds(Budget, st.integers(0, 5), st.integers(1, 12))
    return draw(drafters()), draw(st.lists(st.tuples(budgets, st.floats(0, 1)), min_size=1, max_size=4))


def deepest(tree: DraftTree) -> tuple[int, ...]:
    return tree.path_to(int(tree.depths().argmax()))


def played(spec: PolicySpec, drafter: PathDrafter, script: list[tuple[Budget, float]]) -> list[DraftTree]:
    policy, cell, trees = spec.make(), 1, []
    policy.begin(Grid(8, 4))
    for number, (budget, share) in enumerate(script):
        drafter.held.clear()
        trees.append(policy.grow(drafter, 0, budget, sampling(7).cycle(number)))
        path = deepest(trees[-1])
        verdict = Verdict(path[: round(share * len(path))], 0)
        policy.observe(trees[-1], verdict, cell)
        cell += len(verdict.path) + 1
    return trees


@pytest.mark.parametrize("spec", ALL)
@settings(max_examples=30)
@given(case=cycles())
def test_trees_are_trees_within_the_budget(spec: PolicySpec, case: tuple[Any, Any]) -> None:
    drafter, script = case
    for (budget, _), tree in zip(script, played(spec, drafter, script), strict=True):
        tree.check(drafter.vocab_size)
        assert tree.tokens.dtype == tree.parents.dtype == tree.draft_rows.dtype == np.int64
        assert tree.depth <= budget.max_depth
        assert tree.size <= budget.max_nodes
        assert tree.drawn == spec.drawn or tree.size == 1
        if spec.chain:
            assert max(Counter(tree.parents.tolist()).values()) == 1


@pytest.mark.parametrize("spec", ALL)
@settings(max_examples=30)
@given(case=cycles())
def test_distributions_are_those_that_the_children_were_drawn_from(spec: PolicySpec, case: tuple[Any, Any]) -> None:
    drafter, script = case
    for tree in played(spec, drafter, script):
        for node, children in enumerate(tree.children()):
            distribution = drafter.distribution(path_of(tree, node))
            assert all(distribution[tree.tokens[child]] > 0 for child in children), "a token of draft probability 0"
            if children and spec.drawn != "top_k":
                np.testing.assert_array_equal(tree.draft_distribution(node), distribution)
            if spec.drawn == "top_k":  # as long as the order says: the likeliest first
                probs = distribution[tree.tokens[children]]
                assert np.all(probs[:-1] >= probs[1:])
                assert not children or probs[-1] >= np.delete(distribution, tree.tokens[children]).max(initial=0.0)


@pytest.mark.parametrize("spec", ALL)
@settings(max_examples=30)
@given(case=cycles())
def test_the_past_alone_decides(spec: PolicySpec, case: tuple[Any, Any]) -> None:
    drafter, script = case
    for one, other in zip(played(spec, drafter, script), played(spec, drafter, script), strict=True):
        for name in ("tokens", "parents", "draft_probs", "draft_rows"):
            np.testing.assert_array_equal(getattr(one, name), getattr(other, name))


@pytest.mark.parametrize("spec", ALL)
def test_begin_forgets(spec: PolicySpec) -> None:
    drafter, policy = dense(3, 20), spec.make()
    shapes = []
    for accepted in (0, 1):
        policy.begin(Grid(8, 8))
        drafter.held.clear()
        tree = policy.grow(drafter, 0, Budget(9, 40), sampling(1))
        shapes.append(tree.parents.tolist())
        policy.observe(tree, Verdict(deepest(tree)[:accepted], 0), 1)
    assert shapes[0] == shapes[1]


@pytest.mark.parametrize("name", NOT_ADAPTED)
@settings(max_examples=30)
@given(drafter=drafters(), depth=st.integers(0, 6), nodes=st.integers(1, 30))
def test_one_pass_a_level(name: str, drafter: PathDrafter, depth: int, nodes: int) -> None:
    policy = POLICIES[name].make()
    policy.begin(Grid(4, 4))
    tree = policy.grow(drafter, 0, Budget(depth, nodes), sampling(0))
    assert len(drafter.passes) == tree.depth
    assert sum(drafter.passes) == len({parent for parent in tree.parents.tolist() if parent >= 0})


@given(drafter=drafters(3), widths=st.sampled_from([(1,), (3,), (2, 1), (2, 2)]))
def test_siblings_are_drawn_without_replacement(drafter: PathDrafter, widths: tuple[int, ...]) -> None:
    policy = Eagle1(widths)

    def program(chance: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
        drafter.held.clear()
        tree = policy.grow(drafter, 0, Budget(9, 9), chance)
        return tuple(tree.tokens.tolist()), tuple(tree.parents.tolist())

    outcomes = enumerate_outcomes(program)
    assert sum(outcomes.values()) == pytest.approx(1.0, abs=1e-12)
    for (tokens, parents), weight in outcomes.items():
        tree = DraftTree(np.array(tokens), np.array(parents), "top_k", np.empty((0, 9)), np.full(len(tokens), -1))
        expected = 1.0
        for node, children in enumerate(tree.children()):
            distribution = drafter.distribution(path_of(tree, node))
            remaining = 1.0
            for child in children:
                expected *= distribution[tokens[child]] / remaining
                remaining -= distribution[tokens[child]]
        assert weight == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("name", ["chain", "eagle1", "sequoia", "sequoia_top_k", "static_top_k"])
@given(drafter=drafters(), depth=st.integers(0, 5), nodes=st.integers(1, 20), seed=st.integers(0, 99))
def test_a_static_tree_filled_in_one_call_is_the_same_tree(
    name: str, drafter: PathDrafter, depth: int, nodes: int, seed: int
) -> None:
    """Also where distributions are too short for the shape, with which the drafter's own tree is not the one that is
    meant."""
    options = {"widths": (3, 4, 2)} if name in ("eagle1", "static_top_k") else {}
    policy = POLICIES[name].make(**options)
    policy.begin(Grid(4, 4))
    by_level = policy.grow(PathDrafter(drafter.pool), 0, Budget(depth, nodes), sampling(seed))
    growing = GrowingDrafter(drafter.pool)
    at_once = policy.grow(growing, 0, Budget(depth, nodes), sampling(seed))
    assert len(growing.asked) <= 1
    assert at_once.drawn == by_level.drawn
    for part in ("tokens", "parents", "draft_rows", "draft_probs"):
        np.testing.assert_array_equal(getattr(at_once, part), getattr(by_level, part))


@given(drafter=drafters(3), length=st.integers(1, 3))
def test_a_chain_is_drawn_from_its_distributions(drafter: PathDrafter, length: int) -> None:
    def program(chance: Any) -> tuple[int, ...]:
        drafter.held.clear()
        return tuple(Chain(length).grow(drafter, 0, Budget(9, 9), chance).tokens.tolist())

    for tokens, weight in enumerate_outcomes(program).items():
        steps = [drafter.distribution(tokens[:turn])[tokens[turn]] for turn in range(1, length + 1)]
        assert weight == pytest.approx(float(np.prod(steps)), abs=1e-12)


@pytest.mark.parametrize(
    ("name", "bad"),
    [
        ("chain", {"length": 0}),
        ("chain_top1", {"length": -1}),
        ("eagle2", {"depth": 0}),
        ("eagle2", {"top_k": 0}),
        ("eagle2", {"total_tokens": -3}),
        ("eagle2", {"dept": 3}),
        ("eagle1", {"widths": ()}),
        ("eagle1", {"widths": (4, 0)}),
        ("static_top_k", {"widths": (-1,)}),
        ("adt", {"acceptance": "share"}),
        ("adt", {"init": "diagonal"}),
        ("adt", {"row_start": "left"}),
        ("adt", {"acceptance_of": "me"}),
        ("adt", {"nodes": "some"}),
        ("adt", {"beta": float("nan")}),
        ("adt", {"step_depth": -1}),
        ("adt", {"start_depth": 9}),
        ("adt", {"min_width": 0}),
        ("adt", {"min_width": 7}),
        ("opt", {"total_tokens": 0}),
        ("opt", {"threshold": -0.1}),
        ("sequoia", {"acceptance": ()}),
        ("sequoia", {"acceptance": (0.5, -0.1)}),
        ("sequoia", {"acceptance": (1.5,)}),
        ("sequoia", {"max_depth": 0}),
        ("sequoia_top_k", {"acceptance": (0.5, 2.0)}),
        ("sequoia_top_k", {"max_depth": 0}),
        ("sequoia_top_k", {"call_ms": -0.1}),
        ("sequoia", {"call_ms": float("nan")}),
        ("sequoia", {"verify_ms": ()}),
        ("sequoia", {"verify_ms": ((8, 2.0),)}),
        ("roofline", {"verify_ms": ((1, 1.0), (8, 2.0), (8, 3.0))}),
        ("roofline", {"verify_ms": ((1, 0.0),)}),
        ("roofline", {"draft_ms": -1.0}),
        ("roofline", {"between": "spline"}),
        ("roofline", {"prior": 0.0}),
        ("roofline", {"decay": 1.5}),
        ("roofline", {"windows": -1}),
        ("roofline", {"window_decay": 1.5}),
        ("roofline", {"second_look": 0}),
        ("roofline", {"least_window": -1}),
        ("roofline", {"window_margin": 0.9}),
        ("roofline", {"siblings": -1}),
        ("roofline", {"sibling_prior": 0.0}),
        ("roofline", {"sibling_trial": -1}),
        ("roofline", {"tree_ms": (-1.0, 0.2)}),
        ("roofline", {"draft_ms": ((2, 1.0),)}),
        ("roofline", {"band_prior": 0.0}),
        ("roofline", {"probe_first": 0}),
        ("roofline", {"lookahead_interval": 0}),
        ("roofline", {"probe_first": 4, "probe_most": 3}),
    ],
)
def test_bad_settings_raise(name: str, bad: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"policy|cost curve"):
        build(POLICIES[name].make, bad, f"policy '{name}'")


@pytest.mark.parametrize(
    ("setting", "max_nodes", "vocab_size", "told"),
    [
        ({"widths": (3,)}, 16, 2, "at most 2 children of a node, got 3 in level 1 of 3: siblings are different codes"),
        ({"widths": (2, 4)}, 16, 2, "at most 2 children of a node, got 3 in level 2 of 2,4: siblings are"),
        ({"widths": (1, 1, 3)}, 16, 2, "at most 2 children of a node, got 3 in level 3 of 1,1,3: siblings are"),
        ({"widths": (8, 8)}, 16, 4096, "at most 15 nodes in all levels, got 16: the engine scores 16 nodes"),
        ({"widths": (8, 8)}, 16, 2, "at most 15 nodes in all levels, got 16: the engine scores 16 nodes"),
        ({"top_k": 3}, 16, 2, "at most 2, got 3: siblings are different codes, of which there are 2"),
        ({"max_width": 16}, 16, 4096, "at most 15, got 16: the engine scores 16 nodes, the root included"),
        ({"depth": 16}, 16, 2, "at most 15, got 16: the engine scores 16 nodes, the root included"),
    ],
)
def test_a_limit_names_what_it_counts(setting: dict[str, Any], max_nodes: int, vocab_size: int, told: str) -> None:
    with pytest.raises(ValueError, match=f"setting {next(iter(setting))}: expected {told}"):
        check_limits(setting, max_nodes, vocab_size)


@pytest.mark.parametrize("widths", [(2, 3), (1, 2, 3), (2, 2)])
def test_a_level_may_be_wider_than_the_codebook_where_no_node_has_so_many_children(widths: tuple[int, ...]) -> None:
    check_limits({"widths": widths}, 16, 2)
    tree = Eagle1(widths).grow(dense(3, 2), 0, Budget(9, 40), sampling(1).cycle(0))
    assert tree.size == 1 + sum(widths)
