"""The judge: a small classifier that predicts the attributes of a caption from an image.

It measures generators of TexturedScenes: its class scores measure agreement with the prompt, and its features measure
the distance between sets of images. It is trained on every pair, because it is only a measuring instrument.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from underpaint.models.checkpoints import read, take_weights
from underpaint.models.config import build
from underpaint.zoo.textured_prompts import TEXTURED_SLOTS

JUDGE_SIDE: Final = 64
"""Side in pixels of the judge's input images."""


@dataclass(frozen=True, slots=True)
class JudgeConfig:
    """The channels after each of the four halvings (64 to 4 px), and the width of the features."""

    channels: tuple[int, int, int, int] = (32, 64, 96, 128)
    features: int = 160

    def __post_init__(self) -> None:
        sizes = (*self.channels, self.features)
        if len(self.channels) != 4 or not 1 <= min(sizes) <= max(sizes) <= 1 << 14:
            raise ValueError(
                "judge: expected four channel counts and features from 1 to 16384, got "
                f"{self.channels}, {self.features}"
            )

    def to_dict(self) -> dict[str, Any]:
        """Return a mapping that a checkpoint can hold and `models.config.build` reads back."""
        return asdict(self) | {"channels": list(self.channels)}


class Judgement(NamedTuple):
    """The judge's output: logits float [B, classes] by slot, in the grammar's order, and features float [B, F]."""

    by_slot: dict[str, Tensor]
    features: Tensor

    def scores(self) -> tuple[Tensor, ...]:
        """Return the class-score tensors in the grammar's order."""
        return tuple(self.by_slot.values())

    def classes(self) -> Tensor:
        """Return the likeliest class of each slot, int64 [B, slots] in the grammar's order."""
        return torch.stack([score.argmax(dim=1) for score in self.scores()], dim=1)


def _halving(before: int, after: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(before, after, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(after), nn.ReLU())


class _Residual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(channels)

    def forward(self, planes: Tensor) -> Tensor:
        inner = functional.relu(self.norm1(self.conv1(planes)))
        return functional.relu(planes + self.norm2(self.conv2(inner)))


class Judge(nn.Module):
    """The judge's network: four halvings, residual blocks at 16 and 8 px, a feature layer, a linear head per slot."""

    def __init__(self, config: JudgeConfig | None = None) -> None:
        super().__init__()
        self.config = config or JudgeConfig()
        first, second, third, fourth = self.config.channels
        self.body = nn.Sequential(
            _halving(3, first),
            _halving(first, second),
            _Residual(second),
            _halving(second, third),
            _Residual(third),
            _halving(third, fourth),
        )
        # No pooling: the head for places needs positions to distinguish values such as "left" and "top".
        self.feature = nn.Linear(fourth * (JUDGE_SIDE // 16) ** 2, self.config.features)
        self.heads = nn.ModuleDict(
            {slot: nn.Linear(self.config.features, len(values)) for slot, values in TEXTURED_SLOTS.items()}
        )

    def forward(self, pixels: Tensor) -> Judgement:
        """Score images, float [B, 3, 64, 64] in [-1, 1]; reduce larger images with `to_judge_side` first."""
        features = functional.silu(self.feature(self.body(pixels).flatten(1)))
        scores = {slot: head(features) for slot, head in self.heads.items()}
        return Judgement(scores, features)


def to_judge_side(pixels: Tensor) -> Tensor:
    """Reduce square images [B, 3, S, S] to 64 px by area averages. S must be a multiple of 64."""
    side = pixels.shape[-1]
    if pixels.ndim != 4 or pixels.shape[1:] != (3, side, side) or side % JUDGE_SIDE:
        raise ValueError(f"judge: expected [B, 3, S, S] with S a multiple of 64, got {tuple(pixels.shape)}")
    return pixels if side == JUDGE_SIDE else functional.avg_pool2d(pixels, side // JUDGE_SIDE)


def load_judge(path: Path) -> Judge:
    """Load the judge of a checkpoint in eval mode; raise ValueError if it was trained on other scenes."""
    saved = read(path, "judge")
    scenes = saved["config"].get("scenes", "of no name")
    if scenes != "textured":
        raise ValueError(f"{path}: expected a judge of textured scenes, got one of scenes {scenes}; train one again")
    model = Judge(build(JudgeConfig, saved["config"]["judge"]))
    take_weights(model, saved["model"], path)
    return model.eval()
