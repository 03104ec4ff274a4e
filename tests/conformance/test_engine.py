"""ONNX Runtime engines: whatever the tree and the history, they compute what the torch modules compute."""

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.conformance.conftest import CAPTION, CONFIG, WORDS, Models
from tests.conformance.families import Family, Outputs
from tests.conformance.timed import Tally, TimedDrafter, TimedTarget
from tests.models.test_golden import load_case, regenerate
from tests.published.llamagen_reference import Transformer, TransformerConfig
from underpaint.algos.accept.point import PointProposals
from underpaint.algos.arrays import IntArray
from underpaint.algos.chance import sampling
from underpaint.algos.draft.eagle2 import Eagle2
from underpaint.algos.rows import SamplingParams, sampling_probs
from underpaint.algos.spatial.target import Feed
from underpaint.algos.step import Scored, decode
from underpaint.algos.tree import DraftTree, Verdict, root_only
from underpaint.export.checkpoint import Request, export_checkpoint
from underpaint.models.config import build
from underpaint.models.published.options import LoadOptions
from underpaint.runtime.engines.context import EngineContext, EngineError
from underpaint.runtime.engines.drafter import EngineDrafter
from underpaint.runtime.engines.target import EngineGridTarget, EngineTarget

PAIR = SamplingParams(guidance=2.5)
ONE_ROW = SamplingParams()
ONE_THREAD = EngineContext(threads=1)
CELLS = CONFIG.cells
TOKENS = np.random.default_rng(3).integers(0, 16, CELLS)  # every family has as many codes
PARENTS = (-1, 0, 0, 1, 1, 2, 3, 5)
OPEN_TARGET, OPEN_DRAFTER = EngineTarget.open, EngineDrafter.open
"""As they are where no test has models run on another engine."""


