"""The rule with a budget over the picture: no path spends more, and what is spent is what the tokens miss by."""

import sys
from collections import defaultdict
from itertools import product
from math import fsum
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.exact.relaxed import apart, codebook, point_distribution
from tests.strategies import ShapePolicy, pools
from underpaint import algos
from underpaint.algos.accept.neighbours import nearest_codes
from underpaint.algos.accept.picture_budget import PictureBudget
from underpaint.algos.accept.spec import fork
from underpaint.algos.chance import Chance, enumerate_outcomes, sampling
from underpaint.algos.draft import POLICIES, Grid, Policy, PolicySpec
from underpaint.algos.enumeration import emitted, enumerate_verdicts
from underpaint.algos.registry import build
from underpaint.algos.step import cycles, decode
from underpaint.algos.tree import Drawn
from underpaint.sim.synthetic.models import Blend, RandomDistribution, SyntheticDrafter, SyntheticTarget

ROUNDING = 1e-12
VOCAB = 3
CELLS = 4
SOURCE = Path(algos.__file__).parent / "accept" / "picture_budget.py"
SHAPES: dict[Drawn, tuple[tuple[int, ...], ...]] = {
    "top_k": ((0, 0), (0, 1, 2), (0, 0, 1, 2), (0, 1, 1)),
    "iid": ((0,), (0, 1), (0, 0)),
    "without_replacement": ((0,), (0, 1), (0, 0)),
}

History = tuple[tuple[int, ...], ...]
"""Tokens by cycle, the last cycle not complete: what was decided before a token."""


class Step(NamedTuple):
    """A token of a picture: what was decided before it, and itself."""

    before: History
    token: int


class Picture(NamedTuple):
    """What one path of decoding did. spent: by its rule's account after the first cycle, the second, ..."""

    steps: tuple[Step, ...]
    spent: tuple[float, ...]


def every_picture(
    rule: Any, target: SyntheticTarget, drafter: SyntheticDrafter, policy: Policy
) -> dict[Picture, float]:
    """Every path of a whole picture, with its probability."""

    def program(chance: Chance) -> Picture:
        own = fork(rule)
        steps, spent, done = list[Step](), list[float](), list[tuple[int, ...]]()
        for cycle in cycles(target, drafter, policy, own, chance, 8):
            tokens = emitted(cycle.tree, cycle.verdict)
            steps += [Step((*done, tokens[:count]), token) for count, token in enumerate(tokens)]
            spent.append(own.spent)
            done.append(tokens)
        return Picture(tuple(steps), tuple(spent))

    return enumerate_outcomes(program)


