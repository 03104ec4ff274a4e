"""The two ways through a target agree, whatever the mask and the order of cells."""

from pathlib import Path

import pytest
import torch

from tests.models.tiny import TINY, tiny_target, tiny_tokens
from underpaint.models.checkpoints import load_target
from underpaint.models.config import build
from underpaint.models.layers import MASKED, causal_bias
from underpaint.models.sample import filter_logits, sample
from underpaint.models.text import WordEncoder, caption_features
from underpaint.models.train.loop import LoopSettings
from underpaint.models.train.target import TargetSettings, train_target
from underpaint.models.transformer import Transformer, TransformerConfig, rotary_table


@torch.no_grad()
def test_a_draft_tree_scores_every_path_as_its_own_sequence() -> None:
    """Root, two children and a grandchild in one pass equal the two sequences one after the other."""
    target = tiny_target()
    model = target.transformer
    words = torch.arange(1, 9)[None]
    cond = caption_features(target.words, model, words)
    prefix = model.step(
        model.embed_condition(cond),
        model.cells(0),
        causal_bias(8),
        model.empty_cache(1),
        model.empty_cache(1),
        torch.zeros(0),
    )
    nodes, parents, cells = torch.tensor([[3, 5, 7, 9]]), [-1, 0, 0, 2], torch.tensor([0, 1, 1, 2])
    bias = torch.full((4, 4), MASKED)
    for node in range(4):
        at = node
        while at >= 0:
            bias[node, at] = 0
            at = parents[at]
    out = model.step(model.embed_tokens(nodes), cells, bias, prefix.keys, prefix.values, torch.zeros(8))
    left, _ = model(torch.tensor([[3, 5]]), cond)
    right, _ = model(torch.tensor([[3, 7, 9]]), cond)
    torch.testing.assert_close(prefix.logits[:, -1], left[:, 0], atol=1e-5, rtol=0)
    torch.testing.assert_close(out.logits[:, [0, 1]], left[:, 1:], atol=1e-5, rtol=0)
    torch.testing.assert_close(out.logits[:, [0, 2, 3]], right[:, 1:], atol=1e-5, rtol=0)


@torch.no_grad()
def test_past_bias_may_differ_between_new_positions() -> None:
    target = tiny_target()
    model = target.transformer
    torch.manual_seed(1)
    keys, values = ([torch.randn(2, 2, 6, 16) for _ in model.layers] for _ in range(2))
    embeddings, cells = torch.randn(2, 2, 32), torch.tensor([4, 9])
    past_bias = torch.zeros(2, 6)
    past_bias[0, 3:] = MASKED
    alone = torch.full((2, 2), MASKED).fill_diagonal_(0)
    both = model.step(embeddings, cells, alone, keys, values, past_bias)
    for row, kept in ((0, 3), (1, 6)):
        one = model.step(
            embeddings[:, row : row + 1],
            cells[row : row + 1],
            torch.zeros(1, 1),
            [key[:, :, :kept] for key in keys],
            [value[:, :, :kept] for value in values],
            torch.zeros(kept),
        )
        torch.testing.assert_close(both.logits[:, row], one.logits[:, 0], atol=1e-5, rtol=0)


def test_the_rotary_table_is_zero_on_the_prefix_and_turns_rows_and_columns_apart() -> None:
    table = rotary_table(TINY)
    assert table.shape == (17, 8, 2)
    assert torch.count_nonzero(table[0]) == 0
    cell = {(row, column): table[1 + 4 * row + column] for row in range(4) for column in range(4)}
    assert torch.equal(cell[2, 1][:4], cell[2, 3][:4])
    assert torch.equal(cell[1, 3][4:], cell[2, 3][4:])
    assert not torch.equal(cell[1, 3][:4], cell[2, 3][:4])
    torch.testing.assert_close(table[1:].square().sum(-1), torch.ones(16, 8))


@torch.no_grad()
def test_a_row_of_pads_is_the_unconditional_embedding() -> None:
    target = tiny_target()
    ids = torch.stack([torch.arange(1, 9), torch.zeros(8, dtype=torch.int64)])
    captions = caption_features(target.words, target.transformer, ids)
    torch.testing.assert_close(captions[1], target.transformer.cls_embedding.uncond_embedding)
    torch.testing.assert_close(captions[0], target.words(ids)[0])


