"""`roofline` beside the best fixed window and plain steps, by simulated costs and acceptance."""

from collections.abc import Callable
from functools import cache

import numpy as np
import pytest

from underpaint.algos.draft.drawn_trees import DrawnTrees
from underpaint.algos.draft.roofline import Roofline
from underpaint.algos.draft.roofline_costs import likely_length
from underpaint.algos.draft.sequoia import StaticTree
from underpaint.algos.protocols import Budget, Grid
from underpaint.algos.tree import DraftTree, Verdict

GRID = Grid(32, 32)
PICTURES = 6
SHORT_OF_BEST = 1.03
"""Of the least ms a token, what the policy may take at most."""

CURVES = {
    "linear": ((1, 2.0), (33, 14.8)),
    "shallow": ((1, 2.0), (33, 5.2)),
    "flat": ((1, 2.0), (33, 2.2)),
    "knee at 9": ((1, 2.0), (9, 2.4), (33, 21.6)),
    "two cores": ((1, 2.6), (2, 2.85), (4, 3.2), (8, 4.3), (12, 5.8), (16, 7.0), (24, 9.5), (33, 12.0)),
}
ACCEPTANCE = {
    "high": (0.9, 0.9),
    "middle": (0.75, 0.75),
    "rising": (0.6, 0.85),
    "falling": (0.85, 0.6),
}
"""Of each draft that is reached, at the first cell and at the last."""


class WindowOnly:
    """A drafter of which nothing is asked but how long its window is."""

    window_length = 32


def chain(drafts: int) -> DraftTree:
    nodes = np.arange(drafts + 1)
    return DraftTree(nodes, nodes - 1, "top_k", np.empty((0, 40)), np.full(drafts + 1, -1))


def walk(
    acceptance: tuple[float, float],
    begin: Callable[[], None],
    choose: Callable[[int], int],
    observe: Callable[[int, int, int], None],
) -> tuple[int, ...]:
    """Drafts of every pass of so many pictures.

    choose: drafts at most in so many remaining cells. observe: told of a pass's drafts, how many were accepted, and the
    cell.
    """
    random, drafts_by_pass = np.random.default_rng(0), list[int]()
    for _ in range(PICTURES):
        accept_mask = random.random(GRID.cells) < np.linspace(*acceptance, GRID.cells)
        begin()
        cell = 1
        while cell < GRID.cells:
            remaining = GRID.cells - cell
            drafts = min(choose(remaining), remaining)
            window = accept_mask[cell : cell + drafts]
            accepted = drafts if window.all() else int(window.argmin())
            observe(drafts, accepted, cell)
            drafts_by_pass.append(drafts)
            cell += accepted + 1
    return tuple(drafts_by_pass)


@cache
def fixed_walk(acceptance: tuple[float, float], fixed: int) -> tuple[int, ...]:
    """With as many drafts in every window, 0 for plain steps: whatever they cost."""
    return walk(acceptance, lambda: None, lambda remaining: fixed, lambda drafts, accepted, cell: None)


def chosen_walk(policy: Roofline, acceptance: tuple[float, float]) -> tuple[int, ...]:
    """With as many drafts as the policy chooses."""
    return walk(
        acceptance,
        lambda: policy.begin(GRID),
        lambda remaining: policy.choose(WindowOnly(), Budget(remaining, policy.most_nodes)).levels,
        lambda drafts, accepted, cell: policy.observe(chain(drafts), Verdict(tuple(range(1, accepted + 1)), 0), cell),
    )


def ms_per_token(policy: Roofline, drafts_by_pass: tuple[int, ...]) -> float:
    """By the policy's cost curve."""
    verify = np.interp(np.arange(1, policy.most_nodes + 1), *zip(*policy.verify_ms, strict=True))
    assert len(verify) == policy._costs.most + 1
    return float(verify[list(drafts_by_pass)].sum()) / (PICTURES * GRID.cells)


