"""The sides of pictures, in pixels, and how names tell them apart."""

from typing import Final

SHIPPED_RESOLUTIONS: Final = (64, 128)
"""What the shipped models draw."""
RESOLUTIONS: Final = (*SHIPPED_RESOLUTIONS, 256)
"""What scenes, recipes and commands know: models of the other sides are trained and exported by who wants them."""


def between(low: int, high: int) -> str:
    """What the names of samplers from `low` to `high` px, and back, end in: nothing for the shipped pair."""
    return "" if (low, high) == SHIPPED_RESOLUTIONS else f"_{low}_{high}"


def pair_options(low: int, high: int) -> str:
    """The options by which the recipes of samplers are told the sides: none for the shipped pair."""
    return "" if (low, high) == SHIPPED_RESOLUTIONS else f" --from {low} --to {high}"
