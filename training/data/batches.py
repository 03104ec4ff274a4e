"""Batches of rendered scenes with their word ids and class labels."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from underpaint.training.data.textured_render import TexturedSheet, render_textured
from underpaint.training.data.textured_scenes import Split, textured_scene
from underpaint.zoo.textured_prompts import textured_word_ids


class Batch(NamedTuple):
    """B scenes: pictures uint8 [B, size, size, 3], words int64 [B, 12], labels int64 [B, 11], one column per slot."""

    pictures: NDArray[np.uint8]
    words: NDArray[np.int64]
    labels: NDArray[np.int64]


def numbered_batch(sheet: TexturedSheet, seed: int, start: int, count: int, split: Split, size: int) -> Batch:
    """Render scenes `start` to `start + count - 1` of a split at `size` px."""
    scenes = [textured_scene(seed, start + offset, split) for offset in range(count)]
    return Batch(
        np.stack([render_textured(one, sheet, size) for one in scenes]),
        np.stack([textured_word_ids(one.prompt, size) for one in scenes]),
        np.array([list(one.prompt.class_ids().values()) for one in scenes], np.int64),
    )
