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

from underpaint.artifacts.decoder_config import DecoderConfig
from underpaint.artifacts.decoder_graph import MASKED_SCORE
from underpaint.models.layers import PLAIN, Attention, DenseAttention, Kernels, Layer, RMSNorm, rope_table
from underpaint.models.typed import call


class StepOutput(NamedTuple):
    """What one pass over T new positions computes.

    `logits` [B, T, V] float32; `features` [B, T, D] float32; `keys` and `values`: one [B, kv_heads, T, head_dim] a
    layer, rotated, of the new positions only.
    """

    logits: Tensor
    features: Tensor
    keys: list[Tensor]
    values: list[Tensor]


def causal_bias(length: int) -> Tensor:
    """A bias [length, length] under which every position sees itself and those before it."""
    return torch.triu(torch.full((length, length), float(MASKED_SCORE)), diagonal=1)


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

    def through_layers(self, hidden: Tensor, attend: Attention, kernels: Kernels = PLAIN) -> Tensor:
        """Features [B, T, D] of embedded positions; whatever attends, this is the one order of what layers compute.

        Args:
            hidden: [B, T, D], which `kernels` may overwrite.
            attend: What positions see, called once a layer.
            kernels: Norms, products and the gate.
        """
        for index, layer in enumerate(self.layers):
            assert isinstance(layer, Layer)
            if self.config.post_norm:
                mixed = call(layer.out, kernels.attend(attend, index, layer, hidden, None))
                hidden = hidden + kernels.norm(mixed, layer.attention_norm)
                fed = call(layer.down, kernels.gate(hidden, None, layer.gate_up))
                hidden = hidden + kernels.norm(fed, layer.ffn_norm)
                continue
            mixed = kernels.attend(attend, index, layer, hidden, layer.attention_norm)
            hidden = kernels.add(hidden, mixed, layer.out)
            hidden = kernels.add(hidden, kernels.gate(hidden, layer.ffn_norm, layer.gate_up), layer.down)
        return kernels.norm(hidden, self.norm)

    def add_positions(self, hidden: Tensor, cells: Tensor) -> Tensor:
        """`hidden` [B, T, D] plus what is learnt of each of `cells` [T] or [B, T], where positions are learnt."""
        if self.positions is None:
            return hidden
        return hidden + call(self.positions, cells % (self.config.cells + self.config.prefix))

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
        not see. past_keys, past_values: [B, kv_heads, S, head_dim] a layer.
        """
        attention = DenseAttention(self.config, self.turns(cells), bias, past_keys, past_values)
        found = self.through_layers(self.add_positions(hidden, cells), attention)
        return StepOutput(call(self.head, found).float(), found.float(), attention.keys, attention.values)

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
        """Zero keys (or values): one [batch, kv_heads, slots, head_dim] a layer."""
        config, like = self.config, self.head.weight
        shape = (batch, config.kv_heads, slots, config.head_dim)
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
