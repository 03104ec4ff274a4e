"""Batches of rendered scenes with their word ids and class labels."""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from underpaint.models.data.scenes import Scene, Split, SpriteSheet, render, scene
from underpaint.models.data.textured_render import TexturedSheet, render_textured
from underpaint.models.data.textured_scenes import textured_scene
from underpaint.zoo.grammars import EMOJI, TEXTURED, Grammar
from underpaint.zoo.prompts import SLOT_VALUES, WORD_SLOTS, word_ids
from underpaint.zoo.textured_prompts import textured_word_ids

Family = Literal["emoji", "textured"]
"""Families of scenes: one thing on a simple background, or two and more on a textured ground."""
FAMILIES: Final[tuple[Family, ...]] = ("emoji", "textured")
FAMILY_GRAMMARS: Final[dict[Family, Grammar]] = {"emoji": EMOJI, "textured": TEXTURED}
"""Per family, what its prompts say; their slots are the columns of `Batch.labels`."""


class Batch(NamedTuple):
    """B scenes: pictures uint8 [B, size, size, 3], words int64 [B, 8 or 12], labels int64 [B, slots]."""

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
    labels = np.empty((len(shown), len(SLOT_VALUES)), dtype=np.int64)
    for row, one in enumerate(shown):
        pictures[row] = render(one, sheet, size)
        words[row] = word_ids(one.prompt)
        labels[row] = list(one.prompt.class_ids().values())
    return Batch(pictures, words, labels)


def numbered_batch(
    sheet: SpriteSheet | TexturedSheet, seed: int, start: int, count: int, split: Split, size: int
) -> Batch:
    """Scenes number `start` to `start + count - 1` of a split at `size` px, of the family that the sheet draws."""
    if isinstance(sheet, SpriteSheet):
        return batch(scenes(seed, start, count, split), sheet, size)
    shown = [textured_scene(seed, start + offset, split) for offset in range(count)]
    return Batch(
        np.stack([render_textured(one, sheet, size) for one in shown]),
        np.stack([textured_word_ids(one.prompt, size) for one in shown]),
        np.array([list(one.prompt.class_ids().values()) for one in shown], np.int64),
    )
