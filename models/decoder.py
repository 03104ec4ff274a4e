"""One decoder for every published model: the options by which they differ, and one cached pass over all of them.

LlamaGen turns queries and keys by the cell's row and column, Chameleon and Qwen2 by the place in the sequence, Tar's
AR-DTok adds a learnt vector instead. Rotary pairs are half a head apart here; loaders reorder those that are not.
Positions are cells: c >= 0 is cell c of the grid in raster order, -prefix to -1 the condition before it. Rotary
attention sees differences of places only, so counting from the first cell changes nothing. Where rows of the grid end
in an end-of-line token, that of row r is cell r - prefix - eol_tokens; cells behind it stand a place further on for
each.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from underpaint.artifacts.decoder_graph import MASKED_SCORE
from underpaint.models.decoder_config import DecoderConfig, rope_table
from underpaint.models.typed import call

QK_NORM_EPS = 1e-5


class StepOutput(NamedTuple):
    """What one pass over T new positions computes.

    `logits` [B, T, V] float32; `features` [B, T, D] float32; `keys` and `values`: one [B, heads, T, head_dim] a layer,
    rotated, of the new positions only.
    """

    logits: Tensor
    features: Tensor
    keys: list[Tensor]
    values: list[Tensor]


def causal_bias(length: int) -> Tensor:
    """A bias [length, length] under which every position sees itself and those before it."""
    return torch.triu(torch.full((length, length), float(MASKED_SCORE)), diagonal=1)


class RMSNorm(nn.Module):
    """Root-mean-square norm, computed in float32."""

    def __init__(self, dim: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, hidden: Tensor) -> Tensor:
        """Keep the shape [..., D]."""
        wide = hidden.float()
        normed = wide * torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + self.eps)
        return normed.to(hidden.dtype) * self.weight


class Layer(nn.Module):
    """One layer; matrices are [out, in] as published. Norms that a model lacks are None."""

    q_scale: Tensor
    q_shift: Tensor
    k_scale: Tensor
    k_shift: Tensor

    def __init__(self, config: DecoderConfig, first: bool) -> None:
        super().__init__()
        dim, heads = config.dim, config.heads
        self.config = config
        self.attention_norm = RMSNorm(dim, config.norm_eps) if config.first_norm or not first else None
        self.qkv = nn.Linear(dim, 3 * dim, bias=config.qkv_bias)
        self.out = nn.Linear(dim, dim, bias=False)
        self.ffn_norm = RMSNorm(dim, config.norm_eps)
        self.gate_up = nn.Linear(dim, 2 * config.hidden, bias=False)
        self.down = nn.Linear(config.hidden, dim, bias=False)
        if config.qk_norm:
            for name in ("q_scale", "q_shift", "k_scale", "k_shift"):
                self.register_parameter(name, nn.Parameter(torch.empty(heads, config.head_dim)))

    def _heads(self, hidden: Tensor, turns: Tensor | None) -> list[Tensor]:
        """Query, key and value [B, heads, T, head_dim] of the new positions."""
        config = self.config
        shape = (*hidden.shape[:2], config.heads, config.head_dim)
        query, key, value = (part.reshape(shape) for part in self.qkv(hidden).chunk(3, dim=-1))
        if config.qk_norm:
            query = _normed(query) * self.q_scale + self.q_shift
            key = _normed(key) * self.k_scale + self.k_shift
        if turns is not None:
            query, key = _turn(query, turns), _turn(key, turns)
        return [part.transpose(1, 2) for part in (query, key, value)]

    def attend(
        self, hidden: Tensor, turns: Tensor | None, bias: Tensor, past: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Mixed values [B, T, D] under `bias`, see `Decoder.step`, and the new key and value."""
        query, key, value = self._heads(hidden, turns)
        keys, values = key, value
        if past[0].shape[2]:
            keys = torch.cat([past[0].to(key.dtype), key], dim=2)
            values = torch.cat([past[1].to(value.dtype), value], dim=2)
        scores = (query @ keys.transpose(2, 3)).float() * self.config.head_dim**-0.5 + bias
        mixed = torch.softmax(scores, dim=-1).to(value.dtype) @ values
        return self.out(mixed.transpose(1, 2).flatten(2)), key, value

    def feed(self, hidden: Tensor) -> Tensor:
        """SwiGLU; the shape stays."""
        gate, up = self.gate_up(hidden).chunk(2, dim=-1)
        return call(self.down, functional.silu(gate) * up)

    def forward(
        self, hidden: Tensor, turns: Tensor | None, bias: Tensor, past: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """See `Decoder.step`."""
        read = hidden if self.attention_norm is None or self.config.post_norm else self.attention_norm(hidden)
        mixed, key, value = self.attend(read, turns, bias, past)
        if self.config.post_norm and self.attention_norm is not None:
            mixed = self.attention_norm(mixed)
        hidden = hidden + mixed
        fed = self.ffn_norm(self.feed(hidden)) if self.config.post_norm else self.feed(self.ffn_norm(hidden))
        return hidden + fed, key, value


def _normed(heads: Tensor) -> Tensor:
    return functional.layer_norm(heads, heads.shape[-1:], eps=QK_NORM_EPS)


def _turn(heads: Tensor, turns: Tensor) -> Tensor:
    """Turn [B, T, heads, head_dim] by `turns` [..., T, 2, head_dim / 2]; pairs are half a head apart. In float32."""
    low, high = heads.float().chunk(2, dim=-1)
    cosine, sine = turns[..., None, 0, :], turns[..., None, 1, :]
    return torch.cat([low * cosine - high * sine, high * cosine + low * sine], dim=-1).to(heads.dtype)


def _table(rows: int, dim: int) -> nn.Embedding:
    """An embedding that a checkpoint fills: drawing random rows on the meta device takes seconds of imports."""
    return nn.Embedding(rows, dim, _weight=torch.empty(rows, dim))


class Decoder(nn.Module):
    """Target or drafter. A drafter's `codes` are its own embedding, its head the target's."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.config = config
        dim = config.dim
        self.codes = _table(config.vocab_size, dim)
        self.conditions = _table(config.cond_ids, dim) if config.condition == "table" else None
        self.positions = _table(config.cells + config.prefix, dim) if config.rope == "none" else None
        self.layers = nn.ModuleList(Layer(config, index == 0) for index in range(config.layers))
        self.norm = RMSNorm(dim, config.norm_eps) if config.final_norm else None
        self.head = nn.Linear(dim, config.vocab_size, bias=False)
        self.fc = nn.Linear(2 * dim, dim, bias=config.fc_bias) if config.drafter else None
        self._table: Tensor | None = None

    def turns(self, cells: Tensor) -> Tensor | None:
        """`rope_table`'s rows of `cells`, held where they were last used; None for learnt positions."""
        if self.config.rope == "none":
            return None
        if self._table is None or self._table.device != cells.device:
            self._table = rope_table(self.config).to(cells.device)
        return self._table[cells]

    def embed(self, tokens: Tensor, rows: Tensor | None) -> Tensor:
        """Ids [B, T]: codes, or condition row `id - V` of the model's own table or of `rows` [C, D]."""
        table = rows if self.conditions is None else self.conditions.weight
        limit = self.config.vocab_size
        if table is None:
            return call(self.codes, tokens)
        found = self.codes(tokens.clamp(max=limit - 1))
        other = table.to(found.dtype)[(tokens - limit).clamp(min=0)]
        return torch.where((tokens >= limit)[..., None], other, found)

    def read_features(self, features: Tensor, embedded: Tensor) -> Tensor:
        """A drafter's input [B, T, D]: the feature of the token before each, beside the token's embedding."""
        if self.fc is None:
            raise ValueError("decoder: only a drafter reads features")
        return call(self.fc, torch.cat([features.to(embedded.dtype), embedded], dim=-1))

    def step(
        self,
        tokens: Tensor,
        cells: Tensor,
        bias: Tensor,
        past_keys: Sequence[Tensor],
        past_values: Sequence[Tensor],
        rows: Tensor | None = None,
        features: Tensor | None = None,
    ) -> StepOutput:
        """Pass over T new positions given a cache.

        tokens: int64 [B, T], see `embed`. features: [B, T, D] of the token before each, for drafters. The rest: see
        `step_rows`.
        """
        hidden = self.embed(tokens, rows)
        if self.fc is not None:
            if features is None:
                raise ValueError("a drafter reads features, got none")
            hidden = self.read_features(features, hidden)
        return self.step_rows(hidden, cells, bias, past_keys, past_values)

    def step_rows(
        self, hidden: Tensor, cells: Tensor, bias: Tensor, past_keys: Sequence[Tensor], past_values: Sequence[Tensor]
    ) -> StepOutput:
        """Pass over T new positions that are embedded already.

        hidden: [B, T, D]. cells: int64 [T] or [B, T], from -prefix - eol_tokens. bias: float32 [T, S + T], or
        [B, T, S + T] where rows see different positions, added to the scores, large and negative where a position may
        not see. past_keys, past_values: [B, heads, S, head_dim] a layer.
        """
        if self.positions is not None:
            hidden = hidden + self.positions(cells % (self.config.cells + self.config.prefix))
        turns = self.turns(cells)
        scores_bias = bias[:, None] if bias.ndim == 3 else bias
        keys, values = [], []
        for layer, key, value in zip(self.layers, past_keys, past_values, strict=True):
            hidden, new_key, new_value = layer(hidden, turns, scores_bias, (key, value))
            keys.append(new_key)
            values.append(new_value)
        found = hidden if self.norm is None else self.norm(hidden)
        return StepOutput(call(self.head, found).float(), found.float(), keys, values)

    def forward(self, tokens: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Causal pass over a condition and codes, for training.

        tokens: int64 [B, T], in raster order. rows: [B, prefix, D], the embedded condition. Returns logits float32
        [B, T + 1, V], row i predicting the code of cell i, and features [B, T + 1, D] at the same positions: the last
        condition position and every code.
        """
        prefix, length = rows.shape[1], rows.shape[1] + tokens.shape[1]
        hidden = torch.cat([rows, call(self.codes, tokens).to(rows.dtype)], dim=1)
        cells = torch.arange(-prefix, tokens.shape[1], device=tokens.device)
        empty = self.empty_cache(tokens.shape[0])
        out = self.step_rows(hidden, cells, causal_bias(length).to(tokens.device), empty, empty)
        return out.logits[:, prefix - 1 :], out.features[:, prefix - 1 :]

    def empty_cache(self, batch: int, slots: int = 0) -> list[Tensor]:
        """Zero keys (or values): one [batch, heads, slots, head_dim] a layer."""
        config, like = self.config, self.head.weight
        shape = (batch, config.heads, slots, config.head_dim)
        return [torch.zeros(shape, dtype=like.dtype, device=like.device) for _ in self.layers]


class Conditioner(nn.Module):
    """Features of a condition to embedded rows.

    With `activation`, two matrices around a tanh GELU (LlamaGen's captions), else one with a bias (Tar's TA-Tok).
    `absent` [P, C]: the features that stand for no condition.
    """

    def __init__(self, width: int, dim: int, prefix: int, activation: bool) -> None:
        super().__init__()
        self.first = nn.Linear(width, dim, bias=not activation)
        self.second = nn.Linear(dim, dim, bias=False) if activation else None
        self.absent = nn.Parameter(torch.empty(prefix, width))

    def embed(self, features: Tensor) -> Tensor:
        """[..., C] to [..., D]."""
        hidden = call(self.first, features)
        if self.second is None:
            return hidden
        return call(self.second, functional.gelu(hidden, approximate="tanh"))

    def forward(self, features: Tensor) -> Tensor:
        """Features [P, C] of a condition to rows [2P, D]: the condition's, then those of no condition."""
        return self.embed(torch.cat([features, self.absent]))


@torch.no_grad()
def initialise(module: nn.Module, deviation: float = 0.02) -> None:
    """Normal weights for every linear layer and embedding, as LlamaGen does."""
    for part in module.modules():
        if isinstance(part, nn.Linear | nn.Embedding):
            nn.init.normal_(part.weight, std=deviation)
