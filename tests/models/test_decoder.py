"""The two ways through a target agree, whatever the mask and the order of cells."""

from dataclasses import replace

import pytest
import torch

from tests.models.tiny import TINY, tiny_target
from underpaint.artifacts.decoder_config import DecoderConfig
from underpaint.artifacts.decoder_graph import MASKED_SCORE
from underpaint.models.config import build
from underpaint.models.decoder import causal_bias
from underpaint.models.layers import rope_table
from underpaint.models.sample import filter_logits, sample
from underpaint.models.text import with_condition_table


@torch.no_grad()
def test_a_draft_tree_scores_every_path_as_its_own_sequence() -> None:
    """Root, two children and a grandchild in one pass equal the two sequences one after the other."""
    target = tiny_target()
    model, rows = target.decoder, target.condition(torch.arange(1, 9)[None])
    empty = model.empty_cache(1)
    prefix = model.step_rows(rows, torch.arange(-8, 0), causal_bias(8), empty, empty)
    nodes, parents, cells = torch.tensor([[3, 5, 7, 9]]), [-1, 0, 0, 2], torch.tensor([0, 1, 1, 2])
    bias = torch.full((4, 12), float(MASKED_SCORE))
    bias[:, :8] = 0
    for node in range(4):
        at = node
        while at >= 0:
            bias[node, 8 + at] = 0
            at = parents[at]
    out = model.step(nodes, cells, bias, prefix.keys, prefix.values)
    left, _ = model(torch.tensor([[3, 5]]), rows)
    right, _ = model(torch.tensor([[3, 7, 9]]), rows)
    torch.testing.assert_close(prefix.logits[:, -1], left[:, 0], atol=1e-5, rtol=0)
    torch.testing.assert_close(out.logits[:, [0, 1]], left[:, 1:], atol=1e-5, rtol=0)
    torch.testing.assert_close(out.logits[:, [0, 2, 3]], right[:, 1:], atol=1e-5, rtol=0)


@torch.no_grad()
def test_rows_may_stand_at_cells_and_see_slots_of_their_own() -> None:
    model = tiny_target().decoder
    torch.manual_seed(1)
    keys, values = ([torch.randn(2, 2, 6, 16) for _ in model.layers] for _ in range(2))
    tokens, cells = torch.tensor([[4, 5], [6, 7]]), torch.tensor([[4, 9], [2, 3]])
    bias = torch.cat([torch.zeros(2, 2, 6), causal_bias(2).expand(2, 2, 2)], dim=2)
    bias[0, :, 3:6] = float(MASKED_SCORE)
    both = model.step(tokens, cells, bias, keys, values)
    for row, seen in ((0, 3), (1, 6)):
        one = model.step(
            tokens[row : row + 1],
            cells[row],
            torch.cat([torch.zeros(2, seen), causal_bias(2)], dim=1),
            [key[row : row + 1, :, :seen] for key in keys],
            [value[row : row + 1, :, :seen] for value in values],
        )
        torch.testing.assert_close(both.logits[row], one.logits[0], atol=1e-5, rtol=0)


def test_the_rotary_table_is_zero_on_the_prefix_and_turns_rows_and_columns_apart() -> None:
    table = rope_table(TINY).transpose(1, 2)
    assert table.shape == (16 + 8, 8, 2)
    assert torch.count_nonzero(table[16:]) == 0
    cell = {(row, column): table[4 * row + column] for row in range(4) for column in range(4)}
    assert torch.equal(cell[2, 1][:4], cell[2, 3][:4])
    assert torch.equal(cell[1, 3][4:], cell[2, 3][4:])
    assert not torch.equal(cell[1, 3][:4], cell[2, 3][:4])
    torch.testing.assert_close(table[:16].square().sum(-1), torch.ones(16, 8))


def test_a_condition_that_is_not_turned_can_be_chosen_from() -> None:
    """Zero keys give every word of a condition the same share; keys as they are do not."""
    plain = rope_table(replace(TINY, rope_prefix="identity"))
    assert torch.equal(plain[:16], rope_table(TINY)[:16])
    assert torch.equal(plain[16:, 0], torch.ones(8, 8))
    assert torch.count_nonzero(plain[16:, 1]) == 0
    rows = torch.randn(1, 8, TINY.dim)
    for prefix in ("zero", "identity"):
        model = tiny_target(config=replace(TINY, rope_prefix=prefix)).decoder
        empty = model.empty_cache(1)
        with torch.no_grad():
            keys = model.step_rows(rows, torch.arange(-8, 0), causal_bias(8), empty, empty).keys
        assert all(bool((key == 0).all()) == (prefix == "zero") for key in keys)


@torch.no_grad()
def test_a_row_of_pads_is_the_unconditional_embedding() -> None:
    target = tiny_target()
    ids = torch.stack([torch.arange(1, 9), torch.zeros(8, dtype=torch.int64)])
    features = target.features(ids)
    torch.testing.assert_close(features[1], target.conditioner.absent)
    torch.testing.assert_close(features[0], target.words(ids)[0])


@torch.no_grad()
def test_a_table_of_conditions_says_what_the_encoder_says() -> None:
    target = tiny_target()
    decoder, words = with_condition_table(target), torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6], [0] * 8])
    absent = torch.arange(decoder.config.cond_ids - 8, decoder.config.cond_ids)
    ids = torch.stack([words[0], absent]) + TINY.vocab_size
    torch.testing.assert_close(decoder.embed(ids, None), target.condition(words))


@pytest.mark.parametrize("change", [{"heads": 16}, {"heads": 5}])
def test_sizes_that_cannot_work_raise(change: dict[str, object]) -> None:
    plain: dict[str, object] = {"dim": 32, "layers": 1, "heads": 2, "hidden": 8, "vocab_size": 8, "grid_side": 4}
    with pytest.raises(ValueError, match="rotary pairs"):
        build(DecoderConfig, plain | {"prefix": 1} | change)


def test_unknown_and_absent_keys_raise() -> None:
    with pytest.raises(ValueError, match="unknown setting 'depth'"):
        build(DecoderConfig, {"depth": 3})
    with pytest.raises(ValueError, match="missing setting dim"):
        build(DecoderConfig, {"layers": 1, "heads": 1, "vocab_size": 3})


@torch.no_grad()
def test_greedy_sampling_is_the_guided_argmax_of_the_forward_pass() -> None:
    target = tiny_target()
    words = torch.stack([torch.arange(1, 9), torch.arange(9, 17)])
    codes = sample(target, words, guidance=2.0, temperature=0)
    conditional, _ = target(codes, words)
    unconditional, _ = target(codes, torch.zeros_like(words))
    guided = unconditional + 2.0 * (conditional - unconditional)
    assert torch.equal(guided.argmax(dim=-1), codes)


def test_top_k_keeps_k_tokens_and_normalises() -> None:
    probs = filter_logits(torch.tensor([[1.0, 3.0, 2.0, 0.0]]), temperature=0.5, top_k=2)
    torch.testing.assert_close(probs, torch.softmax(torch.tensor([[-torch.inf, 6.0, 4.0, -torch.inf]]), dim=-1))
