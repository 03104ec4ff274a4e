"""Forward passes of `models.decoder.Decoder`, target or drafter, on the device: nine launches a layer.

The module itself says what its layers compute; the device attends to a static cache, and has kernels of its own for
norms and the gate. The same code runs on weights that have shapes alone. An end-of-line token is one more code,
`line_token`; who lays out a pass puts it behind the lines.
"""

import torch
from torch import Tensor
from torch.nn.functional import embedding

from underpaint.artifacts.decoder_config import DecoderConfig
from underpaint.models.decoder import Decoder
from underpaint.models.layers import Kernels, Layer, RMSNorm, rope_table
from underpaint.runtime.device.forwards import Attend, Turns
from underpaint.runtime.device.kernels.draft_inputs import draft_inputs
from underpaint.runtime.device.kernels.layers import add_norm, gate


class DeviceKernels(Kernels):
    """Norm and gate as one launch each; sums are added in place."""

    def add_norm(self, hidden: Tensor, added: Tensor | None, norm: RMSNorm | None) -> tuple[Tensor, Tensor]:
        if norm is None:
            return super().add_norm(hidden, added, None)
        normed = torch.empty_like(hidden)
        add_norm(hidden, added, norm.weight, normed, norm.eps)
        return hidden, normed

    def gate(self, both: Tensor) -> Tensor:
        gated = torch.empty((*both.shape[:2], both.shape[2] // 2), dtype=both.dtype, device=both.device)
        gate(both, gated)
        return gated


def code_table(model: Decoder) -> tuple[Tensor, int | None]:
    """Embeddings of the codes and, where lines of the picture end in a token, of that behind them; its number."""
    codes, eol = model.codes.weight.detach(), model.config.eol_token
    if eol is None or model.conditions is None:
        return codes, None
    return torch.cat([codes, model.conditions.weight.detach()[eol : eol + 1]]), model.config.vocab_size


class DecoderForward:
    """A `DeviceDecoder` over a decoder of `models`; rows: 1, or 2 for a guidance pair."""

    def __init__(self, model: Decoder, rows: int) -> None:
        config = model.config
        self.config, self.rows, self.model, self._kernels = config, rows, model, DeviceKernels()
        self.codes, self.line_token = code_table(model)
        self.dtype = self.codes.dtype
        table = None if config.rope == "none" else rope_table(config).to(self.codes.device)
        self._turns = [Turns(table, _scales(layer)) for layer in model.layers if isinstance(layer, Layer)]
        # Float32 whatever the weights are: rounding logits to bfloat16 alone moves a guided distribution.
        self._head = model.head.weight.detach().float().t()

    def embed(self, tokens: Tensor) -> Tensor:
        return embedding(tokens.repeat(self.rows, 1), self.codes)

    @torch.no_grad()
    def draft_hidden(
        self, tokens: Tensor, features: Tensor, parents: Tensor | None, positions: Tensor, attend: Attend
    ) -> Tensor:
        if self.model.fc is None:
            raise ValueError("device: expected a drafter, got a decoder that reads no features")
        width = self.config.dim
        both = torch.empty(features.shape[0], tokens.shape[1], 2 * width, dtype=self.dtype, device=features.device)
        draft_inputs(tokens, self.codes, features, parents, both[:, :, :width], both[:, :, width:])
        return self.hidden(self.model.fc(both), positions, attend)

    @torch.no_grad()
    def hidden(self, embeddings: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        def attention(index: int, layer: Layer, qkv: Tensor) -> Tensor:
            return attend(index, qkv, self._turns[index], positions)

        hidden = self.model.add_positions(embeddings, positions.repeat(self.rows, 1))
        return self.model.through_layers(hidden.contiguous(), attention, self._kernels)

    def logits(self, features: Tensor) -> Tensor:
        return features.float() @ self._head


def _scales(layer: Layer) -> Tensor | None:
    """See `Turns`; None where queries and keys are not normalised."""
    if "q_scale" not in dict(layer.named_parameters(recurse=False)):
        return None
    return torch.cat([layer.q_scale, layer.q_shift, layer.k_scale, layer.k_shift]).detach().float()


def shapes_alone(config: DecoderConfig, dtype: torch.dtype, device: torch.device) -> Decoder:
    """A decoder of these sizes whose weights hold nothing: to count or to time a model whose weights are not there."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device(device):
            return Decoder(config)
    finally:
        torch.set_default_dtype(before)
