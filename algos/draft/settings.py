"""Checks that policies' settings share."""

from typing import Final

MOST: Final = 1e9
"""No setting of a policy is larger: levels, nodes and milliseconds all stay far below."""


def at_least(policy: str, least: float, **settings: float) -> None:
    """Raise ValueError, naming the setting and the bounds, unless each is from `least` to `MOST`."""
    for name, value in settings.items():
        if not value >= least:
            raise ValueError(f"policy '{policy}': {name} must be at least {least}, got {value!r}")
        if value > MOST:
            raise ValueError(f"policy '{policy}': {name} must be at most {MOST:g}, got {value!r}")


def one_of(policy: str, options: tuple[str, ...], **settings: str) -> None:
    """Raise ValueError, naming the setting, unless each is one of `options`."""
    for name, value in settings.items():
        if value not in options:
            raise ValueError(f"policy '{policy}': {name} must be one of {', '.join(options)}, got {value!r}")
