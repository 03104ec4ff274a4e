"""`roofline` beside plain decoding: by its cost curve a picture loses no more than its budget, and it is lossless."""

from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, NamedTuple, get_args

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.exact.test_chains_in_one_call import ChainingDrafter
from tests.exact.test_windows_beside_trees import decoded, missed
from underpaint.algos.accept import RULES
from underpaint.algos.arrays import FloatArray, IntArray
from underpaint.algos.chance import Chance, sampling
from underpaint.algos.draft import roofline
from underpaint.algos.draft.choice import Kind
from underpaint.algos.draft.roofline_costs import drafting_costs
from underpaint.algos.protocols import Budget, Expander, Grid
from underpaint.algos.spatial import jacobi
from underpaint.algos.spatial.jacobi_window import JacobiWindow
from underpaint.algos.step import decode
from underpaint.algos.tree import DraftTree, Drawn, Verdict
from underpaint.sim.synthetic.models import Blend, RandomDistribution, SyntheticTarget

DRAFT_MS = 0.5
CHAIN_MS = ((1, 0.3), (4, 0.9))
MOST_NODES = 9
PLAIN_MS = 2.0
Curve = tuple[tuple[int, float], ...]
WORTHLESS = ((1, PLAIN_MS), (MOST_NODES, MOST_NODES * PLAIN_MS))
"""A node costs a plain step: nothing can pay."""
FLAT = ((1, PLAIN_MS), (MOST_NODES, 2.4))
JUDGED: dict[Drawn, str] = {"iid": "chain", "without_replacement": "without_replacement"}


class TimedDrafter(ChainingDrafter):
    """Adds up what its calls cost."""

    ms = 0.0

    def expand(self, tokens: IntArray, parents: IntArray) -> FloatArray:
        self.ms += DRAFT_MS
        return super().expand(tokens, parents)

    def expand_chain(self, root: int, levels: int) -> IntArray:
        self.ms += float(np.interp(levels, *zip(*CHAIN_MS, strict=True)))
        return super().expand_chain(root, levels)


class Account(NamedTuple):
    """ms that a picture of 80 tokens took beyond plain decoding.

    lost: added up here. counted: by the policy. cycles: what each drafted, and what the policy had counted before.
    """

    lost: float
    counted: float
    cycles: list[tuple[str, float]]


@dataclass
class Watched:
    """A policy whose cycles are written down."""

    policy: Any
    cycles: list[tuple[str, float]] = field(default_factory=list)

    def begin(self, grid: Grid) -> None:
        self.policy.begin(grid)
        self.cycles.clear()

    def grow(self, drafter: Expander, root: int, budget: Budget, chance: Chance) -> DraftTree:
        before = self.policy._lost.ms
        tree: DraftTree = self.policy.grow(drafter, root, budget, chance)
        self.cycles.append((self.policy._drafted, before))
        return tree

    def observe(self, tree: DraftTree, verdict: Verdict, cell: int) -> None:
        self.policy.observe(tree, verdict, cell)


def drawn_picture(
    module: ModuleType, curve: Curve, budget: float, seed: int, agreement: float, siblings: int = 2, windows: int = 20
) -> Account:
    """Decode twice by a policy that has every kind of draft at hand; `agreement`: of drafter and target, 0 to 1."""
    settings = {"least_window": 1, "siblings": siblings, "windows": windows, "max_depth": 4}
    policy = Watched(module.Roofline(curve, DRAFT_MS, CHAIN_MS, loss_budget=budget, **settings))
    distribution = RandomDistribution(12, seed=seed, sharpness=2.0)
    target, rule = SyntheticTarget(distribution, Grid(8, 10)), RULES["point"].make()
    other, counted = RandomDistribution(12, seed=seed + 1), list[float]()
    for _ in range(2):
        drafter = TimedDrafter(Blend(other, distribution, agreement))
        window_state = jacobi.WindowState(JacobiWindow(6, "maximal"), target.grid, 12, "iid", None, likeliest=False)
        of_drawn = {how: RULES[name].make() for how, name in JUDGED.items()}
        window, chain = jacobi.WindowDrafter(window_state, drafter), RULES["chain"].make()
        verification = jacobi.WindowedCycles(target, window, rule, chain, of_drawn)
        done = decode(target, drafter, policy, rule, sampling(seed), MOST_NODES, verification)
        counted.append(policy.policy._lost.ms)
    assert counted[0] == counted[1], "an image knows of the one before it"
    (_, least), (_, most) = curve
    slope = (most - least) / (MOST_NODES - 1)
    passes_ms = sum(least + slope * (cycle.tree.size - 1) for cycle in done.cycles[1:])
    lost = passes_ms + drafter.ms - (done.tokens.size - 1) * least  # the first token comes of the prompt's pass
    return Account(lost, counted[0], policy.cycles)


