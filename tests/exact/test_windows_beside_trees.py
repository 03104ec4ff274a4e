"""A Jacobi window beside a drafter's trees: whichever is drafted, cycle by cycle, the picture is the target's."""

from collections.abc import Callable, Mapping, Sequence
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.exact.distributions import whole_images
from underpaint.algos.accept import RULES
from underpaint.algos.chance import Chance, enumerate_outcomes, sampling
from underpaint.algos.coupling import noise_of
from underpaint.algos.draft.roofline import Roofline
from underpaint.algos.draft.tree_builder import likeliest_chain
from underpaint.algos.enumeration import total_variation
from underpaint.algos.protocols import Budget, Expander, Grid, Policy, has_window
from underpaint.algos.spatial import jacobi
from underpaint.algos.spatial.jacobi_window import Coupling, JacobiWindow, Refill
from underpaint.algos.step import Decoded, decode
from underpaint.algos.tree import DraftTree, Drawn, Verdict, root_only
from underpaint.sim.synthetic.models import (
    Blend,
    PrefixDistribution,
    RandomDistribution,
    SyntheticDrafter,
    SyntheticTarget,
)
from underpaint.strategies import pools

WINDOW, SHORT, CHAIN, PLAIN = "window", "short", "chain", "plain"
NOTHING_DRAWN: Mapping[Drawn, str] = {}
COUPLINGS: list[Coupling] = ["independent", "maximal", "gumbel"]
REFILLS: list[Refill] = ["uniform", "left", "lookup"]
LOOKUP = {"passes": True, "beside": 0.85}
ARMS = ((WINDOW, CHAIN), (WINDOW, PLAIN), (WINDOW, WINDOW, CHAIN), (WINDOW, SHORT))
WINDOWS_PAY = Roofline(((1, 1.0), (5, 1.1)), 50.0, None, top_k=2, windows=1, second_look=1, loss_budget=99)
"""A cost curve on which the first cycle drafts a tree, dear as it is, and later ones the window."""


class InTurn:
    """A `Policy`: windows, chains of likeliest tokens and plain steps by the number of the cycle."""

    def __init__(self, arms: Sequence[str]) -> None:
        self.arms, self.number = arms, 0

    def begin(self, grid: Grid) -> None:
        self.number = 0

    def grow(self, drafter: Expander, root: int, budget: Budget, chance: Chance) -> DraftTree:
        arm = self.arms[self.number % len(self.arms)]
        self.number += 1
        if arm in (WINDOW, SHORT):
            assert has_window(drafter)
            return drafter.draft_window(budget.max_depth if arm == WINDOW else min(2, budget.max_depth), chance)
        return likeliest_chain(drafter, root, 1) if arm == CHAIN else root_only(root, drafter.vocab_size)

    def observe(self, tree: DraftTree, verdict: Verdict, cell: int) -> None:
        """Nothing is learnt."""


def decoded(
    module: ModuleType,
    target: SyntheticTarget,
    policy: Policy,
    window: JacobiWindow,
    chance: Chance,
    drafting: PrefixDistribution,
    rules: tuple[str, str] = ("point", "chain"),
    drawn: Mapping[Drawn, str] = NOTHING_DRAWN,
) -> Decoded:
    """By a drafter that knows little, with `module`'s loop."""
    rule, window_rule = (RULES[name].make() for name in rules)
    noise, drafter = noise_of(chance) if window.coupling == "gumbel" else None, SyntheticDrafter(drafting)
    window_state = module.WindowState(
        window, target.grid, target.vocab_size, "iid", noise, likeliest=rules[0] == "greedy"
    )
    of_drawn = {how: RULES[name].make() for how, name in drawn.items()}
    verification = module.WindowedCycles(
        target, module.WindowDrafter(window_state, drafter), rule, window_rule, of_drawn
    )
    return decode(target, drafter, policy, rule, chance, 8, verification)


def missed(
    module: ModuleType,
    make: Callable[[], Policy],
    window: JacobiWindow,
    grid: Grid,
    target: PrefixDistribution,
    drawn: Mapping[Drawn, str] = NOTHING_DRAWN,
) -> float:
    """The total variation of the picture's law from the target's."""
    drafting = Blend(target, RandomDistribution(2, seed=6, sharpness=2.0), 0.5)

    def program(chance: Chance) -> tuple[int, ...]:
        done = decoded(module, SyntheticTarget(target, grid), make(), window, chance, drafting, drawn=drawn)
        return tuple(done.tokens.tolist())

    return total_variation(enumerate_outcomes(program), whole_images(target, grid))


def check_mixed(module: ModuleType) -> None:
    """Exact for windows and chains in turn."""
    distribution = RandomDistribution(2, seed=9, sharpness=1.5)
    for grid in (Grid(1, 5), Grid(2, 3)):
        window = JacobiWindow(3, "maximal", "lookup", **LOOKUP, last_row=True)
        assert missed(module, lambda: InTurn(ARMS[0]), window, grid, distribution) < 1e-12


