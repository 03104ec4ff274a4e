"""Planted bugs in how roofline foresees chains: each is caught by a second reading of what it should do."""

from collections.abc import Callable
from math import ceil
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from tests.algos.draft.drafters import ChainingDrafter
from tests.algos.draft.test_drawn_trees import SHAPES, check_learned
from tests.exact.test_net_loss import check_budget
from tests.mutants.harness import Plant, around, check_is_caught, instead, load, with_attributes
from underpaint.algos.arrays import FloatArray
from underpaint.algos.chance import sampling
from underpaint.algos.draft.costs import SizeCosts
from underpaint.algos.protocols import Budget, Grid
from underpaint.algos.tree import Verdict

CURVE = ((1, 1.0), (2, 1.05), (3, 1.1), (20, 2.0))
CHAIN = ((1, 0.1), (3, 0.2), (6, 0.4))
CYCLE_MS = np.interp(np.arange(1, 7), *zip(*CHAIN, strict=True)) + np.interp(np.arange(2, 8), *zip(*CURVE, strict=True))
"""Of a chain by its levels: the call, and a target pass over its nodes and the root."""
GRID, PRIOR, DECAY, ABOVE, LEVEL_PRIOR = Grid(9, 5), 2.0, 0.6, 0.5, 4.0

Told = tuple[int, int, bool]


def chance(history: list[Told], place: int, level: int) -> float:
    """Of the likeliest token, drafted at `level` for `place`, to be kept: from the whole history at once."""
    image = 0.5
    for one in range(level + 1):
        here = [accepted for _, at, accepted in history if at == one]
        image = (LEVEL_PRIOR * image + sum(here)) / (LEVEL_PRIOR + len(here))
    tried, stood = PRIOR, PRIOR * image
    for cell, _, accepted in history:
        rows, columns = place // GRID.width - cell // GRID.width, abs(place % GRID.width - cell % GRID.width)
        weight = DECAY ** (place - cell - 1) + ABOVE * (rows == 1 and columns <= 1)
        tried, stood = tried + weight, stood + weight * accepted
    return stood / tried


def promised(estimator: Any, cell: int, levels: int) -> list[float]:
    """Drafted tokens that should be kept of chains of 1, 2, ... and `levels` levels: others are priced out."""
    return [
        estimator.best_chain(cell, one, SizeCosts.of([1e9] * (one - 1) + [1.0])).rate - 1
        for one in range(1, levels + 1)
    ]


def by_hand(history: list[Told], cell: int, levels: int) -> FloatArray:
    return np.cumsum(np.cumprod([chance(history, cell + level, level) for level in range(levels)]))


def check_estimator(module: ModuleType) -> None:
    """Chains at every place of a made-up image, some cells of which were never tried."""
    estimator, history, cell = module.AcceptanceEstimator(GRID, PRIOR, DECAY, ABOVE, LEVEL_PRIOR), list[Told](), 1
    while cell < 36:
        accepted = [place % 5 != 0 for place in range(cell, cell + 1 + cell % 3)]
        history += [(cell + level, level, one) for level, one in enumerate(accepted)]
        estimator.learn(cell, accepted)
        cell += len(accepted)
        for first in (cell, cell + 1):
            np.testing.assert_allclose(promised(estimator, first, 5), by_hand(history, first, 5), rtol=1e-7)
            for ms in (CYCLE_MS.tolist(), [1.0, 2.0, 2.1, 2.2, 2.3], [1.0, 1.1, 1.3, 1.6, 2.0], [1.0] * 5):
                rates = (1 + by_hand(history, first, 5)) / ms[:5]
                chain = estimator.best_chain(first, 5, SizeCosts.of(ms))
                assert chain.levels == 1 + int(np.argmax(rates))
                assert chain.rate == pytest.approx(rates.max())
        cell += cell % 4 == 3 or cell % 11 == 5


def check_costs(module: ModuleType) -> None:
    """Slopes of a made-up curve, from every pair of sizes."""
    ms = [2.0, 2.6, 2.7, 2.5, 3.5, 3.6]
    costs = module.SizeCosts.of(ms)
    assert costs.ms == ms
    by_hand = [min((ms[far] - ms[near]) / (far - near) for far in range(near + 1, 6)) for near in range(5)]
    assert costs.slopes == [*map(pytest.approx, by_hand), np.inf]
    assert all(rise < least for rise, least in zip(costs.slopes[:-1], by_hand, strict=True))


