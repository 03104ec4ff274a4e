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
from tests.mutants.harness import check_is_caught, load
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


def chance(told: list[Told], place: int, level: int) -> float:
    """Of the likeliest token, drafted at `level` for `place`, to be kept: from the whole history at once."""
    image = 0.5
    for one in range(level + 1):
        here = [kept for _, at, kept in told if at == one]
        image = (LEVEL_PRIOR * image + sum(here)) / (LEVEL_PRIOR + len(here))
    tried, stood = PRIOR, PRIOR * image
    for cell, _, kept in told:
        rows, columns = place // GRID.width - cell // GRID.width, abs(place % GRID.width - cell % GRID.width)
        weight = DECAY ** (place - cell - 1) + ABOVE * (rows == 1 and columns <= 1)
        tried, stood = tried + weight, stood + weight * kept
    return stood / tried


def promised(known: Any, cell: int, levels: int) -> list[float]:
    """Drafted tokens that should be kept of chains of 1, 2, ... and `levels` levels: others are priced out."""
    return [
        known.best_chain(cell, one, SizeCosts.of([1e9] * (one - 1) + [1.0])).rate - 1 for one in range(1, levels + 1)
    ]


def by_hand(told: list[Told], cell: int, levels: int) -> FloatArray:
    return np.cumsum(np.cumprod([chance(told, cell + level, level) for level in range(levels)]))


