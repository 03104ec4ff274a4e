"""What torch's own annotations leave open, said once."""

from typing import TypeVar

import torch
from torch import Tensor, nn

ModuleT = TypeVar("ModuleT", bound=nn.Module)


def call(module: nn.Module, *inputs: Tensor) -> Tensor:
    """What a module that gives one tensor makes of `inputs`; torch types every call of a module as Any."""
    found: Tensor = module(*inputs)
    return found


def channels_last(module: ModuleT) -> ModuleT:
    """The module itself, its images and kernels laid out channels last, which convolutions run faster on."""
    with torch.no_grad():
        for tensor in (*module.parameters(), *module.buffers()):
            if tensor.ndim == 4:
                tensor.data = tensor.data.contiguous(memory_format=torch.channels_last)
    return module
