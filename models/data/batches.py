"""Batches of rendered scenes with their word ids and class labels."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from underpaint.models.data.scenes import Scene, Split, SpriteSheet, render, scene
from underpaint.zoo.prompts import SLOT_VALUES, WORD_SLOTS, word_ids

LABELS: Final[tuple[str, ...]] = tuple(SLOT_VALUES)
"""The columns of `Batch.labels`: style, concept, size, place, texture, colour."""


class Batch(NamedTuple):
    """B scenes: pictures uint8 [B, size, size, 3], words int64 [B, 8], labels int64 [B, 6]."""

    pictures: NDArray[np.uint8]
    words: NDArray[np.int64]
    labels: NDArray[np.int64]


def scenes(seed: int, start: int, count: int, split: Split) -> list[Scene]:
    """Return scenes number `start` to `start + count - 1` of a split."""
    return [scene(seed, start + offset, split) for offset in range(count)]


def batch(shown: list[Scene], sheet: SpriteSheet, size: int) -> Batch:
    """Render scenes at `size` px; the same list at two sizes gives corresponding pictures."""
    pictures = np.empty((len(shown), size, size, 3), dtype=np.uint8)
    words = np.empty((len(shown), WORD_SLOTS), dtype=np.int64)
    labels = np.empty((len(shown), len(LABELS)), dtype=np.int64)
    for row, one in enumerate(shown):
        pictures[row] = render(one, sheet, size)
        words[row] = word_ids(one.prompt)
        labels[row] = list(one.prompt.class_ids().values())
    return Batch(pictures, words, labels)