def check_estimator(module: ModuleType) -> None:
    """Chains at every place of a made-up image, some cells of which were never tried."""
    known, told, cell = module.AcceptanceEstimator(GRID, PRIOR, DECAY, ABOVE, LEVEL_PRIOR), list[Told](), 1
    while cell < 36:
        kept = [place % 5 != 0 for place in range(cell, cell + 1 + cell % 3)]
        told += [(cell + level, level, one) for level, one in enumerate(kept)]
        known.learn(cell, kept)
        cell += len(kept)
        for first in (cell, cell + 1):
            np.testing.assert_allclose(promised(known, first, 5), by_hand(told, first, 5), rtol=1e-7)
            for ms in (CYCLE_MS.tolist(), [1.0, 2.0, 2.1, 2.2, 2.3], [1.0, 1.1, 1.3, 1.6, 2.0], [1.0] * 5):
                rates = (1 + by_hand(told, first, 5)) / ms[:5]
                found = known.best_chain(first, 5, SizeCosts.of(ms))
                assert found.levels == 1 + int(np.argmax(rates))
                assert found.rate == pytest.approx(rates.max())
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
        told, cell, drafter = list[Told](), 1, ChainingDrafter(distributions)
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
                    told.append((cell + level, level, token == int(drafter.distribution(before).argmax())))
                before = (*before, token)
            policy.observe(tree, Verdict(path, 8), cell)
            cell += len(path) + 1
            np.testing.assert_allclose(promised(policy._acceptance, cell, 5), by_hand(told, cell, 5), rtol=1e-7)
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
ABOVE_ACCEPTED = "above * above_accepted"
RIGHT = "above_tried[below + 1]"
OF_CHAIN = "\n            self._acceptance.learn(cell, hits)"
OF_TREE = "self._acceptance.learn(cell, self._trees.learn(tree, verdict, cell))"
PLANTED = {
    "the left neighbour never fades": ("estimator", "** (cell - self._last)", "** 0"),
    "within a draft the left neighbour never fades": ("estimator", "faded = self._decay\n", "faded = 1.0\n"),
    "cells that were never tried do not widen the gap": ("estimator", "** (cell - self._last - 1)", "** 0"),
    "the row's end is the first column's left": (
        "estimator",
        RIGHT,
        "above_tried[below + 1 + ((cell + 1) % width == 0)]",
    ),
    "above is two rows up": ("estimator", "width + width + 1", "width + 2 * (width + 1)"),
    "all that was tried above was kept": ("estimator", ABOVE_ACCEPTED, ABOVE_ACCEPTED.replace("_accepted", "_tried")),
    "a level knows nothing of the one before": ("estimator", "level_prior * image", "level_prior * FIRST_ACCEPTANCE"),
    "all levels are one": ("estimator", "_level_accepted[level] += one", "_level_accepted[0] += one"),
    "costs rise as to the next size": ("costs", "rise.min(", "rise[:1].min("),
    "a rise is spread over a size too many": ("costs", "np.arange(1, costs.size - size)", "np.arange(2, 7 - size)"),
    "the extra token is forgotten": ("estimator", "(1.0 + tokens)", "tokens"),
    "tokens are kept whatever came before them": ("estimator", "chance *=", "chance ="),
    "a chain is a level short": ("estimator", "= level + 1, found", "= level, found"),
    "a search ends where a level adds less than it costs twice": ("estimator", "rate * slopes", "2 * rate * slopes"),
    "the root's place in the pass is free": ("prices", "verify[1 : call.size + 1]", "verify[: call.size]"),
    "a call costs nothing": ("prices", "call + verify", "verify"),
    "a chain's rejected token says nothing": ("policy", "accepted < tree.size - 1", "False"),
    "every token of a chain was drafted first": (
        "policy",
        OF_CHAIN,
        OF_CHAIN.replace("learn(cell, hits)", "learn(cell, hits[:1]), self._acceptance.learn(cell + 1, hits[1:])"),
    ),
    "a chain's cells are one off": ("policy", OF_CHAIN, OF_CHAIN.replace("cell", "cell + 1")),
    "any sibling is the likeliest": ("trees", "found == 0", "found is not None"),
    "trees teach nothing of chains": ("policy", OF_TREE, "self._trees.learn(tree, verdict, cell)"),
    "siblings behind the accepted one were tried": ("drawn", "if child == accepted:", "if False:"),
    "later siblings are tried whatever came before": ("drawn", "left -= found[-1]", "pass"),
    "no later sibling is accepted": ("drawn", "+= child == accepted", "+= 0"),
    "the first sibling is accepted wherever one is": ("drawn", "below[node][0] == accepted", "accepted > 0"),
    "what was learned of the first sibling is one cell off": ("drawn", "learn(cell, hits)", "learn(cell + 1, hits)"),
    "what was lost is never looked at": ("budget", " or self._lost.is_too_large", ""),
    "an image pays for the one before it": (
        "budget",
        "self._lost = NetLoss(self._costs.plain_ms, self.loss_budget)",
        "self._lost = getattr(self, '_lost', NetLoss(self._costs.plain_ms, self.loss_budget))",
    ),
    "the extra token is not counted": ("budget", ", accepted + 1)", ", accepted)"),
    "drafting a tree costs nothing": ("prices", "drafting_ms + self", "self"),
    "drafting siblings costs nothing": ("prices", "tree.depth * self.siblings.draft_ms", "0"),
    "siblings cost by the node": ("prices", "tree.depth * self", "nodes * self"),
    "a window costs what a chain does": (
        "prices",
        'if kind == "window" else self.chain',
        "if nodes < 0 else self.chain",
    ),
    "a chain costs what a window does": ("prices", 'if kind == "window" else self.chain', "if nodes else self.chain"),
    "the budget is in milliseconds": ("prices", "self.budget * self.plain_ms", "self.budget"),
    "an image of the same size is never forgotten": (
        "policy",
        "= AcceptanceEstimator(grid,",
        "= self._acceptance if getattr(getattr(self, '_acceptance', None), '_width', 0) == grid.width else "
        "AcceptanceEstimator(grid,",
    ),
}


@pytest.mark.parametrize("check", CHECKS)
def test_the_code_as_it_is_passes(check: str) -> None:
    name, passes = CHECKS[check]
    passes(load(name))


@pytest.mark.parametrize("planted", PLANTED)
def test_a_planted_bug_is_caught(planted: str) -> None:
    check, old, new = PLANTED[planted]
    name, passes = CHECKS[check]
    check_is_caught(passes, name, old, new)
