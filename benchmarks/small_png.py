"""Pictures of the documents with a palette, gradients dithered."""

import io
from pathlib import Path

from PIL import Image

from underpaint.artifacts.manifest import write_beside

PAGE_WIDTH = 840
"""Pixels: what a README is shown at."""
_ROUNDS = 5
"""Of moving the palette's colours to the means of those that they stand for."""


def with_palette(picture: Image.Image, colours: int = 160) -> bytes:
    """A PNG of the picture, what is transparent in it left out. colours: at most so many."""
    packed, opaque = io.BytesIO(), picture.convert("RGB")
    # Rare colours keep an entry: by area alone, a small green leaf turns brown. Dithered, as gradients show bands else.
    palette = opaque.quantize(colours, Image.Quantize.MAXCOVERAGE, kmeans=_ROUNDS)
    found = opaque.quantize(palette=palette, dither=Image.Dither.FLOYDSTEINBERG)
    found.save(packed, "PNG", optimize=True)
    return packed.getvalue()


def shrink(path: Path) -> None:
    """Write a picture file anew, with a palette, and at most as wide as a page shows it."""
    with Image.open(path) as picture:
        picture.thumbnail((PAGE_WIDTH, picture.height), Image.Resampling.LANCZOS)
        write_beside(path, with_palette(picture))
