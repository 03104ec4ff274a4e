"""The picture sides in pixels, and the name suffixes and options that distinguish them."""

from typing import Final

SHIPPED_RESOLUTIONS: Final = (64, 128)
"""Picture sides of the shipped models."""
RESOLUTIONS: Final = (*SHIPPED_RESOLUTIONS, 256)
"""Picture sides that scenes, recipes and commands support; users train and export models of the other sides."""


def between(low: int, high: int) -> str:
    """The name suffix of samplers between `low` and `high` px, in both directions; empty for the shipped pair."""
    return "" if (low, high) == SHIPPED_RESOLUTIONS else f"_{low}_{high}"


def pair_options(low: int, high: int) -> str:
    """Return the command-line options that select the sides of a sampler recipe; empty for the shipped pair."""
    return "" if (low, high) == SHIPPED_RESOLUTIONS else f" --from {low} --to {high}"
