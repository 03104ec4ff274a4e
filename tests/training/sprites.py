"""Sprites in place of the emoji art, which only a network brings."""

from functools import cache

import numpy as np

from underpaint.training.data.art import CONCEPTS, SPRITE_SIDE, STYLES, Sprites


@cache
def made_up_sprites(side: int = SPRITE_SIDE) -> Sprites:
    """A soft-edged disc per concept and style, its colour and a stripe telling which."""
    grid = (np.arange(side) + 0.5) / side * 2 - 1
    radius = np.hypot(grid[None, :], grid[:, None])
    alpha = np.clip((0.98 - radius) * side / 4, 0, 1)
    sprites = np.zeros((len(CONCEPTS), len(STYLES), side, side, 4), dtype=np.uint8)
    for concept in range(len(CONCEPTS)):
        for style in range(len(STYLES)):
            colour = np.array([6 * concept + 10, 250 - 6 * concept, 90 + 100 * style])
            shade = 1 - 0.4 * (np.sin(grid * (1 + concept % 5)) > 0)[:, None]
            sprites[concept, style, ..., :3] = alpha[..., None] * shade[..., None] * colour
            sprites[concept, style, ..., 3] = 255 * alpha
    return sprites