def check_policy(module: ModuleType) -> None:
    """What is learned of every verdict, and that it is forgotten with the image."""
    policy = module.Roofline(CURVE, 0.6, CHAIN, top_k=3)
    assert policy._costs.chain.ms == pytest.approx(CYCLE_MS)
    policy.begin(GRID)
    fresh = promised(policy._acceptance, 1, 6)
    distributions = np.full((5, 9), 0.02)
    distributions[np.arange(5), np.arange(5)], distributions[np.arange(5), np.arange(5) + 1] = 0.5, 0.36
    for share in (1.0, 0.5, 0.0):
        policy.begin(GRID)
        assert promised(policy._acceptance, 1, 6) == fresh, "an image knows of the one before it"
        history, cell, drafter = list[Told](), 1, ChainingDrafter(distributions)
        while cell < 33:
            drafter.held.clear()
            tree = policy.grow(drafter, 0, Budget(6, 64), sampling(0))
            path = tree.path_to(tree.size - 1) if tree.size > 1 else ()
            path = path[: ceil(share * len(path))]
            drafted = bool(drafter.held) or tree.size > 1
            before = (0,)
            for level, token in enumerate([*tree.tokens[list(path)].tolist(), 8]):
                levels = len({len(node) for node in drafter.held}) if drafter.held else tree.depth
                if drafted and level < levels:
                    history.append((cell + level, level, token == int(drafter.distribution(before).argmax())))
                before = (*before, token)
            policy.observe(tree, Verdict(path, 8), cell)
            cell += len(path) + 1
            np.testing.assert_allclose(promised(policy._acceptance, cell, 5), by_hand(history, cell, 5), rtol=1e-7)
        assert drafter.asked, "no chain was drafted"


def check_trees(module: ModuleType) -> None:
    """The same of a policy with these trees."""
    policy: Any = load("draft/roofline.py")
    policy.PointTrees = module.PointTrees
    check_policy(policy)


def check_prices(module: ModuleType) -> None:
    """The same of a policy that costs so, and what it has lost."""
    policy: Any = load("draft/roofline.py")
    policy.drafting_costs, policy.NetLoss = module.drafting_costs, module.NetLoss
    check_policy(policy)
    check_budget(policy)


def check_siblings(module: ModuleType) -> None:
    """What is learned of drawn siblings."""
    check_learned(module, [(shape, last) for shape in SHAPES for last in range(5)])


CHECKS: dict[str, tuple[str, Callable[[ModuleType], None]]] = {
    "estimator": ("draft/acceptance_estimator.py", check_estimator),
    "costs": ("draft/costs.py", check_costs),
    "policy": ("draft/roofline.py", check_policy),
    "prices": ("draft/roofline_costs.py", check_prices),
    "trees": ("draft/point_trees.py", check_trees),
    "drawn": ("draft/drawn_trees.py", check_siblings),
    "budget": ("draft/roofline.py", check_budget),
}


def of_costs(wrong: Callable[..., Any]) -> Plant:
    """Plant a change of what `drafting_costs` returns."""

    def plant(module: ModuleType) -> None:
        right = module.drafting_costs
        module.drafting_costs = lambda *args: wrong(right(*args))

    return plant


def learn_of(wrong: Callable[..., Any]) -> Plant:
    return around("AcceptanceEstimator", "learn", wrong)


def search(wrong: Callable[..., Any]) -> Plant:
    return around("AcceptanceEstimator", "best_chain", wrong)


def left_never_fades(right: Any, estimator: Any, cell: int, accepted: list[bool]) -> None:
    estimator._last = cell if accepted else estimator._last
    right(estimator, cell, accepted)


def left_never_fades_within(right: Any, estimator: Any, cell: int, accepted: list[bool]) -> None:
    if not accepted:
        return
    fade, decay = estimator._decay ** (cell - estimator._last), estimator._decay
    estimator._left_tried, estimator._left_accepted, estimator._last = (
        estimator._left_tried * fade,
        estimator._left_accepted * fade,
        cell,
    )
    estimator._decay = 1.0
    right(estimator, cell, accepted)
    estimator._decay = decay