@pytest.fixture(autouse=True, params=[64, 5], ids=["one_block", "blocks_of_5"])
def _block(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test with a cache that is read whole, and with one that grows."""
    monkeypatch.setattr("underpaint.runtime.engines.cache.BLOCK", request.param)


@cache
def loaded_target(folder: Path) -> EngineTarget:
    return OPEN_TARGET("target", ONE_ROW, folder, ONE_THREAD)


@cache
def loaded_drafter(folder: Path, name: str) -> EngineDrafter:
    return OPEN_DRAFTER(name, ONE_ROW, folder, ONE_THREAD)


def open_target(family: Family, sampler: SamplingParams = PAIR, absent: bool = False) -> EngineTarget:
    """A target with an engine, a cache and buffers of its own; its file is read once a process."""
    if EngineTarget.open == OPEN_TARGET:
        target = loaded_target(family.folder).fork()
        target.sample_by(sampler)
    else:
        target = EngineTarget.open("target", sampler, family.folder, ONE_THREAD)
    family.condition(target, absent)
    return target


def open_drafter(family: Family, sampler: SamplingParams = PAIR, name: str = "drafter") -> EngineDrafter:
    if not family.drafts:
        pytest.skip("no drafter of this form is published")
    if EngineDrafter.open != OPEN_DRAFTER:
        return EngineDrafter.open(name, sampler, family.folder, ONE_THREAD)
    drafter = loaded_drafter(family.folder, name).fork()
    drafter.sample_by(sampler)
    return drafter


_DENSE: dict[tuple[Path, tuple[int, ...]], Outputs] = {}


def dense(family: Family, tokens: IntArray) -> Outputs:
    """What the reference says, see `Family`; of equal tokens it is asked once a process."""
    key = family.folder, tuple(tokens.tolist())
    if key not in _DENSE:
        _DENSE[key] = family.dense(tokens)
    logits, features = _DENSE[key]
    return logits.clone(), features.clone()


def tree_of(tokens: IntArray, parents: tuple[int, ...] = PARENTS) -> DraftTree:
    count = len(parents)
    return DraftTree(
        tokens=np.asarray(tokens[:count], dtype=np.int64),
        parents=np.array(parents),
        drawn="iid",
        draft_probs=np.empty((0, CONFIG.vocab_size)),
        draft_rows=np.full(count, -1),
    )


def chain(tokens: IntArray) -> DraftTree:
    return tree_of(tokens, tuple(range(-1, len(tokens) - 1)))


def memory_of(target: EngineTarget) -> np.ndarray:
    """A copy of all keys, those behind the slots that passes read too."""
    memory = target.engine.memory  # type: ignore[attr-defined]
    return np.asarray(getattr(memory, "key_memory", memory.keys)).copy()


def feed_one_by_one(target: EngineTarget, tokens: IntArray) -> list[Scored]:
    """Commit tokens one a pass; what each pass said."""
    scores = []
    for token in tokens:
        tree = root_only(int(token), CONFIG.vocab_size)
        scores.append(target.score(tree))
        target.commit(tree, Verdict((), 0))
    return scores


@pytest.mark.parametrize("drawn", [0, 1, 7, CELLS - 4])
def test_a_tree_scores_like_each_of_its_paths(family: Family, drawn: int) -> None:
    target = open_target(family)
    target.begin()
    feed_one_by_one(target, TOKENS[:drawn])
    tree = tree_of(TOKENS[::-1])
    scored = target.score(tree)
    alone = open_target(family)
    for node in range(tree.size):
        path = tree.tokens[[0, *tree.path_to(node)]]
        alone.begin()
        expected = feed_one_by_one(alone, np.concatenate([TOKENS[:drawn], path]))[-1]
        np.testing.assert_allclose(scored.probs[node], expected.probs[0], atol=1e-5)
        assert scored.features is not None
        assert expected.features is not None
        np.testing.assert_allclose(scored.features[:, node], expected.features[:, 0], atol=1e-4)


def test_commits_of_accepted_nodes_continue_like_a_dense_pass(family: Family) -> None:
    target = open_target(family)
    scored = target.begin()
    prompt = target.engine.cache.length
    logits, features = (each.numpy() for each in dense(family, TOKENS))
    expected = sampling_probs(logits, PAIR)
    np.testing.assert_allclose(scored.probs[0], expected[0], atol=1e-5)
    done = 0
    while done < CELLS:
        # Nodes 1, 3 and 6 of the tree are the true tokens, the others are wrong: they must leave no trace.
        true = TOKENS[done : done + 4]
        tokens = np.full(len(PARENTS), 11)
        parents = PARENTS if len(true) == 4 else tuple(range(-1, len(true) - 1))
        accepted = (1, 3, 6) if len(true) == 4 else tuple(range(1, len(true)))
        tokens[[0, *accepted]] = true
        tree = tree_of(tokens, parents)
        scored = target.score(tree)
        nodes = [0, *accepted]
        after = slice(done + 1, done + 1 + len(true))
        np.testing.assert_allclose(scored.probs[nodes], expected[after], atol=1e-5)
        assert scored.features is not None
        np.testing.assert_allclose(scored.features[:, nodes], features[:, after], atol=1e-4)
        target.commit(tree, Verdict(accepted, 0))
        done += len(true)
    # A shorter prompt than the longest leaves slots free; all others fill the cache to the last.
    free = target.engine.config.prefix - prompt
    lines = target.engine.config.eol_tokens
    assert target.engine.cache.length == prompt + CELLS + lines == target.engine.config.capacity - free


def test_rejected_nodes_never_enter_the_cache(family: Family) -> None:
    one, other = open_target(family), open_target(family)
    for target in (one, other):
        target.begin()
    tree = tree_of(TOKENS)
    before = memory_of(one)
    one.score(tree)
    np.testing.assert_array_equal(memory_of(one), before)
    one.commit(tree, Verdict((2, 5), 0))
    feed_one_by_one(other, TOKENS[[0, 2, 5]])
    for part in ("keys", "values"):
        actual, expected = (np.asarray(getattr(target.engine.memory, part)) for target in (one, other))
        np.testing.assert_allclose(actual, expected, atol=1e-5)
    assert not one.engine.memory.keys[..., one.engine.cache.length :].any()
    assert not one.engine.memory.values[:, :, :, one.engine.cache.length :].any()


def test_a_full_cache_takes_no_more(family: Family) -> None:
    target = open_target(family)
    target.begin()
    feed_one_by_one(target, TOKENS)
    with pytest.raises(EngineError, match=r"expected cells from -\d+ to 15"):
        target.score(root_only(0, CONFIG.vocab_size))
    target.begin()
    feed_one_by_one(target, TOKENS[:-1])
    with pytest.raises(EngineError, match="shallower tree"):
        target.score(chain(TOKENS[:2]))


def test_the_guidance_pair_equals_two_separate_runs(family: Family) -> None:
    together, conditional, unconditional = (
        open_target(family),
        open_target(family, ONE_ROW),
        open_target(family, ONE_ROW, absent=True),
    )
    tree = tree_of(TOKENS)
    for target in (together, conditional, unconditional):
        target.begin()
        feed_one_by_one(target, TOKENS[:5])
    rows = []
    for target in (conditional, unconditional):
        target.score(tree)
        assert target._pass is not None
        assert target._layout is not None
        rows.append(target._pass.logits[0, target._layout.outputs].copy())
    np.testing.assert_allclose(together.score(tree).probs, sampling_probs(np.stack(rows), PAIR), atol=1e-5)


def test_no_pass_moves_or_copies_a_cache(family: Family) -> None:
    target, drafter = open_target(family), open_drafter(family) if family.drafts else None
    buffers = [part.engine.memory for part in (target, drafter) if part is not None]
    before = [(cache.keys.ctypes.data, cache.values.ctypes.data) for cache in buffers]
    for seed in range(2):
        decode(target, drafter, Eagle2(3, 3, 6), PointProposals(), sampling(seed), max_nodes=8)
    assert [(cache.keys.ctypes.data, cache.values.ctypes.data) for cache in buffers] == before
    names = {value.name for value in target.decoder.session.get_outputs()}
    assert {name for name in names if "key" in name} == {"new_key_0", "new_key_1"}
    for bound in target.engine._bound.values():
        count = bound.inputs["cells"].shape[1]
        assert bound.new_keys.shape[3] == count
        assert bound.inputs["bias"].shape[2] <= target.engine.config.capacity + count
        assert np.shares_memory(bound.new_keys, target.engine._buffers._arrays["new_keys"])


def test_greedy_decoding_takes_what_the_reference_likes_best(family: Family) -> None:
    """Drawn token by token through the cache; then one dense pass over the picture agrees with every choice."""
    greedy = SamplingParams(guidance=2.5, temperature=0)
    tokens = decode(open_target(family, greedy), None, Eagle2(1, 1, 1), PointProposals(), sampling(0)).tokens
    reference_probs = sampling_probs(dense(family, np.asarray(tokens[:-1]))[0].numpy(), greedy)
    np.testing.assert_array_equal(tokens, reference_probs.argmax(axis=-1))
    assert len(set(tokens.tolist())) > 1


def draft_features(family: Family, tokens: IntArray) -> Scored:
    """What a target said while it took in `tokens`, as one `Scored` per position."""
    logits, features = (each.numpy() for each in dense(family, tokens))
    return Scored(sampling_probs(logits, PAIR), features)


def draft_reference(family: Family, tokens: IntArray, true_count: int, drafted: IntArray) -> np.ndarray:
    """The distribution after the last of [tokens[:true_count], drafted]: true features up to `true_count`, predicted
    ones beyond."""
    features = dense(family, tokens)[1][:, :true_count]
    fed = np.concatenate([tokens[:true_count], drafted])
    for count in range(true_count, len(fed) + 1):
        logits, predicted = family.draft(features, fed[:count])
        features = torch.cat([features, predicted[:, -1:]], dim=1)
    return np.asarray(sampling_probs(logits[:, -1:].numpy(), PAIR))[0]


def test_a_draft_tree_follows_eagle_path_by_path(family: Family) -> None:
    drafter = open_drafter(family)
    scored = draft_features(family, TOKENS)
    assert scored.features is not None
    drafter.begin(Scored(scored.probs[:1], scored.features[:, :1]))
    root = drafter.expand(TOKENS[:1], np.array([-1]))
    np.testing.assert_allclose(root[0], draft_reference(family, TOKENS, 1, TOKENS[:0]), atol=1e-5)
    parents = [-1]
    tokens = [int(TOKENS[0])]
    for level in ([(3, 0), (9, 0)], [(1, 1), (2, 2), (3, 2)], [(5, 5), (6, 3)]):
        distributions = drafter.expand(
            np.array([token for token, _ in level]), np.array([parent for _, parent in level])
        )
        for row, (token, parent) in enumerate(level):
            tokens.append(token)
            parents.append(parent)
            path, node = [], len(tokens) - 1
            while node > 0:
                path.append(tokens[node])
                node = parents[node]
            expected = draft_reference(family, TOKENS, 1, np.array(path[::-1]))
            np.testing.assert_allclose(distributions[row], expected, atol=1e-5)


def test_a_verdict_brings_true_features_and_forgets_the_draft(family: Family) -> None:
    drafter = open_drafter(family)
    scored = draft_features(family, TOKENS)
    assert scored.features is not None
    drafter.begin(Scored(scored.probs[:1], scored.features[:, :1]))
    done = 0  # index of the root
    for accepted, drafts in ((2, True), (0, True), (1, False), (0, False), (3, True), (2, True)):
        if drafts:
            drafter.expand(TOKENS[done : done + 1], np.array([-1]))
            drafter.expand(np.array([1, 2]), np.array([0, 0]))
            distributions = drafter.expand(np.array([8]), np.array([2]))
            expected = draft_reference(family, TOKENS, done + 1, np.array([2, 8]))
            np.testing.assert_allclose(distributions[0], expected, atol=1e-5)
        tree = chain(TOKENS[done : done + 1 + accepted])
        verdict = Verdict(tuple(range(1, accepted + 1)), int(TOKENS[done + accepted + 1]))
        rows = slice(done + 1, done + 2 + accepted)
        drafter.commit(tree, verdict, Scored(scored.probs[rows], scored.features[:, rows]))
        if drafts:
            assert drafter.engine.cache.length == done + 1
        done += accepted + 1
    distributions = drafter.expand(TOKENS[done : done + 1], np.array([-1]))
    np.testing.assert_allclose(distributions[0], draft_reference(family, TOKENS, done + 1, TOKENS[:0]), atol=1e-5)


def test_tokens_that_no_draft_read_are_fed_in_parts_where_a_pass_is_small(
    family: Family, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After many cycles without a draft they are more than one pass of an engine with fixed sizes takes."""
    drafter, sizes = open_drafter(family), list[int]()
    monkeypatch.setattr(type(drafter.decoder), "max_positions", lambda self, rows: 2)
    run = drafter.engine.run

    def noted(tokens: IntArray, *arguments: Any, **options: Any) -> Any:
        sizes.append(len(tokens))
        return run(tokens, *arguments, **options)

    monkeypatch.setattr(drafter.engine, "run", noted)
    scored = draft_features(family, TOKENS)
    assert scored.features is not None
    drafter.begin(Scored(scored.probs[:1], scored.features[:, :1]))
    sizes.clear()
    for done in range(5):
        rows = slice(done + 1, done + 2)
        verdict = Verdict((), int(TOKENS[done + 1]))
        drafter.commit(chain(TOKENS[done : done + 1]), verdict, Scored(scored.probs[rows], scored.features[:, rows]))
    distributions = drafter.expand(TOKENS[5:6], np.array([-1]))
    np.testing.assert_allclose(distributions[0], draft_reference(family, TOKENS, 6, TOKENS[:0]), atol=1e-5)
    assert sizes == [2, 2, 2]


def test_a_drafter_says_what_it_cannot_do(family: Family) -> None:
    drafter = open_drafter(family)
    with pytest.raises(EngineError, match="begin"):
        drafter.expand(np.array([1]), np.array([-1]))
    target = open_target(family)
    scored = target.begin()
    with pytest.raises(EngineError, match="expected target features"):
        open_drafter(family, ONE_ROW).begin(scored)
    drafter.begin(scored)
    with pytest.raises(EngineError, match="the root alone"):
        drafter.expand(np.array([1, 2]), np.array([-1, 0]))
    drafter.expand(np.array([1]), np.array([-1]))
    with pytest.raises(EngineError, match="expected parents from 0 to 0"):
        drafter.expand(np.array([1]), np.array([1]))
    scratch = drafter.engine.config.capacity - CELLS
    drafter.expand(np.arange(scratch) % 16, np.zeros(scratch, dtype=np.int64))
    drafter.expand(np.zeros(CELLS - 1, dtype=np.int64), np.ones(CELLS - 1, dtype=np.int64))
    drafter.expand(np.array([1]), np.array([1]))
    with pytest.raises(EngineError, match="draft fewer nodes"):
        drafter.expand(np.array([1]), np.array([1]))


def test_an_8_bit_drafter_drafts_nearly_the_same(models: Models) -> None:
    scored = draft_features(models, TOKENS)
    assert scored.features is not None
    distributions = []
    for name in ("drafter", "drafter_int8"):
        drafter = open_drafter(models, name=name)
        drafter.begin(Scored(scored.probs[:1], scored.features[:, :1]))
        root = drafter.expand(TOKENS[:1], np.array([-1]))
        distributions.append(np.concatenate([root, drafter.expand(np.array([1, 2]), np.array([0, 0]))]))
    differences = 0.5 * np.abs(distributions[0] - distributions[1]).sum(axis=1)
    assert 0 < differences.max() < 0.1


def test_an_8_bit_row_does_not_depend_on_the_rows_beside_it(models: Models) -> None:
    scored = draft_features(models, TOKENS)
    assert scored.features is not None
    distributions = []
    for beside in ([1], [1, 2], [1, 5, 9, 3]):
        drafter = open_drafter(models, name="drafter_int8")
        drafter.begin(Scored(scored.probs[:1], scored.features[:, :1]))
        drafter.expand(TOKENS[:1], np.array([-1]))
        distributions.append(drafter.expand(np.array(beside), np.zeros(len(beside), dtype=np.int64))[0])
    for distribution in distributions[1:]:
        np.testing.assert_allclose(distribution, distributions[0], atol=1e-6)


def test_drafting_changes_no_greedy_picture(family: Family) -> None:
    hold_greedy_pictures_together(family, "drafter")


def test_8_bit_drafting_changes_no_greedy_picture(models: Models) -> None:
    hold_greedy_pictures_together(models, "drafter_int8")


def hold_greedy_pictures_together(family: Family, name: str) -> None:
    sampler = SamplingParams(guidance=2.5, temperature=0)
    target, drafter = open_target(family, sampler), open_drafter(family, sampler, name)
    plain = decode(target, None, Eagle2(1, 1, 1), PointProposals(), sampling(0))
    tally = Tally()
    fast = decode(
        TimedTarget(target, tally), TimedDrafter(drafter, tally), Eagle2(3, 2, 5), PointProposals(), sampling(0)
    )
    np.testing.assert_array_equal(plain.tokens, fast.tokens)
    assert tally.calls["verify"] == len(fast.cycles) - 1
    assert tally.calls["draft"] >= tally.calls["verify"] - 1
    assert 0 < tally.seconds["verify"] < tally.total_seconds


def test_a_grid_target_scores_cells_in_any_order(family: Family) -> None:
    raster, grid = open_target(family), EngineGridTarget(open_target(family))
    np.testing.assert_allclose(grid.begin(), raster.begin().probs[0], atol=1e-6)
    scores = feed_one_by_one(raster, TOKENS[:6])
    cached = np.zeros((4, CELLS), dtype=np.bool_)
    visible = np.tril(np.ones((4, 4), dtype=np.bool_))
    distributions_of = grid.score(Feed(np.arange(4), TOKENS[:4], visible, cached))
    np.testing.assert_allclose(distributions_of[3], scores[3].probs[0], atol=1e-5)
    # Committed in any order, and cell 2 not at all: it is fed again with the next pass.
    grid.commit(np.array([3, 0, 1]))
    cached = np.zeros((3, CELLS), dtype=np.bool_)
    cached[:, [0, 1]] = True
    cached[1:, 3] = True
    visible = np.tril(np.ones((3, 3), dtype=np.bool_))
    distributions = grid.score(Feed(np.array([2, 4, 5]), TOKENS[[2, 4, 5]], visible, cached))
    np.testing.assert_allclose(distributions[0], scores[2].probs[0], atol=1e-5)
    np.testing.assert_allclose(distributions[2], scores[5].probs[0], atol=1e-5)
    grid.commit(np.array([0]))
    with pytest.raises(EngineError, match="not committed yet"):
        grid.commit(np.array([0]))


def test_bad_conditions_and_orders_of_calls_are_named(models: Models) -> None:
    target = EngineTarget.open("target", PAIR, models.folder, ONE_THREAD)
    with pytest.raises(EngineError, match="no condition is set"):
        target.begin()
    for ids in ([1, 2], [1, 2, WORDS], [-1, 2, 3]):
        with pytest.raises(EngineError, match="expected 3 ids between 0 and 8, got"):
            target.prepare(target.encoder.of_ids(np.array(ids)))
    target.prepare(target.encoder.of_ids(CAPTION))
    tree = root_only(3, CONFIG.vocab_size)
    with pytest.raises(EngineError, match="call begin"):
        target.score(tree)
    target.begin()
    with pytest.raises(EngineError, match="scored last"):
        target.commit(tree, Verdict((), 0))
    with pytest.raises(EngineError, match="tokens from 0 to 16"):
        target.score(root_only(17, CONFIG.vocab_size))


def test_llamagen_logits_through_the_engine(tmp_path: Path) -> None:
    case = load_case("llamagen_c2i_tiny")
    config = build(TransformerConfig, case["config"])
    transformer = Transformer(config).eval()
    with torch.no_grad():
        regenerate(transformer, case["manifest"], 0.08)
    torch.save({"model": transformer.state_dict()}, tmp_path / "c2i.pt")
    options = LoadOptions(heads=config.n_head, grid_side=config.grid_side)
    export_checkpoint(Request("llamagen-c2i", tmp_path / "c2i.pt", options=options), tmp_path / "out")
    target = EngineTarget.open("target", PAIR, tmp_path / "out", ONE_THREAD)
    classes, tokens = case["cond"], case["tokens"]
    assert classes[1] == config.num_classes
    target.prepare(target.encoder.of_ids(classes[:1]))
    np.testing.assert_allclose(target.begin().probs, sampling_probs(case["logits"][:, :1], PAIR), atol=1e-4)
    engine = target.engine
    for cell in range(tokens.shape[1] - 1):
        result = engine.run(tokens[:, cell : cell + 1], np.array([cell]), np.zeros((1, 1)))
        engine.cache.commit(slice(None))
        np.testing.assert_allclose(result.logits[:, 0], case["logits"][:, cell + 1], atol=1e-4)
