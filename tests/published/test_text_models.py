"""Chameleon and Qwen2 against `transformers`' own implementations on random weights."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from models.published.decoder import Decoder
from models.published.files import CheckpointError
from models.published.load import load
from models.published.options import LoadOptions
from tests.published.checkpoints import causal, randomise

pytest.importorskip("transformers", reason="the extra 'chameleon' is not installed")

CODES = 16
MAP = {"<image>": 60, **{f"IMGIMG{chr(65 + c // 10)}{chr(65 + c % 10)}Z": 4 + (7 * c) % CODES for c in range(CODES)}}
PROMPT = torch.tensor([[1, 40, 41, 42, 59], [1, 33, 50, 37, 59]])
OPTIONS = LoadOptions(grid_side=4, prefix=8)


def chameleon(swin: bool, kv_heads: int) -> Any:
    from transformers.models.chameleon import ChameleonConfig, ChameleonForConditionalGeneration

    tokenizer = {"embed_dim": 8, "num_embeddings": 8, "latent_channels": 8, "base_channels": 32}
    config = ChameleonConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=kv_heads,
        max_position_embeddings=64,
        swin_norm=swin,
        vocabulary_map=MAP,
        vq_config={**tokenizer, "channel_multiplier": [1], "num_res_blocks": 1, "resolution": 8},
    )
    model = ChameleonForConditionalGeneration(config).eval()
    randomise(model)
    return model


def qwen() -> Any:
    from transformers.models.qwen2 import Qwen2Config, Qwen2ForCausalLM

    config = Qwen2Config(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        tie_word_embeddings=True,
        rope_theta=1e6,
    )
    model = Qwen2ForCausalLM(config).eval()
    randomise(model)
    return model


def step_by_step(decoder: Decoder, prompt: Tensor, codes: Tensor) -> Tensor:
    """Logits [B, 1 + codes, V]: the prompt in one pass, then codes in passes of one, two and the rest."""
    config, batch = decoder.config, prompt.shape[0]
    keys, values = decoder.empty_cache(batch), decoder.empty_cache(batch)
    length = prompt.shape[1]
    parts = [(prompt + config.vocab_size, torch.arange(-length, 0))]
    parts += [(codes[:, cut], torch.arange(codes.shape[1])[cut]) for cut in (slice(0, 1), slice(1, 3), slice(3, None))]
    found = []
    with torch.no_grad():
        for tokens, cells in parts:
            out = decoder.step(tokens, cells, causal(len(cells), keys[0].shape[2]), keys, values)
            keys = [torch.cat(pair, dim=2) for pair in zip(keys, out.keys, strict=True)]
            values = [torch.cat(pair, dim=2) for pair in zip(values, out.values, strict=True)]
            found.append(out.logits)
    found[0] = found[0][:, -1:]
    return torch.cat(found, dim=1)


@pytest.mark.parametrize(("swin", "kv_heads"), [(False, 4), (True, 2)])
def test_chameleon_agrees_with_transformers(tmp_path: Path, swin: bool, kv_heads: int) -> None:
    model = chameleon(swin, kv_heads)
    model.save_pretrained(tmp_path)
    decoder = load("chameleon", tmp_path, options=OPTIONS).decoder
    assert decoder is not None
    ids = torch.tensor([4 + (7 * code) % CODES for code in range(CODES)])
    codes = torch.arange(18).reshape(2, 9) % CODES
    with torch.no_grad():
        hidden = model.model(input_ids=torch.cat([PROMPT, ids[codes]], dim=1)).last_hidden_state
        expected = model.lm_head(hidden[:, PROMPT.shape[1] - 1 :])[..., ids]
    torch.testing.assert_close(step_by_step(decoder, PROMPT, codes), expected, atol=1e-4, rtol=0)


def test_a_tree_sees_its_own_path_in_chameleon(tmp_path: Path) -> None:
    model = chameleon(False, 4)
    model.save_pretrained(tmp_path)
    decoder = load("chameleon", tmp_path, options=OPTIONS).decoder
    assert decoder is not None
    keys, values = decoder.empty_cache(2), decoder.empty_cache(2)
    length = PROMPT.shape[1]
    with torch.no_grad():
        out = decoder.step(PROMPT + CODES, torch.arange(-length, 0), causal(length), keys, values)
        seen = torch.tensor([[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [1, 0, 1, 1]])
        bias = torch.cat([torch.zeros(4, length), (1 - seen) * -1e9], dim=1)
        nodes, cells = torch.tensor([[3, 5, 7, 9]]).repeat(2, 1), torch.tensor([0, 1, 1, 2])
        tree = decoder.step(nodes, cells, bias, out.keys, out.values).logits
    ids = torch.tensor([4 + (7 * code) % CODES for code in range(CODES)])
    for node, path in enumerate([[0], [0, 1], [0, 2], [0, 2, 3]]):
        with torch.no_grad():
            fed = torch.cat([PROMPT, ids[nodes[:, path]]], dim=1)
            expected = model.lm_head(model.model(input_ids=fed).last_hidden_state[:, -1])[:, ids]
        torch.testing.assert_close(tree[:, node], expected, atol=1e-4, rtol=0)


def test_tars_language_model_agrees_with_transformers(tmp_path: Path) -> None:
    model = qwen()
    model.save_pretrained(tmp_path)
    settings = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(settings | {"num_image_tokens": CODES}))
    with pytest.raises(CheckpointError, match="give --first-code"):
        load("tar-lm", tmp_path, options=OPTIONS)
    decoder = load("tar-lm", tmp_path, options=LoadOptions(grid_side=4, prefix=8, first_code=20)).decoder
    assert decoder is not None
    codes = torch.arange(18).reshape(2, 9) % CODES
    with torch.no_grad():
        logits = model(input_ids=torch.cat([PROMPT, 20 + codes], dim=1)).logits
    expected = logits[:, PROMPT.shape[1] - 1 :, 20 : 20 + CODES]
    torch.testing.assert_close(step_by_step(decoder, PROMPT, codes), expected, atol=1e-4, rtol=0)


def test_text_models_without_their_config_are_refused(tmp_path: Path) -> None:
    chameleon(False, 4).save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(CheckpointError, match="'vocabulary_map'"):
        load("chameleon", tmp_path)
