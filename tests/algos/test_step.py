"""The decoding loop: its budget, the image's end, and the contracts it holds models, policies and rules to."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest

from underpaint.algos.accept import RULES
from underpaint.algos.arrays import FloatArray
from underpaint.algos.chance import Chance, sampling
from underpaint.algos.protocols import Budget, Expander, Grid
from underpaint.algos.step import Scored, decode
from underpaint.algos.tree import NO_TOKEN, DraftTree, Verdict
from underpaint.sim.synthetic.models import RandomDistribution, SyntheticDrafter, SyntheticTarget
from underpaint.strategies import ShapePolicy

LIKELY = RandomDistribution(4, seed=1)
MULTI_ROUND = RULES["multi_round"].make()


def target(height: int = 3, width: int = 3) -> SyntheticTarget:
    return SyntheticTarget(LIKELY, Grid(height, width))


@pytest.mark.parametrize("cells", [1, 2, 5, 9])
def test_the_image_is_filled_exactly(cells: int) -> None:
    policy = ShapePolicy((0, 1, 2, 0), "iid")
    for image in range(20):
        decoded = decode(target(1, cells), SyntheticDrafter(LIKELY), policy, MULTI_ROUND, sampling(0, image))
        assert decoded.tokens.shape == (cells,)
        assert decoded.tokens.dtype == np.int64
        assert [cycle.number for cycle in decoded.cycles] == list(range(len(decoded.cycles)))
        emitted = 0
        for cycle in decoded.cycles:
            assert cycle.cell == emitted
            assert cycle.tree.depth <= cells - cycle.cell - 1
            emitted += len(cycle.verdict.path) + 1
        assert emitted == cells


def test_without_a_drafter_each_cycle_draws_one_token() -> None:
    decoded = decode(target(), None, ShapePolicy((0,), "iid"), MULTI_ROUND, sampling(0))
    assert len(decoded.cycles) == 9
    assert decoded.cycles[0].tree.tokens.tolist() == [NO_TOKEN]


def test_a_perfect_drafter_is_always_believed() -> None:
    for name in ("chain", "block", "traversal", "multi_round"):
        policy = ShapePolicy((0, 1, 2), "iid")
        decoded = decode(target(), SyntheticDrafter(LIKELY), policy, RULES[name].make(), sampling(3))
        assert [len(cycle.verdict.path) for cycle in decoded.cycles] == [0, 3, 3]


@dataclass(frozen=True, slots=True)
class Watching:
    """Notes the budgets it is given; grows the whole shape whatever they say."""

    seen: list[Budget]
    shape: tuple[int, ...] = (0, 1, 2)

    def begin(self, grid: Grid) -> None: ...

    def observe(self, tree: DraftTree, verdict: Verdict, cell: int) -> None: ...

    def grow(self, drafter: Expander, root: int, budget: Budget, chance: Chance) -> DraftTree:
        self.seen.append(budget)
        return ShapePolicy(self.shape, "iid").grow(drafter, root, Budget(99, 99), chance)


def test_the_budget_counts_the_cells_left_and_the_nodes() -> None:
    watching = Watching([], (0, 0))
    decode(target(1, 4), SyntheticDrafter(LIKELY), watching, MULTI_ROUND, sampling(0), max_nodes=3)
    assert watching.seen[0] == Budget(max_depth=2, max_nodes=3)
    assert all(budget.max_depth > 0 for budget in watching.seen)


@pytest.mark.parametrize(("cells", "max_nodes"), [(3, 64), (9, 3)])
def test_a_policy_that_overruns_its_budget_is_named(cells: int, max_nodes: int) -> None:
    with pytest.raises(ValueError, match=r"policy: expected at most depth .* respect the budget"):
        decode(target(1, cells), SyntheticDrafter(LIKELY), Watching([]), MULTI_ROUND, sampling(0), max_nodes)


class Broken(SyntheticTarget):
    """A target whose distributions are spoilt after the first."""

    def __init__(self, spoil: Callable[[FloatArray], FloatArray]) -> None:
        super().__init__(LIKELY, Grid(2, 2))
        self.spoil = spoil

    def score(self, tree: DraftTree) -> Scored:
        return Scored(self.spoil(super().score(tree).probs))


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda probs: probs * np.nan, "probs: expected rows of non-negative numbers that sum to 1"),
        (lambda probs: np.where(np.eye(len(probs), 4) > 0, np.nan, probs), "probs: expected rows"),
        (lambda probs: probs * 2.0, "probs: expected rows"),
        (lambda probs: probs * 0.0, "probs: expected rows"),
        (lambda probs: probs - 2.0 * np.eye(len(probs), 4) + 0.5, "probs: expected rows"),
        (lambda probs: probs[:-1], "probs: expected .*one distribution per node"),
        (lambda probs: probs[:, :-1], "probs: expected .*one distribution per node"),
    ],
)
def test_broken_target_distributions_are_named(spoil: Callable[[FloatArray], FloatArray], message: str) -> None:
    broken = Broken(spoil)
    with pytest.raises(ValueError, match=message):
        decode(broken, SyntheticDrafter(LIKELY), ShapePolicy((0,), "iid"), MULTI_ROUND, sampling(0))


def test_broken_draft_distributions_are_named() -> None:
    drafter = SyntheticDrafter(lambda prefix: np.array([0.5, 0.5, 0.5, 0.5]))
    with pytest.raises(ValueError, match=r"tree\.draft_probs: expected rows"):
        decode(target(), drafter, ShapePolicy((0,), "iid"), MULTI_ROUND, sampling(0))


def test_a_rule_meets_only_the_trees_it_covers() -> None:
    with pytest.raises(ValueError, match="covers iid trees, got a 'top_k' one"):
        decode(target(), SyntheticDrafter(LIKELY), ShapePolicy((0, 0), "top_k"), MULTI_ROUND, sampling(0))
    for name in ("chain", "block"):
        rule = RULES[name].make()
        with pytest.raises(ValueError, match="covers chains"):
            decode(target(), SyntheticDrafter(LIKELY), ShapePolicy((0, 0), "iid"), rule, sampling(0))


def test_the_same_seed_draws_the_same_image() -> None:
    def once(image: int) -> list[int]:
        policy = ShapePolicy((0, 0, 1), "iid")
        return decode(target(), SyntheticDrafter(LIKELY), policy, MULTI_ROUND, sampling(5, image)).tokens.tolist()

    assert once(0) == once(0)
    assert len({tuple(once(image)) for image in range(10)}) > 5
