"""Drawn siblings beside trees of likeliest tokens and windows: whichever is drafted, the picture is the target's."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.exact.test_windows_beside_trees import decoded, missed
from underpaint.algos.chance import Chance, enumerate_outcomes, sampling
from underpaint.algos.draft.roofline import Roofline
from underpaint.algos.draft.shape import fill_sampled, within
from underpaint.algos.draft.tree_builder import draws_siblings, likeliest_chain
from underpaint.algos.protocols import Budget, Expander, Grid, has_window
from underpaint.algos.spatial import jacobi
from underpaint.algos.spatial.jacobi_window import JacobiWindow
from underpaint.algos.tree import DraftTree, Drawn, Shape, Verdict
from underpaint.sim.synthetic.models import (
    PrefixDistribution,
    RandomDistribution,
    SyntheticDrafter,
    SyntheticTarget,
)
from underpaint.strategies import pools

WINDOW = JacobiWindow(3, "maximal", "lookup")
PAIR: Shape = (-1, 0, 0)
FORKED: Shape = (-1, 0, 0, 1)
CHAIN: Shape = (-1, 0, 1)
JUDGED: list[dict[Drawn, str]] = [
    {"iid": "block", "without_replacement": "without_replacement"},
    {"iid": "chain", "without_replacement": "traversal"},
]
RULES_OF = JUDGED[0]
WITH_REPLACEMENT: dict[Drawn, str] = {"iid": "multi_round", "without_replacement": "without_replacement"}
DRAWING_PAYS = Roofline(((1, 1.0), (5, 1.02)), 0.01, None, top_k=2, windows=0, siblings=2, max_depth=2)
"""A cost curve on which wide trees cost nothing."""


class DrawsInTurn:
    """A `Policy`: drawn shapes, points and windows by the number of the cycle."""

    def __init__(self, arms: tuple[Shape | str, ...]) -> None:
        self.arms, self.number = arms, 0

    def begin(self, grid: Grid) -> None:
        self.number = 0

    def grow(self, drafter: Expander, root: int, budget: Budget, chance: Chance) -> DraftTree:
        assert draws_siblings(drafter)
        arm = self.arms[self.number % len(self.arms)]
        self.number += 1
        if arm == "window":
            assert has_window(drafter)
            return drafter.draft_window(budget.max_depth, chance)
        if isinstance(arm, str):
            return likeliest_chain(drafter, root, 1)
        shape = within(arm, budget)
        return fill_sampled(shape, drafter, root, chance, "iid" if arm is CHAIN else "without_replacement")

    def observe(self, tree: DraftTree, verdict: Verdict, cell: int) -> None:
        """Nothing is learnt."""


ARMS: tuple[tuple[Shape | str, ...], ...] = ((PAIR, "point"), (CHAIN, PAIR), ("window", FORKED), (CHAIN, "window"))


class DrawsWithReplacement(DrawsInTurn):
    """The same, and siblings may be equal."""

    def grow(self, drafter: Expander, root: int, budget: Budget, chance: Chance) -> DraftTree:
        arm = self.arms[self.number % len(self.arms)]
        if isinstance(arm, str):
            return super().grow(drafter, root, budget, chance)
        self.number += 1
        return fill_sampled(within(arm, budget), drafter, root, chance, "iid")


class KeepsTheLikelier(DrawsInTurn):
    """A bug: of two drawn siblings, the one that the drafter likes less is left out once it was drawn."""

    def grow(self, drafter: Expander, root: int, budget: Budget, chance: Chance) -> DraftTree:
        tree = fill_sampled(within(PAIR, budget), drafter, root, chance)
        nodes = [0, 1 + int(np.argmax(tree.draft_distribution(0)[tree.tokens[1:]]))]
        return replace(tree, tokens=tree.tokens[nodes], parents=tree.parents[:2], draft_rows=tree.draft_rows[:2])


def test_siblings_left_out_after_the_draw_are_seen() -> None:
    distribution = RandomDistribution(2, seed=9, sharpness=1.5)
    assert missed(jacobi, lambda: KeepsTheLikelier(()), WINDOW, Grid(1, 5), distribution, RULES_OF) > 1e-3


@pytest.mark.parametrize("judged", JUDGED, ids=["token by token", "looking ahead"])
@pytest.mark.parametrize("arms", ARMS, ids=range(len(ARMS)))
def test_drawn_siblings_points_and_windows_in_turn_are_lossless(
    arms: tuple[Shape | str, ...], judged: dict[Drawn, str]
) -> None:
    for grid in (Grid(2, 2), Grid(1, 5)):
        distribution = RandomDistribution(2, seed=7, sharpness=1.5)
        assert missed(jacobi, lambda: DrawsInTurn(arms), WINDOW, grid, distribution, judged) < 1e-12


@pytest.mark.parametrize("arms", ARMS, ids=range(len(ARMS)))
def test_siblings_drawn_with_replacement_are_lossless(arms: tuple[Shape | str, ...]) -> None:
    for grid in (Grid(2, 2), Grid(1, 5)):
        distribution = RandomDistribution(2, seed=7, sharpness=1.5)
        assert missed(jacobi, lambda: DrawsWithReplacement(arms), WINDOW, grid, distribution, WITH_REPLACEMENT) < 1e-12


@pytest.mark.parametrize("drawn", ["iid", "without_replacement"])
def test_a_pair_of_siblings_has_its_law(drawn: Drawn) -> None:
    distribution = RandomDistribution(3, seed=7, sharpness=1.5)
    share = distribution((0,))

    def program(chance: Chance) -> tuple[int, ...]:
        drafter = SyntheticDrafter(distribution)
        return tuple(fill_sampled(PAIR, drafter, 0, chance, drawn).tokens[1:].tolist())

    outcomes = enumerate_outcomes(program)
    for first, second in np.ndindex(3, 3):
        alike = first == second
        expected = share[first] * share[second]
        if drawn == "without_replacement":
            expected = 0.0 if alike else expected / (1.0 - share[first])
        assert outcomes.get((first, second), 0.0) == pytest.approx(expected, abs=1e-12)


@given(pools(2), st.sampled_from(ARMS), st.sampled_from(JUDGED))
def test_any_distributions(
    distribution: PrefixDistribution, arms: tuple[Shape | str, ...], judged: dict[Drawn, str]
) -> None:
    assert missed(jacobi, lambda: DrawsInTurn(arms), WINDOW, Grid(2, 2), distribution, judged) < 1e-12


def by_roofline(make: Callable[[], Roofline]) -> list[str]:
    """How the siblings of each cycle's tree were drawn, over an image whose drafter knows much."""
    distribution, grid = RandomDistribution(6, seed=3, sharpness=1.5), Grid(8, 8)
    done = decoded(
        jacobi, SyntheticTarget(distribution, grid), make(), WINDOW, sampling(1), distribution, drawn=JUDGED[0]
    )
    return [cycle.tree.drawn if cycle.tree.size > 1 else "plain" for cycle in done.cycles[1:]]


