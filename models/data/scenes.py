"""EmojiScenes: captioned pictures, one emoji on a simple background, each made alone from (seed, index, split).

A scene holds integers and words, no pixels. It renders at 64, at 128 and at 256 px to the same picture: sprites,
positions and dots scale exactly by two, so two renderings train a tokenizer or a multi-scale drafter.
Backgrounds repeat with a period of 8 px (at 64 px) and never hold noise, so a small model can learn them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from underpaint.models.data.art import Sprites
from underpaint.zoo.prompts import (
    COLOUR_VALUES,
    COLOURS,
    PAIRS,
    PLACES,
    SIZES,
    SLOT_VALUES,
    TEXTURES,
    Prompt,
    held_out_pairs,
    seen_pairs,
)
from underpaint.zoo.resolutions import RESOLUTIONS

Split = Literal["train", "seen", "held_out", "every"]
SPLITS: Final[tuple[Split, ...]] = ("train", "seen", "held_out", "every")
"""What a scene is for. Learning: "train" (seen concept-and-style pairs) for generators, "every" (all pairs) for
the judge that measures them. Measuring: "seen" and "held_out" (the pairs that "train" lacks)."""

_BASE: Final = 64
_SPRITE_SIDE: Final = {"large": 48, "small": 34}
_OFFSET: Final = {"large": 7, "small": 14}
_DIRECTION: Final = {"left": (-1, 0), "right": (1, 0), "top": (0, -1), "bottom": (0, 1), "centre": (0, 0)}
_TONE_STEP: Final = 7
_DOT_PERIOD: Final = 8
_DOT_RADIUS: Final = 1.7
_MEASURED_ONE_IN: Final = 16


@dataclass(frozen=True, slots=True)
class Scene:
    """What a picture shows. Offsets are in pixels at 64 px; `tone` in -1, 0, 1 shades the background."""

    prompt: Prompt
    jitter_x: int
    jitter_y: int
    tone: int


class _Draws(NamedTuple):
    pair: int
    size: int
    place: int
    texture: int
    colour: int
    jitter_x: int
    jitter_y: int
    tone: int


_RADIX: Final = _Draws(len(PAIRS), len(SIZES), len(PLACES), len(TEXTURES), len(COLOURS), 3, 3, 3)
_PAIRS: Final = {"train": seen_pairs(), "seen": seen_pairs(), "held_out": held_out_pairs(), "every": PAIRS}
_MEASURING: Final = ("seen", "held_out")


def scene(seed: int, index: int, split: Split) -> Scene:
    """Return scene number `index` >= 0 of a split. The same arguments always give the same scene.

    One scene in sixteen, chosen by a hash of its settings, is kept for measuring: "train" and "every" never
    draw it, "seen" and "held_out" draw nothing else, so a fresh scene is fresh whatever the seeds.

    Raises ValueError for an unknown split, a negative index or a seed that is no unsigned 64-bit number.
    """
    if split not in SPLITS:
        raise ValueError(f"split: expected one of {', '.join(SPLITS)}, got {split!r}")
    if index < 0 or not 0 <= seed < 2**64:
        raise ValueError(f"scene: expected index >= 0 and 0 <= seed < 2**64, got index {index}, seed {seed}")
    pairs = _PAIRS[split]
    radix = _RADIX._replace(pair=len(pairs))
    source = np.random.Philox(key=np.array([seed, SPLITS.index(split)], np.uint64), counter=[0, index, 0, 0])
    while True:
        # 64 random bits over at most 224 values: the bias of the remainder is below 1e-17.
        drawn = _Draws(*(int(raw) % base for raw, base in zip(source.random_raw(8), radix, strict=True)))
        concept, style = pairs[drawn.pair]
        if _kept_for_measuring(drawn._replace(pair=PAIRS.index((concept, style)))) == (split in _MEASURING):
            break
    prompt = Prompt(
        concept, style, SIZES[drawn.size], PLACES[drawn.place], TEXTURES[drawn.texture], COLOURS[drawn.colour]
    )
    return Scene(prompt, drawn.jitter_x - 1, drawn.jitter_y - 1, drawn.tone - 1)


def _kept_for_measuring(drawn: _Draws) -> bool:
    """Tell by a hash, which leaves every attribute balanced; `pair` counts in PAIRS here, whatever the split."""
    number = 0
    for value, base in zip(drawn, _RADIX, strict=True):
        number = number * base + value
    mask = 2**64 - 1
    mixed = (number + 1) * 0x9E3779B97F4A7C15 & mask
    mixed = (mixed ^ mixed >> 32) * 0xD6E8FEB86659FD93 & mask
    return (mixed >> 40) % _MEASURED_ONE_IN == 0


class SpriteSheet:
    """Sprites at the sizes that scenes need, resized once (Lanczos) and kept."""

    def __init__(self, sprites: Sprites) -> None:
        """Take a sprite array uint8 [concepts, styles, side, side, 4], premultiplied."""
        expected = (len(SLOT_VALUES["concept"]), len(SLOT_VALUES["style"]))
        if sprites.dtype != np.uint8 or sprites.ndim != 5 or sprites.shape[:2] != expected or sprites.shape[4] != 4:
            raise ValueError(
                f"sprites: expected uint8 [{expected[0]}, {expected[1]}, side, side, 4] from "
                f"underpaint.models.data.art.load_sprites, got {sprites.dtype} {sprites.shape}"
            )
        self._sprites = sprites
        self._resized: dict[tuple[int, int, int], tuple[NDArray[np.uint16], NDArray[np.uint16]]] = {}

    def at(self, concept: int, style: int, side: int) -> tuple[NDArray[np.uint16], NDArray[np.uint16]]:
        """Return (colour [side, side, 3] premultiplied, transparency [side, side, 1]), both 0 to 255."""
        key = (concept, style, side)
        if key not in self._resized:
            stored = self._sprites[concept, style]
            # The four bands are independent numbers here: "CMYK" keeps Pillow from premultiplying again.
            bands = Image.frombytes("CMYK", (stored.shape[1], stored.shape[0]), stored.tobytes())
            pixels = np.asarray(bands.resize((side, side), Image.Resampling.LANCZOS)).astype(np.uint16)
            alpha = pixels[..., 3:]
            self._resized[key] = np.minimum(pixels[..., :3], alpha), 255 - alpha
        return self._resized[key]


def render(shown: Scene, sheet: SpriteSheet, size: int = 64) -> NDArray[np.uint8]:
    """Return the scene's picture, uint8 [size, size, 3] sRGB; ValueError for a size that is none of `RESOLUTIONS`."""
    if size not in RESOLUTIONS:
        raise ValueError(f"scene size: expected one of {', '.join(map(str, RESOLUTIONS))}, got {size}")
    scale = size // _BASE
    prompt = shown.prompt
    classes = prompt.class_ids()
    side = _SPRITE_SIDE[prompt.size] * scale
    step_x, step_y = _DIRECTION[prompt.place]
    offset = _OFFSET[prompt.size]
    left = (size - side) // 2 + scale * (step_x * offset + shown.jitter_x)
    top = (size - side) // 2 + scale * (step_y * offset + shown.jitter_y)
    picture = background(prompt.texture, prompt.colour, shown.tone, size).copy()
    colour, clear = sheet.at(classes["concept"], classes["style"], side)
    window = picture[top : top + side, left : left + side]
    window[:] = colour + (window * clear + 127) // 255
    return picture