def check_kept(module: ModuleType) -> None:
    """Where a distribution depends on the cell alone, drafts that were drawn anew are sure to be kept at their cells,
    behind a plain step and behind a pass over fewer of them too."""
    cells = SyntheticTarget(lambda prefix: RandomDistribution(8)((len(prefix),)), Grid(1, 60))
    for arms in ((WINDOW, PLAIN), (WINDOW, SHORT), (WINDOW, SHORT, PLAIN, SHORT)):
        window, redrawn, seen = JacobiWindow(6, "maximal", "uniform"), 0, 0
        done = decoded(module, cells, InTurn(arms), window, sampling(0), RandomDistribution(8, seed=2))
        for cycle in done.cycles[1:]:
            accepted, depth = len(cycle.verdict.path), cycle.tree.depth
            assert accepted >= min(redrawn, depth)
            seen += redrawn
            redrawn = max(0, depth - accepted - 1) + max(0, redrawn - max(depth, accepted + 1))
        assert seen > 0


def test_drafts_stay_at_their_cells() -> None:
    check_kept(jacobi)


@pytest.mark.parametrize("arms", ARMS, ids="-".join)
@pytest.mark.parametrize("refill", REFILLS)
@pytest.mark.parametrize("coupling", COUPLINGS)
def test_windows_and_trees_in_turn_are_lossless(coupling: Coupling, refill: Refill, arms: tuple[str, ...]) -> None:
    distribution = RandomDistribution(2, seed=7, sharpness=1.5)
    for grid, lookup in ((Grid(2, 2), LOOKUP), (Grid(1, 5), LOOKUP), (Grid(1, 5), {})):
        window = JacobiWindow(3, coupling, refill, **lookup)
        assert missed(jacobi, lambda: InTurn(arms), window, grid, distribution) < 1e-12


@given(pools(2), st.sampled_from(COUPLINGS), st.sampled_from(ARMS))
def test_any_distributions(distribution: PrefixDistribution, coupling: Coupling, arms: tuple[str, ...]) -> None:
    window = JacobiWindow(3, coupling, "lookup", **LOOKUP, last_row=True)
    assert missed(jacobi, lambda: InTurn(arms), window, Grid(2, 2), distribution) < 1e-12


@pytest.mark.parametrize("coupling", COUPLINGS)
def test_roofline_that_chooses_windows_is_lossless(coupling: Coupling) -> None:
    for grid in (Grid(1, 5), Grid(2, 3)):
        window = JacobiWindow(3, coupling, "lookup", **LOOKUP, last_row=True)
        assert missed(jacobi, lambda: WINDOWS_PAY, window, grid, RandomDistribution(2, seed=9)) < 1e-12


def test_roofline_drafts_trees_first_then_windows_and_looks_again() -> None:
    distribution, grid = RandomDistribution(6, seed=3, sharpness=2.0), Grid(8, 8)
    window = JacobiWindow(4, "maximal", "lookup", **LOOKUP, last_row=True)
    done = decoded(jacobi, SyntheticTarget(distribution, grid), WINDOWS_PAY, window, sampling(1), distribution)
    kinds = [cycle.tree.drawn if cycle.tree.size > 1 else PLAIN for cycle in done.cycles[1:]]
    assert kinds[0] == "top_k"
    assert kinds[1] == "iid"
    assert kinds.count("iid") > len(kinds) / 3


def test_windows_can_be_left_out() -> None:
    distribution, grid = RandomDistribution(6, seed=3, sharpness=2.0), Grid(4, 4)
    policy = Roofline(((1, 1.0), (5, 1.1)), 5.0, top_k=2, windows=0)
    done = decoded(jacobi, SyntheticTarget(distribution, grid), policy, JacobiWindow(4), sampling(1), distribution)
    assert all(cycle.tree.drawn == "top_k" for cycle in done.cycles)


@pytest.mark.parametrize("seed", range(3))
def test_at_temperature_0_every_token_is_the_likeliest(seed: int) -> None:
    distribution, grid = RandomDistribution(5, seed=seed), Grid(5, 5)
    window = JacobiWindow(6, "maximal", "lookup", **LOOKUP, last_row=True)
    for policy in (InTurn(ARMS[0]), WINDOWS_PAY):
        done = decoded(
            jacobi,
            SyntheticTarget(distribution, grid),
            policy,
            window,
            sampling(seed),
            RandomDistribution(5, seed=8),
            ("greedy", "greedy"),
        )
        tokens: list[int] = []
        for _ in range(grid.cells):
            tokens.append(int(np.argmax(distribution(tuple(tokens)))))
        assert done.tokens.tolist() == tokens