def check_account(account: Account, budget_ms: float) -> None:
    """What is counted is what was spent, and nothing is drafted once that is more than the budget."""
    assert account.counted == pytest.approx(account.lost)
    assert all(kind == "plain" for kind, before in account.cycles if before > budget_ms)


def check_budget(module: ModuleType) -> None:
    """The same for drafts of every kind; up to the budget they are tried."""
    cases = [(curve, agreement, {}) for curve in (WORTHLESS, FLAT) for agreement in (0.0, 0.9)]
    cases.append((FLAT, 0.9, {"siblings": 0, "windows": 0}))
    kinds = set[str]()
    for curve, agreement, settings in cases:
        for budget in (0.0, 3.0, 99.0):
            account = drawn_picture(module, curve, budget, 0, agreement, **settings)
            check_account(account, budget * PLAIN_MS)
            kinds |= {kind for kind, _ in account.cycles}
    assert kinds == set(get_args(Kind))
    worthless = drawn_picture(module, WORTHLESS, 3.0, 0, 0.0)
    assert max(before for kind, before in worthless.cycles if kind != "plain") > 3.0, "a plain step takes 2 ms"
    assert worthless.counted > 3.0 * PLAIN_MS


def test_what_is_counted_is_what_was_spent() -> None:
    check_budget(roofline)


@given(
    most=st.sampled_from([2.0, 2.6, 4.0, 8.0, 18.0, 40.0]),
    budget=st.sampled_from([0.0, 2.0, 10.0]),
    agreement=st.sampled_from([0.0, 0.5, 1.0]),
    seed=st.integers(0, 50),
)
@example(most=40.0, budget=0.0, agreement=0.0, seed=0)
def test_no_curve_costs_more_than_the_budget(most: float, budget: float, agreement: float, seed: int) -> None:
    account = drawn_picture(roofline, ((1, PLAIN_MS), (MOST_NODES, most)), budget, seed, agreement)
    check_account(account, budget * PLAIN_MS)


def test_a_tree_of_siblings_in_one_call_costs_the_call_and_its_levels() -> None:
    costs = drafting_costs(WORTHLESS, DRAFT_MS, None, None, (0.25, 0.125), "line", 2, 1)
    siblings = DraftTree(
        tokens=np.zeros(4, np.int64),
        parents=np.array([-1, 0, 0, 1]),
        drawn="without_replacement",
        draft_probs=np.full((2, 3), 1 / 3),
        draft_rows=np.array([-1, 0, 0, 1]),
    )
    assert costs.spent_ms("drawn", siblings, 0.0) == 0.25 + 2 * 0.125 + 8.0


@pytest.mark.parametrize("budget", [0.0, 1.0])
def test_a_picture_that_stops_drafting_is_the_targets(budget: float) -> None:
    """Trees, windows and siblings are tried, lose, and end, where the past has them end."""

    def policy() -> roofline.Roofline:
        return roofline.Roofline(((1, 1.0), (5, 1.6)), 0.1, top_k=2, windows=1, siblings=2, loss_budget=budget)

    window, distribution = JacobiWindow(3, "maximal"), RandomDistribution(2, seed=9)
    for grid in (Grid(1, 5), Grid(2, 2)):
        assert missed(jacobi, policy, window, grid, distribution, JUDGED) < 1e-12
    stopped, target = policy(), SyntheticTarget(RandomDistribution(6, seed=3), Grid(4, 4))
    done = decoded(jacobi, target, stopped, window, sampling(1), RandomDistribution(6, seed=4), drawn=JUDGED)
    sizes = [cycle.tree.size for cycle in done.cycles[1:]]
    assert sizes[0] > 1
    assert sizes[-3:] == [1, 1, 1]
    assert stopped._lost.is_too_large
