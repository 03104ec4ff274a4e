"""TexturedScenes: two or three things on a textured ground under a calm sky, determined by (seed, index, split) alone.

A scene holds integers and words, no pixels; `textured_render.py` draws it. Positions are in pixels of a 64 px picture.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from underpaint.training.data.textures import TILES
from underpaint.zoo.textured_prompts import (
    FINISHED_THINGS,
    NO_COMPANION,
    TexturedPrompt,
    draw_textured,
    held_out_things,
    seen_things,
)

Split = Literal["train", "seen", "held_out", "every"]
SPLITS: Final[tuple[Split, ...]] = ("train", "seen", "held_out", "every")
"""The purposes of scenes. Training: "train" (seen things and finishes) for generators, "every" (all of them) for the
judge of their pictures. Measuring: "seen", and "held_out" (things and finishes that "train" lacks)."""
_MEASURED_ONE_IN: Final = 16
_PAIRS: Final = {"train": seen_things(), "seen": seen_things(), "held_out": held_out_things(), "every": FINISHED_THINGS}


class Placed(NamedTuple):
    """The square of a thing: left and top corner and side, in pixels of a 64 px picture."""

    left: int
    top: int
    side: int


class Window(NamedTuple):
    """The visible part of a texture: tile, corner in pixels of a 64 px picture, and mirroring."""

    tile: int
    x: int
    y: int
    flips: int


@dataclass(frozen=True, slots=True)
class TexturedScene:
    """The content of a picture.

    Attributes:
        prompt: The prompt.
        first: Place of the prompt's first thing.
        second: Place of its second thing.
        companion: Place of its companion.
        horizon: Height of the horizon at the middle, from the top.
        tilt: How much the horizon falls from left to right.
        wobble: Amplitude of its waves.
        phase: Phase of its waves.
        fine: Whether the ground's texture is half as large.
        ground: Window of the ground's texture.
        surfaces: Windows of the two things' finishes.
        mirrored: Whether each thing is mirrored, the companion last.
    """

    prompt: TexturedPrompt
    first: Placed
    second: Placed
    companion: Placed
    horizon: int
    tilt: int
    wobble: int
    phase: int
    fine: bool
    ground: Window
    surfaces: tuple[Window, Window]
    mirrored: tuple[bool, bool, bool]


class _Source:
    """Uniform integers from a counter-based generator; each scene has an independent stream."""

    def __init__(self, seed: int, index: int, split: Split) -> None:
        key = np.array([seed, 16 + SPLITS.index(split)], np.uint64)
        self._random = np.random.Philox(key=key, counter=[0, index, 0, 0])

    def below(self, count: int) -> int:
        # 64 random bits over at most a few hundred values: the bias of the remainder is below 1e-16.
        return int(self._random.random_raw()) % count

    def between(self, low: int, high: int) -> int:
        return low + self.below(high - low + 1)

    def window(self) -> Window:
        return Window(self.below(TILES), 2 * self.below(128), 2 * self.below(128), self.below(4))


def textured_scene(seed: int, index: int, split: Split) -> TexturedScene:
    """Return scene number `index` >= 0 of a split. The same arguments always give the same scene.

    One scene in sixteen, chosen by a hash of its settings, is reserved for measuring.

    Raises ValueError for an unknown split, a negative index, or a seed that is not an unsigned 64-bit number.
    """
    if split not in SPLITS:
        raise ValueError(f"split: expected one of {', '.join(SPLITS)}, got {split!r}")
    if index < 0 or not 0 <= seed < 2**64:
        raise ValueError(f"scene: expected index >= 0 and 0 <= seed < 2**64, got index {index}, seed {seed}")
    source = _Source(seed, index, split)
    while True:
        scene = _drawn(source, split)
        if _measured(scene) == (split in ("seen", "held_out")):
            return scene


def thing_cells(scene: TexturedScene, grid_side: int) -> NDArray[np.bool_]:
    """Return which cells of a grid have their centre inside the square of a thing, bool [grid_side, grid_side]."""
    centres = (np.arange(grid_side) + 0.5) * (64 / grid_side)
    squares = [scene.first, scene.second]
    if scene.prompt.companion != NO_COMPANION:
        squares.append(scene.companion)
    mask = np.zeros((grid_side, grid_side), np.bool_)
    for left, top, side in squares:
        rows, columns = ((start <= centres) & (centres < start + side) for start in (top, left))
        mask |= rows[:, None] & columns
    return mask


def _drawn(source: _Source, split: Split) -> TexturedScene:
    prompt = draw_textured(source.below, _PAIRS[split], _PAIRS["seen" if split == "held_out" else split])
    first, second, companion = _placed(source, prompt.relation)
    return TexturedScene(
        prompt,
        first,
        second,
        companion,
        horizon=source.between(22, 36),
        tilt=source.between(-8, 8),
        wobble=source.between(0, 3),
        phase=source.below(16),
        fine=source.below(2) == 1,
        ground=source.window(),
        surfaces=(source.window(), source.window()),
        mirrored=(source.below(2) == 1, source.below(2) == 1, source.below(2) == 1),
    )


def _about(x: int, y: int, side: int) -> Placed:
    return Placed(x - side // 2, y - side // 2, side)


def _placed(source: _Source, relation: str) -> tuple[Placed, Placed, Placed]:
    """Squares of the two things and of the companion, which stands in free space."""
    if relation == "left of":
        first = _about(source.between(15, 18), source.between(36, 46), source.between(24, 29))
        second = _about(source.between(46, 49), source.between(36, 46), source.between(24, 29))
        third = _about(source.between(16, 48), source.between(9, 13), source.between(12, 14))
    elif relation == "above":
        first = _about(source.between(22, 42), source.between(15, 17), source.between(24, 28))
        second = _about(source.between(22, 42), source.between(46, 48), source.between(24, 28))
        third = _about(source.between(8, 10) + 46 * source.below(2), source.between(28, 36), source.between(12, 14))
    else:
        side = 2 * source.below(2) - 1
        first = _about(32 - side * source.between(4, 8), source.between(24, 28), source.between(28, 32))
        second = _about(32 + side * source.between(4, 8), source.between(43, 46), source.between(24, 28))
        third = _about(32 - side * source.between(18, 22), source.between(50, 54), source.between(12, 14))
    return first, second, third


def _measured(scene: TexturedScene) -> bool:
    """Return whether a scene is reserved for measuring, by a hash, which keeps every attribute balanced."""
    digest = hashlib.blake2b(repr(scene).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") % _MEASURED_ONE_IN == 0