def gap_is_none(right: Any, estimator: Any, cell: int, longest: int, costs: SizeCosts) -> Any:
    return with_attributes(right, estimator, (cell, longest, costs), _last=cell - 1)


def row_end_is_left(right: Any, estimator: Any, cell: int, accepted: list[bool]) -> None:
    right(estimator, cell, accepted)
    width = estimator._width
    for place in range(cell, cell + len(accepted)):
        if (place + 1) % width == 0:
            after = place + place // width + width + 2
            estimator._above_tried[after] -= 1
            estimator._above_tried[after + 1] += 1


def above_is_two_rows_up(right: Any, estimator: Any, cell: int, accepted: list[bool]) -> None:
    row, before = estimator._width + 1, (estimator._above_tried.copy(), estimator._above_accepted.copy())
    right(estimator, cell, accepted)
    for now, then in zip((estimator._above_tried, estimator._above_accepted), before, strict=True):
        gained = [one - other for one, other in zip(now, then, strict=True)]
        now[:] = [one + more for one, more in zip(then, [0] * row + gained[:-row], strict=True)]


def above_was_kept(right: Any, estimator: Any, cell: int, longest: int, costs: SizeCosts) -> Any:
    return with_attributes(right, estimator, (cell, longest, costs), _above_accepted=estimator._above_tried)


def levels_stand_alone(right: Any, estimator: Any, cell: int, longest: int, costs: SizeCosts) -> Any:
    estimator._extend(longest)
    prior, image, accepted = estimator._level_prior, 0.5, list[float]()
    for stood, tried in zip(estimator._level_accepted, estimator._level_tried, strict=True):
        accepted.append(stood + prior * (0.5 - image))
        image = (prior * 0.5 + stood) / (prior + tried)
    return with_attributes(right, estimator, (cell, longest, costs), _level_accepted=accepted)


def all_levels_are_one(right: Any, estimator: Any, cell: int, accepted: list[bool]) -> None:
    for level, one in enumerate(accepted):
        right(estimator, cell + level, [one])


def chances(right: Any, estimator: Any, cell: int, longest: int) -> FloatArray:
    """Of the token at each level to be kept, with all before it."""
    sole = [
        right(estimator, cell, one, SizeCosts.of([1e9] * (one - 1) + [1.0])).rate - 1 for one in range(1, longest + 1)
    ]
    return np.diff(sole, prepend=0.0)


def extra_is_forgotten(right: Any, estimator: Any, cell: int, longest: int, costs: SizeCosts) -> Any:
    rates = np.cumsum(chances(right, estimator, cell, longest)) / costs.ms[:longest]
    return right(estimator, cell, longest, costs)._replace(levels=1 + int(np.argmax(rates)), rate=float(rates.max()))


def kept_whatever_came_before(right: Any, estimator: Any, cell: int, longest: int, costs: SizeCosts) -> Any:
    together = chances(right, estimator, cell, longest)
    alone = together / np.concatenate(([1.0], together[:-1]))
    rates = (1 + np.cumsum(alone)) / costs.ms[:longest]
    return right(estimator, cell, longest, costs)._replace(levels=1 + int(np.argmax(rates)), rate=float(rates.max()))


def a_level_short(right: Any, *args: Any) -> Any:
    chain = right(*args)
    return chain._replace(levels=chain.levels - 1)


def ends_too_early(right: Any, estimator: Any, cell: int, longest: int, costs: SizeCosts) -> Any:
    return right(estimator, cell, longest, costs._replace(slopes=[2 * one for one in costs.slopes]))


def slopes_of(slope: Callable[[list[float], int], float]) -> Plant:
    """Plant other slopes of costs: by the costs and the place of a size that is not the largest."""

    def wrong(kind: Any, ms: list[float]) -> Any:
        return kind(ms, [*(slope(ms, place) for place in range(len(ms) - 1)), np.inf])

    return instead("SizeCosts", "of", classmethod(wrong))


def over_a_size_too_many(ms: list[float], place: int) -> float:
    return min((ms[far] - ms[place]) / (far - place + 1) for far in range(place + 1, len(ms)))


