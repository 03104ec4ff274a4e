"""Random checkpoints in the names and shapes that their authors publish, tiny."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tests.published.llamagen_reference import Transformer, TransformerConfig
from underpaint.models.config import build
from underpaint.models.vq import VQConfig, VQModel

DIM, LAYERS, HEADS, VOCAB, SIDE = 32, 2, 2, 32, 4
VQ = VQConfig(
    codebook_size=VOCAB,
    codebook_embed_dim=4,
    encoder_ch_mult=(1, 2),
    decoder_ch_mult=(1, 2),
    z_channels=8,
    ch=8,
    num_res_blocks=1,
)


def noise(*shape: int, scale: float = 0.25, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed + sum(shape) + 31 * len(shape))
    return scale * torch.randn(*shape, generator=generator)


def randomise(module: torch.nn.Module, seed: int = 3) -> None:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, value in module.state_dict().items():
            if value.is_floating_point() and not name.endswith("codebook_used"):
                sample = torch.randn(value.shape, generator=generator)
                value.copy_(1 + 0.1 * sample if "norm" in name and name.endswith("weight") else 0.25 * sample)


def transformer(captions: bool, seed: int = 3) -> Transformer:
    kind: dict[str, Any] = (
        {"model_type": "t2i", "cls_token_num": 3, "caption_dim": 12} if captions else {"num_classes": 5}
    )
    sizes = {"dim": DIM, "n_layer": LAYERS, "n_head": HEADS, "vocab_size": VOCAB, "block_size": SIDE**2}
    model = Transformer(build(TransformerConfig, {**sizes, "multiple_of": 16, **kind})).eval()
    randomise(model, seed)
    return model


def save_llamagen(path: Path, captions: bool, seed: int = 3) -> Transformer:
    model = transformer(captions, seed)
    torch.save({"model": model.state_dict(), "steps": 7}, path)
    return model


def save_vq(path: Path, seed: int = 3) -> VQModel:
    model = VQModel(VQ).eval()
    randomise(model, seed)
    torch.save({"model": model.state_dict()}, path)
    return model


def dtok_weights(prefix: int = 6, width: int = 10, hidden: int = 48) -> dict[str, Tensor]:
    state = {
        "abs_pe": noise(1, SIDE**2 + prefix - 1, DIM),
        "clip_proj.weight": noise(DIM, width),
        "clip_proj.bias": noise(DIM, seed=1),
        "tok_embeddings.weight": noise(VOCAB, DIM),
        "norm.weight": 1 + noise(DIM, scale=0.1),
        "output.weight": noise(VOCAB, DIM, seed=2),
    }
    for index in range(LAYERS):
        layer = f"layers.{index}."
        state |= {
            f"{layer}attention.wqkv.weight": noise(3 * DIM, DIM, seed=index),
            f"{layer}attention.wo.weight": noise(DIM, DIM, seed=index + 5),
            f"{layer}feed_forward.w1.weight": noise(hidden, DIM, seed=index),
            f"{layer}feed_forward.w3.weight": noise(hidden, DIM, seed=index + 7),
            f"{layer}feed_forward.w2.weight": noise(DIM, hidden, seed=index),
            f"{layer}attention_norm.weight": 1 + noise(DIM, scale=0.1, seed=index),
            f"{layer}ffn_norm.weight": 1 + noise(DIM, scale=0.1, seed=index + 9),
        }
    return state


def save_dtok(path: Path) -> dict[str, Tensor]:
    state = dtok_weights()
    torch.save({"model": {"name": "llama-abs-LP", "args": {"vocab_size": VOCAB}, "sd": state}}, path)
    return state


def eagle_weights(hidden: int = 48, fc_scale: float = 0.25) -> dict[str, Tensor]:
    """A LlamaGen drafter: a bias on fc, no norm before the first layer, none at the end.

    fc_scale: of the weights that read a token and its feature. By the default a feature grows with each drafted token.
    """
    layer = "layers.0."
    return {
        "embed_tokens.weight": noise(VOCAB, DIM),
        "fc.weight": noise(DIM, 2 * DIM, scale=fc_scale),
        "fc.bias": noise(DIM, seed=4),
        **{f"{layer}self_attn.{part}_proj.weight": noise(DIM, DIM, seed=ord(part)) for part in "qkvo"},
        f"{layer}mlp.gate_proj.weight": noise(hidden, DIM, seed=1),
        f"{layer}mlp.up_proj.weight": noise(hidden, DIM, seed=2),
        f"{layer}mlp.down_proj.weight": noise(DIM, hidden, seed=3),
        f"{layer}post_attention_layernorm.weight": 1 + noise(DIM, scale=0.1),
    }


def causal(count: int, slots: int = 0) -> Tensor:
    hidden = np.triu(np.full((count, count), -1e9, dtype=np.float32), 1)
    return torch.from_numpy(np.concatenate([np.zeros((count, slots), dtype=np.float32), hidden], axis=1))
