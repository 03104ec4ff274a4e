"""The layers that LlamaGen's transformer is built of (arXiv 2406.06525): rotation, norm, attention, feed-forward.

Names follow the published checkpoints. Every layer has two ways through its weights: `forward`, causal over a whole
sequence, and `step`, new positions against a cache.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

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
