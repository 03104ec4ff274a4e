"""EAGLE-2, OPT-Tree and ADT-Tree against direct implementations of what they are defined as."""

from math import ceil
from typing import Any, NamedTuple, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.algos.draft.drafters import ChainingDrafter, GrowingDrafter, Path, PathDrafter, dense, drafters, path_of
from underpaint.algos.chance import sampling
from underpaint.algos.draft.adt import Acceptance, AcceptanceOf, AdtTree, Init, RowStart
from underpaint.algos.draft.chain import LikeliestChain
from underpaint.algos.draft.eagle2 import Eagle2
from underpaint.algos.draft.opt import OptTree
from underpaint.algos.protocols import Budget, Grid
from underpaint.algos.tree import DraftTree, Verdict

UNLIMITED = Budget(50, 10_000)


class Candidate(NamedTuple):
    path: Path
    score: float


def paths_of(tree: DraftTree) -> list[Path]:
    return [path_of(tree, node) for node in range(tree.size)]


def children_of(drafter: PathDrafter, parent: Candidate, count: int) -> list[Candidate]:
    distribution = drafter.distribution(parent.path)
    tokens = sorted(range(distribution.size), key=lambda token: (-distribution[token], token))[:count]
    return [
        Candidate((*parent.path, token), parent.score * distribution[token])
        for token in tokens
        if distribution[token] > 0
    ]


def best(candidates: list[Candidate], count: int) -> list[Candidate]:
    return sorted(candidates, key=lambda candidate: -candidate.score)[:count]


def eagle2_by_hand(drafter: PathDrafter, depth: int, top_k: int, total: int) -> set[Path]:
    level, candidates = [Candidate((0,), 1.0)], []
    for _ in range(depth):
        level = [child for parent in best(level, top_k) for child in children_of(drafter, parent, top_k)]
        candidates.extend(level)
    return {(0,), *(candidate.path for candidate in best(candidates, total))}


@given(drafter=drafters(), depth=st.integers(1, 4), top_k=st.integers(1, 7), total=st.integers(1, 12))
def test_eagle2_keeps_the_best_path_products(drafter: PathDrafter, depth: int, top_k: int, total: int) -> None:
    tree = Eagle2(depth, top_k, total).grow(drafter, 0, UNLIMITED, sampling(0))
    paths = paths_of(tree)
    assert set(paths) == eagle2_by_hand(drafter, depth, top_k, total)
    assert len(set(paths)) == len(paths)
    assert len(drafter.passes) == min(depth, total)
    assert max(drafter.passes) <= top_k


@given(drafter=drafters(), depth=st.integers(0, 4), nodes=st.integers(1, 9))
def test_eagle2_within_a_budget_is_a_smaller_eagle2(drafter: PathDrafter, depth: int, nodes: int) -> None:
    tree = Eagle2(4, 3, 8).grow(drafter, 0, Budget(depth, nodes), sampling(0))
    total = min(8, nodes - 1)
    assert set(paths_of(tree)) == eagle2_by_hand(drafter, min(4, depth, total), 3, total)


@given(drafters(), st.integers(1, 4), st.integers(2, 4), st.integers(1, 12), st.integers(1, 5))
def test_a_tree_grown_in_one_call_is_the_same_tree(
    drafter: PathDrafter, depth: int, top_k: int, total: int, room: int
) -> None:
    by_level = Eagle2(depth, top_k, total).grow(PathDrafter(drafter.pool), 0, Budget(room, 64), sampling(0))
    at_once = GrowingDrafter(drafter.pool)
    tree = Eagle2(depth, top_k, total).grow(at_once, 0, Budget(room, 64), sampling(0))
    assert (tree.tokens.tolist(), tree.parents.tolist()) == (by_level.tokens.tolist(), by_level.parents.tolist())
    expected = [(min(depth, room, total), top_k, top_k)] if top_k <= drafter.vocab_size else []
    assert [growth.uniforms.shape for growth in at_once.asked] == expected


def test_eagle2_of_one_is_a_chain() -> None:
    assert Eagle2(5, 1, 59).grow(dense(0, 30), 0, UNLIMITED, sampling(0)).parents.tolist() == [-1, 0, 1, 2, 3, 4]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("vocab_size", [11, 300])
