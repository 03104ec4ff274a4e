"""Linear layers whose weights have fewer bits than their inputs (weight-only quantisation).

The device's kernel converts tiles of weights while it multiplies, so that a pass reads the narrow numbers alone. Sums
are float32. The weights are those of the file where it stores them so, or they are rounded here: int8 or
float8_e4m3fn, with one scale per output channel.
"""

from collections.abc import Callable
from typing import Final, Self

import torch
from torch import Tensor, nn
from torch.nn import functional

from underpaint.artifacts.scaled_rows import group_size_of
from underpaint.models.decoder import Decoder
from underpaint.models.layers import Layer

MATRICES: Final = ("qkv", "out", "gate_up", "down")
"""The linear layers of a decoder layer, which are most of what a pass reads."""
QUANTISED_TYPES: Final = {"int8": torch.int8, "fp8": torch.float8_e4m3fn}
"""The types of quantised weights, by the name that a user gives."""
_MOST: Final = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}


class WeightOnlyLinear(nn.Linear):
    """A linear layer with narrow weights.

    Attributes:
        weight: [N, K], int8, float8_e4m3fn or a type with fewer bits than the inputs.
        scale: Float32 [N, G], the factors of G groups of each row, the last of which may be shorter; None for no
            factors. The size of several groups is a power of two.
    """

    scale: Tensor | None

    def __init__(self, weight: Tensor, scale: Tensor | None, bias: Tensor | None) -> None:
        super().__init__(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
        self.weight = nn.Parameter(weight, requires_grad=False)
        if bias is not None:
            self.bias = nn.Parameter(bias, requires_grad=False)
        self.register_buffer("scale", scale)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Move the layer to a device; a new precision changes the bias alone."""
        weight, scale = self.weight.detach(), self.scale
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self.weight = nn.Parameter(weight.to(self.weight.device), requires_grad=False)
        self.scale = None if scale is None else scale.to(self.weight.device)
        return self

    def widened(self) -> Tensor:
        """Return the numbers that the weights stand for, float32 [N, K]."""
        wide = self.weight.float()
        if self.scale is None:
            return wide
        size = group_size_of(self.in_features, self.scale.shape[1])
        return wide * self.scale.repeat_interleave(size, dim=1)[:, : self.in_features]

    def forward(self, hidden: Tensor) -> Tensor:
        """Multiply [..., K] in plain PyTorch, for loops without the device's kernels; it widens all weights."""
        return functional.linear(hidden, self.widened().to(hidden.dtype), self.bias)


def scale_of(linear: nn.Linear) -> Tensor | None:
    """Return the scales of a linear layer's weights; None if it has none."""
    return linear.scale if isinstance(linear, WeightOnlyLinear) else None


def quantised(weight: Tensor, kind: torch.dtype, group_size: int | None = None) -> tuple[Tensor, Tensor]:
    """Round a matrix [N, K] to the nearest numbers of a narrow type.

    Args:
        weight: The matrix, in any float type.
        kind: torch.int8 or torch.float8_e4m3fn.
        group_size: Numbers of a row that share a scale, a power of two; None for the whole row.

    Returns:
        The rounded matrix [N, K], and float32 scales [N, G], one per group, which map the group's largest number to the
        type's largest.
    """
    width = weight.shape[1]
    size = width if group_size is None else group_size
    groups = functional.pad(weight.float(), (0, -width % size)).reshape(weight.shape[0], -1, size)
    scale = groups.abs().amax(dim=2) / _MOST[kind]
    steps = groups / torch.where(scale > 0, scale, 1.0)[:, :, None]
    rounded = (steps.round() if kind == torch.int8 else steps).to(kind)
    return rounded.flatten(1)[:, :width].contiguous(), scale


@torch.no_grad()
def quantise_layers(model: Decoder, kind: torch.dtype, group_size: int | None = None) -> None:
    """Quantise the matrices of every layer of a decoder in place; embeddings, norms and the head stay as they are.

    Args:
        model: The decoder.
        kind: torch.int8 or torch.float8_e4m3fn, see `quantised`.
        group_size: Numbers of a row that share a scale, see `quantised`; None for the whole row.
    """
    for layer in model.layers:
        assert isinstance(layer, Layer)
        for name in MATRICES:
            linear = getattr(layer, name)
            setattr(layer, name, WeightOnlyLinear(*quantised(linear.weight, kind, group_size), linear.bias))