def root_is_free(costs: Any) -> Any:
    verify = costs.verify.ms
    ms = [one - verify[level + 1] + verify[level] for level, one in enumerate(costs.chain.ms)]
    return costs._replace(chain=SizeCosts.of(ms))


def call_is_free(costs: Any) -> Any:
    return costs._replace(chain=SizeCosts.of(costs.verify.ms[1 : len(costs.chain.ms) + 1]))


def spent(wrong: Callable[..., Any]) -> Plant:
    return around("DraftingCosts", "spent_ms", wrong)


def siblings_cost(right: Any, costs: Any, kind: str, tree: Any, ms: float, by: Callable[[Any], int]) -> float:
    """The right costs, with siblings paid `by` something else than levels."""
    more = (by(tree) - tree.depth) * costs.siblings.draft_ms if kind == "drawn" and tree.size > 1 else 0.0
    return float(right(costs, kind, tree, ms) + more)


def costs_as(kind: str, other: str) -> Plant:
    return spent(
        lambda right, costs, draft_kind, *args: right(costs, other if draft_kind == kind else draft_kind, *args)
    )


def window_costs_a_chain(right: Any, costs: Any, kind: str, tree: Any, *args: Any) -> float:
    """A window that is longer than any chain costs what the longest does."""
    levels = min(tree.size - 1, len(costs.chain.ms))
    return float(costs.chain.ms[levels - 1] if kind == "window" and levels else right(costs, kind, tree, *args))


class Overheard:
    """What something is told, which it hears only if `passes` says so."""

    def __init__(self, inner: Any, passes: bool = True) -> None:
        self.inner, self.passes, self.heard = inner, passes, list[tuple[Any, ...]]()

    def learn(self, *args: Any) -> Any:
        self.heard.append(args)
        return self.inner.learn(*args) if self.passes else None


def any_sibling_is_likeliest(right: Any, trees: Any, *args: Any) -> list[bool]:
    overheard = Overheard(trees.calibration)
    with_attributes(right, trees, args, calibration=overheard)
    return [rank is not None for _, _, rank in overheard.heard]


def teaches_nothing(right: Any, *args: Any) -> list[bool]:
    right(*args)
    return []


def behind_were_tried(right: Any, trees: Any, tree: Any, verdict: Verdict, cell: int) -> None:
    right(trees, tree, verdict, cell)
    below = tree.children()
    for node, accepted in zip((0, *verdict.path), verdict.path, strict=False):
        children = below[node][: trees.siblings]
        for rank in range(children.index(accepted) + 1, len(children)):
            trees._tried[rank] += 1


def tried_whatever_came_before(right: Any, trees: Any, cell: int) -> tuple[float, ...]:
    later = zip(trees._tried[1:], trees._accepted[1:], strict=True)
    return (
        trees.first.first_chance(cell),
        *((trees.prior * 0.25 + accepted) / (trees.prior + tried) for tried, accepted in later),
    )


def no_later_is_accepted(right: Any, trees: Any, *args: Any) -> None:
    before = trees._accepted.copy()
    right(trees, *args)
    trees._accepted[:] = before


def first_learns(change: Callable[[int, list[bool], Verdict], tuple[int, list[bool]]]) -> Plant:
    """Plant something else that is learned of the first sibling."""

    def wrong(right: Any, trees: Any, tree: Any, verdict: Verdict, cell: int) -> None:
        overheard = Overheard(trees.first, passes=False)
        with_attributes(right, trees, (tree, verdict, cell), first=overheard)
        for at, hits in overheard.heard:
            trees.first.learn(*change(at, hits, verdict))

    return around("DrawnTrees", "learn", wrong)


def begins_with(name: str, keeps: Callable[[Any, Grid], bool]) -> Plant:
    """Plant an image that goes on with what the one before it left under `name`."""

    def wrong(right: Any, policy: Any, grid: Grid) -> None:
        before = getattr(policy, name, None)
        right(policy, grid)
        if before is not None and keeps(before, grid):
            setattr(policy, name, before)

    return around("Roofline", "begin", wrong)