def test_eagle2_on_dense_distributions(seed: int, vocab_size: int) -> None:
    drafter = dense(seed, vocab_size)
    tree = Eagle2().grow(drafter, 0, UNLIMITED, sampling(0))
    assert set(paths_of(tree)) == eagle2_by_hand(drafter, 5, 10, 59)


@given(
    drafter=drafters(),
    total=st.integers(1, 8),
    threshold=st.sampled_from([0.0, 0.1, 0.3, 0.6, 1.0]),
    max_depth=st.integers(1, 4),
)
def test_opt_grows_while_a_level_adds_enough(
    drafter: PathDrafter, total: int, threshold: float, max_depth: int
) -> None:
    """The reference expands every candidate, so it does not lean on the claim that few need to be."""
    level, candidates, before = [Candidate((0,), 1.0)], [], 0.0
    for _ in range(min(max_depth, total)):
        level = [child for parent in level for child in children_of(drafter, parent, total)]
        candidates.extend(level)
        length = sum(candidate.score for candidate in best(candidates, total))
        if length - before < threshold or not set(level) & set(best(candidates, total)):
            break
        before = length
    tree = OptTree(total, threshold, max_depth).grow(drafter, 0, UNLIMITED, sampling(0))
    assert sorted(scores(drafter, paths_of(tree)[1:])) == pytest.approx(
        sorted(candidate.score for candidate in best(candidates, total)), abs=1e-12
    )


@given(drafter=drafters(), nodes=st.integers(1, 30), max_depth=st.integers(1, 8))
def test_opt_expands_no_more_nodes_than_a_pass_of_the_target_holds(
    drafter: PathDrafter, nodes: int, max_depth: int
) -> None:
    """A drafter keeps every node that it expanded until the verdict, and has no more room than that."""
    OptTree(50, 0.0, max_depth).grow(drafter, 0, Budget(max_depth, nodes), sampling(0))
    assert sum(drafter.passes) <= nodes


def scores(drafter: PathDrafter, paths: list[Path]) -> list[float]:
    products = []
    for path in paths:
        product = 1.0
        for turn in range(1, len(path)):
            product *= drafter.distribution(path[:turn])[path[turn]]
        products.append(product)
    return products


class FusedTree(NamedTuple):
    """A tree of the past: the cells that it decided, its shape, and alpha."""

    first: int
    last: int
    depth: int
    width: int
    alpha: float


def adapted(policy: AdtTree, depth: int, width: int, alpha: float | None) -> tuple[int, int]:
    """Equation 2."""
    if alpha is not None and alpha >= policy.beta:
        depth, width = depth + policy.step_depth, width - policy.step_width
    elif alpha is not None:
        depth, width = depth - policy.step_depth, width + policy.step_width
    return max(policy.min_depth, min(policy.max_depth, depth)), max(policy.min_width, min(policy.max_width, width))


def expected_shape(policy: AdtTree, past: list[FusedTree], cell: int, row: int) -> tuple[int, int]:
    """From the whole history, looked up by cell."""
    at = {place: grown for grown in past for place in range(grown.first, grown.last + 1)}
    left, upper = at.get(cell - 1), at.get(cell - row)
    if policy.init == "vertical":
        source = upper or left
    elif cell % row == 0 and policy.row_start == "upper":
        source = upper
    elif cell % row == 0 and policy.row_start == "default":
        source = None
    else:
        source = left
    alpha = source.alpha if source else None
    if policy.acceptance_of == "last_tree" and past:
        alpha = past[-1].alpha
    if source is None:
        return adapted(policy, policy.start_depth, policy.start_width, alpha)
    return adapted(policy, source.depth, source.width, alpha)


ROW = 4


