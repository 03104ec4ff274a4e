"""Stochastic textures with a wide spectrum, as periodic brightness tiles in a pyramid of resolutions.

A tile is drawn once from its kind and number, `TILE` px wide at the scale of a 256 px picture, and halved by averaging
for smaller pictures. So a window at half the resolution is the average of the window at full resolution: a coarse
picture shows the same texture as a fine one, without the finest octave.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

TILE: Final = 1024
"""Side of a tile in pixels, at the scale of a 256 px picture."""
TILES: Final = 2
"""Tiles of each kind. Windows start anywhere, so a kind has over a hundred thousand, not counting mirrored ones."""
FINEST: Final = 256
"""Side of the largest picture; tiles are drawn at its scale."""
_SEED: Final = 20_261_122

Field = NDArray[np.floating]


def _frequencies() -> tuple[Field, Field, Field]:
    """Cycles per tile of the half-plane transform: along rows, along columns, and their length (1 at zero)."""
    down = np.fft.fftfreq(TILE, 1 / TILE)[:, None].astype(np.float32)
    across = np.fft.rfftfreq(TILE, 1 / TILE)[None, :].astype(np.float32)
    length = np.hypot(down, across)
    length[0, 0] = 1
    return down, across, length


def _filtered(random: np.random.Generator, gain: Field) -> Field:
    """Gaussian noise whose amplitude at every frequency is `gain`; mean 0 and standard deviation 1."""
    spectrum = np.fft.rfft2(random.standard_normal((TILE, TILE), np.float32)) * gain
    spectrum[0, 0] = 0
    field = np.fft.irfft2(spectrum, s=(TILE, TILE)).astype(np.float32)
    scaled: Field = field / field.std()
    return scaled


def fractal(random: np.random.Generator, slope: float, lowest: float = 4.0) -> Field:
    """Noise whose amplitude falls as frequency to the power -slope, above `lowest` cycles per tile."""
    _, _, length = _frequencies()
    gain: Field = length**-slope * (length >= lowest)
    return _filtered(random, gain)


def _sand(random: np.random.Generator) -> Field:
    ripples = np.sin(fractal(random, 2.2) * 9)
    drifted: Field = 0.8 * fractal(random, 0.4) + 0.3 * fractal(random, 1.2) + 0.7 * ripples
    return drifted


def _rock(random: np.random.Generator) -> Field:
    cracks = -np.exp(-np.abs(fractal(random, 1.8, 6)) * 16)
    broken: Field = 1.0 * fractal(random, 1.35) + 0.3 * fractal(random, 0.6) + 1.7 * cracks
    return broken


def _waves(random: np.random.Generator) -> Field:
    down, across, length = _frequencies()
    along = np.abs(down) / length
    peak = 34.0
    gain = np.exp(-((peak / length) ** 2)) * length**-1.5 * along**3
    swell = _filtered(random, gain.astype(np.float32))
    crests = np.exp(-np.abs(swell) * 2.2)
    glitter = _filtered(random, (length**-0.5 * np.exp(-((across / (0.6 * np.abs(down) + 1)) ** 2))).astype(np.float32))
    stirred: Field = 0.9 * swell + 1.4 * crests + 0.45 * glitter
    return stirred


def _brick(random: np.random.Generator) -> Field:
    height, width, mortar = 32, 64, 2.2
    warp_x, warp_y = 0.8 * fractal(random, 1.0), 0.8 * fractal(random, 1.0)
    grid = np.arange(TILE, dtype=np.float32) + 0.5
    y = grid[:, None] + warp_y
    row = np.floor(y / height).astype(np.int64) % (TILE // height)
    x = grid[None, :] + warp_x + (row % 2) * (width // 2)
    column = np.floor(x / width).astype(np.int64) % (TILE // width)
    edge_y, edge_x = np.abs((y % height) - height / 2), np.abs((x % width) - width / 2)
    inside = np.minimum(height / 2 - edge_y, width / 2 - edge_x)
    cover = np.clip((inside - mortar) / 1.5, 0, 1)
    tones = random.normal(0, 0.8, (TILE // height, TILE // width)).astype(np.float32)
    bevel = np.clip((y % height) / height, 0, 1) * -0.7 + 0.35
    body = tones[row, column] + bevel + 0.45 * fractal(random, 0.5) + 0.3 * fractal(random, 1.2)
    joint = 2.1 + 0.4 * fractal(random, 0.4)
    laid: Field = (cover * body + (1 - cover) * joint).astype(np.float32)
    return laid


def _cloth(random: np.random.Generator) -> Field:
    period = 16
    down, across, length = _frequencies()
    warp = _filtered(random, (length**-0.9 * np.exp(-((down / 24) ** 2))).astype(np.float32))
    weft = _filtered(random, (length**-0.9 * np.exp(-((across / 24) ** 2))).astype(np.float32))
    grid = np.arange(TILE, dtype=np.float32) + 0.5
    x, y = grid[None, :] + 0.8 * warp, grid[:, None] + 0.8 * weft
    over = np.sin(2 * np.pi * x / (2 * period)) * np.sin(2 * np.pi * y / (2 * period))
    threads = np.where(over > 0, np.cos(2 * np.pi * x / period), np.cos(2 * np.pi * y / period))
    tones = np.where(over > 0, warp, weft)
    folds = fractal(random, 2.2, 2)
    woven: Field = (0.9 * threads + 0.55 * tones + 0.9 * folds + 0.3 * fractal(random, 0.3)).astype(np.float32)
    return woven


def _foliage(random: np.random.Generator) -> Field:
    fine = 2
    side = TILE * fine
    canvas = Image.new("L", (side, side), 40)
    draw = ImageDraw.Draw(canvas)
    turn = np.linspace(0, 2 * np.pi, 14, endpoint=False)
    blade = np.stack([np.cos(turn), np.sin(turn) * np.abs(np.cos(turn / 2 - np.pi / 2)) ** 0.3], axis=1)
    count = 5200
    # Sizes follow a power law, as in the dead-leaves model (Lee, Mumford and Huang, 2001); large leaves are below.
    sizes = np.sort(7 * random.pareto(1.6, count) + 7).clip(7, 44)[::-1] * fine
    for place, length in enumerate(sizes):
        angle, tone = random.uniform(0, 2 * np.pi), random.normal(0.52, 0.17) + 0.1 * place / count
        turned = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
        leaf = (blade * [length, length * random.uniform(0.32, 0.55)]) @ turned.T
        rib = np.array([[-0.9 * length, 0], [0.95 * length, 0]]) @ turned.T
        upper = np.concatenate([leaf[:8], leaf[:1]])
        centre = random.uniform(0, side, 2)
        for shift_x in (0, -side, side):
            for shift_y in (0, -side, side):
                at = centre + np.array([shift_x, shift_y])
                if np.any(at < -length * 1.1) or np.any(at > side + length * 1.1):
                    continue
                for outline, gain in ((leaf, 1.0), (upper, 1.16)):
                    shade = int(np.clip(255 * tone * gain, 0, 255))
                    draw.polygon([(float(px), float(py)) for px, py in outline + at], fill=shade)
                ends = [(float(px), float(py)) for px, py in rib + at]
                draw.line(ends, fill=int(np.clip(255 * tone * 1.35, 0, 255)), width=max(1, int(length / 14)))
    leaves = np.asarray(canvas, np.float32).reshape(TILE, fine, TILE, fine).mean(axis=(1, 3))
    grown: Field = (leaves - leaves.mean()) / leaves.std() + 0.15 * fractal(random, 0.4)
    return grown


def _wool(random: np.random.Generator) -> Field:
    strands = [np.exp(-((np.abs(fractal(random, 3.0, lowest)) * 2.6) ** 2)) for lowest in (22.0, 34.0)]
    curled: Field = 1.1 * strands[0] + 0.8 * strands[1] + 0.25 * fractal(random, 0.5) + 0.3 * fractal(random, 1.4)
    return curled


_MAKERS: Final[dict[str, Callable[[np.random.Generator], Field]]] = {
    "sand": _sand,
    "rock": _rock,
    "foliage": _foliage,
    "waves": _waves,
    "brick": _brick,
    "cloth": _cloth,
    "wool": _wool,
}
KINDS: Final = tuple(_MAKERS)
"""Kinds of texture: grain, fractal noise, overlapping leaves, water, masonry, weave, and curled strands."""
UPRIGHT: Final = frozenset({"waves", "brick", "cloth"})
"""Kinds with a fixed vertical direction: mirrored only left to right."""


@lru_cache(maxsize=TILES * len(KINDS))
def _pyramid(kind: str, number: int) -> dict[int, NDArray[np.uint8]]:
    """Return the tile at each scale, by the side of its picture, repeated once so that windows may cross its edge."""
    tile = _MAKERS[kind](np.random.default_rng([_SEED, KINDS.index(kind), number]))
    low, high = np.quantile(tile[::4, ::4], (0.005, 0.995))
    level = (np.clip((tile - low) / (high - low), 0, 1) * 255).astype(np.float32)
    levels = {}
    side = FINEST
    # The picture's own side, and one level more, for windows that show the texture half as large.
    while side >= 32:
        levels[side] = np.tile(np.rint(level).astype(np.uint8), (2, 2))
        height, width = level.shape
        level = level.reshape(height // 2, 2, width // 2, 2).mean(axis=(1, 3))
        side //= 2
    return levels


def window(kind: str, number: int, x: int, y: int, flips: int, side: int, picture: int) -> NDArray[np.uint8]:
    """Return a window of a tile: brightness uint8 [side, side], a view that must not be written to.

    Args:
        kind: One of `KINDS`.
        number: Number of the tile, below `TILES`.
        x: Column of the corner in pixels of a 64 px picture, even, 0 to 254.
        y: Row of the corner, likewise.
        flips: Bit 0 mirrors left to right, bit 1 top to bottom (kinds that are not `UPRIGHT`).
        side: Side of the window in pixels of the picture.
        picture: Side of its picture, 32 to 256, a power of two; half of it shows the texture half as large.

    Raises ValueError for an unknown kind or a window that exceeds the tile.
    """
    if kind not in _MAKERS or not 0 <= number < TILES:
        raise ValueError(
            f"texture: expected one of {', '.join(KINDS)} and a tile below {TILES}, got {kind!r}, {number}"
        )
    tile = _pyramid(kind, number)[picture]
    left, top = x // 2 * (picture // 32), y // 2 * (picture // 32)
    if x % 2 or y % 2 or not (left >= 0 and top >= 0 and max(left, top) + side <= len(tile)):
        raise ValueError(f"texture window: expected even x and y, and {side} px from ({x}, {y}) within {len(tile)} px")
    cut = tile[top : top + side, left : left + side]
    if flips & 1:
        cut = cut[:, ::-1]
    if flips & 2 and kind not in UPRIGHT:
        cut = cut[::-1]
    return cut
