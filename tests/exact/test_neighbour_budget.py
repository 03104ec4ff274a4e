"""The rule with a true budget: its output is exactly the distribution it decides by, at most `delta` away."""

from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.exact.relaxed import apart, codebook, next_token_distribution, point_distribution
from tests.mutants.harness import Plant, check_is_caught, replaced, wrapped
from underpaint.algos.accept import neighbour_budget
from underpaint.algos.accept.lantern import Lantern
from underpaint.algos.accept.neighbour_budget import NeighbourBudget, move_to_draft, move_to_points
from underpaint.algos.accept.neighbours import nearest_codes
from underpaint.algos.arrays import FloatArray, IntArray
from underpaint.algos.batched.moving import move_rows_to_drafts, move_rows_to_points
from underpaint.algos.tree import Drawn
from underpaint.strategies import distributions

VOCAB = 5
DELTAS = st.sampled_from([0.0, 0.05, 0.2371, 0.5, 1.0])
NEAR = st.builds(lambda seed, k: nearest_codes(codebook(VOCAB, seed), k), st.integers(0, 20), st.integers(1, VOCAB - 1))
POINTS = st.permutations(range(VOCAB)).flatmap(lambda order: st.integers(1, 4).map(lambda count: tuple(order[:count])))
ROUNDING = 1e-12


def within_reach(target: FloatArray, tokens: tuple[int, ...], near: IntArray) -> float:
    """All that codes near one of `tokens` hold, the tokens themselves left out."""
    codes = {int(code) for token in tokens for code in near[token]} - set(tokens)
    return float(target[sorted(codes)].sum())


@given(distributions(VOCAB), POINTS, NEAR, DELTAS)
def test_points_are_decided_by_what_was_moved_and_the_budget_is_met(
    target: FloatArray, tokens: tuple[int, ...], near: IntArray, delta: float
) -> None:
    check_points(NeighbourBudget, move_to_points, target, tokens, near, delta)


def check_points(
    rule: Any, move: Any, target: FloatArray, tokens: tuple[int, ...], near: IntArray, delta: float
) -> None:
    moved = move(target, tokens, near, delta)
    distribution = point_distribution(rule(near, delta=delta), target, tokens)
    assert apart(distribution, moved) < ROUNDING
    assert apart(distribution, target) == pytest.approx(min(delta, within_reach(target, tokens, near)), abs=ROUNDING)
    assert (moved[list(tokens)] >= target[list(tokens)] - ROUNDING).all()
    others = [code for code in range(VOCAB) if code not in tokens]
    assert (moved[others] <= target[others] + ROUNDING).all()


@pytest.mark.parametrize("drawn", ["iid", "without_replacement"])
@given(distributions(VOCAB), distributions(VOCAB), NEAR, DELTAS, st.integers(1, 3))
def test_drawn_siblings_are_decided_by_what_was_moved(
    drawn: Drawn, target: FloatArray, draft: FloatArray, near: IntArray, delta: float, count: int
) -> None:
    check_drawn(NeighbourBudget, move_to_draft, drawn, target, draft, near, delta, count)


def check_drawn(
    rule: Any,
    move: Any,
    drawn: Drawn,
    target: FloatArray,
    draft: FloatArray,
    near: IntArray,
    delta: float,
    count: int,
) -> None:
    moved = move(target, draft, near, delta)
    assert apart(moved, target) <= delta + ROUNDING
    # Each unit that moves is one of overlap: what the drafter overrates gains, what it underrates loses.
    gained = np.minimum(moved, draft).sum() - np.minimum(target, draft).sum()
    assert gained == pytest.approx(apart(moved, target), abs=ROUNDING)
    distribution = next_token_distribution(rule(near, delta=delta), target, draft, drawn, count)
    assert apart(distribution, target) <= delta + ROUNDING
    if count == 1:
        assert apart(distribution, moved) < ROUNDING


@given(distributions(VOCAB), distributions(VOCAB), st.integers(0, 20))
def test_with_all_codes_near_nothing_that_can_move_stays(target: FloatArray, draft: FloatArray, seed: int) -> None:
    near = nearest_codes(codebook(VOCAB, seed), VOCAB - 1)
    assert apart(move_to_draft(target, draft, near, 1.0), draft) < ROUNDING


@given(distributions(VOCAB), st.integers(0, VOCAB - 1), NEAR, DELTAS)
def test_one_point_is_kept_at_least_as_often_as_lantern_keeps_it(
    target: FloatArray, token: int, near: IntArray, delta: float
) -> None:
    assume(delta < 1.0)
    ours = point_distribution(NeighbourBudget(near, delta=delta), target, (token,))
    theirs = point_distribution(Lantern(near, k=0, delta=delta), target, (token,))
    assert apart(ours, target) >= apart(theirs, target) - ROUNDING  # the budget is used up, a prefix of codes may not
    assert ours[token] >= theirs[token] - ROUNDING