@pytest.mark.parametrize("row_start", get_args(RowStart))
@pytest.mark.parametrize("init", [init for init in get_args(Init) if init != "random"])
@pytest.mark.parametrize("acceptance", get_args(Acceptance))
@pytest.mark.parametrize("acceptance_of", get_args(AcceptanceOf))
@settings(max_examples=10)
@given(data=st.data())
def test_adt_follows_equation_2(
    acceptance: Acceptance, init: Init, row_start: RowStart, acceptance_of: AcceptanceOf, data: st.DataObject
) -> None:
    policy = AdtTree(
        acceptance=acceptance,
        init=init,
        row_start=row_start,
        acceptance_of=acceptance_of,
        beta=data.draw(st.sampled_from([0.0, 0.3, 0.5, 1.0, 2.0])),
        step_depth=data.draw(st.integers(0, 2)),
        step_width=data.draw(st.integers(0, 2)),
        max_depth=4,
        start_depth=2,
        max_width=4,
        start_width=2,
        total_tokens=1000,
    )
    drafter, cell = dense(1, 6), 1
    past: list[FusedTree] = []
    policy.begin(Grid(9, ROW))
    for _ in range(8):
        drafter.held.clear()
        tree = policy.grow(drafter, 0, UNLIMITED, sampling(0))
        depth, width = tree.depth, len(tree.children()[0])  # all candidates are kept
        assert (depth, width) == expected_shape(policy, past, cell, ROW)
        accepted = min(data.draw(st.integers(0, 4)), depth)
        path = tree.path_to(int(tree.depths().argmax()))[:accepted]
        policy.observe(tree, Verdict(path, 0), cell)
        past.append(
            FusedTree(cell, cell + accepted, depth, width, accepted / depth if acceptance == "ratio" else accepted)
        )
        cell += accepted + 1
        if cell >= 9 * ROW:
            break


def test_adt_at_random_draws_the_neighbours_state_within_the_bounds() -> None:
    policy = AdtTree(init="random", max_depth=3, start_depth=2, min_width=2, max_width=3, start_width=2)
    drafter, shapes = dense(1, 6), set()
    for seed in range(60):
        policy.begin(Grid(9, ROW))
        drafter.held.clear()
        tree = policy.grow(drafter, 0, UNLIMITED, sampling(seed))
        shapes.add((tree.depth, len(tree.children()[0])))
    assert shapes == {(depth, width) for depth in (1, 2, 3) for width in (2, 3)}


@given(
    drafter=drafters(),
    depth=st.integers(1, 5),
    total=st.integers(1, 6),
    budget=st.builds(Budget, st.integers(0, 6), st.integers(1, 7)),
    chains=st.booleans(),
)
def test_a_drafter_that_chains_changes_no_tree(
    drafter: PathDrafter, depth: int, total: int, budget: Budget, chains: bool
) -> None:
    for policy in (Eagle2(depth, 1, total), LikeliestChain(depth), AdtTree(max_width=1, start_width=1)):
        policy.begin(Grid(4, 4))
        drafter.held.clear()
        drafter.passes.clear()
        expected = policy.grow(drafter, 0, budget, sampling(0))
        quick = ChainingDrafter(drafter.pool, fuses_chains=chains)
        actual = policy.grow(quick, 0, budget, sampling(0))
        assert actual.tokens.tolist() == expected.tokens.tolist()
        assert actual.parents.tolist() == expected.parents.tolist()
        assert actual.drawn == expected.drawn
        assert quick.asked == ([len(drafter.passes)] if chains and drafter.passes else [])


@pytest.mark.parametrize("nodes", ["fixed", "proportional"])
@given(steps=st.lists(st.booleans(), max_size=4))
def test_adt_nodes(nodes: Any, steps: list[bool]) -> None:
    policy = AdtTree(nodes=nodes, total_tokens=9, start_depth=3, start_width=3, max_depth=5, max_width=5)
    drafter, cell, depth, width = dense(2, 40), 1, 3, 3
    policy.begin(Grid(20, 20))
    for all_kept in [*steps, True]:
        drafter.held.clear()
        tree = policy.grow(drafter, 0, UNLIMITED, sampling(0))
        candidates = width + (depth - 1) * width * width
        assert tree.size - 1 == min(candidates, 9 if nodes == "fixed" else ceil(9 * depth * width / 9))
        path = tree.path_to(int(tree.depths().argmax())) if all_kept else ()
        policy.observe(tree, Verdict(path, 0), cell)
        cell += len(path) + 1
        depth, width = adapted(policy, depth, width, float(all_kept))


def test_adt_learns_nothing_from_a_tree_without_proposals() -> None:
    policy, drafter = AdtTree(), dense(2, 40)
    policy.begin(Grid(4, 4))
    bare = policy.grow(drafter, 0, Budget(0, 10), sampling(0))
    assert bare.size == 1
    policy.observe(bare, Verdict((), 0), 1)
    tree = policy.grow(drafter, 0, UNLIMITED, sampling(0))
    assert len(tree.children()[0]) == policy.start_width
    assert len(drafter.passes) == policy.start_depth