def missed_by(pictures: dict[Picture, float], target: SyntheticTarget) -> dict[History, float]:
    """For every history, the exact total variation of the next token's distribution from the target's."""
    weights: dict[History, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for picture, weight in pictures.items():
        for step in picture.steps:
            weights[step.before][step.token].append(weight)
    found = {}
    for before, tokens in weights.items():
        exact = target.distribution(tuple(token for cycle in before for token in cycle))
        law = np.array([fsum(tokens[token]) for token in range(exact.size)])
        found[before] = 0.5 * float(np.abs(law / law.sum() - exact).sum())
    return found


def check_picture(
    make: Any, drawn: Drawn, shape: tuple[int, ...], target: SyntheticTarget, drafter: SyntheticDrafter, delta: float
) -> None:
    """Over all paths: the budget holds, and each token misses by no more than was spent on it."""
    rule = make(nearest_codes(codebook(VOCAB, 1), VOCAB - 1), delta=delta)
    pictures = every_picture(rule, target, drafter, ShapePolicy(shape, drawn))
    missed = missed_by(pictures, target)
    known = drawn != "without_replacement" or len(set(shape)) == len(shape)  # else what is spent is a bound
    for picture in pictures:
        biases = [missed[step.before] for step in picture.steps]
        assert picture.spent[-1] <= delta * CELLS + ROUNDING
        assert fsum(biases) <= delta * CELLS + ROUNDING
        decided = 0
        for cycle, spent in enumerate(picture.spent):
            decided += sum(len(step.before) == cycle + 1 for step in picture.steps)
            assert fsum(biases[:decided]) <= spent + ROUNDING
            assert not known or fsum(biases[:decided]) == pytest.approx(spent, abs=ROUNDING)


@pytest.mark.parametrize(("drawn", "shape"), [(drawn, shape) for drawn, each in SHAPES.items() for shape in each])
@settings(max_examples=8)
@given(data=st.data())
def test_no_path_passes_the_budget_and_points_miss_by_what_is_spent(
    drawn: Drawn, shape: tuple[int, ...], data: st.DataObject
) -> None:
    target = SyntheticTarget(data.draw(pools(VOCAB)), Grid(1, CELLS))
    drafter = SyntheticDrafter(data.draw(pools(VOCAB)))
    check_picture(PictureBudget, drawn, shape, target, drafter, data.draw(st.sampled_from([0.05, 0.2371, 0.5])))


def flat_models(cells: int) -> tuple[SyntheticTarget, SyntheticDrafter]:
    """A target and a drafter that differ everywhere, over eight codes."""
    likely = RandomDistribution(8, seed=5)
    return SyntheticTarget(likely, Grid(1, cells)), SyntheticDrafter(Blend(likely, RandomDistribution(8, seed=6), 0.5))


def policies() -> list[Any]:
    """Every policy, by the registry."""
    return [pytest.param(spec, id=spec.name) for spec in POLICIES]


@pytest.mark.parametrize("spec", policies())
def test_every_policy_keeps_the_budget_and_spends_it(spec: PolicySpec) -> None:
    check_policy(PictureBudget, spec)


def check_policy(make: Any, spec: PolicySpec) -> None:
    """Of a picture that is long enough nearly all is spent; the next picture starts anew, and a fork spends nothing."""
    target, drafter = flat_models(48)
    policy = build(spec.make, spec.examples[-1] if spec.examples else {}, spec.name)
    near = nearest_codes(codebook(8), 7)
    rule = make(near, delta=0.05)
    first = decode(target, drafter, policy, rule, sampling(1), 12)
    assert 0.6 * 0.05 * 48 < rule.spent <= 0.05 * 48 + ROUNDING
    tree = next(cycle.tree for cycle in first.cycles if cycle.tree.size > 1)
    rows = np.tile(np.array([0.3, 0.2, 0.1, 0.1, 0.1, 0.1, 0.05, 0.05]), (tree.size, 1))
    spent = rule.spent
    if tree.size < 5:
        enumerate_verdicts(rule, tree, rows)
    fork(rule)(tree, rows, sampling(0))
    assert rule.spent == spent
    again = decode(target, drafter, policy, rule, sampling(1), 12)
    assert again.tokens.tolist() == first.tokens.tolist()
    assert rule.spent == spent


@given(st.integers(0, 99), st.sampled_from([0.05, 0.2371, 0.9]))
def test_a_tree_outside_of_a_picture_spends_one_cell_s_budget(seed: int, delta: float) -> None:
    check_one_tree(PictureBudget, seed, delta)


def check_one_tree(make: Any, seed: int, delta: float) -> None:
    """All codes are near, so what the tokens lack can move: as much of it as one cell may spend."""
    target = np.random.default_rng(seed).dirichlet(np.ones(4))
    rule = make(nearest_codes(codebook(4), 3), delta=delta)
    found = point_distribution(rule, target, (0, 2))
    assert apart(found, target) == pytest.approx(min(delta, target[1] + target[3]), abs=ROUNDING)


MUTANTS = [
    ("self.left = max(0.0, self.left - amount)", "pass"),  # the budget is not reduced
    ("min(share * float(there[-1]), self.account.left)", "share * float(there[-1])"),
    ("moved[codes] -= taken", "moved[codes] -= 0.5 * taken"),
    ("self.account.spend(float(taken.sum()))", "self.account.spend(0.5 * float(taken.sum()))"),
    ("self.account.spend(float(taken.sum()))", "self.account.spend(float(taken[:1].sum()))"),
    ("self.account.spend(_apart(moved, target))", "pass"),
    ("self.account.spend(most)", "self.account.spend(most / len(children))"),
    ("min(1.0, most / last.reached)", "min(1.0, 2.0 * most / last.reached)"),
    ("most = min(self.account.left, ", "most = max(self.account.left, "),
    (
        "self._account = Account(self.delta * cells, cells)",
        "self._account = self._account or Account(self.delta * cells, cells)",
    ),
    ("Account(self.delta * cells, cells)", "Account(2.0 * self.delta * cells, cells)"),
    ("account.cells -= len(verdict.path) + 1", "pass"),
    ("other._account = deepcopy(self._account)", "other._account = self._account"),
    ("self._account or Account(self.delta, 1)", "self._account or Account(1.0, 1)"),
    ("self.price.moves(self.plan.worth[child])", "0.5 * self.price.moves(self.plan.worth[child])"),
]


def load(old: str, new: str) -> ModuleType:
    source = SOURCE.read_text(encoding="utf-8")
    assert source.count(old) == 1, old
    module = ModuleType("mutant_of_picture_budget")
    sys.modules[module.__name__] = module
    text = source.replace(old, new).replace("RULES.register(", "(lambda spec: spec)(")
    exec(compile(text, SOURCE, "exec"), vars(module))
    return module


def walk_cases(make: Any) -> None:
    for seed in range(6):
        check_one_tree(make, seed, 0.2371)
    for name in ("eagle2", "chain"):
        check_policy(make, POLICIES[name])
    likely, draft = RandomDistribution(VOCAB, seed=2), RandomDistribution(VOCAB, seed=3)
    target, drafter = SyntheticTarget(likely, Grid(1, CELLS)), SyntheticDrafter(draft)
    for drawn, delta in product(SHAPES, (0.05, 0.2371)):
        for shape in SHAPES[drawn]:
            check_picture(make, drawn, shape, target, drafter, delta)


def test_the_rule_as_it_is_passes() -> None:
    walk_cases(load("SPEC =", "SPEC =").PictureBudget)


@pytest.mark.parametrize(("old", "new"), MUTANTS, ids=[new for _, new in MUTANTS])
def test_a_planted_bug_is_caught(old: str, new: str) -> None:
    make = load(old, new).PictureBudget
    with pytest.raises((AssertionError, ValueError), match=r"(?s).*"):
        walk_cases(make)
