"""One decoder for all published models, with options for their differences and one forward pass with a KV cache.

LlamaGen rotates queries and keys by the cell's row and column, Chameleon and Qwen2 by the place in the sequence. Tar's
AR-DTok adds a learnt position vector instead. Rotary pairs are half a head apart here; loaders reorder other layouts.

Positions are cells: c >= 0 is cell c of the grid in raster order, and -prefix to -1 are the condition before it.
Rotary attention depends only on differences of places, so counting from the first cell changes nothing. If rows end in
an end-of-line token, that of row r is cell r - prefix - eol_tokens, and it shifts the places of later cells by one.
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
    """The outputs of one pass over T new positions.

    `logits` [B, T, V] float32; `features` [B, T, D] float32; `keys` (rotated) and `values`: for each layer one tensor
    [B, kv_heads, T, head_dim] of the new positions only.
    """

    logits: Tensor
    features: Tensor
    keys: list[Tensor]
    values: list[Tensor]


def causal_bias(length: int) -> Tensor:
    """Return a causal bias [length, length]: every position sees itself and those before it."""
    return torch.triu(torch.full((length, length), float(MASKED_SCORE)), diagonal=1)


def _table(rows: int, dim: int) -> nn.Embedding:
    """Return an uninitialised embedding for a checkpoint: random rows on the meta device cost seconds of imports."""
    return nn.Embedding(rows, dim, _weight=torch.empty(rows, dim))


class Decoder(nn.Module):
    """A target or a drafter. A drafter's `codes` are its own embedding; its head is the target's."""

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
        """Return `rope_table`'s rows for `cells`, with the table cached on their device; None for learnt positions."""
        if self.config.rope == "none":
            return None
        if self._table is None or self._table.device != cells.device:
            self._table = rope_table(self.config).to(cells.device)
        return self._table[cells]

    def embed(self, tokens: Tensor, rows: Tensor | None) -> Tensor:
        """Embed ids [B, T]: codes, or condition row `id - V` of the model's own table or of `rows` [C, D]."""
        table = rows if self.conditions is None else self.conditions.weight
        limit = self.config.vocab_size
        if table is None:
            return call(self.codes, tokens)
        code_embeddings = self.codes(tokens.clamp(max=limit - 1))
        other = table.to(code_embeddings.dtype)[(tokens - limit).clamp(min=0)]
        return torch.where((tokens >= limit)[..., None], other, code_embeddings)

    def read_features(self, features: Tensor, embedded: Tensor) -> Tensor:
        """Return a drafter's input [B, T, D], made from the previous token's feature and the token's embedding."""
        if self.fc is None:
            raise ValueError("decoder: only a drafter reads features")
        return call(self.fc, torch.cat([features.to(embedded.dtype), embedded], dim=-1))

    def through_layers(self, hidden: Tensor, attend: Attention, kernels: Kernels = PLAIN) -> Tensor:
        """Run all layers on embedded positions and return features [B, T, D]; every attention variant runs this code.

        Args:
            hidden: [B, T, D], which `kernels` may overwrite.
            attend: The attention, called once per layer.
            kernels: The implementation of norms, matrix products and the gate.
        """
        for index, layer in enumerate(self.layers):
            assert isinstance(layer, Layer)
            if self.config.post_norm:
                mixed = kernels.apply(layer.out, kernels.attend(attend, index, layer, hidden, None))
                hidden = hidden + kernels.norm(mixed, layer.attention_norm)
                fed = kernels.apply(layer.down, kernels.gate(hidden, None, layer.gate_up))
                hidden = hidden + kernels.norm(fed, layer.ffn_norm)
                continue
            mixed = kernels.attend(attend, index, layer, hidden, layer.attention_norm)
            hidden = kernels.add(hidden, mixed, layer.out, layer.gate_up)
            hidden = kernels.add(hidden, kernels.gate(hidden, layer.ffn_norm, layer.gate_up), layer.down)
        return kernels.norm(hidden, self.norm)

    def add_positions(self, hidden: Tensor, cells: Tensor) -> Tensor:
        """Add the learnt position vectors of `cells` [T] or [B, T] to `hidden` [B, T, D], if positions are learnt."""
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
        """Return the outputs of a pass over T new positions with a KV cache.

        Args:
            tokens: int64 [B, T], see `embed`.
            cells: See `step_rows`.
            bias: See `step_rows`.
            past_keys: See `step_rows`.
            past_values: See `step_rows`.
            rows: See `embed`.
            features: [B, T, D] of the token before each, for drafters.

        Raises:
            ValueError: A drafter got no features.
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
        """Return the outputs of a pass over T embedded positions.

        Args:
            hidden: [B, T, D].
            cells: int64 [T] or [B, T], from -prefix - eol_tokens.
            bias: float32 [T, S + T], or [B, T, S + T] if rows differ in visibility; added to the scores, and large and
                negative for masked positions.
            past_keys: [B, kv_heads, S, head_dim] for each layer.
            past_values: [B, kv_heads, S, head_dim] for each layer.
        """
        attention = DenseAttention(self.config, self.turns(cells), bias, past_keys, past_values)
        features = self.through_layers(self.add_positions(hidden, cells), attention)
        return StepOutput(call(self.head, features).float(), features.float(), attention.keys, attention.values)

    def forward(self, tokens: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Run a causal pass over a condition and codes, for training.

        Args:
            tokens: int64 [B, T], in raster order.
            rows: [B, prefix, D], the embedded condition.

        Returns:
            Logits float32 [B, T + 1, V], where row i predicts the code of cell i, and features [B, T + 1, D] at the
            same positions: the last condition position and every code.
        """
        prefix, length = rows.shape[1], rows.shape[1] + tokens.shape[1]
        hidden = torch.cat([rows, call(self.codes, tokens).to(rows.dtype)], dim=1)
        cells = torch.arange(-prefix, tokens.shape[1], device=tokens.device)
        empty = self.empty_cache(tokens.shape[0])
        out = self.step_rows(hidden, cells, causal_bias(length).to(tokens.device), empty, empty)
        return out.logits[:, prefix - 1 :], out.features[:, prefix - 1 :]

    def empty_cache(self, batch: int, slots: int = 0) -> list[Tensor]:
        """Return zero keys (or values): one [batch, kv_heads, slots, head_dim] per layer."""
        config, like = self.config, self.head.weight
        shape = (batch, config.kv_heads, slots, config.head_dim)
        return [torch.zeros(shape, dtype=like.dtype, device=like.device) for _ in self.layers]