@pytest.mark.parametrize(
    "judged", [*JUDGED, WITH_REPLACEMENT], ids=["token by token", "looking ahead", "with replacement"]
)
@pytest.mark.parametrize("windows", [0, 1])
def test_roofline_that_draws_siblings_is_lossless(windows: int, judged: dict[Drawn, str]) -> None:
    def policy() -> Roofline:
        return Roofline(
            ((1, 1.0), (5, 1.02)),
            0.01,
            top_k=2,
            windows=windows,
            second_look=1,
            siblings=2,
            max_depth=2,
            lookahead_interval=2,
            with_replacement=judged is WITH_REPLACEMENT,
        )

    for grid in (Grid(1, 5), Grid(2, 2)):
        assert missed(jacobi, policy, WINDOW, grid, RandomDistribution(2, seed=9), judged) < 1e-12


def test_roofline_draws_where_drawing_pays_and_rests_where_it_does_not() -> None:
    kinds = by_roofline(lambda: DRAWING_PAYS)
    assert kinds[0] == "top_k", "the first tree shows the drafter's probabilities"
    assert kinds.count("without_replacement") + kinds.count("iid") > len(kinds) / 2
    dear = Roofline(((1, 1.0), (5, 9.0)), 3.0, None, top_k=2, windows=0, siblings=2, max_depth=2)
    assert by_roofline(lambda: dear).count("plain") > len(kinds) / 2


def test_siblings_and_their_trial_can_be_left_out() -> None:
    none = Roofline(((1, 1.0), (5, 1.02)), 0.01, top_k=2, windows=0, siblings=0)
    assert set(by_roofline(lambda: none)) <= {"top_k", "plain"}
    untried = Roofline(((1, 1.0), (5, 1.02)), 9.0, top_k=2, windows=0, siblings=2, sibling_trial=0)
    assert set(by_roofline(lambda: untried)) <= {"top_k", "plain"}


def test_nothing_is_drawn_where_no_rule_for_it_stands_by() -> None:
    distribution, grid = RandomDistribution(6, seed=3, sharpness=2.0), Grid(4, 4)
    done = decoded(jacobi, SyntheticTarget(distribution, grid), DRAWING_PAYS, WINDOW, sampling(1), distribution)
    assert all(cycle.tree.drawn == "top_k" for cycle in done.cycles)
