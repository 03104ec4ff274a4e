"""Helpers with precise types where torch's annotations are too general."""

from typing import TypeVar

import torch
from torch import Tensor, nn

ModuleT = TypeVar("ModuleT", bound=nn.Module)


def call(module: nn.Module, *inputs: Tensor) -> Tensor:
    """Call a module that returns one tensor; torch types every module call as Any."""
    output: Tensor = module(*inputs)
    return output


def channels_last(module: ModuleT) -> ModuleT:
    """Convert a module's 4-D tensors to channels-last layout, which is faster for convolutions, and return it."""
    with torch.no_grad():
        for tensor in (*module.parameters(), *module.buffers()):
            if tensor.ndim == 4:
                tensor.data = tensor.data.contiguous(memory_format=torch.channels_last)
    return module
