"""A drafter's own trees against the same trees grown level by level."""

import numpy as np
import pytest

from tests.conformance.conftest import CONFIG, Models
from tests.conformance.test_chain import at
from tests.conformance.test_engine import ONE_ROW, PAIR, TOKENS, draft_features, open_drafter, open_target
from tests.conformance.timed import Tally, TimedDrafter
from underpaint.algos.accept import RULES
from underpaint.algos.chance import sampling
from underpaint.algos.draft import POLICIES
from underpaint.algos.draft.eagle2 import Eagle2
from underpaint.algos.protocols import Budget, FusedTreeSpec
from underpaint.algos.rows import SamplingParams
from underpaint.algos.step import decode
from underpaint.runtime.engines.context import EngineError

SAMPLERS = {
    "pair": PAIR,
    "one_row": ONE_ROW,
    "cut": SamplingParams(guidance=2.5, temperature=0.7, top_k=3),
    "narrower_than_the_tree": SamplingParams(top_k=2, temperature=1.3),
}
TREES = {
    "eagle2": ("eagle2", {"depth": 4, "top_k": 2, "total_tokens": 6}, "point"),
    "eagle2_wide": ("eagle2", {"depth": 3, "top_k": 3, "total_tokens": 12}, "point"),
    "eagle2_flat": ("eagle2", {"depth": 1, "top_k": 4, "total_tokens": 3}, "point"),
    "chain": ("chain", {"length": 3}, "chain"),
    "eagle1": ("eagle1", {"widths": (2, 3, 1)}, "without_replacement"),
    "static_top_k": ("static_top_k", {"widths": (3, 2, 2, 1)}, "point"),
}
EIGHT_BITS = "drafter_int8"


@pytest.mark.parametrize("name", ["drafter", EIGHT_BITS])
@pytest.mark.parametrize("sampler", SAMPLERS.values(), ids=SAMPLERS)
@pytest.mark.parametrize("tree", TREES.values(), ids=TREES)
def test_a_whole_image_by_trees(
    models: Models, name: str, sampler: SamplingParams, tree: tuple[str, dict[str, object], str]
) -> None:
    """Decoding with the drafter's trees and with its levels (hidden behind a clock) meets the same trees."""
    policy, settings, rule = tree
    pictures, passes = [], []
    for wrapped in (False, True):
        target, drafter = open_target(models, sampler), open_drafter(models, sampler, name)
        assert drafter.fuses_trees
        seen = TimedDrafter(drafter, Tally()) if wrapped else drafter
        policy_and_rule = POLICIES[policy].make(**settings), RULES[rule].make()
        pictures.append(decode(target, seen, *policy_and_rule, sampling(3)))
        passes.append(drafter.engine.cost.passes)
    trees = [[(cycle.tree.tokens.tolist(), cycle.tree.parents.tolist()) for cycle in one.cycles] for one in pictures]
    assert trees[0] == trees[1]
    assert max(len(tokens) for tokens, _ in trees[0]) > 2
    for one, other in zip(*(picture.cycles for picture in pictures), strict=True):
        np.testing.assert_array_equal(one.tree.draft_rows, other.tree.draft_rows)
        np.testing.assert_allclose(one.tree.draft_probs, other.tree.draft_probs, rtol=1e-4, atol=1e-6)
    if sampler.top_k != 2:  # else a distribution may have run out, and the tree was begun anew
        assert passes[0] == passes[1]


def ranked(levels: int, width: int) -> FusedTreeSpec:
    return FusedTreeSpec(
        np.zeros((levels, width), dtype=np.int64), np.zeros((levels, width, width)), ranked=True, drawn=False
    )


def test_a_tree_leaves_the_root_to_be_expanded(models: Models) -> None:
    scored = draft_features(models, TOKENS)
    roots, distributions = [], []
    for grown in (True, False):
        drafter = open_drafter(models)
        drafter.begin(at(scored, 0, 1))
        if grown:
            drafter.expand_tree(int(TOKENS[0]), ranked(3, 2))
            spent = drafter.engine.cost.passes
        roots.append(drafter.expand(TOKENS[:1], np.array([-1])))
        if grown:
            assert drafter.engine.cost.passes == spent, "the root's distribution was known"
        distributions.append(drafter.expand(np.array([3, 9]), np.array([0, 0])))
    np.testing.assert_allclose(roots[0], roots[1], atol=1e-6)
    np.testing.assert_allclose(distributions[0], distributions[1], atol=1e-6)


def test_levels_say_what_they_expand(models: Models) -> None:
    drafter = open_drafter(models)
    drafter.begin(at(draft_features(models, TOKENS), 0, 1))
    first, second, third = drafter.expand_tree(int(TOKENS[0]), ranked(3, 2))
    assert first.places.tolist() == [0]
    assert second.places.tolist() == [0, 1]
    products = (first.masses.T * second.masses).reshape(-1)
    assert third.places.tolist() == np.argsort(-products, kind="stable")[:2].tolist()
    assert [level.tokens.shape for level in (first, second, third)] == [(1, 2), (2, 2), (2, 2)]
    for level in (first, second, third):
        np.testing.assert_array_equal(np.take_along_axis(level.distributions, level.tokens, 1), level.masses)


def test_a_token_that_is_gone_is_not_drawn_again(models: Models) -> None:
    """As many draws as a distribution has tokens take each once, and one more finds nothing left."""
    sampler = SamplingParams(top_k=2)
    drafter = open_drafter(models, sampler)
    drafter.begin(at(draft_features(models, TOKENS), 0, 1)._replace(features=first_row(models)))
    growth = FusedTreeSpec(np.zeros((1, 1), dtype=np.int64), np.full((1, 1, 3), 0.999), ranked=False, drawn=True)
    (level,) = drafter.expand_tree(int(TOKENS[0]), growth)
    assert sorted(level.tokens[0, :2].tolist()) == level.distributions[0].nonzero()[0].tolist()
    assert level.masses[0, :2].sum() == pytest.approx(1.0, abs=1e-6)
    assert level.masses[0, 2] == 0.0


def first_row(models: Models) -> np.ndarray:
    features = at(draft_features(models, TOKENS), 0, 1).features
    assert features is not None
    return features[:1]


def test_what_a_tree_cannot_do_is_named(models: Models) -> None:
    drafter = open_drafter(models)
    drafter.begin(at(draft_features(models, TOKENS), 0, 1))
    with pytest.raises(EngineError, match="cells from"):
        drafter.expand_tree(1, ranked(CONFIG.cells + 1, 2))
    drafter.expand_tree(1, ranked(2, 2))
    with pytest.raises(EngineError, match="first call of a cycle"):
        drafter.expand_tree(1, ranked(2, 2))
    unsure = open_drafter(models, SamplingParams(guidance=2.5, temperature=0.0))
    assert not unsure.fuses_trees, "its distributions are made on the host"
    unsure.begin(at(draft_features(models, TOKENS), 0, 1))
    with pytest.raises(EngineError, match="no tree by itself"):
        unsure.expand_tree(1, ranked(1, 2))
    tree = Eagle2(2, 2, 3).grow(unsure, 1, Budget(4, 8), sampling(0))
    assert tree.size == 3, "a chain of the one token that has any mass"