@pytest.mark.parametrize("curve", CURVES)
@pytest.mark.parametrize("acceptance", ACCEPTANCE)
def test_is_near_the_best_of_its_parts(curve: str, acceptance: str) -> None:
    policy = Roofline(CURVES[curve], trees=False, siblings=0)
    profile = ACCEPTANCE[acceptance]
    best = min(ms_per_token(policy, fixed_walk(profile, fixed)) for fixed in range(33))
    assert ms_per_token(policy, chosen_walk(policy, profile)) <= SHORT_OF_BEST * best


@pytest.mark.parametrize("curve", CURVES)
def test_where_little_is_accepted_it_is_not_behind_plain_steps(curve: str) -> None:
    """Beside the best fixed window, of 1 to 8 drafts, it is up to 17 % behind here: none is shorter than the least."""
    policy = Roofline(CURVES[curve], trees=False, siblings=0)
    profile = (0.2, 0.2)
    plain = ms_per_token(policy, fixed_walk(profile, 0))
    assert ms_per_token(policy, chosen_walk(policy, profile)) <= SHORT_OF_BEST * plain


@pytest.mark.parametrize("plain_ms", [1.5, 2.0, 3.0])
def test_a_window_carries_the_host_share_of_a_plain_step(plain_ms: float) -> None:
    costs = Roofline(((1, 2.0), (2, 2.5), (3, 2.4), (4, 4.0)), plain_ms=plain_ms, least_window=1)._costs
    np.testing.assert_allclose(costs.window.ms, plain_ms + np.array([0.5, 0.4, 2.0]), rtol=0, atol=1e-12)


def test_the_least_window_follows_the_costs() -> None:
    nodes = np.arange(2, 34)
    assert likely_length(2.0 + 0.4 * nodes) < likely_length(2.0 + 0.1 * nodes) < likely_length(2.0 + 0.001 * nodes)
    assert likely_length(np.where(nodes <= 9, 2.0, 2.0 + 2.0 * (nodes - 9))) == 8
    assert likely_length(np.empty(0)) == 1


class WithSiblings(WindowOnly):
    """A drafter that could draw siblings too."""

    draws_siblings = True


def test_rivals_of_a_leading_window_are_forecast_once_in_an_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planning a tree of drawn siblings takes longer than all else that the policy does in a cycle."""
    policy = Roofline(CURVES["flat"], trees=False, sibling_trial=0, lookahead_interval=8, windows=4)
    planned: list[int] = []
    plan = DrawnTrees.best

    def counted(self: DrawnTrees, cell: int) -> StaticTree:
        planned.append(cell)
        return plan(self, cell)

    monkeypatch.setattr(DrawnTrees, "best", counted)
    policy.begin(GRID)
    for number in range(28):
        chosen = policy.choose(WithSiblings(), Budget(500, policy.most_nodes))
        assert chosen.kind == "window"
        assert len(planned) == (0 if number < 4 else 1 + (number - 4) // 8), number
        policy.observe(chain(chosen.levels), Verdict(tuple(range(1, chosen.levels + 1)), 0), 1 + 8 * number)


def test_rivals_are_forecast_anew_where_something_else_was_drafted(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = Roofline(CURVES["flat"], trees=False, sibling_trial=1, lookahead_interval=8, windows=1)
    policy.begin(GRID)
    choice = policy.choose(WithSiblings(), Budget(500, policy.most_nodes))
    assert choice.kind == "drawn"
    policy.observe(chain(1), Verdict((1,), 0), 1)
    trial = policy.choose(WithSiblings(), Budget(500, policy.most_nodes))
    policy.observe(chain(trial.levels), Verdict(tuple(range(1, trial.levels + 1)), 0), 3)
    # From here on drawn siblings would give more than any window, and the first forecast behind the trial says so.
    monkeypatch.setattr(DrawnTrees, "best", lambda self, cell: StaticTree((-1, 0), 1e6, 1.0))
    assert policy.choose(WithSiblings(), Budget(500, policy.most_nodes)).kind == "drawn"
