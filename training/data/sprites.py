"""Sprites of the emoji art at the sizes that scenes need."""

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from underpaint.training.data.art import CONCEPTS, STYLES, Sprites


class SpriteSheet:
    """Sprites at the sizes that scenes need, resized once (Lanczos) and cached."""

    def __init__(self, sprites: Sprites) -> None:
        """Take a sprite array uint8 [concepts, styles, side, side, 4], premultiplied."""
        expected = (len(CONCEPTS), len(STYLES))
        if sprites.dtype != np.uint8 or sprites.ndim != 5 or sprites.shape[:2] != expected or sprites.shape[4] != 4:
            raise ValueError(
                f"sprites: expected uint8 [{expected[0]}, {expected[1]}, side, side, 4] from "
                f"underpaint.training.data.art.load_sprites, got {sprites.dtype} {sprites.shape}"
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
