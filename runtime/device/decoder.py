"""Forward passes of `models.decoder.Decoder`, target or drafter, on the device: nine launches a layer.

The weights are the module's own; its layers' forward passes are not used, so the same code runs on weights that have
shapes alone. An end-of-line token is one more code, `line_token`; who lays out a pass puts it behind the lines.
"""

from typing import NamedTuple, Self

import torch
from torch import Tensor
from torch.nn.functional import embedding

from underpaint.models.decoder import Decoder, Layer
from underpaint.models.decoder_config import DecoderConfig, rope_table
from underpaint.runtime.device.forwards import Attend, ForwardSizes, Turns
from underpaint.runtime.device.kernels.draft_inputs import draft_inputs
from underpaint.runtime.device.kernels.layers import add_norm, gate


class LayerWeights(NamedTuple):
    """One layer; products are taken from the right: [F, 3 F], [F, F], [F, 2 G] (gate, then up), [G, F].

    What a model lacks is None. turns: the rotary table and the scales of normalised queries and keys.
    """

    attention_norm: Tensor | None
    qkv: Tensor
    qkv_bias: Tensor | None
    out: Tensor
    ffn_norm: Tensor
    gate_up: Tensor
    down: Tensor
    turns: Turns

    @classmethod
    def of(cls, layer: Layer, table: Tensor | None) -> Self:
        """The weights of a layer of `models`."""
        scales = None
        if layer.config.qk_norm:
            scales = torch.stack([layer.q_scale, layer.q_shift, layer.k_scale, layer.k_shift]).detach().float()
        bias = layer.qkv.bias
        return cls(
            None if layer.attention_norm is None else layer.attention_norm.weight.detach(),
            layer.qkv.weight.detach().t(),
            None if bias is None else bias.detach(),
            layer.out.weight.detach().t(),
            layer.ffn_norm.weight.detach(),
            layer.gate_up.weight.detach().t(),
            layer.down.weight.detach().t(),
            Turns(table, scales),
        )


def code_table(model: Decoder) -> tuple[Tensor, int | None]:
    """Embeddings of the codes and, where lines of the picture end in a token, of that behind them; its number."""
    codes, eol = model.codes.weight.detach(), model.config.eol_token
    if eol is None or model.conditions is None:
        return codes, None
    return torch.cat([codes, model.conditions.weight.detach()[eol : eol + 1]]), model.config.vocab_size


def forward_sizes(config: DecoderConfig, rows: int) -> ForwardSizes:
    """The sizes of a decoder of `rows` rows."""
    return ForwardSizes(rows, config.layers, config.heads, config.head_dim, config.dim, config.vocab_size)


class DecoderForward:
    """A `DeviceDecoder` over a decoder of `models`; rows: 1, or 2 for a guidance pair."""

    def __init__(self, model: Decoder, rows: int) -> None:
        config = model.config
        self.config, self.rows, self.device = config, rows, model.head.weight.device
        self.codes, self.line_token = code_table(model)
        self.dtype = self.codes.dtype
        self.positions = None if model.positions is None else model.positions.weight.detach()
        table = None if config.rope == "none" else rope_table(config).to(self.device)
        self.layers = tuple(LayerWeights.of(layer, table) for layer in model.layers if isinstance(layer, Layer))
        self.norm = None if model.norm is None else model.norm.weight.detach()
        # Float32 whatever the weights are: rounding logits to bfloat16 alone moves a guided distribution.
        self.head = model.head.weight.detach().float().t()
        self.join = None if model.fc is None else model.fc.weight.detach().t()
        self.join_bias = None if model.fc is None or model.fc.bias is None else model.fc.bias.detach()

    @property
    def shape(self) -> ForwardSizes:
        return forward_sizes(self.config, self.rows)

    def embed(self, tokens: Tensor) -> Tensor:
        return embedding(tokens.repeat(self.rows, 1), self.codes)

    def draft_hidden(
        self, tokens: Tensor, features: Tensor, parents: Tensor | None, positions: Tensor, attend: Attend
    ) -> Tensor:
        if self.join is None:
            raise ValueError("device: expected a drafter, got a decoder that reads no features")
        width = self.config.dim
        beside = torch.empty(features.shape[0], tokens.shape[1], 2 * width, dtype=self.dtype, device=features.device)
        draft_inputs(tokens, self.codes, features, parents, beside[:, :, :width], beside[:, :, width:])
        hidden = beside @ self.join
        return self.hidden(hidden if self.join_bias is None else hidden + self.join_bias, positions, attend)

    def hidden(self, embeddings: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        hidden = embeddings
        if self.positions is not None:
            places = positions.remainder(self.positions.shape[0]).repeat(self.rows, 1)
            hidden = hidden + embedding(places, self.positions)
        hidden = hidden.contiguous()
        return (
            self._after_norm(hidden, positions, attend)
            if self.config.post_norm
            else self._before_norm(hidden, positions, attend)
        )

    def _before_norm(self, hidden: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """Norms stand before attention and feed-forward; each takes the sum before it along. `hidden` is written to."""
        eps, normed = self.config.norm_eps, torch.empty_like(hidden)
        added: Tensor | None = None
        for number, layer in enumerate(self.layers):
            read = hidden
            if layer.attention_norm is not None:
                add_norm(hidden, added, layer.attention_norm, normed, eps)
                read = normed
            mixed = self._mixed(number, layer, read, positions, attend)
            add_norm(hidden, mixed, layer.ffn_norm, normed, eps)
            added = _fed(layer, normed)
        if added is None:
            raise ValueError("device: expected a decoder of at least one layer")
        if self.norm is None:
            return hidden + added
        add_norm(hidden, added, self.norm, normed, eps)
        return normed

    def _after_norm(self, hidden: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """Norms stand after attention and feed-forward, as in Chameleon's larger models."""
        eps = self.config.norm_eps
        for number, layer in enumerate(self.layers):
            mixed = self._mixed(number, layer, hidden, positions, attend)
            if layer.attention_norm is not None:
                mixed = _normed(mixed, layer.attention_norm, eps)
            hidden = hidden + mixed
            hidden = hidden + _normed(_fed(layer, hidden), layer.ffn_norm, eps)
        return hidden if self.norm is None else _normed(hidden, self.norm, eps)

    def _mixed(self, number: int, layer: LayerWeights, read: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        qkv = read @ layer.qkv
        qkv = qkv if layer.qkv_bias is None else qkv + layer.qkv_bias
        return attend(number, qkv, layer.turns, positions) @ layer.out

    def logits(self, features: Tensor) -> Tensor:
        return features.float() @ self.head


def _normed(hidden: Tensor, weight: Tensor, eps: float) -> Tensor:
    out = torch.empty_like(hidden)
    add_norm(hidden, None, weight, out, eps)
    return out


def _fed(layer: LayerWeights, read: Tensor) -> Tensor:
    opened = read @ layer.gate_up
    gated = torch.empty((*opened.shape[:2], opened.shape[2] // 2), dtype=opened.dtype, device=opened.device)
    gate(opened, gated)
    return gated @ layer.down


def shapes_alone(config: DecoderConfig, dtype: torch.dtype, device: torch.device) -> Decoder:
    """A decoder of these sizes whose weights hold nothing: to count or to time a model whose weights are not there."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device(device):
            return Decoder(config)
    finally:
        torch.set_default_dtype(before)
