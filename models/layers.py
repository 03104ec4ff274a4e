"""The parts of a decoder layer: projections, rotary embeddings, attention, norms and SwiGLU.

`models.decoder.Decoder.through_layers` runs them in order. It takes other attention (a static cache on a device) and
other kernels for norms as arguments, so that the layers are written only once.
"""

from collections.abc import Sequence
from typing import Final, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from underpaint.artifacts.decoder_config import DecoderConfig
from underpaint.models.typed import call

QK_NORM_EPS: Final = 1e-5
"""Epsilon of the norms of queries and keys."""


class RMSNorm(nn.Module):
    """Root-mean-square norm, computed in float32."""

    def __init__(self, dim: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, hidden: Tensor) -> Tensor:
        """Normalise [..., D]."""
        wide = hidden.float()
        normed = wide * torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + self.eps)
        return normed.to(hidden.dtype) * self.weight


class Layer(nn.Module):
    """The weights of one layer; matrices are [out, in], as published. A norm that a model does not have is None."""

    q_scale: Tensor
    q_shift: Tensor
    k_scale: Tensor
    k_shift: Tensor

    def __init__(self, config: DecoderConfig, first: bool) -> None:
        super().__init__()
        dim, width = config.dim, config.head_dim
        self.attention_norm = RMSNorm(dim, config.norm_eps) if config.first_norm or not first else None
        self.qkv = nn.Linear(dim, config.projected_heads * width, bias=config.qkv_bias)
        self.out = nn.Linear(config.heads * width, dim, bias=False)
        self.ffn_norm = RMSNorm(dim, config.norm_eps)
        self.gate_up = nn.Linear(dim, 2 * config.hidden, bias=False)
        self.down = nn.Linear(config.hidden, dim, bias=False)
        if config.qk_norm:
            for name, heads in (("q", config.heads), ("k", config.kv_heads)):
                self.register_parameter(f"{name}_scale", nn.Parameter(torch.empty(heads, width)))
                self.register_parameter(f"{name}_shift", nn.Parameter(torch.empty(heads, width)))


class Attention(Protocol):
    """The attention of a pass, between a layer's projections."""

    def __call__(self, index: int, layer: Layer, qkv: Tensor) -> Tensor:
        """Attend in layer number `index`.

        Args:
            qkv: The projected queries, keys and values [B, T, (heads + 2 kv_heads) head_dim].

        Returns:
            The mixed values [B, T, heads head_dim].
        """
        ...


class Kernels:
    """The computations of a layer around its attention, in plain PyTorch; a device may have faster versions."""

    def norm(self, hidden: Tensor, norm: RMSNorm | None) -> Tensor:
        """Normalise `hidden` [B, T, D] if `norm` is not None."""
        return hidden if norm is None else call(norm, hidden)

    def apply(self, linear: nn.Linear, hidden: Tensor) -> Tensor:
        """Apply a matrix, and its bias if it has one."""
        return call(linear, hidden)

    def attend(self, attend: "Attention", index: int, layer: Layer, hidden: Tensor, norm: RMSNorm | None) -> Tensor:
        """Apply the norm, the projection to queries, keys and values, and the attention of a layer."""
        return attend(index, layer, self.apply(layer.qkv, self.norm(hidden, norm)))

    def gate(self, hidden: Tensor, norm: RMSNorm | None, linear: nn.Linear) -> Tensor:
        """Apply the norm and SwiGLU; the matrix has the gate's half first."""
        gate, up = self.apply(linear, self.norm(hidden, norm)).chunk(2, dim=-1)
        return functional.silu(gate) * up

    def add(self, hidden: Tensor, mixed: Tensor, linear: nn.Linear, after: nn.Linear | None = None) -> Tensor:
        """Return `hidden` plus the product of a matrix and `mixed`.

        Args:
            hidden: [B, T, D], which may be overwritten.
            mixed: The input of the matrix.
            linear: The matrix.
            after: The next matrix.
        """
        return hidden + self.apply(linear, mixed)


PLAIN: Final = Kernels()
"""The kernels in plain PyTorch."""


