"""Chains that roofline drafts in one call: what they should yield, against brute force, and where they are drafted."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.algos.draft.drafters import ChainingDrafter
from underpaint.algos.chance import sampling
from underpaint.algos.draft.acceptance_estimator import FIRST_ACCEPTANCE, AcceptanceEstimator, ChainForecast
from underpaint.algos.draft.costs import SizeCosts, chain_table
from underpaint.algos.draft.lookahead import LeastCosts, best_tree_size, falling, forecast_level, may_reach_rate
from underpaint.algos.draft.point_trees import PointTrees
from underpaint.algos.draft.roofline import Roofline
from underpaint.algos.protocols import Budget, Grid
from underpaint.algos.tree import DraftTree, Verdict

GRID = Grid(40, 40)
SLOW_LEVELS = Roofline(((1, 1.0), (20, 1.2)), draft_ms=1.0, chain_ms=((1, 0.1), (6, 0.2)), top_k=5)
CHEAP_LEVELS = Roofline(((1, 1.0), (20, 1.2)), draft_ms=0.01, chain_ms=((1, 0.5), (6, 2.0)), top_k=5)


def peaked(best: float) -> ChainingDrafter:
    """Distributions over 20 tokens with `best` on one of them; token 19 is never the likeliest."""
    distributions = np.full((7, 20), (1.0 - best) / 19)
    distributions[np.arange(7), np.arange(7)] = best
    return ChainingDrafter(distributions)


def played(policy: Roofline, drafter: ChainingDrafter, accepted_count: int, count: int) -> list[DraftTree]:
    """Verdicts that keep `accepted_count` nodes of the first path down, then a token that was never the likeliest."""
    trees, cell = [], 1
    policy.begin(GRID)
    drafter.asked.clear()
    drafter.passes.clear()
    for _ in range(count):
        drafter.held.clear()
        trees.append(tree := policy.grow(drafter, 0, Budget(9, 64), sampling(0)))
        path = tree.path_to(int(tree.depths().argmax()))[:accepted_count]
        policy.observe(tree, Verdict(path, 19), cell)
        cell += len(path) + 1
    return trees


Told = tuple[int, int, bool]
"""A cell, the level that its token was drafted at, and whether it was kept."""


def chance_by_hand(history: list[Told], grid: Grid, place: int, level: int, weights: tuple[float, ...]) -> float:
    """A second reading of `AcceptanceEstimator`, from the whole history at once."""
    prior, decay, above, level_prior = weights
    image = FIRST_ACCEPTANCE
    for one in range(level + 1):
        here = [accepted for _, at, accepted in history if at == one]
        image = (level_prior * image + sum(here)) / (level_prior + len(here))
    row, column = divmod(place, grid.width)
    tried, stood = prior, prior * image
    for cell, _, accepted in history:
        weight = decay ** (place - cell - 1)
        if divmod(cell, grid.width)[0] == row - 1 and abs(cell % grid.width - column) <= 1:
            weight += above
        tried, stood = tried + weight, stood + weight * accepted
    return stood / tried


def promised(estimator: AcceptanceEstimator, cell: int, levels: int) -> list[float]:
    """Drafted tokens that should be kept of chains of 1, 2, ... and `levels` levels: others are priced out."""
    return [
        estimator.best_chain(cell, one, SizeCosts.of([1e9] * (one - 1) + [1.0])).rate - 1
        for one in range(1, levels + 1)
    ]


@given(
    drafts=st.lists(st.tuples(st.integers(1, 3), st.lists(st.booleans(), max_size=3)), max_size=12),
    width=st.integers(1, 5),
    prior=st.sampled_from([1e-6, 2.0]),
    decay=st.sampled_from([0.0, 0.5, 1.0]),
    prices=st.lists(st.sampled_from([1.0, 1.1, 1.5]) | st.floats(0.1, 3), max_size=6),
)
def test_the_best_chain_is_the_best_of_all_lengths_by_what_the_neighbours_kept(
    drafts: list[tuple[int, list[bool]]], width: int, prior: float, decay: float, prices: list[float]
) -> None:
    grid, weights = Grid(80, width), (prior, decay, 0.25, 4.0)
    estimator, history, cell = AcceptanceEstimator(grid, *weights), list[Told](), 0
    for gap, accepted in drafts:
        estimator.learn(cell + gap, accepted)
        history += [(cell + gap + level, level, one) for level, one in enumerate(accepted)]
        cell += gap + len(accepted) - 1 if accepted else 0
    for first in (cell + 1, cell + 3):
        chances = [chance_by_hand(history, grid, first + level, level, weights) for level in range(6)]
        tokens = np.cumsum(np.cumprod(chances))
        assert promised(estimator, first, 6) == pytest.approx(tokens.tolist())
        forecast, rates = (
            estimator.best_chain(first, len(prices), SizeCosts.of(prices)),
            (1 + tokens[: len(prices)]) / prices,
        )
        if not prices:
            assert forecast == ChainForecast(0, 0.0)
            continue
        assert forecast.rate == pytest.approx(rates.max())
        assert rates[forecast.levels - 1] == pytest.approx(rates.max())
        assert not any(rates[: forecast.levels - 1] >= forecast.rate * (1 + 1e-12))


def test_before_anything_is_tried_every_chance_is_even() -> None:
    assert promised(AcceptanceEstimator(GRID, 2.0, 0.6, 0.5, 4.0), 1, 3) == [FIRST_ACCEPTANCE, 0.75, 0.875]


def test_chances_come_to_what_is_kept() -> None:
    """Censored at the first rejection, the estimate of every level is still its own."""
    draws, estimator, truth = np.random.default_rng(0), AcceptanceEstimator(GRID, 2.0, 0.6, 0.5, 4.0), (0.8, 0.6, 0.4)
    cell, level_chances = 1, []
    while cell < 1500:
        all_so_far = np.diff([0.0, *promised(estimator, cell, 3)])
        level_chances.append(all_so_far / [1.0, *all_so_far[:-1]])
        accepted: list[bool] = []
        while len(accepted) < 3 and all(accepted):
            accepted.append(bool(draws.random() < truth[len(accepted)]))
        estimator.learn(cell, accepted)
        cell += len(accepted)
    mean = np.mean(level_chances[len(level_chances) // 2 :], axis=0)
    assert np.all(np.diff(mean) < 0)
    # Neighbours tried at other levels pull the levels together, not past one another.
    assert mean == pytest.approx([0.71, 0.6, 0.5], abs=0.08)


def test_a_chain_is_drafted_where_one_call_is_cheap() -> None:
    drafter = peaked(0.9)
    trees = played(SLOW_LEVELS, drafter, 9, 12)
    assert len(drafter.passes) == 1, "the first cycle grows a tree, as nothing is known"
    assert len(drafter.asked) == 11
    assert drafter.asked[-1] == 6, "the longest that was measured"
    assert all(tree.parents.tolist() == list(range(-1, tree.depth)) for tree in trees)
    assert [tree.depth for tree in trees[1:]] == drafter.asked


@pytest.mark.parametrize(("every", "looks"), [(1, 12), (3, 5), (8, 3)])
def test_beside_chains_a_tree_is_forecast_now_and_then(every: int, looks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    forecasts: list[bool] = []
    forecast = PointTrees.pay

    def look(self: PointTrees, cell: int, rate: float, deepest: int, most: int) -> bool:
        forecasts.append(forecast(self, cell, rate, deepest, most))
        return forecasts[-1]

    monkeypatch.setattr(PointTrees, "pay", look)
    drafter = peaked(0.9)
    played(replace(SLOW_LEVELS, lookahead_interval=every), drafter, 9, 12)
    assert forecasts == [True] + [False] * (looks - 1), "the first cycle grows a tree, as nothing is known"
    assert len(drafter.asked) == 11


def test_a_tree_is_grown_where_a_level_is_cheap() -> None:
    drafter = ChainingDrafter(np.stack([np.roll([0.45, 0.35, 0.15, *[0.05 / 17] * 17], shift) for shift in range(7)]))
    trees = played(CHEAP_LEVELS, drafter, 2, 12)
    assert not drafter.asked
    assert all(tree.depth > 1 and np.bincount(tree.parents[1:]).max() > 1 for tree in trees)


def test_nothing_is_drafted_where_nothing_is_kept() -> None:
    drafter = peaked(0.5)
    policy = Roofline(((1, 1.0), (20, 3.0)), 0.3, ((1, 0.3), (6, 0.6)), top_k=5, probe_first=2, probe_most=4)
    trees = played(policy, drafter, 0, 40)
    assert {tree.size for tree in trees[-25:]} <= {1, trees[0].size}
    assert sum(tree.size == 1 for tree in trees[-25:]) >= 18
    assert sum(map(bool, drafter.asked)) <= 4, "chains end before trees do, as nothing kept is all that they show"


@pytest.mark.parametrize(("kept", "rising"), [(0, False), (1, False), (6, True)])
def test_chains_follow_what_is_kept(kept: int, rising: bool) -> None:
    drafter = peaked(0.9)
    played(SLOW_LEVELS, drafter, kept, 8)
    first, last = drafter.asked[0], drafter.asked[-1]
    assert last == 6 if rising else last < first or last == 1


def test_a_plain_step_s_own_price_is_what_drafting_has_to_beat() -> None:
    """Where one of two likeliest tokens is kept, drafting pays over a dear plain step and not over a cheap one."""
    for plain_ms, drafted in ((None, True), (0.2, False)):
        drafter = peaked(0.5)
        policy = Roofline(((1, 1.0), (20, 1.5)), 0.5, ((1, 0.1), (6, 0.4)), plain_ms, top_k=5)
        trees = played(policy, drafter, 1, 12)
        assert bool(drafter.asked) is drafted
        assert (trees[-1].size > 1) is drafted


def test_a_chain_needs_a_price_a_call_and_room() -> None:
    unpriced, drafter = Roofline(((1, 1.0), (20, 1.2)), 1.0, top_k=5), peaked(0.9)
    played(unpriced, drafter, 9, 6)
    assert not drafter.asked
    cannot = ChainingDrafter(drafter.pool, fuses_chains=False)
    played(SLOW_LEVELS, cannot, 9, 6)
    assert not cannot.asked
    SLOW_LEVELS.begin(GRID)
    for budget, levels in ((Budget(9, 64), []), (Budget(3, 64), [3]), (Budget(9, 3), [2]), (Budget(0, 9), [])):
        drafter.held.clear()
        drafter.asked.clear()
        tree = SLOW_LEVELS.grow(drafter, 0, budget, sampling(0))
        assert drafter.asked == levels
        SLOW_LEVELS.observe(tree, Verdict(tree.path_to(tree.size - 1)[:9], 19), 1)


@given(
    row=st.lists(st.floats(0.01, 1), min_size=1, max_size=4),
    passes=st.lists(st.floats(0.1, 3), min_size=12, max_size=12),
    draft_ms=st.floats(0.01, 1),
)
def test_no_forecast_tree_is_ruled_out(row: list[float], passes: list[float], draft_ms: float) -> None:
    """The bound that saves foreseeing a tree never says less than the trees that are foreseen."""
    probs, costs = np.array(row) / max(1.0, sum(row)), SizeCosts.of(passes)
    scores, last, spent = probs, probs, draft_ms
    rates = [best_tree_size(falling(scores, 11), costs, spent)]
    for _ in range(3):
        ahead = forecast_level(scores, last, probs, costs, [draft_ms] * len(row), spent, 11)
        spent += draft_ms
        last = np.multiply.outer(falling(last, ahead.frontier), probs).reshape(-1)
        scores = np.concatenate((scores, last))
        if ahead.rate <= rates[-1].rate:
            break
        rates.append(best_tree_size(falling(scores, 11), costs, spent))
    floor = LeastCosts(min(passes), max(0.0, costs.slopes[0]), draft_ms)
    best = max((choice.rate for choice in rates if choice.nodes), default=0.0)
    assert not best or may_reach_rate(best * (1 - 1e-9), falling(probs, 11), floor, 4)


@pytest.mark.parametrize("levels", [1, 2, 5])
@pytest.mark.parametrize("profile", [[0.9], [0.6], [0.2]])
def test_where_one_chain_is_all_there_is_it_is_ruled_out_just_where_it_does_not_pay(
    profile: list[float], levels: int
) -> None:
    floor, chances = LeastCosts(1.0, 0.1, 0.2), np.cumprod(profile * levels)
    best = float(((1 + np.cumsum(chances)) / (1.0 + 0.3 * np.arange(1, levels + 1))).max())
    assert may_reach_rate(best * (1 - 1e-6), profile, floor, levels)
    assert not may_reach_rate(best * (1 + 1e-6), profile, floor, levels)


def test_of_one_level_no_more_nodes_count_than_pay() -> None:
    profile, floor = [0.5, 0.3, 0.05], LeastCosts(1.0, 0.1, 0.2)
    best = 1.8 / 1.4  # a third node would bring 0.05 tokens for 0.1 ms
    assert may_reach_rate(best * (1 - 1e-6), profile, floor, 1)
    assert not may_reach_rate(best * (1 + 1e-6), profile, floor, 1)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"chain_ms": ((2, 1.0),)}, "chain_ms must name rising sizes from 1 level on"),
        ({"chain_ms": ()}, "chain_ms must name rising sizes"),
        ({"chain_ms": ((1, -1.0),)}, "chain_ms at 1 must be at least 0, got -1.0"),
        ({"plain_ms": 0.0}, "plain_ms must be above 0, got 0.0"),
        ({"plain_ms": float("nan")}, "plain_ms must be above 0, got nan"),
        ({"chain_prior": 0.0}, "chain_prior must be above 0"),
        ({"chain_decay": 1.5}, "chain_decay must be at most 1"),
    ],
)
def test_bad_settings_are_named(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Roofline(**settings)  # type: ignore[arg-type]


def test_chain_costs_are_on_the_line_between_the_measured_ones() -> None:
    assert chain_table(((1, 1.0), (3, 2.0)), "line").tolist() == [1.0, 1.5, 2.0]
    assert chain_table(((1, 1.0), (3, 2.0)), "bucket").tolist() == [1.0, 2.0, 2.0]
