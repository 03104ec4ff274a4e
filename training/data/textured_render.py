"""Pictures of TexturedScenes: ground, sky, shadows and things, lit and blurred by depth.

All parts are laid out in units of the picture's side, and textures come from one pyramid, so a scene's picture at 64
px is close to the average of its picture at 256 px. `regions` tells for every pixel whether it is calm (the sky), busy
(the ground) or part of a thing.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFilter

from underpaint.training.data.art import CONCEPTS, STYLES, Sprites
from underpaint.training.data.sprites import SpriteSheet
from underpaint.training.data.textured_scenes import Placed, TexturedScene, Window
from underpaint.training.data.textures import window
from underpaint.zoo.resolutions import RESOLUTIONS
from underpaint.zoo.textured_prompts import GROUND_COLOURS, NO_COMPANION, SKY_COLOURS, TexturedPrompt

REGIONS: Final = ("calm", "busy", "object")
"""The kinds of pixels, in the numbering of `regions`: sky, textured ground, a thing."""

DRAWING: Final = 3
"""Version of the drawing; increase it when scenes look different, so that cached codes of old pictures are not used."""
_BASE: Final = 64
_LIGHT: Final = {"left": (-1.0, -0.35), "right": (1.0, -0.35), "front": (0.0, -0.8)}
"""Position of the light from the middle of the picture, across and down."""
_STYLE: Final = {"glossy": "3d", "outlined": "flat", "woolly": "3d", "stone": "3d"}
_SURFACE: Final = {"woolly": ("wool", 0.75), "stone": ("rock", 0.65)}
"""Texture of a finish, and how strongly it changes the brightness."""
_WOOL_DARK: Final = np.array([0.55, 0.36, 0.18], np.float32)
_WOOL_LIGHT: Final = np.array([1.0, 0.93, 0.78], np.float32)
"""Undyed wool in shadow and in light."""
_RIM: Final = 1 / 14
"""Width of the white rim of outlined things, relative to the side of their square."""
_FAR_BLUR: Final = 0.6
_FAR_MARGIN: Final = 2
"""Blur radius of distant parts in a scene of soft depth, and the margin for it, in pixels of a 64 px picture."""

_SHADE: Final = np.float32(0.55)
"""How much darker the middle of a shadow is, from 0 to 1."""

Floats = NDArray[np.floating]
Box = tuple[slice, slice]


class TexturedSheet:
    """Sprites as scenes need them: resized, coloured for a finish, blurred, and with their shadows; each is cached."""

    def __init__(self, sprites: Sprites) -> None:
        """Take the sprite array of `underpaint.training.data.art.load_sprites`."""
        self._sheet = SpriteSheet(sprites)
        self._sprites: dict[tuple[str, str, int, int], tuple[Floats, Floats]] = {}
        self._shadows: dict[tuple[str, str, int], Floats] = {}

    def sprite(self, thing: str, finish: str, side: int, far: int) -> tuple[Floats, Floats]:
        """Return (premultiplied colour [side, side, 3], coverage [side, side, 1]), both 0 to 1.

        Args:
            thing: Name of the thing.
            finish: Name of its finish.
            side: Side of the square in pixels.
            far: 0 for a sharp sprite; for a blurred one, the picture's side divided by 64. A blurred sprite is drawn
                smaller, so that its blur fits into the square.
        """
        key = thing, finish, side, far
        if key not in self._sprites:
            margin = _FAR_MARGIN * far + (round(_RIM * side) if finish == "outlined" else 0)
            inner = side - 2 * margin
            colour, clear = self._sheet.at(CONCEPTS.index(thing), STYLES.index(_STYLE[finish]), inner)
            planes = np.zeros((side, side, 4), np.uint8)
            planes[margin : margin + inner, margin : margin + inner] = np.concatenate([colour, 255 - clear], axis=2)
            if finish == "outlined":
                planes = _outlined(planes, _RIM * side)
            if far:
                bands = Image.frombytes("CMYK", (side, side), planes.tobytes())
                planes = np.asarray(bands.filter(ImageFilter.GaussianBlur(_FAR_BLUR * far)))
            scaled = planes.astype(np.float32) / 255
            paint, cover = scaled[..., :3], scaled[..., 3:]
            if finish == "stone":
                grey = paint.mean(axis=2, keepdims=True)
                paint = 0.72 * (0.25 * cover + 0.75 * grey) + 0.28 * paint
            elif finish == "woolly":
                light = paint.mean(axis=2, keepdims=True)
                paint = 0.75 * (_WOOL_DARK * cover + (_WOOL_LIGHT - _WOOL_DARK) * light) + 0.25 * paint
            self._sprites[key] = np.minimum(paint, cover), cover
        return self._sprites[key]

    def shadow(self, thing: str, finish: str, side: int) -> Floats:
        """Return the soft shadow of a thing, flattened: coverage [side // 2, side, 1], 0 to 1."""
        key = thing, _STYLE[finish], side
        if key not in self._shadows:
            _, clear = self._sheet.at(CONCEPTS.index(thing), STYLES.index(_STYLE[finish]), side)
            cover = Image.fromarray((255 - clear[..., 0]).astype(np.uint8))
            margin = side // 8
            flat = Image.new("L", (side, side // 2))
            flat.paste(
                cover.resize((side - 2 * margin, side // 2 - 2 * margin), Image.Resampling.BOX), (margin, margin)
            )
            soft = flat.filter(ImageFilter.GaussianBlur(side / 20))
            self._shadows[key] = np.asarray(soft, np.float32)[..., None] / 255
        return self._shadows[key]


def _outlined(planes: NDArray[np.uint8], width: float) -> NDArray[np.uint8]:
    """Put premultiplied colour and coverage [side, side, 4] on top of a white silhouette, wider by about `width`."""
    wider = Image.fromarray(planes[..., 3]).filter(ImageFilter.GaussianBlur(width))
    beneath = np.clip(4 * np.asarray(wider, np.float32)[..., None] - 128, 0, 255)
    return (planes + beneath * (1 - planes[..., 3:] / np.float32(255))).astype(np.uint8)


@lru_cache(maxsize=len(RESOLUTIONS))
def _grid(size: int) -> tuple[Floats, Floats]:
    """Pixel centres across [1, size] and down [size, 1], from 0 to 1."""
    centres = (np.arange(size, dtype=np.float32) + 0.5) / size
    return centres[None, :], centres[:, None]


@lru_cache(maxsize=64)
def _palette(colour: str) -> Floats:
    """Colours interpolated between a ground colour's three stops, by brightness: [256, 3], 0 to 1."""
    stops = np.array(GROUND_COLOURS[colour], np.float32) / 255
    at = np.arange(256) / 255
    channels = [np.interp(at, (0, 0.5, 1), stops[:, channel]) for channel in range(3)]
    return np.stack(channels, axis=1).astype(np.float32)


class _Thing(NamedTuple):
    """One thing to draw; `far` things are blurred in a scene of soft depth."""

    at: Placed
    name: str
    finish: str
    surface: Window | None
    mirrored: bool
    far: bool


def _things(scene: TexturedScene) -> list[_Thing]:
    """Return the things to draw, farthest first. A companion is far, unless it stands in front of both things."""
    prompt = scene.prompt
    behind = prompt.relation == "behind"
    first, second, third = scene.mirrored
    things = [
        _Thing(scene.first, prompt.thing, prompt.finish, scene.surfaces[0], first, behind),
        _Thing(scene.second, prompt.other, prompt.other_finish, scene.surfaces[1], second, False),
    ]
    if prompt.companion != NO_COMPANION:
        companion = _Thing(scene.companion, prompt.companion, "outlined", None, third, not behind)
        things.insert(len(things) if behind else 0, companion)
    return things


def render_textured(scene: TexturedScene, sheet: TexturedSheet, size: int = 128) -> NDArray[np.uint8]:
    """Return the scene's picture, uint8 [size, size, 3] sRGB; raises ValueError for a size not in `RESOLUTIONS`."""
    picture, ground = _landscape(scene, size)
    for thing in _things(scene):
        _put(picture, ground, sheet, thing, scene.prompt)
    np.clip(picture, 0, 1, out=picture)
    return (picture * np.float32(255) + np.float32(0.5)).astype(np.uint8)


def _landscape(scene: TexturedScene, size: int) -> tuple[Floats, Floats]:
    """Sky and ground without things, [size, size, 3], and the ground's coverage, [size, size, 1]; float32, 0 to 1."""
    if size not in RESOLUTIONS:
        raise ValueError(f"scene size: expected one of {', '.join(map(str, RESOLUTIONS))}, got {size}")
    across, down = _grid(size)
    prompt = scene.prompt
    light_x, light_y = _LIGHT[prompt.light]
    height = _horizon(scene, across)
    top, low = (np.array(stop, np.float32) / 255 for stop in SKY_COLOURS[prompt.sky])
    rise = np.minimum(down / height, 1)[..., None]
    glow = np.exp(-8 * (across - 0.5 - 0.4 * light_x) ** 2 - 6 * (down - 0.15) ** 2)[..., None]
    sky = top + rise * (low - top) + np.float32(0.12) * glow
    ground = _ground(scene, size, height)
    # Brighter towards the light, darker near the viewer's feet on the other side.
    lit = 1 + 0.42 * light_x * (across - 0.5) + 0.34 * light_y * (down - 0.62)
    ground *= lit[..., None].astype(np.float32)
    cover: Floats = np.clip((down - height) * size + 0.5, 0, 1)[..., None]
    return sky + cover * (ground - sky), cover


def _horizon(scene: TexturedScene, across: Floats) -> Floats:
    """Height of the horizon per column, [1, size], from the top, 0 to 1."""
    waves = np.sin(2 * np.pi * (1.5 * across + scene.phase / 16)) + 0.5 * np.sin(2 * np.pi * (4 * across + 0.3))
    height: Floats = (scene.horizon + scene.tilt * (across - 0.5) + scene.wobble * waves) / _BASE
    return height.astype(np.float32)


def _cut(kind: str, at: Window, side: int, picture: int) -> NDArray[np.uint8]:
    return window(kind, at.tile, at.x, at.y, at.flips, side, picture)


def _ground(scene: TexturedScene, size: int, height: Floats) -> Floats:
    prompt = scene.prompt
    level = _cut(prompt.ground, scene.ground, size, size // 2 if scene.fine else size)
    palette = _palette(prompt.colour)
    if prompt.depth == "sharp":
        return palette[level]
    # Distant ground is blurred: two radii, blended by the depth below the horizon.
    plane = Image.fromarray(np.ascontiguousarray(level))
    scale = size / _BASE
    blurred = [np.asarray(plane.filter(ImageFilter.GaussianBlur(radius * scale)), np.float32) for radius in (0.5, 1.6)]
    _, down = _grid(size)
    depth = np.clip((down - height) / 0.45, 0, 1)
    near, far = np.clip(2 * depth - 1, 0, 1), np.clip(1 - 2 * depth, 0, 1)
    mixed = near * level + far * blurred[1] + (1 - near - far) * blurred[0]
    return palette[(mixed + 0.5).astype(np.uint8)]


def _put(picture: Floats, ground: Floats, sheet: TexturedSheet, thing: _Thing, prompt: TexturedPrompt) -> None:
    """Draw a thing and its shadow on the ground into the picture."""
    at, scale = thing.at, len(picture) // _BASE
    side = at.side * scale
    light_x, light_y = _LIGHT[prompt.light]
    mirror = -1 if thing.mirrored else 1
    shadow = sheet.shadow(thing.name, thing.finish, side)[:, ::mirror]
    # The shadow lies flat at the thing's foot, away from the light.
    foot = (at.top + at.side) * scale - (len(shadow) * 5) // 8
    thrown = at.left * scale - round(light_x * 0.22 * at.side) * scale
    seen, crop = _overlap(len(picture), thrown, foot, side, len(shadow))
    picture[seen] *= 1 - _SHADE * shadow[crop] * ground[seen]
    colour, cover = sheet.sprite(thing.name, thing.finish, side, scale if thing.far and prompt.depth == "soft" else 0)
    across, down = _grid_of(side)
    shade = 1 + 0.4 * light_x * across + 0.3 * light_y * down
    if thing.surface is not None and thing.finish in _SURFACE:
        kind, depth = _SURFACE[thing.finish]
        grain = _cut(kind, thing.surface, side, len(picture) // 2).astype(np.float32) / 255
        shade = shade * (1 + depth * (grain - 0.5))
    seen, crop = _overlap(len(picture), at.left * scale, at.top * scale, side, side)
    paint = (colour[:, ::mirror] * shade[..., None].astype(np.float32))[crop]
    hidden = cover[:, ::mirror][crop]
    picture[seen] = (1 - hidden) * picture[seen] + np.minimum(paint, hidden)


@lru_cache(maxsize=256)
def _grid_of(side: int) -> tuple[Floats, Floats]:
    centres = (np.arange(side, dtype=np.float32) + 0.5) / side - 0.5
    return centres[None, :], centres[:, None]


def _overlap(size: int, left: int, top: int, width: int, height: int) -> tuple[Box, Box]:
    """Return the part of a picture that a rectangle covers, as rows and columns of the picture and of the rectangle."""
    rows = slice(max(0, -top), max(0, min(height, size - top)))
    columns = slice(max(0, -left), max(0, min(width, size - left)))
    seen = slice(top + rows.start, top + rows.stop), slice(left + columns.start, left + columns.stop)
    return seen, (rows, columns)


def regions(scene: TexturedScene, sheet: TexturedSheet, size: int = 128) -> NDArray[np.uint8]:
    """Return the region of every pixel, uint8 [size, size], as indices into `REGIONS`."""
    across, down = _grid(size)
    labels = np.where(down < _horizon(scene, across), np.uint8(0), np.uint8(1))
    scale = size // _BASE
    for thing in _things(scene):
        at = thing.at
        _, cover = sheet.sprite(thing.name, thing.finish, at.side * scale, 0)
        seen = cover[:, :: -1 if thing.mirrored else 1, 0] > 0.5
        place, crop = _overlap(size, at.left * scale, at.top * scale, len(seen), len(seen))
        labels[place] = np.where(seen[crop], np.uint8(2), labels[place])
    return labels
