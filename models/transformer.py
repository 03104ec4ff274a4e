"""The target: LlamaGen's autoregressive transformer over image tokens (arXiv 2406.06525), parameter for parameter.

Two ways through the same weights: `forward` for training (causal attention over a whole sequence) and `step` for
decoding and export (new positions against a cache, any mask, any cells). *Features* are the hidden states after
the final norm, which is what the head reads and what a drafter predicts.

Positions are cells of the grid in raster order. The rotary table is two-dimensional with interleaved pairs and
is zero on the condition prefix (cell -1), as published: queries and keys of the prefix are zero vectors.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from underpaint.models.layers import RMSNorm, TransformerBlock
from underpaint.models.typed import call

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


class StepOutput(NamedTuple):
    """What one pass over T new positions computes.

    `logits` [B, T, V] float32; `features` [B, T, D]; `keys` and `values`: one [B, heads, T, head_dim] a layer,
    rotated, of the new positions only.
    """

    logits: Tensor
    features: Tensor
    keys: list[Tensor]
    values: list[Tensor]


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
