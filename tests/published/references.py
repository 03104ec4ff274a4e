"""Published models written out with plain torch functions, to hold loaders and engines against."""

import math

import torch
from torch import Tensor
from torch.nn import functional

from tests.published.checkpoints import DIM, HEADS, LAYERS, causal
from tests.published.llamagen_reference import Transformer, rotate


@torch.no_grad()
def dtok_reference(state: dict[str, Tensor], features: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """AR-DTok: a learnt vector a position, plain attention, SwiGLU. Logits and features of every position."""

    def norm(hidden: Tensor, scale: Tensor) -> Tensor:
        return functional.rms_norm(hidden, (DIM,), scale, 1e-5)

    cond = functional.linear(features, state["clip_proj.weight"], state["clip_proj.bias"])
    hidden = torch.cat([cond, state["tok_embeddings.weight"][tokens]])
    places = torch.cat([state["abs_pe"][0], torch.zeros(1, DIM)])  # the last token is never fed
    hidden = hidden + places[: len(hidden)]
    for index in range(LAYERS):
        part = {name[len(f"layers.{index}.") :]: v for name, v in state.items() if name.startswith(f"layers.{index}.")}
        fused = functional.linear(norm(hidden, part["attention_norm.weight"]), part["attention.wqkv.weight"])
        heads = [each.reshape(len(hidden), HEADS, -1).transpose(0, 1) for each in fused.chunk(3, dim=-1)]
        mixed = functional.scaled_dot_product_attention(*heads, is_causal=True).transpose(0, 1).flatten(1)
        hidden = hidden + functional.linear(mixed, part["attention.wo.weight"])
        read = norm(hidden, part["ffn_norm.weight"])
        gate = functional.silu(functional.linear(read, part["feed_forward.w1.weight"]))
        up = functional.linear(read, part["feed_forward.w3.weight"])
        hidden = hidden + functional.linear(gate * up, part["feed_forward.w2.weight"])
    output = norm(hidden, state["norm.weight"])
    return functional.linear(output, state["output.weight"]), output


@torch.no_grad()
def eagle_reference(
    state: dict[str, Tensor], model: Transformer, tokens: Tensor, features: Tensor, condition: int = 0
) -> Tensor:
    """LlamaGen's released drafter with LlamaGen's own turns: the features [T, D] that it predicts.

    condition: how many of the first positions are a caption's: they have no turn, so that their queries and keys are 0
    (`cls_token_num` of `cnets_llamagen.py`).
    """

    def linear(name: str, value: Tensor) -> Tensor:
        return functional.linear(value, state[f"layers.0.{name}_proj.weight"])

    embedded = functional.embedding(tokens, state["embed_tokens.weight"])
    hidden = functional.linear(torch.cat([embedded, features], dim=-1), state["fc.weight"], state["fc.bias"])
    turns = model.turns(torch.arange(len(tokens) - condition))
    turns = torch.cat([torch.zeros_like(turns[:1]).repeat(condition, *[1] * (turns.ndim - 1)), turns])
    query, key, value = (linear(f"self_attn.{part}", hidden).reshape(1, len(tokens), HEADS, -1) for part in "qkv")
    query, key = rotate(query, turns), rotate(key, turns)
    scores = torch.einsum("bthd,bshd->bhts", query, key) / math.sqrt(DIM // HEADS) + causal(len(tokens))
    mixed = torch.einsum("bhts,bshd->bthd", scores.softmax(-1), value).flatten(2)[0]
    hidden = hidden + linear("self_attn.o", mixed)
    read = functional.rms_norm(hidden, (DIM,), state["layers.0.post_attention_layernorm.weight"], 1e-6)
    return hidden + linear("mlp.down", functional.silu(linear("mlp.gate", read)) * linear("mlp.up", read))
