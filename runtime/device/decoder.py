"""Forward passes of `models.decoder.Decoder`, target or drafter, on the device: five launches per layer.

The module itself defines what its layers compute. The device attends to a static KV cache, and has its own kernels for
a layer's products with their norms, gate and sums. The same code runs on weights that have only shapes. An end-of-line
token is one more code, `line_token`; the code that lays out a pass puts it after the lines.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import Linear

from underpaint.models.decoder import Decoder
from underpaint.models.layers import Attention, Kernels, Layer, RMSNorm, rope_table
from underpaint.runtime.device.forwards import Attend, CachedPass, Turns
from underpaint.runtime.device.kernels.draft_inputs import draft_inputs, embed
from underpaint.runtime.device.kernels.layers import ADD, FEW, GATE, normalise, product
from underpaint.runtime.device.weight_only import WeightOnlyLinear, scale_of


class DeviceKernels(Kernels):
    """Kernels of one launch per method, two for attention and for a product with narrow weights by itself.

    Products apply the norms, and sums are added in place.
    """

    def __init__(self, attend: Attend, turns: Sequence[Turns], positions: Tensor) -> None:
        self._attend, self._turns, self._positions = attend, turns, positions

    def norm(self, hidden: Tensor, norm: RMSNorm | None) -> Tensor:
        if norm is None:
            return hidden
        normed = torch.empty_like(hidden)
        normalise(hidden, norm.weight, normed, norm.eps)
        return normed

    def attend(self, attend: Attention, index: int, layer: Layer, hidden: Tensor, norm: RMSNorm | None) -> Tensor:
        if not isinstance(self._attend, CachedPass):
            return super().attend(attend, index, layer, hidden, norm)
        return self._attend.mix(index, hidden, norm, layer.qkv, self._turns[index], self._positions)

    def gate(self, hidden: Tensor, norm: RMSNorm | None, linear: Linear) -> Tensor:
        out = hidden.new_empty(*hidden.shape[:2], linear.out_features // 2)
        normed = None if norm is None else (norm.weight, norm.eps)
        product(hidden, normed, linear.weight, None, out, GATE.value, weight_scale=scale_of(linear))
        return out

    def apply(self, linear: Linear, hidden: Tensor) -> Tensor:
        if not isinstance(linear, WeightOnlyLinear):
            return super().apply(linear, hidden)
        out = hidden.new_zeros(*hidden.shape[:2], linear.out_features)
        product(hidden.contiguous(), None, linear.weight, linear.bias, out, ADD.value, weight_scale=linear.scale)
        return out

    def add(self, hidden: Tensor, mixed: Tensor, linear: Linear, after: Linear | None = None) -> Tensor:
        if hidden.shape[0] * hidden.shape[1] <= FEW or isinstance(linear, WeightOnlyLinear):
            following = None if after is None else after.weight
            scale = scale_of(linear)
            product(mixed, None, linear.weight, None, hidden, ADD.value, after=following, weight_scale=scale)
        else:
            lines = hidden.view(-1, hidden.shape[2])
            lines.addmm_(mixed.reshape(lines.shape[0], -1), linear.weight.t())
        return hidden


def code_table(model: Decoder) -> tuple[Tensor, int | None]:
    """Return the code embeddings, with an end-of-line token's row appended if there is one; and that row's index."""
    codes, eol = model.codes.weight.detach(), model.config.eol_token
    if eol is None or model.conditions is None:
        return codes, None
    return torch.cat([codes, model.conditions.weight.detach()[eol : eol + 1]]), model.config.vocab_size


class DecoderForward:
    """A `DeviceDecoder` for a decoder of `models`; `rows` is 1, or 2 for a guidance pair."""

    def __init__(self, model: Decoder, rows: int) -> None:
        config = model.config
        self.config, self.rows, self.model = config, rows, model
        self.places = None
        self.codes, self.line_token = code_table(model)
        self.dtype = self.codes.dtype
        table = None if config.rope == "none" else rope_table(config).to(self.codes.device)
        self._turns = [Turns(table, _scales(layer)) for layer in model.layers if isinstance(layer, Layer)]
        self._head = model.head.weight.detach().t()
        self.mixed_precision_head = self._head.is_cuda and self.dtype != torch.float32

    def embed(self, tokens: Tensor) -> Tensor:
        return embed(tokens, self.codes, self.rows)

    def embed_condition(self, tokens: Tensor, outside: Tensor | None) -> Tensor:
        """See `EngineForward`."""
        return self.model.embed(tokens, outside)

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
            assert not isinstance(attend, CachedPass)
            return attend(index, qkv, self._turns[index], positions)

        if self.model.positions is not None:
            embeddings = self.model.add_positions(embeddings, positions.repeat(self.rows, 1))
        kernels = DeviceKernels(attend, self._turns, positions)
        return self.model.through_layers(embeddings.contiguous(), attention, kernels)

    def logits(self, features: Tensor) -> Tensor:
        """Return the product of the stored factors, summed and kept in float32.

        Rounding logits to bfloat16 alone shifts a guided distribution. PyTorch multiplies half-precision factors into
        float32 only on GPUs (`mixed_precision_head`); elsewhere the factors are converted to float32 first.
        """
        if not self.mixed_precision_head:
            return features.float() @ self._head.float()
        lines = features.reshape(-1, features.shape[2])
        return torch.mm(lines, self._head, out_dtype=torch.float32).view(*features.shape[:2], -1)


def _scales(layer: Layer) -> Tensor | None:
    """Return the scales of `Turns`; None if queries and keys are not normalised."""
    if "q_scale" not in dict(layer.named_parameters(recurse=False)):
        return None
    return torch.cat([layer.q_scale, layer.q_shift, layer.k_scale, layer.k_shift]).detach().float()
