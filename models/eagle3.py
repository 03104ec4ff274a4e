"""EAGLE-3's drafter (arXiv 2503.01840): one layer on three features of the target, with its own vocabulary."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from underpaint.artifacts.decoder_config import DecoderConfig
from underpaint.artifacts.decoder_graph import MASKED_SCORE
from underpaint.models.decoder import Decoder, StepOutput
from underpaint.models.layers import PLAIN, DenseAttention, Layer, RMSNorm
from underpaint.models.typed import call


@dataclass(frozen=True, slots=True)
class Eagle3Config:
    """The sizes and options of an EAGLE-3 drafter.

    Args:
        decoder: Sizes of the drafter's layer. `vocab_size` counts the target's codes.
        target_layers: The target's hidden states that the drafter reads: 0 is the embedding, i the output of layer i,
            counted from 1. speculators counts in the same way; SpecForge counts layers from 0.
        drafted_codes: The number of codes that the drafter can draft, K.
        norm_before_residual: Whether the residual stream takes the feature after its norm, as speculators may.
        norm_output: Whether the next level of a draft reads the normalised output (EAGLE-3.1).
    """

    decoder: DecoderConfig
    target_layers: tuple[int, ...]
    drafted_codes: int
    norm_before_residual: bool = False
    norm_output: bool = False


class Eagle3Decoder(Decoder):
    """A `Decoder` whose `step` is that of an EAGLE-3 drafter.

    A position reads a token's embedding and a feature: the target's [B, T, 3 D] for committed tokens, the drafter's
    own [B, T, D] for draft tokens. Codes that it cannot draft get the logit `MASKED_SCORE`.

    Attributes:
        drafted: int64 [K], ascending, the codes that the drafter can draft.
    """

    drafted: Tensor

    def __init__(self, config: Eagle3Config) -> None:
        super().__init__(replace(config.decoder, fc_bias=False))
        self.eagle3, (dim, eps) = config, (config.decoder.dim, config.decoder.norm_eps)
        layer = self.layers[0]
        assert isinstance(layer, Layer)
        layer.qkv = nn.Linear(2 * dim, layer.qkv.out_features, bias=False)
        self.feature_norm = RMSNorm(dim, eps)
        self.fc = nn.Linear(len(config.target_layers) * dim, dim, bias=False)
        self.head = nn.Linear(dim, config.drafted_codes, bias=False)
        self.register_buffer("drafted", torch.arange(config.drafted_codes))

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
        """See `Decoder.step`; the next level of a draft reads the returned features."""
        if features is None or self.fc is None or self.norm is None:
            raise ValueError("a drafter reads features, got none")
        embedded = self.embed(tokens, rows)
        hidden = features.to(embedded.dtype)
        if hidden.shape[-1] == self.fc.in_features:
            hidden = call(self.fc, hidden)
        layer = self.layers[0]
        assert isinstance(layer, Layer)
        attention = DenseAttention(self.config, self.turns(cells), bias, past_keys, past_values)
        normed = call(self.feature_norm, hidden)
        both = torch.cat([PLAIN.norm(embedded, layer.attention_norm), normed], dim=-1)
        hidden = normed if self.eagle3.norm_before_residual else hidden
        hidden = PLAIN.add(hidden, attention(0, layer, call(layer.qkv, both)), layer.out)
        hidden = PLAIN.add(hidden, PLAIN.gate(hidden, layer.ffn_norm, layer.gate_up), layer.down)
        read = PLAIN.norm(hidden, self.norm)
        output = read if self.eagle3.norm_output else hidden
        return StepOutput(self._logits(read), output.float(), attention.keys, attention.values)

    def _logits(self, read: Tensor) -> Tensor:
        """Return logits [B, T, V] over the target's codes."""
        logits: Tensor = call(self.head, read).float()
        if self.eagle3.drafted_codes == self.config.vocab_size:
            return logits
        whole = logits.new_full((*logits.shape[:-1], self.config.vocab_size), float(MASKED_SCORE))
        return whole.index_copy(-1, self.drafted, logits)