class DenseAttention:
    """Attention under a bias over a KV cache and the new positions, whose keys and values it stores."""

    def __init__(
        self,
        config: DecoderConfig,
        turns: Tensor | None,
        bias: Tensor,
        past_keys: Sequence[Tensor],
        past_values: Sequence[Tensor],
    ) -> None:
        """Prepare the attention of one pass.

        Args:
            config: Sizes and options of the decoder.
            turns: Rotations of the new positions, see `Decoder.turns`.
            bias: See `Decoder.step_rows`.
            past_keys: See `Decoder.step_rows`.
            past_values: See `Decoder.step_rows`.
        """
        self._config, self._turns, self._past = config, turns, (past_keys, past_values)
        self._bias = bias[:, None] if bias.ndim == 3 else bias
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []

    def __call__(self, index: int, layer: Layer, qkv: Tensor) -> Tensor:
        """See `Attention`."""
        config, (rows, count, _) = self._config, qkv.shape
        heads = qkv.reshape(rows, count, -1, config.head_dim)
        query, key, value = torch.split(heads, [config.heads, config.kv_heads, config.kv_heads], dim=2)
        if config.qk_norm:
            query = normed_heads(query) * layer.q_scale + layer.q_shift
            key = normed_heads(key) * layer.k_scale + layer.k_shift
        if self._turns is not None:
            query, key = turn(query, self._turns), turn(key, self._turns)
        query, key, value = (part.transpose(1, 2) for part in (query, key, value))
        self.keys.append(key)
        self.values.append(value)
        past = (parts[index] for parts in self._past)
        key, value = (
            torch.cat([before.to(new.dtype), new], dim=2) if before.shape[2] else new
            for before, new in zip(past, (key, value), strict=True)
        )
        return self.mix(query, key, value).transpose(1, 2).flatten(2)

    def mix(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Return mixed values [B, heads, T, head_dim] for `query` of this shape and keys [B, kv_heads, N, head_dim]."""
        return self.mix_under(query, key, value, self._bias)

    @staticmethod
    def mix_under(query: Tensor, key: Tensor, value: Tensor, bias: Tensor) -> Tensor:
        """Compute `mix` with `bias`, broadcastable to [B, heads, T, N], added to the scores in float32."""
        # Stack query heads that share keys, so that the cache is not repeated.
        shared = query.reshape(*key.shape[:2], -1, key.shape[3])
        scores = (shared @ key.transpose(2, 3)).float().view(*query.shape[:3], -1) * key.shape[3] ** -0.5
        weights = torch.softmax(scores + bias, dim=-1).to(value.dtype)
        return (weights.view(*shared.shape[:3], -1) @ value).view(query.shape)


def rope_angles(config: DecoderConfig) -> Tensor:
    """Return rotary angles float32 [cells + eol_tokens + prefix, head_dim / 2]; the condition has the last rows."""
    half = config.head_dim // 2
    if config.rope == "line":
        frequencies = config.rope_base ** -(torch.arange(half).double() / half)
        cells, lines, width = torch.arange(config.cells), torch.arange(config.eol_tokens), config.width
        before = cells // width if config.eol_token is not None else 0
        places = torch.cat([cells + before, lines * (width + 1) + width, torch.arange(-config.prefix, 0)])
        return torch.outer(places.double(), frequencies).float()
    frequencies = config.rope_base ** -(torch.arange(0, half, 2).double() / half)
    turns = torch.outer(torch.arange(max(config.grid_side, config.width)).double(), frequencies)
    rows = turns[: config.grid_side].repeat_interleave(config.width, dim=0)
    columns = turns[: config.width].repeat(config.grid_side, 1)
    prefix = torch.zeros(config.prefix, half, dtype=torch.float64)
    return torch.cat([torch.cat([rows, columns], dim=1), prefix]).float()


def rope_table(config: DecoderConfig) -> Tensor:
    """Return cosines and sines float32 [cells + eol_tokens + prefix, 2, head_dim / 2]; see `rope_prefix`."""
    angles = rope_angles(config)
    table = torch.stack([angles.cos(), angles.sin()], dim=1)
    if config.rope == "grid" and config.rope_prefix == "zero":
        table[config.cells :] = 0
    return table


def normed_heads(heads: Tensor) -> Tensor:
    """Normalise each head of [..., head_dim] to mean 0 and variance 1."""
    return functional.layer_norm(heads, heads.shape[-1:], eps=QK_NORM_EPS)


def turn(heads: Tensor, turns: Tensor) -> Tensor:
    """Rotate [B, T, heads, head_dim] by `turns` [..., T, 2, head_dim / 2] in float32; pairs are half a head apart."""
    low, high = heads.float().chunk(2, dim=-1)
    cosine, sine = turns[..., None, 0, :], turns[..., None, 1, :]
    return torch.cat([low * cosine - high * sine, high * cosine + low * sine], dim=-1).to(heads.dtype)
