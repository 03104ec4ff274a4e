"""Planted bugs: each wrong variant of a lossless rule is caught by the checks that the real rules pass."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pytest

from tests.exact.distributions import TOLERANCE, assert_argmax, largest_gap
from tests.mutants.lossless import Block, Greedy, TokenWise, Traversal, keep, owed, take_out
from underpaint.algos.accept import RULES
from underpaint.algos.arrays import FloatArray
from underpaint.algos.chance import At, Chance, FromUniforms, Role, scripted
from underpaint.algos.enumeration import accepted_per_cycle, enumerate_decoding
from underpaint.algos.protocols import Budget, Expander, Grid, Rule
from underpaint.algos.tree import DraftTree, Drawn
from underpaint.sim.synthetic.models import (
    Blend,
    RandomDistribution,
    SyntheticDrafter,
    SyntheticTarget,
)
from underpaint.strategies import PooledDistribution, ShapePolicy

LIKELY = RandomDistribution(3, seed=1)
DRAFT = Blend(LIKELY, RandomDistribution(3, seed=2, sharpness=2.0), 0.6)
TREE = (0, 0, 1)
CHAIN = (0, 1)


class Planted(NamedTuple):
    rule: Rule
    drawn: Drawn = "iid"
    shape: tuple[int, ...] = TREE


class World(NamedTuple):
    target: SyntheticTarget
    drafter: SyntheticDrafter


def worlds() -> list[World]:
    """A few pairs of distributions that overlap in part: what one of them hides, another shows."""
    cases = []
    for vocab_size, cells, seed in ((3, 4, 0), (2, 5, 2)):
        target = SyntheticTarget(RandomDistribution(vocab_size, seed), Grid(1, cells))
        cases.append(World(target, SyntheticDrafter(RandomDistribution(vocab_size, seed + 50))))
    return cases


def gap(planted: Planted) -> float:
    """The most that one cycle is off in any of the worlds; noise that is used twice has no distribution, and counts as
    1."""
    policy = ShapePolicy(planted.shape, planted.drawn)
    try:
        return max(largest_gap(*world, policy, planted.rule, cycle_count=2) for world in worlds())
    except RuntimeError as error:
        if "asked for twice" not in str(error):
            raise
        return 1.0


def first_of_each(tree: DraftTree, children: list[int]) -> list[int]:
    tokens = [int(tree.tokens[child]) for child in children]
    return [child for place, child in enumerate(children) if tokens[place] not in tokens[:place]]


def likeliest_first(tree: DraftTree, children: list[int]) -> list[int]:
    return sorted(
        children, key=lambda child: -float(tree.draft_distribution(int(tree.parents[child]))[tree.tokens[child]])
    )


RIGHT = {
    "multi_round": Planted(TokenWise()),
    "without_replacement": Planted(TokenWise(after=take_out), "without_replacement"),
    "block": Planted(Block(), shape=CHAIN),
    "traversal": Planted(Traversal()),
}

WRONG = {
    "no residual: rejections draw from the target's own distribution": Planted(
        TokenWise(emit_row=lambda residual, distribution: distribution)
    ),
    "the residual has the wrong sign": Planted(TokenWise(residual=lambda target, draft: owed(draft, target))),
    "the residual is not renormalised before the next sibling": Planted(
        TokenWise(residual=lambda target, draft: np.maximum(target - draft, 0.0) + 1e-300)
    ),
    "the residual is not carried to the next sibling": Planted(
        TokenWise(residual=lambda target, draft: target, emit_row=owed)
    ),
    "accepts min(1, q / p)": Planted(TokenWise(accept=lambda target, draft: min(1.0, draft / max(target, 1e-300)))),
    "accepts p instead of p / q": Planted(TokenWise(accept=lambda target, draft: target)),
    "stale draft distribution: siblings without replacement taken as independent": Planted(
        TokenWise(after=keep), "without_replacement"
    ),
    "independent siblings taken as drawn without replacement": Planted(TokenWise(after=take_out)),
    "a deterministic choice taken as a draw from the drafter's distribution": Planted(TokenWise(), "top_k"),
    "siblings tried in reverse": Planted(
        TokenWise(after=take_out, order=lambda children: children[::-1]), "without_replacement", (0, 0)
    ),
    "siblings tried likeliest first": Planted(
        TokenWise(after=take_out, siblings=likeliest_first), "without_replacement", (0, 0)
    ),
    "duplicate siblings skipped": Planted(TokenWise(siblings=first_of_each), shape=(0, 0)),
    "siblings tried twice": Planted(
        TokenWise(siblings=lambda tree, children: children * 2, flip_at=lambda child, node: child), shape=(0,)
    ),
    "bonus from the parent's distribution": Planted(TokenWise(bonus_row=lambda node, parent: parent)),
    "bonus from the root's distribution": Planted(TokenWise(bonus_row=lambda node, parent: 0)),
    "the root's distribution decides every level": Planted(
        TokenWise(distribution_row=lambda node, parent: 0), shape=CHAIN
    ),
    "the parent's draft distribution decides": Planted(
        TokenWise(draft_of=lambda tree, node: tree.draft_distribution(max(0, int(tree.parents[node])))), shape=CHAIN
    ),
    "siblings share one uniform": Planted(TokenWise(flip_at=lambda child, node: node)),
    "block: h one position late": Planted(Block(shift=1), shape=(0, 1, 2)),
    "block: weights not clipped at 1": Planted(
        Block(weigh=lambda weight, target, draft: weight * target / draft), shape=CHAIN
    ),
    "block: weights not carried on": Planted(
        Block(weigh=lambda weight, target, draft: min(1.0, target / draft)), shape=CHAIN
    ),
    "block: inner positions kept by their weight, as the last": Planted(
        Block(kept_share=lambda mass, weight: weight), shape=CHAIN
    ),
    "block: the residual forgets the weight": Planted(Block(residual_weight=lambda weight: 1.0), shape=CHAIN),
    "traversal: the weight is not updated": Planted(Traversal(update_weight=lambda mass, weight: weight)),
    "traversal: the distribution is not updated": Planted(
        Traversal(update_distribution=lambda weight, distribution, draft: distribution)
    ),
    "traversal: the distribution's update forgets the weight": Planted(
        Traversal(update_distribution=lambda weight, distribution, draft: owed(distribution, draft)), shape=(0, 1, 1)
    ),
    "traversal: paths start afresh at each node": Planted(
        Traversal(weigh=lambda weight, target, draft: min(1.0, target / draft)), shape=CHAIN
    ),
}


@pytest.mark.parametrize("name", RIGHT)
def test_the_copies_are_exact_before_a_bug_is_planted(name: str) -> None:
    assert gap(RIGHT[name]) <= TOLERANCE


@pytest.mark.parametrize("name", WRONG)
def test_exactness_kills(name: str) -> None:
    assert gap(WRONG[name]) > 1e-3


def test_several_cycles_kill_noise_that_is_reused() -> None:
    reused = Planted(TokenWise(cycle=lambda chance: chance.cycle(1)), shape=(0,))
    assert gap(reused) <= TOLERANCE
    target, drafter = (
        SyntheticTarget(RandomDistribution(2, seed=1), Grid(1, 4)),
        SyntheticDrafter(RandomDistribution(2, seed=2)),
    )
    with pytest.raises(RuntimeError, match="asked for twice"):
        largest_gap(target, drafter, ShapePolicy(reused.shape, reused.drawn), reused.rule)


@dataclass(frozen=True)
class DraftsWithTheRulesNoise(ShapePolicy):
    """Draws proposals at the addresses of the flips that judge them."""

    def grow(self, drafter: Expander, root: int, budget: Budget, chance: Chance) -> DraftTree:
        @dataclass(frozen=True)
        class Moved:
            def draw(self, weights: FloatArray, at: At) -> int:
                return chance.draw(weights, At(Role.ACCEPT, at.node))

        return ShapePolicy.grow(self, drafter, root, budget, Moved())  # type: ignore[arg-type]


def test_enumeration_kills_a_draft_that_shares_the_rules_noise() -> None:
    target, drafter = SyntheticTarget(LIKELY, Grid(1, 3)), SyntheticDrafter(DRAFT)
    with pytest.raises(RuntimeError, match="asked for twice"):
        largest_gap(target, drafter, DraftsWithTheRulesNoise((0,), "iid"), RULES["chain"].make())


@dataclass(frozen=True, slots=True)
class Lenient(FromUniforms):
    """`<=` for `<`."""

    def flip(self, chance_of: float, at: At, out_of: float = 1.0) -> bool:
        return self.source(self.index, at) * out_of <= chance_of


@pytest.mark.parametrize("name", ["chain", "multi_round", "block", "traversal"])
def test_a_uniform_of_zero_kills_a_lenient_comparison(name: str) -> None:
    """Token 1 has no target probability; only `<=` keeps it, and only when the uniform is exactly 0."""
    tree = DraftTree(np.array([0, 1]), np.array([-1, 0]), "iid", np.array([[0.5, 0.5]]), np.array([0, -1]))
    probs = np.array([[1.0, 0.0], [1.0, 0.0]])
    strict = scripted({(0, role, node): 0.0 for role in Role for node in range(2)})
    assert RULES[name].make()(tree, probs, strict).path == ()
    assert RULES[name].make()(tree, probs, Lenient(strict.source)).path == (1,)


@pytest.mark.parametrize("deepest", [0, 1])
def test_acceptance_kills_a_walk_that_stops_early(deepest: int) -> None:
    """It is exact and of no use: only its acceptance tells."""
    target, drafter = SyntheticTarget(LIKELY, Grid(1, 4)), SyntheticDrafter(DRAFT)
    lazy, right = (
        accepted_per_cycle(enumerate_decoding(target, drafter, ShapePolicy(CHAIN, "iid"), rule, 8, 2), 1)
        for rule in (TokenWise(deepest=deepest), RULES["chain"].make())
    )
    assert lazy < right - 0.05


GREEDY: dict[str, Callable[[], Rule]] = {
    "the last of equals": lambda: Greedy(
        best_of=lambda distribution: distribution.size - 1 - int(np.argmax(distribution[::-1]))
    ),
    "the extra token from the parent's distribution": lambda: Greedy(extra_row=lambda node, parent: parent),
    "the least likely": lambda: Greedy(best_of=lambda distribution: int(np.argmin(distribution))),
}


@pytest.mark.parametrize("name", [None, *GREEDY])
def test_argmax_decoding_kills(name: str | None) -> None:
    rows = np.array([[0.4, 0.4, 0.2], [0.1, 0.2, 0.7], [0.1, 0.6, 0.3], [0.2, 0.4, 0.4]])
    target, drafter = (
        SyntheticTarget(PooledDistribution(rows, 3), Grid(1, 6)),
        SyntheticDrafter(PooledDistribution(rows, 3)),
    )
    policy = ShapePolicy((0, 0, 1), "top_k")
    if name is None:
        assert_argmax(target, drafter, policy, Greedy())
    else:
        with pytest.raises(AssertionError):
            assert_argmax(target, drafter, policy, GREEDY[name]())
