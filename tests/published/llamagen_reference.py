"""A reference of another make: LlamaGen's autoregressive transformer over image tokens (arXiv 2406.06525), parameter
for parameter.

Two ways through the same weights: `forward` for training (causal attention over a whole sequence) and `step` for
decoding and export (new positions against a cache, any mask, any cells). *Features* are the hidden states after
the final norm, which is what the head reads and what a drafter predicts.

Positions are cells of the grid in raster order. The rotary table is two-dimensional with interleaved pairs and
is zero on the condition prefix (cell -1), as published: queries and keys of the prefix are zero vectors.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from underpaint.models.decoder import StepOutput
from underpaint.models.layers import RMSNorm
from underpaint.models.typed import call

# Finite: a row with nothing to see must not turn into NaN. Small enough in size for float16 graphs.
MASKED = -30000.0


def causal_bias(length: int) -> Tensor:
    """A bias [length, length] under which every position sees itself and those before it."""
    blocked = torch.full((length, length), MASKED)
    return torch.triu(blocked, diagonal=1)


def rotate(heads: Tensor, turns: Tensor) -> Tensor:
    """Turn neighbouring pairs of [B, T, heads, head_dim] by `turns` [T, head_dim / 2, 2], in float32."""
    pairs = heads.float().reshape(*heads.shape[:-1], -1, 2)
    even, odd = pairs[..., 0], pairs[..., 1]
    cosine, sine = turns[:, None, :, 0], turns[:, None, :, 1]
    turned = torch.stack([even * cosine - odd * sine, odd * cosine + even * sine], dim=-1)
    return turned.flatten(-2).to(heads.dtype)


class Attention(nn.Module):
    """Multi-head attention with one fused input projection."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads, self.head_dim = heads, dim // heads
        self.wqkv = nn.Linear(dim, 3 * dim, bias=False)
        self.wo = nn.Linear(dim, dim, bias=False)

    def project(self, hidden: Tensor, turns: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Rotated query and key, and value: [B, heads, T, head_dim] each."""
        batch, length, _ = hidden.shape
        query, key, value = (
            part.reshape(batch, length, self.heads, self.head_dim) for part in self.wqkv(hidden).chunk(3, dim=-1)
        )
        query, key = rotate(query, turns), rotate(key, turns)
        return query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2)

    def merge(self, mixed: Tensor) -> Tensor:
        """[B, heads, T, head_dim] to [B, T, D]."""
        return call(self.wo, mixed.transpose(1, 2).flatten(2))

    def forward(self, hidden: Tensor, turns: Tensor) -> Tensor:
        """Causal attention within [B, T, D]."""
        query, key, value = self.project(hidden, turns)
        # Written out: at these lengths PyTorch's fused kernel is a fifth slower on a CPU, backwards above all.
        scores = (query * self.head_dim**-0.5) @ key.transpose(2, 3) + causal_bias(key.shape[2]).to(hidden.device)
        return self.merge(torch.softmax(scores, dim=-1).to(value.dtype) @ value)

    def step(
        self, hidden: Tensor, turns: Tensor, bias: Tensor, past: tuple[Tensor, Tensor], past_bias: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Attend to past and new positions in two parts under one softmax; the cache itself is never copied."""
        query, key, value = self.project(hidden, turns)
        past_key, past_value = past
        query = query * self.head_dim**-0.5
        past_scores = query @ past_key.transpose(2, 3) + past_bias
        scores = query @ key.transpose(2, 3) + bias
        weights = torch.softmax(torch.cat([past_scores, scores], dim=-1), dim=-1)
        cached = past_key.shape[2]
        mixed = weights[..., :cached] @ past_value + weights[..., cached:] @ value
        return self.merge(mixed), key, value


class FeedForward(nn.Module):
    """SwiGLU."""

    def __init__(self, dim: int, hidden_dim: int) -> None:
        super().__init__()
        self.w1 = nn.Linear(dim, hidden_dim, bias=False)
        self.w3 = nn.Linear(dim, hidden_dim, bias=False)
        self.w2 = nn.Linear(hidden_dim, dim, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        """Keep the shape [..., D]."""
        return call(self.w2, functional.silu(self.w1(hidden)) * self.w3(hidden))


class TransformerBlock(nn.Module):
    """One layer: attention and feed-forward, each behind a norm."""

    def __init__(self, dim: int, heads: int, hidden_dim: int, norm_eps: float) -> None:
        super().__init__()
        self.attention = Attention(dim, heads)
        self.feed_forward = FeedForward(dim, hidden_dim)
        self.attention_norm = RMSNorm(dim, norm_eps)
        self.ffn_norm = RMSNorm(dim, norm_eps)

    def forward(self, hidden: Tensor, turns: Tensor) -> Tensor:
        """Causal pass over [B, T, D]."""
        hidden = hidden + call(self.attention, self.attention_norm(hidden), turns)
        return hidden + call(self.feed_forward, self.ffn_norm(hidden))

    def step(
        self, hidden: Tensor, turns: Tensor, bias: Tensor, past: tuple[Tensor, Tensor], past_bias: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Cached pass over [B, T, D]; also the new keys and values."""
        mixed, key, value = self.attention.step(self.attention_norm(hidden), turns, bias, past, past_bias)
        hidden = hidden + mixed
        return hidden + self.feed_forward(self.ffn_norm(hidden)), key, value


PREFIX_CELL = -1


@dataclass(frozen=True, slots=True)
class TransformerConfig:
    """Sizes under LlamaGen's names.

    `model_type` "c2i" conditions on a class (`num_classes`), "t2i" on caption features (`caption_dim` wide,
    `cls_token_num` of them). `block_size` is the number of cells of the square grid.
    """

    dim: int
    n_layer: int
    n_head: int
    vocab_size: int
    block_size: int
    model_type: str = "c2i"
    cls_token_num: int = 1
    num_classes: int = 1000
    caption_dim: int = 2048
    multiple_of: int = 256
    norm_eps: float = 1e-5
    rope_base: float = 10000.0

    def __post_init__(self) -> None:
        if self.model_type not in ("c2i", "t2i"):
            raise ValueError(f"model_type is 'c2i' or 't2i'; got {self.model_type!r}")
        if self.dim % self.n_head or (self.dim // self.n_head) % 4:
            raise ValueError(
                "dim / n_head must be a multiple of 4 for the two-dimensional rotary table; "
                f"got {self.dim} / {self.n_head}"
            )
        if self.grid_side**2 != self.block_size:
            raise ValueError(f"block_size must be a square; got {self.block_size}")

    @property
    def grid_side(self) -> int:
        """Cells along a side."""
        return int(self.block_size**0.5)

    @property
    def head_dim(self) -> int:
        """Width of one attention head."""
        return self.dim // self.n_head

    @property
    def hidden_dim(self) -> int:
        """Width of the SwiGLU layer: two thirds of 4*dim, rounded up to `multiple_of`."""
        return -(-int(2 * 4 * self.dim / 3) // self.multiple_of) * self.multiple_of


def rotary_table(config: TransformerConfig) -> Tensor:
    """Cosine and sine [1 + block_size, head_dim / 2, 2] by cell + 1; row 0, the prefix, is zero.

    The first half of the pairs turns with the row, the second with the column.
    """
    half = config.head_dim // 2
    frequencies = 1.0 / config.rope_base ** (torch.arange(0, half, 2).float() / half)
    angles = torch.outer(torch.arange(config.grid_side).float(), frequencies)
    side = config.grid_side
    rows = angles[:, None, :].expand(side, side, -1)
    columns = angles[None, :, :].expand(side, side, -1)
    grid = torch.cat([rows, columns], dim=-1).reshape(config.block_size, half)
    table = torch.stack([grid.cos(), grid.sin()], dim=-1)
    return torch.cat([torch.zeros(1, half, 2), table])


def block_of(config: TransformerConfig) -> TransformerBlock:
    """One layer in the sizes of `config`."""
    return TransformerBlock(config.dim, config.n_head, config.hidden_dim, config.norm_eps)


class LabelEmbedder(nn.Module):
    """Class condition; label `num_classes` is the null class of guidance."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.embedding_table = nn.Embedding(config.num_classes + 1, config.dim)

    def forward(self, labels: Tensor) -> Tensor:
        """int64 [B] to [B, 1, D]."""
        return call(self.embedding_table, labels)[:, None]


class CaptionProjection(nn.Module):
    """Two linear layers around a tanh GELU."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.fc1 = nn.Linear(config.caption_dim, config.dim, bias=False)
        self.fc2 = nn.Linear(config.dim, config.dim, bias=False)

    def forward(self, captions: Tensor) -> Tensor:
        """[B, cls_token_num, caption_dim] to [B, cls_token_num, D]."""
        return call(self.fc2, functional.gelu(self.fc1(captions), approximate="tanh"))


class CaptionEmbedder(nn.Module):
    """Caption condition; `uncond_embedding` [cls_token_num, caption_dim] stands in for a dropped caption."""

    uncond_embedding: Tensor

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.cap_proj = CaptionProjection(config)
        scale = config.caption_dim**-0.5
        self.register_buffer("uncond_embedding", scale * torch.randn(config.cls_token_num, config.caption_dim))

    def forward(self, captions: Tensor) -> Tensor:
        """[B, cls_token_num, caption_dim] to [B, cls_token_num, D]."""
        return call(self.cap_proj, captions)


class Transformer(nn.Module):
    """The target model."""

    rotary: Tensor

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        self.cls_embedding = LabelEmbedder(config) if config.model_type == "c2i" else CaptionEmbedder(config)
        self.tok_embeddings = nn.Embedding(config.vocab_size, config.dim)
        self.layers = nn.ModuleList(block_of(config) for _ in range(config.n_layer))
        self.norm = RMSNorm(config.dim, config.norm_eps)
        self.output = nn.Linear(config.dim, config.vocab_size, bias=False)
        self.register_buffer("rotary", rotary_table(config), persistent=False)
        initialise(self)
        nn.init.zeros_(self.output.weight)

    @property
    def blocks(self) -> tuple[TransformerBlock, ...]:
        """The layers, under their own type: a ModuleList forgets it."""
        return cast(tuple[TransformerBlock, ...], tuple(self.layers))

    def embed_condition(self, cond: Tensor) -> Tensor:
        """Class labels int64 [B], or caption features [B, cls_token_num, caption_dim], to [B, prefix, D]."""
        return call(self.cls_embedding, cond)

    def embed_tokens(self, tokens: Tensor) -> Tensor:
        """Codes int64 [B, T] to [B, T, D]."""
        return call(self.tok_embeddings, tokens)

    def turns(self, cells: Tensor) -> Tensor:
        """Rotary rows [T, head_dim / 2, 2] of cells int64 [T]; -1 is a prefix position."""
        return self.rotary[cells + 1]

    def cells(self, image_tokens: int) -> Tensor:
        """Cells int64 [prefix + image_tokens] of a sequence in raster order."""
        prefix = torch.full((self.config.cls_token_num,), PREFIX_CELL)
        return torch.cat([prefix, torch.arange(image_tokens)]).to(self.rotary.device)

    def forward(self, tokens: Tensor, cond: Tensor) -> tuple[Tensor, Tensor]:
        """Causal pass over condition and tokens, for training.

        Args:
            tokens: int64 [B, T], 0 <= T <= block_size, in raster order.
            cond: what `embed_condition` takes.

        Returns:
            logits float32 [B, T + 1, V], row i predicting the token of cell i, and features [B, T + 1, D] at
            the same positions: the last condition position and every token.
        """
        hidden = torch.cat([self.embed_condition(cond), self.embed_tokens(tokens)], dim=1)
        turns = self.turns(self.cells(tokens.shape[1]))
        for layer in self.layers:
            hidden = layer(hidden, turns)
        features = self.norm(hidden[:, self.config.cls_token_num - 1 :])
        return self.output(features).float(), features

    def step(
        self,
        embeddings: Tensor,
        cells: Tensor,
        bias: Tensor,
        past_keys: Sequence[Tensor],
        past_values: Sequence[Tensor],
        past_bias: Tensor,
    ) -> StepOutput:
        """Pass over T new positions (prefix, tokens, or the nodes of a draft tree) given a cache.

        Args:
            embeddings: [B, T, D] from `embed_condition` or `embed_tokens`.
            cells: int64 [T]; -1 on the condition prefix.
            bias: [T, T] added to the scores among the new positions: 0 where row may see column, else a large
                negative number (finite, so that a masked row stays a number).
            past_keys, past_values: one [B, heads, S, head_dim] a layer; S may be 0.
            past_bias: [S], or [T, S] where new positions see different pasts; added likewise, so entries of
                the cache that hold nothing are masked here.
        """
        turns = self.turns(cells)
        hidden, keys, values = embeddings, [], []
        for block, past_key, past_value in zip(self.blocks, past_keys, past_values, strict=True):
            hidden, key, value = block.step(hidden, turns, bias, (past_key, past_value), past_bias)
            keys.append(key)
            values.append(value)
        features = self.norm(hidden)
        return StepOutput(self.output(features).float(), features, keys, values)

    def empty_cache(self, batch: int) -> list[Tensor]:
        """Keys (or values) of no positions: one [batch, heads, 0, head_dim] a layer."""
        shape = (batch, self.config.n_head, 0, self.config.head_dim)
        return [torch.zeros(shape, device=self.rotary.device) for _ in self.layers]


def initialise(module: nn.Module, deviation: float = 0.02) -> None:
    """Normal weights for every linear layer and embedding, as LlamaGen does."""
    for part in module.modules():
        if isinstance(part, nn.Linear | nn.Embedding):
            nn.init.normal_(part.weight, std=deviation)
