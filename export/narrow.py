"""A tokenizer that computes in a narrower type, for graphs of that type."""

import copy

import torch
from torch import Tensor, nn

from underpaint.artifacts.decoder_graph import Precision
from underpaint.models.published.load import PRECISIONS
from underpaint.models.typed import call
from underpaint.models.vq import VQModel
from underpaint.models.vq_layers import AttentionBlock


class _Wide(nn.Module):
    """Runs `part` in float32 among neighbours of another type."""

    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.part = part

    def forward(self, hidden: Tensor) -> Tensor:
        """Keep the type of `hidden`."""
        return call(self.part, hidden.float()).to(hidden.dtype)


class _Cast(nn.Module):
    """To another type."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype

    def forward(self, hidden: Tensor) -> Tensor:
        """See the class."""
        return hidden.to(self.dtype)


def narrowed(model: VQModel, precision: Precision) -> VQModel:
    """A copy of a float32 tokenizer whose convolutions compute in `precision`; what it takes and gives stays float32.

    Group norms and attention, which add up more numbers than float16 can hold the sum of, stay in float32, and so do
    the latents and their products with the codebook, whose near-ties a rounding would decide.
    """
    dtype = PRECISIONS[precision]
    found = copy.deepcopy(model)
    if dtype == torch.float32:
        return found
    _narrow(found.encoder, dtype)
    _narrow(found.decoder, dtype)
    for name in ("quant_conv", "post_quant_conv"):
        getattr(found, name).to(dtype)
    found.add_module("encoder", nn.Sequential(_Cast(dtype), found.encoder))
    found.add_module("quant_conv", nn.Sequential(found.quant_conv, _Cast(torch.float32)))
    found.add_module("post_quant_conv", nn.Sequential(_Cast(dtype), found.post_quant_conv))
    found.add_module("decoder", nn.Sequential(found.decoder, _Cast(torch.float32)))
    return found


def _narrow(module: nn.Module, dtype: torch.dtype) -> None:
    """Convert the convolutions below `module` in place, and wrap what has to stay in float32."""
    for name, part in module.named_children():
        if isinstance(part, nn.GroupNorm | AttentionBlock):
            setattr(module, name, _Wide(part))
        elif isinstance(part, nn.Conv2d):
            part.to(dtype)
        else:
            _narrow(part, dtype)
