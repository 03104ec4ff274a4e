"""A drafter's own greedy chain against the same chain drafted level by level."""

import numpy as np
import onnx
import pytest

from tests.conformance.conftest import CONFIG, Models
from tests.conformance.test_engine import ONE_ROW, PAIR, TOKENS, chain, draft_features, open_drafter, open_target
from tests.conformance.timed import Tally, TimedDrafter
from underpaint.algos.accept.point import PointProposals
from underpaint.algos.chance import sampling
from underpaint.algos.draft.chain import LikeliestChain
from underpaint.algos.draft.eagle2 import Eagle2
from underpaint.algos.rows import SamplingParams
from underpaint.algos.step import Scored, decode
from underpaint.algos.tree import DraftTree, Verdict
from underpaint.runtime.engines.context import EngineError

LEVELS = 5


def level_by_level(
    models: Models, name: str, sampler: SamplingParams, scored: Scored, trees: list[DraftTree]
) -> np.ndarray:
    """[trees, LEVELS]: what the drafter would chain below the root of each tree, by `expand` alone."""
    drafter = open_drafter(models, sampler, name)
    drafter.begin(at(scored, 0, 1))
    chains, done = [], 0
    for tree in trees:
        tokens, parent = [int(tree.tokens[0])], -1
        for _ in range(LEVELS):
            distribution = drafter.expand(np.array(tokens[-1:]), np.array([parent]))
            tokens.append(int(distribution[0].argmax()))
            parent += 1
        chains.append(tokens[1:])
        done = commit(drafter, tree, scored, done)
    return np.array(chains)


def at(scored: Scored, start: int, stop: int) -> Scored:
    assert scored.features is not None
    return Scored(scored.probs[start:stop], scored.features[:, start:stop])


def commit(drafter: object, tree: DraftTree, scored: Scored, done: int) -> int:
    """All of `tree` is accepted, and the next of TOKENS with it."""
    accepted = tree.size - 1
    verdict = Verdict(tuple(range(1, tree.size)), int(TOKENS[done + tree.size]))
    drafter.commit(tree, verdict, at(scored, done + 1, done + 1 + tree.size))  # type: ignore[attr-defined]
    return done + accepted + 1


@pytest.mark.parametrize("name", ["drafter", "drafter_int8"])
@pytest.mark.parametrize("sampler", [PAIR, ONE_ROW], ids=["pair", "one_row"])
def test_a_chain_is_what_its_levels_are(models: Models, name: str, sampler: SamplingParams) -> None:
    pair_scored = draft_features(models, TOKENS)
    assert pair_scored.features is not None
    scored = pair_scored if sampler is PAIR else Scored(pair_scored.probs, pair_scored.features[:1])
    trees, done = [], 0
    for accepted in (0, 2, 1, 3):
        trees.append(chain(TOKENS[done : done + 1 + accepted]))
        done += accepted + 1
    drafter, done = open_drafter(models, sampler, name), 0
    assert drafter.fuses_chains
    drafter.begin(at(scored, 0, 1))
    chains = []
    for tree in trees:
        chains.append(drafter.expand_chain(int(tree.tokens[0]), LEVELS))
        assert drafter.engine.cache.length == done + 1
        done = commit(drafter, tree, scored, done)
    expected = level_by_level(models, name, sampler, scored, trees)
    np.testing.assert_array_equal(np.array(chains), expected)
    assert len({tuple(row) for row in expected.tolist()}) > 1
    assert drafter.engine.cost.passes == LEVELS * len(trees)


def test_a_chain_leaves_the_root_to_be_expanded(models: Models) -> None:
    """After a chain of one cycle, a tree may still grow from its root, as if there had been no chain."""
    scored = draft_features(models, TOKENS)
    distributions = []
    for chains in (True, False):
        drafter = open_drafter(models)
        drafter.begin(at(scored, 0, 1))
        if chains:
            drafter.expand_chain(int(TOKENS[0]), 3)
        else:
            drafter.expand(TOKENS[:1], np.array([-1]))
        distributions.append(drafter.expand(np.array([3, 9]), np.array([0, 0])))
    np.testing.assert_allclose(distributions[0], distributions[1], atol=1e-6)


def test_a_whole_image_by_chains(models: Models) -> None:
    """Decoding with the drafter's chains and with its levels (hidden behind a clock) meets the same trees."""
    sampler = SamplingParams(guidance=2.5, temperature=0)
    pictures = []
    for wrapped in (False, True):
        target, drafter = open_target(models, sampler), open_drafter(models, sampler)
        seen = TimedDrafter(drafter, Tally()) if wrapped else drafter
        pictures.append(decode(target, seen, LikeliestChain(4), PointProposals(), sampling(0)))
    assert [cycle.tree.tokens.tolist() for cycle in pictures[0].cycles] == [
        cycle.tree.tokens.tolist() for cycle in pictures[1].cycles
    ]
    plain = decode(open_target(models, sampler), None, Eagle2(1, 1, 1), PointProposals(), sampling(0))
    np.testing.assert_array_equal(pictures[0].tokens, plain.tokens)


def test_what_a_chain_cannot_do_is_named(models: Models) -> None:
    drafter = open_drafter(models)
    with pytest.raises(EngineError, match="begin"):
        drafter.expand_chain(1, 2)
    drafter.begin(at(draft_features(models, TOKENS), 0, 1))
    with pytest.raises(EngineError, match="cells from"):
        drafter.expand_chain(1, CONFIG.cells + 1)
    drafter.expand_chain(1, 2)
    with pytest.raises(EngineError, match="first call of a cycle"):
        drafter.expand_chain(1, 2)
    target = open_target(models)
    target.begin()
    with pytest.raises(EngineError, match="expected 1 level"):
        target.engine.run(TOKENS[:1], np.array([0]), np.zeros((1, 1), np.float32), chain_levels=2)


def test_the_loops_hold_no_weights_of_their_own(models: Models) -> None:
    model = onnx.load(models.folder / "drafter.onnx")
    loops = [node for node in model.graph.node if node.op_type == "Loop"]
    assert loops
    for loop in loops:
        (body,) = (attribute.g for attribute in loop.attribute if attribute.name == "body")
        assert not body.initializer
        weights = {one.name for one in model.graph.initializer}
        widened = {node.output[0] for node in body.node if node.op_type in ("Constant", "Cast")}
        assert not any(set(node.input) & weights for node in body.node if node.output[0] in widened)