def test_captions_for_a_class_conditional_model_raise() -> None:
    config = TransformerConfig(dim=32, n_layer=1, n_head=2, vocab_size=8, block_size=4)
    with pytest.raises(TypeError, match="class labels"):
        caption_features(WordEncoder(5, 12), Transformer(config), torch.ones(1, 8, dtype=torch.int64))


@pytest.mark.parametrize(
    ("change", "message"),
    [({"block_size": 15}, "square"), ({"n_head": 16}, "multiple of 4"), ({"model_type": "video"}, "model_type")],
)
def test_sizes_that_cannot_work_raise(change: dict[str, object], message: str) -> None:
    plain: dict[str, object] = {"dim": 32, "n_layer": 1, "n_head": 2, "vocab_size": 8, "block_size": 16}
    with pytest.raises(ValueError, match=message):
        build(TransformerConfig, plain | change)


def test_unknown_and_absent_keys_raise() -> None:
    with pytest.raises(ValueError, match="unknown setting 'depth'"):
        build(TransformerConfig, {"depth": 3})
    with pytest.raises(ValueError, match="missing setting dim, block_size"):
        build(TransformerConfig, {"n_layer": 1, "n_head": 1, "vocab_size": 3})


def test_hidden_width_follows_the_published_rule() -> None:
    assert TransformerConfig(dim=256, n_layer=1, n_head=4, vocab_size=8, block_size=4).hidden_dim == 768
    assert TransformerConfig(dim=768, n_layer=1, n_head=12, vocab_size=8, block_size=4).hidden_dim == 2048


@torch.no_grad()
def test_greedy_sampling_is_the_guided_argmax_of_the_forward_pass() -> None:
    target = tiny_target()
    words = torch.stack([torch.arange(1, 9), torch.arange(9, 17)])
    codes = sample(target.words, target.transformer, words, guidance=2.0, temperature=0)
    conditional, _ = target(codes, words)
    unconditional, _ = target(codes, torch.zeros_like(words))
    guided = unconditional + 2.0 * (conditional - unconditional)
    assert torch.equal(guided.argmax(dim=-1), codes)


def test_top_k_keeps_k_tokens_and_normalises() -> None:
    probs = filter_logits(torch.tensor([[1.0, 3.0, 2.0, 0.0]]), temperature=0.5, top_k=2)
    torch.testing.assert_close(probs, torch.softmax(torch.tensor([[-torch.inf, 6.0, 4.0, -torch.inf]]), dim=-1))


def test_a_target_learns_resumes_and_loads(tmp_path: Path) -> None:
    data = tiny_tokens()
    settings = TargetSettings(batch=16, validated=32)
    loop = LoopSettings(steps=60, learning_rate=5e-3, warmup_steps=5, validate_every=30)
    outcome = train_target(tmp_path / "a", data, data, 64, config=TINY, settings=settings, loop=loop)
    assert outcome.validation["validation_ce"] < 1.5 < torch.log(torch.tensor(24.0))
    words, transformer = load_target(tmp_path / "a" / "checkpoint.pt")
    conditional = caption_features(words, transformer, torch.from_numpy(data.words[:4]))
    codes = torch.from_numpy(data.codes[:4].astype("int64"))
    logits, _ = transformer(codes[:, :-1], conditional)
    found = torch.nn.functional.cross_entropy(logits.detach().flatten(0, 1), codes.flatten())
    assert float(found) < 1.6

    finer = build(TransformerConfig, {**{k: getattr(TINY, k) for k in TINY.__slots__}, "block_size": 64})
    wide = tiny_tokens()._replace(codes=data.codes.repeat(4, axis=1))
    start = train_target(
        tmp_path / "b",
        wide,
        wide,
        128,
        config=finer,
        settings=settings,
        loop=LoopSettings(steps=1, learning_rate=1e-9),
        init_from=tmp_path / "a" / "checkpoint.pt",
    )
    assert start.finished
    with pytest.raises(ValueError, match="64 cells"):
        train_target(tmp_path / "c", data, data, 128, config=finer, settings=settings, loop=loop)