@lru_cache(maxsize=len(TEXTURES) * len(COLOURS) * 3 * len(RESOLUTIONS))
def background(texture: str, colour: str, tone: int, size: int) -> NDArray[np.uint8]:
    """Return a background, uint8 [size, size, 3], read-only because it is shared."""
    base = np.array(COLOUR_VALUES[colour], dtype=np.float64) + _TONE_STEP * tone
    if texture == "graded":
        ramp = ((np.arange(size) + 0.5) / size)[:, None, None]
        painted = (1 - ramp) * (base + 0.45 * (255 - base)) + ramp * 0.72 * base
    elif texture == "speckled":
        dots = base + 0.4 * (255 - base) if base.mean() < 128 else 0.72 * base
        cover = _dot_cover(COLOURS.index(colour), size)[..., None]
        painted = (1 - cover) * base + cover * dots
    else:
        painted = base[None, None]
    pixels = np.clip(np.rint(np.broadcast_to(painted, (size, size, 3))), 0, 255).astype(np.uint8)
    pixels.flags.writeable = False
    return pixels


def _dot_cover(pattern: int, size: int) -> NDArray[np.float64]:
    """Return the share of each pixel that dots cover, [size, size]: two dots a cell, laid out per colour."""
    fine = 8
    period = _DOT_PERIOD * fine * size // _BASE
    radius = _DOT_RADIUS * fine * size / _BASE
    grid = np.arange(period) + 0.5
    covered = np.zeros((period, period), dtype=bool)
    # Eight layouts: the second dot moves about the cell, the first stays; both wrap around its edges.
    for shift_x, shift_y in ((0.25, 0.25), (0.25 + 0.125 * (2 + pattern % 4), 0.75 - 0.25 * (pattern // 4))):
        away_x = np.abs((grid - shift_x * period + period / 2) % period - period / 2)
        away_y = np.abs((grid - shift_y * period + period / 2) % period - period / 2)
        covered |= away_x[None, :] ** 2 + away_y[:, None] ** 2 <= radius**2
    cell = covered.reshape(period // fine, fine, period // fine, fine).mean(axis=(1, 3))
    repeats = size // cell.shape[0]
    return np.tile(cell, (repeats, repeats))
