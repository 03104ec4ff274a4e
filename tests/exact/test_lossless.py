"""Each lossless rule, on every kind of tree it covers and with every policy it fits, draws exactly the target's
distribution."""

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.exact.distributions import assert_argmax, assert_exact
from underpaint.algos.accept import RULES, RuleSpec
from underpaint.algos.draft import POLICIES, PolicySpec
from underpaint.algos.protocols import Grid
from underpaint.algos.tree import DRAWN as DRAWN_KINDS
from underpaint.algos.tree import Drawn
from underpaint.sim.synthetic.models import Blend, RandomDistribution, SyntheticDrafter, SyntheticTarget
from underpaint.strategies import ShapePolicy, chains, pools, shapes

LOSSLESS = [spec for spec in RULES if spec.promise == "lossless" and not spec.greedy]
GREEDY = [spec for spec in RULES if spec.promise == "lossless" and spec.greedy]
DRAWN = [pytest.param(spec, drawn, id=f"{spec.name}-{drawn}") for spec in LOSSLESS for drawn in sorted(spec.drawn)]
PAIRS = [
    pytest.param(rule, policy, id=f"{rule.name}-{policy.name}")
    for rule in [*LOSSLESS, *GREEDY]
    for policy in POLICIES
    if policy.drawn in rule.drawn and (policy.chain or not rule.needs_chain)
]


def shapes_for(spec: RuleSpec, most: int) -> st.SearchStrategy[tuple[int, ...]]:
    return chains(most) if spec.needs_chain else shapes(most)


@pytest.mark.parametrize(("spec", "drawn"), DRAWN)
@given(data=st.data())
def test_one_cycle_of_any_shape_has_the_targets_distribution(spec: RuleSpec, drawn: Drawn, data: st.DataObject) -> None:
    vocab_size = data.draw(st.integers(2, 3), label="vocab_size")
    policy = ShapePolicy(data.draw(shapes_for(spec, {2: 6, 3: 4}[vocab_size]), label="shape"), drawn)
    target = SyntheticTarget(data.draw(pools(vocab_size), label="target"), Grid(1, 5 if vocab_size == 2 else 4))
    drafter = SyntheticDrafter(data.draw(pools(vocab_size), label="drafter"))
    assert_exact(target, drafter, policy, spec.make(), cycle_count=2)


def dense_cases() -> Iterator[tuple[RuleSpec, Drawn, int, tuple[int, ...]]]:
    """Every shape that a rule covers, cut to what is quickly enumerated; shapes cut to the same are one case."""
    shapes_of_trees = (0, 1, 2), (0, 0, 1, 1, 2, 2), (0, 0, 1, 2), (0, 0, 0, 1), (0, 1, 1, 0, 4)
    for spec in LOSSLESS:
        whole = [tuple(range(len(shape))) if spec.needs_chain else shape for shape in shapes_of_trees]
        for drawn in sorted(spec.drawn):
            for vocab_size in (2, 3):
                for shape in dict.fromkeys(shape[: 9 - 2 * vocab_size] for shape in whole):
                    yield spec, drawn, vocab_size, shape


@pytest.mark.parametrize(
    ("spec", "drawn", "vocab_size", "shape"),
    list(dense_cases()),
    ids=lambda value: value.name if isinstance(value, RuleSpec) else str(value),
)
def test_dense_distributions_that_differ_everywhere(
    spec: RuleSpec, drawn: Drawn, vocab_size: int, shape: tuple[int, ...]
) -> None:
    target = SyntheticTarget(RandomDistribution(vocab_size, seed=0), Grid(1, {2: 6, 3: 5}[vocab_size]))
    drafter = SyntheticDrafter(RandomDistribution(vocab_size, seed=50))
    assert_exact(target, drafter, ShapePolicy(shape, drawn), spec.make(), cycle_count=2)


@pytest.mark.parametrize(("spec", "drawn"), DRAWN)
@settings(max_examples=25)
@given(data=st.data())
def test_several_cycles_of_any_shape_have_the_targets_distribution(
    spec: RuleSpec, drawn: Drawn, data: st.DataObject
) -> None:
    grid, vocab_size = data.draw(st.sampled_from([(Grid(2, 2), 2), (Grid(1, 3), 3)]), label="grid, vocab_size")
    policy = ShapePolicy(data.draw(shapes_for(spec, 3), label="shape"), drawn)
    target = SyntheticTarget(data.draw(pools(vocab_size), label="target"), grid)
    drafter = SyntheticDrafter(data.draw(pools(vocab_size), label="drafter"))
    assert_exact(target, drafter, policy, spec.make())


@pytest.mark.parametrize(("spec", "drawn"), DRAWN)
def test_whole_images_of_dense_distributions(spec: RuleSpec, drawn: Drawn) -> None:
    shape = (0, 1) if spec.needs_chain else (0, 0, 1)
    for grid, vocab_size in ((Grid(2, 2), 2), (Grid(1, 3), 3)):
        likely = RandomDistribution(vocab_size, seed=3)
        drafter = SyntheticDrafter(Blend(likely, RandomDistribution(vocab_size, seed=4, sharpness=2.0), 0.5))
        assert_exact(SyntheticTarget(likely, grid), drafter, ShapePolicy(shape, drawn), spec.make())


@pytest.mark.parametrize(("rule", "policy"), PAIRS)
def test_every_policy(rule: RuleSpec, policy: PolicySpec) -> None:
    for grid, vocab_size, max_nodes in ((Grid(2, 2), 2, 5), (Grid(1, 3), 3, 4)):
        likely = RandomDistribution(vocab_size, seed=5)
        drafter = SyntheticDrafter(Blend(likely, RandomDistribution(vocab_size, seed=6, sharpness=2.0), 0.5))
        check = assert_argmax if rule.greedy else assert_exact
        check(SyntheticTarget(likely, grid), drafter, policy.make(), rule.make(), max_nodes)


@pytest.mark.parametrize(("rule", "policy"), PAIRS)
@settings(max_examples=10)
@given(data=st.data())
def test_every_policy_on_any_distributions(rule: RuleSpec, policy: PolicySpec, data: st.DataObject) -> None:
    target = SyntheticTarget(data.draw(pools(3), label="target"), Grid(1, 3))
    drafter = SyntheticDrafter(data.draw(pools(3), label="drafter"))
    check = assert_argmax if rule.greedy else assert_exact
    check(target, drafter, policy.make(), rule.make(), max_nodes=4)


@pytest.mark.parametrize("drawn", DRAWN_KINDS)
@pytest.mark.parametrize("spec", GREEDY, ids=lambda spec: spec.name)
@given(data=st.data())
def test_greedy_rules_decode_the_argmax(spec: RuleSpec, drawn: Drawn, data: st.DataObject) -> None:
    policy = ShapePolicy(data.draw(shapes(4), label="shape"), drawn)
    target = SyntheticTarget(data.draw(pools(3), label="target"), Grid(1, 4))
    assert_argmax(target, SyntheticDrafter(data.draw(pools(3), label="drafter")), policy, spec.make(), cycle_count=2)


@pytest.mark.parametrize("spec", RULES, ids=lambda spec: spec.name)
def test_the_registry_says_what_a_rule_covers(spec: RuleSpec) -> None:
    assert spec.drawn
    assert spec.source
    for drawn in set(DRAWN_KINDS) - spec.drawn:
        with pytest.raises(ValueError, match=f"rule '{spec.name}' covers"):
            spec.check_covers(drawn)