class Conditioner(nn.Module):
    """Projects the features of a condition to embedded rows.

    With `activation`, two matrices around a tanh GELU (LlamaGen's captions), else one with a bias (Tar's TA-Tok).
    `absent` [P, C]: the features of the empty condition.
    """

    def __init__(self, width: int, dim: int, prefix: int, activation: bool) -> None:
        super().__init__()
        self.first = nn.Linear(width, dim, bias=not activation)
        self.second = nn.Linear(dim, dim, bias=False) if activation else None
        self.absent = nn.Parameter(torch.empty(prefix, width))

    def embed(self, features: Tensor) -> Tensor:
        """Project features [..., C] to rows [..., D]."""
        hidden = call(self.first, features)
        if self.second is None:
            return hidden
        return call(self.second, functional.gelu(hidden, approximate="tanh"))

    def forward(self, features: Tensor) -> Tensor:
        """Project features [P, C] to rows [2P, D]: those of the condition, then those of the empty condition."""
        return self.embed(torch.cat([features, self.absent]))


@torch.no_grad()
def initialise(module: nn.Module, deviation: float = 0.02) -> None:
    """Draw normal weights for every linear layer and embedding, as LlamaGen does."""
    for part in module.modules():
        if isinstance(part, nn.Linear | nn.Embedding):
            nn.init.normal_(part.weight, std=deviation)