PLANTED: dict[str, tuple[str, Plant]] = {
    "the left neighbour never fades": ("estimator", learn_of(left_never_fades)),
    "within a draft the left neighbour never fades": ("estimator", learn_of(left_never_fades_within)),
    "cells that were never tried do not widen the gap": ("estimator", search(gap_is_none)),
    "the row's end is the first column's left": ("estimator", learn_of(row_end_is_left)),
    "above is two rows up": ("estimator", learn_of(above_is_two_rows_up)),
    "all that was tried above was kept": ("estimator", search(above_was_kept)),
    "a level knows nothing of the one before": ("estimator", search(levels_stand_alone)),
    "all levels are one": ("estimator", learn_of(all_levels_are_one)),
    "costs rise as to the next size": ("costs", slopes_of(lambda ms, place: ms[place + 1] - ms[place])),
    "a rise is spread over a size too many": ("costs", slopes_of(over_a_size_too_many)),
    "the extra token is forgotten": ("estimator", search(extra_is_forgotten)),
    "tokens are kept whatever came before them": ("estimator", search(kept_whatever_came_before)),
    "a chain is a level short": ("estimator", search(a_level_short)),
    "a search ends where a level adds less than it costs twice": ("estimator", search(ends_too_early)),
    "the root's place in the pass is free": ("prices", of_costs(root_is_free)),
    "a call costs nothing": ("prices", of_costs(call_is_free)),
    "a chain's rejected token says nothing": (
        "policy",
        learn_of(lambda right, known, cell, hits: right(known, cell, [hit for hit in hits if hit])),
    ),
    "every token of a chain was drafted first": ("policy", learn_of(all_levels_are_one)),
    "a chain's cells are one off": ("policy", learn_of(lambda right, known, cell, hits: right(known, cell + 1, hits))),
    "any sibling is the likeliest": ("trees", around("PointTrees", "learn", any_sibling_is_likeliest)),
    "trees teach nothing of chains": ("policy", around("PointTrees", "learn", teaches_nothing)),
    "siblings behind the accepted one were tried": ("drawn", around("DrawnTrees", "learn", behind_were_tried)),
    "later siblings are tried whatever came before": (
        "drawn",
        around("DrawnTrees", "acceptance", tried_whatever_came_before),
    ),
    "no later sibling is accepted": ("drawn", around("DrawnTrees", "learn", no_later_is_accepted)),
    "the first sibling is accepted wherever one is": (
        "drawn",
        first_learns(lambda cell, hits, verdict: (cell, [step < len(verdict.path) for step in range(len(hits))])),
    ),
    "what was learned of the first sibling is one cell off": (
        "drawn",
        first_learns(lambda cell, hits, verdict: (cell + 1, hits)),
    ),
    "what was lost is never looked at": ("budget", instead("NetLoss", "is_too_large", property(lambda lost: False))),
    "an image pays for the one before it": ("budget", begins_with("_lost", lambda lost, grid: True)),
    "the extra token is not counted": (
        "budget",
        around("NetLoss", "add", lambda right, lost, ms, tokens: right(lost, ms, tokens - 1)),
    ),
    "drafting a tree costs nothing": (
        "prices",
        spent(lambda right, costs, kind, tree, ms: right(costs, kind, tree, 0)),
    ),
    "drafting siblings costs nothing": ("prices", spent(lambda *args: siblings_cost(*args, lambda tree: 0))),
    "siblings cost by the node": ("prices", spent(lambda *args: siblings_cost(*args, lambda tree: tree.size - 1))),
    "a window costs what a chain does": ("prices", spent(window_costs_a_chain)),
    "a chain costs what a window does": ("prices", costs_as("chain", "window")),
    "the budget is in milliseconds": (
        "prices",
        instead("NetLoss", "is_too_large", property(lambda lost: lost.ms > lost.budget)),
    ),
    "an image of the same size is never forgotten": (
        "policy",
        begins_with("_acceptance", lambda known, grid: known._width == grid.width),
    ),
}


@pytest.mark.parametrize("check", CHECKS)
def test_the_code_as_it_is_passes(check: str) -> None:
    name, passes = CHECKS[check]
    passes(load(name))


@pytest.mark.parametrize("planted", PLANTED)
def test_a_planted_bug_is_caught(planted: str) -> None:
    check, plant = PLANTED[planted]
    name, passes = CHECKS[check]
    check_is_caught(passes, name, plant)
