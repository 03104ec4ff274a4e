"""Token samplers from a model folder: the network that enlarges a drafted picture, loaded into `models.sampler`.

Its graph is written by PyTorch's own exporter, which numbers folded tensors (the scales of norms, the transposed output
matrix) in the order of the graph; all other tensors keep the module's names.
"""

import re
from typing import Final

import torch
from torch import Tensor

from underpaint.models.sampler import SamplerConfig, TokenSampler
from underpaint.runtime.device.weights import StoredWeights, load_state
from underpaint.runtime.engines.context import EngineError
from underpaint.zoo.load import Located

_ROUNDED: Final = ".half"
"""Ending of the names of half-precision tensors."""


def _remedy(located: Located, problem: str) -> EngineError:
    return EngineError(f"{located.manifest.name}: {problem}; export it again to draw on the device")


@torch.no_grad()
def read_enlarger(located: Located, device: torch.device) -> TokenSampler:
    """Read an "upsampler" to a device, in float32; EngineError if its weights are not those of such a network."""
    entry = located.manifest.weights
    if entry is None:
        raise _remedy(located, "its graph has no weights in a file of their own")
    stored = StoredWeights(located.path.parent / entry.file)
    tensors = {name.removesuffix(_ROUNDED): stored[name].float() for name in stored.names()}
    try:
        config = _config(tensors)
        folded = _folded(tensors, config)
    except (KeyError, ValueError) as error:
        raise _remedy(located, f"expected the weights of a network that enlarges tokens ({error})") from error
    with torch.device("meta"):
        model = TokenSampler(config)
    names = model.state_dict().keys()
    try:
        load_state(model, {name: value.to(device) for name, value in (tensors | folded).items() if name in names})
    except ValueError as error:
        raise _remedy(located, str(error)) from error
    return model.eval()


def _config(tensors: dict[str, Tensor]) -> SamplerConfig:
    vocab_size, width = tensors["embedding.weight"].shape
    area, odd = divmod(tensors["change.bias"].numel(), width)
    ratio = round(area**0.5)
    if odd or ratio**2 != area:
        raise ValueError(f"{tensors['change.bias'].numel()} numbers a cell of width {width}")
    low, high = (
        len({name.split(".")[1] for name in tensors if name.startswith(f"{part}.")}) for part in ("low", "high")
    )
    looks = next(value for name, value in tensors.items() if name.endswith("look.conv.weight"))
    return SamplerConfig("up", vocab_size, ratio, width, low, high, looks.shape[2])


def _folded(tensors: dict[str, Tensor], config: SamplerConfig) -> dict[str, Tensor]:
    """Return the norms, in the order in which the network runs them, and the output matrix."""
    scales = sorted(
        (name for name, value in tensors.items() if value.shape == (config.width, 1, 1)),
        key=lambda name: int(re.findall(r"\d+", name)[-1]),
    )
    blocks = [
        f"{part}.{place}.norm.weight" for part in ("low", "high") for place in range(getattr(config, f"{part}_blocks"))
    ]
    names = [*blocks, "norm.weight"]
    if len(scales) != len(names):
        raise ValueError(f"{len(scales)} norms, not {len(names)}")
    norms = {name: tensors[scale].flatten() for name, scale in zip(names, scales, strict=True)}
    shape = (config.width, config.vocab_size)
    outputs = [value for name, value in tensors.items() if value.shape == shape and name != "embedding.weight"]
    if len(outputs) != 1:
        raise ValueError(f"{len(outputs)} matrices of the output")
    return norms | {"output.weight": outputs[0].t().contiguous()}