@given(st.lists(st.tuples(distributions(VOCAB), distributions(VOCAB)), min_size=1, max_size=4), POINTS, NEAR, DELTAS)
def test_many_rows_move_as_each_alone(
    pairs: list[tuple[FloatArray, FloatArray]], tokens: tuple[int, ...], near: IntArray, delta: float
) -> None:
    targets, drafts = np.array([one for one, _ in pairs]), np.array([other for _, other in pairs])
    most = np.linspace(0.0, delta, len(pairs))
    moved_rows = move_rows_to_drafts(targets, drafts, near, most)
    alone = [move_to_draft(one, other, near, float(m)) for (one, other), m in zip(pairs, most, strict=True)]
    assert np.abs(moved_rows - alone).max() < ROUNDING
    turns = np.arange(len(pairs)) % len(tokens) + 1
    there = np.arange(len(tokens)) < turns[:, None]
    moved = targets.copy()
    move_rows_to_points(moved, np.tile(tokens, (len(pairs), 1)), there, near, delta)
    alone = [move_to_points(one, tokens[:turn], near, delta) for one, turn in zip(targets, turns, strict=True)]
    assert np.abs(moved - alone).max() < ROUNDING


def check_rule(module: ModuleType) -> None:
    draws = np.random.default_rng(0)
    for _ in range(16):
        target, draft = draws.dirichlet(np.ones(VOCAB), size=2)
        near = nearest_codes(codebook(VOCAB, int(draws.integers(20))), int(draws.integers(1, VOCAB)))
        delta = float(draws.choice([0.05, 0.2371, 0.5]))
        tokens = tuple(draws.permutation(VOCAB)[: draws.integers(1, 4)].tolist())
        check_points(module.NeighbourBudget, module.move_to_points, target, tokens, near, delta)
        for drawn, count in (("iid", 1), ("iid", 3), ("without_replacement", 2)):
            check_drawn(module.NeighbourBudget, module.move_to_draft, drawn, target, draft, near, delta, count)


def token_by_token(shared: bool) -> Plant:
    """Move mass to each token by itself, also from the other tokens; `shared`: all have one budget."""

    def wrong(right: Any, probs: FloatArray, tokens: Any, near: IntArray, delta: float) -> FloatArray:
        moved, budget = probs, delta
        for token in tokens:
            before, moved = moved, right(moved, (token,), near, budget)
            budget -= apart(before, moved) if shared else 0.0
        return moved

    return wrapped("move_to_points", wrong)


def half_stays(right: Any, probs: FloatArray, *args: Any) -> FloatArray:
    moved = right(probs, *args)
    return moved + 0.5 * np.maximum(probs - moved, 0.0)


def moved_twice(right: Any, tree: Any, node: int, children: Any, target: FloatArray, near: Any, *args: Any) -> Any:
    draft = tree.draft_distribution(node)
    return right(tree, node, children, move_to_draft(target, draft, near, args[0]), near, *args)


PLANTS = {
    "each token has the whole budget": token_by_token(shared=False),
    "a token takes mass from another draft": token_by_token(shared=True),
    "a code keeps half of what it gives": wrapped("move_to_points", half_stays),
    "no mass moves to points": replaced("move_to_points", lambda probs, *args: probs),
    "drafts move without a budget": wrapped("move_to_draft", lambda right, *args: right(*args[:3], float(args[3] > 0))),
    "every request is met": replaced(
        "_shared", lambda requests, column, spare: (requests, np.bincount(column, requests, spare.size))
    ),
    "a code has its mass as often as it is asked": wrapped(
        "_shared", lambda right, *args: (right(*args)[0], np.zeros(args[2].size))
    ),
    "a code gives all that it has": replaced("excess", lambda target, draft: target),
    "mass moves at the first sibling too": wrapped("try_moved", moved_twice),
    "the last sibling is thought certain": wrapped("_first_and_last", lambda right, *args: (right(*args)[0], 1.0)),
    "all mass moves at the first sibling": replaced(
        "_first_and_last", lambda target, draft, near, delta, *_: (move_to_draft(target, draft, near, delta), 1.0)
    ),
    "one sibling too many": wrapped("last_sibling", lambda right, *args: right(*args[:3], args[3] + 1)),
}


def test_the_rule_as_it_is_passes() -> None:
    check_rule(neighbour_budget)


@pytest.mark.parametrize("name", PLANTS)
def test_a_planted_bug_is_caught(name: str) -> None:
    check_is_caught(check_rule, "accept/neighbour_budget.py", PLANTS[name])
