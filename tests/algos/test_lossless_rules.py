"""Lossless rules beyond exactness: known values, equalities between rules, and edges that enumeration cannot reach."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from underpaint.algos.accept import RULES, RuleSpec
from underpaint.algos.arrays import FloatArray
from underpaint.algos.chance import Role, sampling, scripted
from underpaint.algos.enumeration import (
    accepted_per_cycle,
    enumerate_decoding,
    enumerate_verdicts,
    mean,
    total_variation,
)
from underpaint.algos.protocols import Budget, Grid
from underpaint.algos.tree import DraftTree, Verdict, root_only
from underpaint.sim.synthetic.models import RandomDistribution, SyntheticDrafter, SyntheticTarget
from underpaint.strategies import ShapePolicy, chains, distributions, pools, shapes

SAMPLING = [spec for spec in RULES if spec.promise == "lossless" and not spec.greedy]


def chain_of(tokens: list[int], draft: FloatArray) -> DraftTree:
    count = len(tokens)
    draft_rows = np.append(np.arange(count - 1), -1)
    return DraftTree(np.array(tokens), np.arange(-1, count - 1), "iid", draft, draft_rows)


def expected_accepted(name: str, target: FloatArray, draft: FloatArray, length: int) -> float:
    world = SyntheticTarget(lambda prefix: target, Grid(1, length + 2))
    policy = ShapePolicy(tuple(range(length)), "iid")
    drafter = SyntheticDrafter(lambda prefix: draft)
    return accepted_per_cycle(enumerate_decoding(world, drafter, policy, RULES[name].make(), 8, 2), 1)


def test_the_toy_case_of_block_verification() -> None:
    target, draft = np.array([1 / 3, 2 / 3]), np.array([2 / 3, 1 / 3])
    assert expected_accepted("chain", target, draft, 2) == pytest.approx(10 / 9, abs=1e-12)
    assert expected_accepted("block", target, draft, 2) == pytest.approx(11 / 9, abs=1e-12)
    assert expected_accepted("traversal", target, draft, 2) == pytest.approx(11 / 9, abs=1e-12)


@given(target=distributions(3), draft=distributions(3), length=st.integers(1, 3))
def test_a_chain_accepts_geometrically(target: FloatArray, draft: FloatArray, length: int) -> None:
    rate = float(np.minimum(target, draft).sum())
    expected = sum(rate**step for step in range(1, length + 1))
    assert expected_accepted("chain", target, draft, length) == pytest.approx(expected, abs=1e-12)


@given(data=st.data())
def test_block_and_traversal_keep_at_least_what_the_chain_does(data: st.DataObject) -> None:
    world = SyntheticTarget(data.draw(pools(2)), Grid(1, 5))
    drafter = SyntheticDrafter(data.draw(pools(2)))
    policy = ShapePolicy(data.draw(chains(3)), "iid")
    token_wise, block, traversal = (
        accepted_per_cycle(enumerate_decoding(world, drafter, policy, RULES[name].make(), 8, 2), 1)
        for name in ("chain", "block", "traversal")
    )
    assert block >= token_wise - 1e-12
    assert traversal == pytest.approx(block, abs=1e-12)


@given(data=st.data())
def test_rules_that_say_the_same_decide_the_same(data: st.DataObject) -> None:
    """On a chain traversal is block and multi-round is chain; on point proposals traversal keeps what `point` keeps."""
    probs = np.stack([data.draw(distributions(3)) for _ in range(4)])
    draft = np.stack([data.draw(distributions(3)) for _ in range(3)])
    tokens = [0, *(data.draw(st.sampled_from(np.flatnonzero(row).tolist())) for row in draft)]
    tree = chain_of(tokens, draft)
    distribution = {
        name: enumerate_verdicts(RULES[name].make(), tree, probs)
        for name in ("chain", "multi_round", "block", "traversal")
    }
    assert total_variation(distribution["chain"], distribution["multi_round"]) <= 1e-12
    assert total_variation(distribution["block"], distribution["traversal"]) <= 1e-12

    shape = data.draw(shapes(4))
    below: list[list[int]] = [[] for _ in range(5)]
    for node, parent in enumerate(shape, start=1):
        below[parent].append(node)
    if all(len(children) <= 3 for children in below):
        rank = [
            next((children.index(node) for children in below if node in children), 0) for node in range(len(shape) + 1)
        ]
        count = len(rank)
        points = DraftTree(np.array(rank), np.array([-1, *shape]), "top_k", np.empty((0, 3)), np.full(count, -1))
        rows = np.stack([data.draw(distributions(3)) for _ in range(count)])
        length = [
            mean(enumerate_verdicts(RULES[name].make(), points, rows), lambda verdict: len(verdict.path))
            for name in ("point", "traversal")
        ]
        assert length[1] == pytest.approx(length[0], abs=1e-12)


@pytest.mark.parametrize("spec", SAMPLING, ids=lambda spec: spec.name)
@given(distribution=distributions(4))
def test_a_root_alone_draws_the_targets_distribution(spec: RuleSpec, distribution: FloatArray) -> None:
    verdicts = enumerate_verdicts(spec.make(), root_only(0, 4), distribution[None])
    assert verdicts == pytest.approx(
        {Verdict((), token): distribution[token] for token in np.flatnonzero(distribution).tolist()}
    )


@pytest.mark.parametrize("spec", SAMPLING, ids=lambda spec: spec.name)
@pytest.mark.parametrize("uniform", [0.0, float(np.nextafter(1.0, 0.0))])
@given(data=st.data())
def test_what_the_target_rules_out_is_never_emitted(spec: RuleSpec, uniform: float, data: st.DataObject) -> None:
    """At the extreme uniforms too, where `<=` instead of `<` would let it through."""
    drawn = data.draw(st.sampled_from(sorted(spec.drawn)))
    policy = ShapePolicy((0, 1) if spec.needs_chain else (0, 0, 1), drawn)
    drafter = SyntheticDrafter(data.draw(pools(3)))
    drafter.begin(SyntheticTarget(drafter.distribution, Grid(1, 1)).begin())
    tree = policy.grow(drafter, 0, Budget(2, 8), sampling(data.draw(st.integers(0, 99))))
    probs = np.stack([data.draw(distributions(3)) for _ in range(tree.size)])
    script = {(0, role, node): uniform for role in Role for node in range(tree.size)}
    verdict = spec.make()(tree, probs, scripted(script))
    nodes = [0, *verdict.path]
    emitted = [*tree.tokens[nodes[1:]].tolist(), verdict.token]
    assert all(probs[node, token] > 0.0 for node, token in zip(nodes, emitted, strict=True))


@pytest.mark.parametrize("spec", SAMPLING, ids=lambda spec: spec.name)
def test_float32_distributions_that_agree_but_for_rounding(spec: RuleSpec) -> None:
    """A drafter equal to the target, in rows of 2000 float32 numbers that sum to 1 only nearly."""
    rows = np.stack([RandomDistribution(2000, seed=seed)(()) for seed in range(4)])
    probs = rows.astype(np.float32)
    script = {(0, role, node): float(np.nextafter(1.0, 0.0)) for role in Role for node in range(4)}
    for drawn in sorted(spec.drawn):
        tokens = np.array([0, *(int(np.argmax(row)) for row in rows[:3])])
        near = (rows[:3] * (1.0 + 1e-7)).astype(np.float32)
        tree = DraftTree(tokens, np.arange(-1, 3), drawn, near, np.array([0, 1, 2, -1]))
        verdict = spec.make()(tree, probs, scripted(script))
        assert 0 <= verdict.token < 2000
        assert probs[[0, *verdict.path][-1], verdict.token] > 0.0


def test_a_distribution_that_cannot_have_drawn_its_token_is_named() -> None:
    tree = chain_of([0, 1], np.array([[1.0, 0.0]]))
    for name in ("chain", "multi_round", "block", "traversal"):
        rule = RULES[name].make()
        with pytest.raises(ValueError, match=r"tree\.draft_probs: node 1 holds token 1"):
            enumerate_verdicts(rule, tree, np.full((2, 2), 0.5))


def test_a_greedy_rule_takes_the_first_of_equals_and_asks_no_chance() -> None:
    tree = DraftTree(np.array([0, 2, 1, 1, 0]), np.array([-1, 0, 0, 0, 2]), "iid", np.empty((0, 3)), np.full(5, -1))
    probs = np.array([[0.2, 0.4, 0.4], [1, 0, 0], [0.5, 0.5, 0], [1, 0, 0], [0, 0, 1.0]])
    assert RULES["greedy"].make()(tree, probs, scripted({})) == Verdict((2, 4), 2)


def test_a_flip_is_addressed_by_its_node() -> None:
    """Two siblings: the second one's uniform decides the second one, whatever became of the first."""
    tree = DraftTree(np.array([0, 0, 0]), np.array([-1, 0, 0]), "iid", np.array([[1.0, 0.0]]), np.array([0, -1, -1]))
    probs = np.array([[0.5, 0.5], [1.0, 0.0], [1.0, 0.0]])
    uniforms = {(0, Role.ACCEPT, 1): 0.1, (0, Role.BONUS, 1): 0.0}
    assert RULES["multi_round"].make()(tree, probs, scripted(uniforms)) == Verdict((1,), 0)
    uniforms = {(0, Role.ACCEPT, 1): 0.9, (0, Role.ACCEPT, 2): 0.0, (0, Role.RESIDUAL, 0): 0.0}
    assert RULES["multi_round"].make()(tree, probs, scripted(uniforms)) == Verdict((), 1)


@pytest.mark.parametrize("name", ["chain", "multi_round", "without_replacement", "point", "greedy"])
def test_a_token_wise_rule_reads_only_the_rows_it_visits(name: str) -> None:
    """The others may be anything: a wide tree costs no more than its accepted path."""
    spec = RULES[name]
    shape = (0, 1, 2) if spec.needs_chain else (0, 0, 1, 1, 2, 2)
    drafter = SyntheticDrafter(RandomDistribution(5, seed=1))
    drafter.begin(SyntheticTarget(drafter.distribution, Grid(1, 1)).begin())
    for seed in range(20):
        tree = ShapePolicy(shape, min(spec.drawn)).grow(drafter, 0, Budget(3, 9), sampling(seed))
        probs = np.stack([RandomDistribution(5, seed=2)((node,)) for node in range(tree.size)])
        verdict = spec.make()(tree, probs, sampling(seed))
        unread = np.ones(tree.size, dtype=np.bool_)
        unread[[0, *verdict.path]] = False
        probs[unread] = np.nan
        assert spec.make()(tree, probs, sampling(seed)) == verdict
