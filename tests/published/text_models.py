"""Tiny random models of `transformers`, saved as their authors publish them, and a drafter for one of them."""

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tests.published.checkpoints import DIM, causal, eagle_weights, noise, randomise
from underpaint.models.published.options import LoadOptions

CODES = 16
PROMPT = torch.tensor([[1, 40, 41, 46, 51], [1, 33, 50, 37, 51]])
OPTIONS = LoadOptions(grid_side=4, prefix=8)
FIRST_CODE = 20
"""Of Tar's language model."""
IMAGE_IDS = torch.tensor([4 + (7 * code) % CODES for code in range(CODES)])
"""Chameleon's vocabulary ids of codes 0, 1, ..."""


def _name(code: int) -> str:
    return f"IMGIMG{chr(65 + code // 10)}{chr(65 + code % 10)}Z"


MARKS, LINE = (51, 53, 53), 52
"""Lumina-mGPT's ids before the codes of a picture of 64 by 64 pixels, and behind each row of them."""
LUMINA = LoadOptions(grid_side=4, prefix=11, layout="lumina")
MAP = {
    "<image>": 60,
    "<racm3:break>": MARKS[0],
    "<reserved08802>": MARKS[1],
    "<reserved08799>": LINE,
    **{_name(code): int(IMAGE_IDS[code]) for code in range(CODES)},
}


def chameleon(swin: bool, kv_heads: int) -> Any:
    from transformers.models.chameleon import ChameleonConfig, ChameleonForConditionalGeneration

    tokenizer = {"embed_dim": 8, "num_embeddings": CODES, "latent_channels": 8, "base_channels": 32}
    config = ChameleonConfig(
        vocab_size=64,
        hidden_size=DIM,
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
        hidden_size=DIM,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=12,
        max_position_embeddings=64,
        tie_word_embeddings=True,
        rope_theta=1e6,
    )
    model = Qwen2ForCausalLM(config).eval()
    randomise(model)
    return model


def save_qwen(folder: Path) -> Any:
    """Tar's language model; how many codes it has stands in its config."""
    model = qwen()
    model.save_pretrained(folder)
    settings = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(settings | {"num_image_tokens": CODES}))
    return model


@torch.no_grad()
def image_outputs(model: Any, ids: Tensor, prompt: Tensor, codes: Tensor) -> tuple[Tensor, Tensor]:
    """Logits of the image ids alone and features, [B, 1 + codes, ...], from `transformers`' own pass."""
    hidden = model.model(input_ids=torch.cat([prompt, ids[codes]], dim=1)).last_hidden_state[:, prompt.shape[1] - 1 :]
    return model.lm_head(hidden)[..., ids], hidden


@torch.no_grad()
def lumina_outputs(
    model: Any, prompt: Tensor, codes: Tensor, marks: tuple[int, ...] = MARKS, width: int = 4, cells: int = CODES
) -> tuple[Tensor, Tensor]:
    """Logits and features [1 + codes, ...] before each code and after the last, of a prompt [P] and codes [T].

    One pass of `transformers` over what Lumina-mGPT reads: prompt, marks, and rows of `width` codes with a line token
    each, but for the last of the `cells`, behind which nothing is drawn.
    """
    sequence, positions = [*prompt.tolist(), *marks], []
    for place, code in enumerate(codes.tolist()):
        positions.append(len(sequence) - 1)
        sequence.append(int(IMAGE_IDS[code]))
        if place % width == width - 1 and place < cells - 1:
            sequence.append(LINE)
    hidden = model.model(input_ids=torch.tensor([sequence])).last_hidden_state[0, [*positions, len(sequence) - 1]]
    return model.lm_head(hidden)[..., IMAGE_IDS], hidden


def save_anole_drafter(folder: Path, first_norm: bool = True) -> dict[str, Tensor]:
    """EAGLE's one layer as Chameleon's: heads normalised, a table of its own for the whole vocabulary, no last norm."""
    state = eagle_weights()
    state["embed_tokens.weight"] = noise(64, DIM, seed=9)
    if first_norm:
        state["layers.0.input_layernorm.weight"] = 1 + noise(DIM, scale=0.1, seed=8)
    else:
        del state["fc.bias"]
    wide = DIM // 4
    for seed, part in enumerate("qk"):
        state[f"layers.0.self_attn.{part}_norm.weight"] = 1 + noise(4, wide, scale=0.1, seed=seed)
        state[f"layers.0.self_attn.{part}_norm.bias"] = noise(4, wide, scale=0.1, seed=seed + 2)
    folder.mkdir()
    torch.save(state, folder / "pytorch_model.bin")
    settings = {"num_attention_heads": 4, "num_key_value_heads": 4, "rms_norm_eps": 1e-5}
    (folder / "config.json").write_text(json.dumps(settings))
    return state


@torch.no_grad()
def anole_draft(
    state: dict[str, Tensor], model: Any, features: Tensor, codes: Tensor, lines: bool = False
) -> tuple[Tensor, Tensor]:
    """Logits and predicted features [B, T, ...] of the drafter, through `transformers`' own Chameleon layer.

    lines: a place is left free behind every row of 4 codes.
    """
    from transformers.models.chameleon.modeling_chameleon import ChameleonDecoderLayer, ChameleonRotaryEmbedding

    config, count = model.config, codes.shape[1]
    layer = ChameleonDecoderLayer(config, 0).eval()
    if "layers.0.input_layernorm.weight" not in state:
        layer.input_layernorm = torch.nn.Identity()
    layer_state = {
        name.removeprefix("layers.0."): value for name, value in state.items() if name.startswith("layers.0.")
    }
    layer.load_state_dict(layer_state)
    embedded = state["embed_tokens.weight"][IMAGE_IDS[codes]]
    joined = torch.cat([embedded, features], dim=-1)
    hidden = torch.nn.functional.linear(joined, state["fc.weight"], state.get("fc.bias"))
    places = torch.arange(count)[None]
    places = places + places // 4 if lines else places
    turns = ChameleonRotaryEmbedding(config)(hidden, places)
    predicted_features = layer(
        hidden, attention_mask=causal(count)[None, None], position_ids=places, position_embeddings=turns
    )[0]
    return model.lm_head(predicted_features)[..., IMAGE_IDS], predicted_features
