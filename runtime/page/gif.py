"""A replay as an animated GIF."""

from __future__ import annotations

import io
from typing import Final

import numpy as np
from PIL import Image, ImageDraw

from underpaint.algos.protocols import Grid
from underpaint.runtime.evaluation.replay import Replay
from underpaint.runtime.page.frames import Frame, frames_of
from underpaint.runtime.page.pictures import Decode

_COVER: Final = (228, 230, 235)
_MARKS: Final = {"region": (240, 160, 40), "kept": (21, 122, 60), "refused": (200, 40, 30), "drawn": (29, 79, 184)}
_SIDE: Final = 20
"""Pixels of a cell."""


def gif_of(replay: Replay, grid: Grid, decode: Decode, per_second: float = 8.0) -> bytes:
    """The animation; the last picture stays for two seconds. Marks are the page's."""
    steps = frames_of(replay, grid)
    size = (grid.width * _SIDE, grid.height * _SIDE)
    layers = [
        np.asarray(Image.fromarray(decode(np.array(layer, dtype=np.int64))).resize(size, Image.Resampling.NEAREST))
        for layer in steps.layers
    ]
    canvas = np.full((size[1], size[0], 3), _COVER, dtype=np.uint8)
    pictures = []
    for frame in steps.frames:
        for layer, cells in frame.puts:
            for cell in cells:
                y, x = (_SIDE * each for each in divmod(cell, grid.width))
                canvas[y : y + _SIDE, x : x + _SIDE] = layers[layer][y : y + _SIDE, x : x + _SIDE]
        pictures.append(_marked(canvas, frame, grid))
    pictures.append(Image.fromarray(canvas))
    times = [int(1000 / per_second)] * len(steps.frames) + [2000]
    stream = io.BytesIO()
    pictures[0].save(stream, "GIF", save_all=True, append_images=pictures[1:], duration=times, loop=0, optimize=True)
    return stream.getvalue()


def _marked(canvas: np.ndarray[tuple[int, ...], np.dtype[np.uint8]], frame: Frame, grid: Grid) -> Image.Image:
    picture = Image.fromarray(canvas)
    brush = ImageDraw.Draw(picture)
    for name, ink in _MARKS.items():
        for cell in frame.marks.get(name, ()):
            y, x = (_SIDE * each for each in divmod(cell, grid.width))
            if name == "region":
                brush.line((x, y + _SIDE - 1, x + _SIDE - 1, y), fill=ink, width=2)
            else:
                brush.rectangle((x, y, x + _SIDE - 1, y + _SIDE - 1), outline=ink, width=2)
            if name == "refused":
                brush.line((x + 5, y + 5, x + _SIDE - 6, y + _SIDE - 6), fill=ink, width=2)
    return picture
