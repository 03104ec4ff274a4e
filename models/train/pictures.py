"""Pictures and captions of EmojiScenes as the recipes ask for them: by scene number, split and size."""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from models.data.art import load_sprites
from models.data.scenes import Scene, Split, SpriteSheet, render, scene
from zoo.prompts import word_ids

# Scenes of the embedded models; another seed gives other scenes of the same grammar.
SCENE_SEED = 1


class Pictures(Protocol):
    """Pictures of numbered scenes: uint8 [N, size, size, 3]."""

    def __call__(self, indices: Sequence[int], size: int, split: Split) -> NDArray[np.uint8]:
        """Render scenes `indices` of `split` at `size` px."""


class EmojiPictures:
    """Renders scenes on demand; sprites are loaded, and at first fetched, once."""

    def __init__(self, art: Path | None = None) -> None:
        self.sheet = SpriteSheet(load_sprites(art))

    def __call__(self, indices: Sequence[int], size: int, split: Split) -> NDArray[np.uint8]:
        """Render scenes `indices` of `split` at `size` px."""
        return np.stack([render(numbered(index, split), self.sheet, size) for index in indices])


def numbered(index: int, split: Split) -> Scene:
    """Scene `index` of a split under the recipes' seed."""
    return scene(SCENE_SEED, index, split)


def captions(indices: Sequence[int], split: Split) -> NDArray[np.int64]:
    """Word ids int64 [N, 8] of scenes."""
    return np.stack([word_ids(numbered(index, split).prompt) for index in indices])


def to_pixels(pictures: NDArray[np.uint8], device: torch.device | str = "cpu") -> Tensor:
    """uint8 [N, H, W, 3] to float [N, 3, H, W] in [-1, 1], channels last in memory."""
    pixels = torch.from_numpy(pictures).to(device).permute(0, 3, 1, 2).float() / 127.5 - 1
    return pixels.contiguous(memory_format=torch.channels_last)


def to_pictures(pixels: Tensor) -> NDArray[np.uint8]:
    """The inverse of `to_pixels`, clamped."""
    scaled = ((pixels.float().clamp(-1, 1) + 1) * 127.5).round().to(torch.uint8)
    return scaled.permute(0, 2, 3, 1).cpu().numpy()
