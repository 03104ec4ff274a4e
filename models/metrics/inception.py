"""Inception-v3 as FID takes it, in torch-fidelity's format of weights (its file of 2015-12-05).

Architecture: arXiv 1512.00567, with what TensorFlow's graph of 2015 does otherwise: averages leave padding out, the
last block takes a maximum in place of an average, pictures are enlarged as TensorFlow 1 did, and there are 1,008
classes. torch-fidelity itself needs torchvision; this does not.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from underpaint.models.metrics.weights import load_weights

INPUT_SIDE: Final = 299
CLASSES: Final = 1008
_EPSILON: Final = 1e-3


class _Conv(NamedTuple):
    """A convolution of a block: its name in the file, its outputs, its kernel and its stride."""

    name: str
    out: int
    kernel: int | tuple[int, int] = 1
    stride: int = 1


_Step: TypeAlias = "_Conv | tuple[_Conv, _Conv] | str"
"""A convolution, two side by side, or a pooling: average, max, or max_half (stride 2)."""
_Branches: TypeAlias = tuple[tuple[_Step, ...], ...]


def _narrow(pooled: int) -> _Branches:
    return (
        (_Conv("branch1x1", 64),),
        (_Conv("branch5x5_1", 48), _Conv("branch5x5_2", 64, 5)),
        (_Conv("branch3x3dbl_1", 64), _Conv("branch3x3dbl_2", 96, 3), _Conv("branch3x3dbl_3", 96, 3)),
        ("average", _Conv("branch_pool", pooled)),
    )


def _long(width: int) -> _Branches:
    row, column = (1, 7), (7, 1)
    five = (width, row), (width, column)
    doubled: tuple[tuple[int, int | tuple[int, int]], ...] = (
        *((width, 1), (width, column), (width, row), (width, column), (192, row)),
    )
    return (
        (_Conv("branch1x1", 192),),
        (_Conv("branch7x7_1", width), _Conv("branch7x7_2", *five[0]), _Conv("branch7x7_3", 192, column)),
        tuple(_Conv(f"branch7x7dbl_{turn}", *one) for turn, one in enumerate(doubled, start=1)),
        ("average", _Conv("branch_pool", 192)),
    )


def _wide(pooling: str) -> _Branches:
    def fork(name: str) -> tuple[_Conv, _Conv]:
        return _Conv(f"{name}a", 384, (1, 3)), _Conv(f"{name}b", 384, (3, 1))

    return (
        (_Conv("branch1x1", 320),),
        (_Conv("branch3x3_1", 384), fork("branch3x3_2")),
        (_Conv("branch3x3dbl_1", 448), _Conv("branch3x3dbl_2", 384, 3), fork("branch3x3dbl_3")),
        (pooling, _Conv("branch_pool", 192)),
    )


_STEM: Final = (
    *(_Conv("Conv2d_1a_3x3", 32, 3, 2), _Conv("Conv2d_2a_3x3", 32, -3), _Conv("Conv2d_2b_3x3", 64, 3)),
    *("max_half", _Conv("Conv2d_3b_1x1", 80), _Conv("Conv2d_4a_3x3", 192, -3), "max_half"),
)
"""A kernel below 0 is one without padding."""
_BLOCKS: Final[dict[str, _Branches]] = {
    "Mixed_5b": _narrow(32),
    "Mixed_5c": _narrow(64),
    "Mixed_5d": _narrow(64),
    "Mixed_6a": (
        (_Conv("branch3x3", 384, 3, 2),),
        (_Conv("branch3x3dbl_1", 64), _Conv("branch3x3dbl_2", 96, 3), _Conv("branch3x3dbl_3", 96, 3, 2)),
        ("max_half",),
    ),
    "Mixed_6b": _long(128),
    "Mixed_6c": _long(160),
    "Mixed_6d": _long(160),
    "Mixed_6e": _long(192),
    "Mixed_7a": (
        (_Conv("branch3x3_1", 192), _Conv("branch3x3_2", 320, 3, 2)),
        (
            *(_Conv("branch7x7x3_1", 192), _Conv("branch7x7x3_2", 192, (1, 7)), _Conv("branch7x7x3_3", 192, (7, 1))),
            _Conv("branch7x7x3_4", 192, 3, 2),
        ),
        ("max_half",),
    ),
    "Mixed_7b": _wide("average"),
    "Mixed_7c": _wide("max"),
}


class InceptionOutput(NamedTuple):
    """features: [n, F] (2,048 published), what FID, KID and precision take. probabilities: [n, 1008], what IS takes."""

    features: NDArray[np.float64]
    probabilities: NDArray[np.float64]


class _ConvNorm(nn.Module):
    def __init__(self, inputs: int, wanted: _Conv, out: int) -> None:
        super().__init__()
        sizes = (wanted.kernel,) * 2 if isinstance(wanted.kernel, int) else wanted.kernel
        padded = wanted.stride == 1 and min(sizes) > 0
        kernel = (abs(sizes[0]), abs(sizes[1]))
        padding = (kernel[0] // 2, kernel[1] // 2) if padded else (0, 0)
        self.conv = nn.Conv2d(inputs, out, kernel, wanted.stride, padding, bias=False)
        self.bn = nn.BatchNorm2d(out, eps=_EPSILON)

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(self.bn(self.conv(x)))


class _Chains(nn.Module):
    """Chains of steps from one input; their outputs side by side."""

    def __init__(self, inputs: int, chains: _Branches, share: int) -> None:
        super().__init__()
        self._chains = chains
        self.width = 0
        for chain in chains:
            width = inputs
            for step in chain:
                parts = (step,) if isinstance(step, _Conv) else () if isinstance(step, str) else step
                for part in parts:
                    self.add_module(part.name, _ConvNorm(width, part, max(1, part.out // share)))
                width = sum(max(1, part.out // share) for part in parts) or width
            self.width += width

    def forward(self, x: Tensor) -> Tensor:
        found = []
        for chain in self._chains:
            y = x
            for step in chain:
                y = self._step(y, step)
            found.append(y)
        return torch.cat(found, 1)

    def _step(self, x: Tensor, step: _Step) -> Tensor:
        if isinstance(step, str):
            return _pooled(x, step)
        parts = (step,) if isinstance(step, _Conv) else step
        return torch.cat([self.get_submodule(part.name)(x) for part in parts], 1)


def _pooled(x: Tensor, kind: str) -> Tensor:
    if kind == "average":
        return functional.avg_pool2d(x, 3, 1, 1, count_include_pad=False)
    if kind == "max":
        return functional.max_pool2d(x, 3, 1, 1)
    return functional.max_pool2d(x, 3, 2)


class FidInception(nn.Module):
    """The network. share: divides every width; 1 is the published one, more are for tests."""

    def __init__(self, share: int = 1) -> None:
        super().__init__()
        self._stem = _Chains(3, (_STEM,), share)
        width = self._stem.width
        self._blocks = nn.ModuleDict()
        for name, branches in _BLOCKS.items():
            block = _Chains(width, branches, share)
            self._blocks[name], width = block, block.width
        self.fc = nn.Linear(width, CLASSES)

    def forward(self, pictures: Tensor) -> tuple[Tensor, Tensor]:
        """Features [n, F] and logits without their bias [n, 1008] of pictures [n, 3, h, w] in 0..255."""
        x = (enlarged(pictures.float(), INPUT_SIDE) - 128.0) / 128.0
        x = self._stem(x)
        for block in self._blocks.values():
            x = block(x)
        features = x.mean(dim=(2, 3))
        return features, features @ self.fc.weight.T

    @staticmethod
    def own_name(published: str) -> str:
        """The name that a weight of the published file has here."""
        first = published.partition(".")[0]
        inside = {"Conv2d": "_stem.", "Mixed": "_blocks."}
        return inside.get(first.partition("_")[0], "") + published


def enlarged(x: Tensor, side: int) -> Tensor:
    """Pictures [n, c, h, w] at `side`, by lines between pixels as TensorFlow 1 places them: i is at i * size / side."""
    for axis in (2, 3):
        size = x.shape[axis]
        # TensorFlow computes the step and the places in float32, and so do the weights expect it.
        places = torch.arange(side, dtype=torch.float32) * (torch.tensor(float(size)) / side)
        low = places.floor().long().clamp(max=size - 1)
        high = (low + 1).clamp(max=size - 1)
        part = (places - low).to(x.dtype).reshape([-1 if at == axis else 1 for at in range(4)])
        before, after = x.index_select(axis, low), x.index_select(axis, high)
        x = before + (after - before) * part
    return x


class Inception:
    """Features and class probabilities of pictures, by weights on this machine."""

    def __init__(self, path: Path, share: int = 1) -> None:
        """Raises ValueError where the file is missing, or is not torch-fidelity's."""
        found = load_weights(path, "inception")
        network = FidInception(share)
        named = {FidInception.own_name(name): value for name, value in found.items()}
        try:
            network.load_state_dict(named)
        except RuntimeError as error:
            raise ValueError(f"{path}: expected torch-fidelity's Inception weights; {str(error)[:300]}") from error
        self._network = network.eval()

    @torch.inference_mode()
    def __call__(self, pictures: NDArray[np.uint8]) -> InceptionOutput:
        """Of pictures [n, h, w, 3]."""
        features, logits = self._network(torch.from_numpy(np.array(pictures)).permute(0, 3, 1, 2))
        shares = torch.softmax(logits.double(), dim=1)
        return InceptionOutput(features.double().numpy(), shares.numpy())
