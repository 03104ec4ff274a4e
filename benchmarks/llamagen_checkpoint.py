"""Checkpoints as LlamaGen's authors publish them, of decoders of any size: what tests and benchmarks export."""

from typing import Final

import torch
from torch import Tensor

from underpaint.models.decoder import Decoder

_LAYER: Final = (
    *("attention_norm", "attention.wqkv", "attention.wo", "ffn_norm"),
    *("feed_forward.w1", "feed_forward.w3", "feed_forward.w2"),
)


def llamagen_state(decoder: Decoder) -> dict[str, Tensor]:
    """Return the parameters of a class-conditional decoder under the names that LlamaGen's authors publish.

    Raises ValueError on a decoder that is not LlamaGen's.
    """
    config = decoder.config
    if decoder.conditions is None or decoder.norm is None or config.rope != "grid" or config.drafter:
        raise ValueError("expected a class-conditional decoder of LlamaGen's, got another; it has other names")
    state = {
        "cls_embedding.embedding_table.weight": decoder.conditions.weight,
        "tok_embeddings.weight": decoder.codes.weight,
        "norm.weight": decoder.norm.weight,
        "output.weight": decoder.head.weight,
    }
    for index in range(config.layers):
        part = decoder.layers[index].state_dict()
        query, key, value = torch.split(part["qkv.weight"], [config.dim, *2 * [config.kv_heads * config.head_dim]])
        query, key = _interleaved(query, config.heads), _interleaved(key, config.kv_heads)
        gate, up = part["gate_up.weight"].chunk(2)
        weights = (
            part["attention_norm.weight"],
            torch.cat([query, key, value]),
            part["out.weight"],
            part["ffn_norm.weight"],
            gate.clone(),
            up.clone(),
            part["down.weight"],
        )
        state |= {f"layers.{index}.{name}.weight": each for name, each in zip(_LAYER, weights, strict=True)}
    return {name: value.detach() for name, value in state.items()}


def _interleaved(rows: Tensor, heads: int) -> Tensor:
    """Reorder rows from rotary pairs half a head apart to neighbouring pairs, the inverse of `half_split`."""
    wide = rows.shape[0] // heads
    return rows.reshape(heads, 2, wide // 2, -1).transpose(1, 2).reshape(rows.shape)
