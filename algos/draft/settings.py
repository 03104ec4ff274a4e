"""Checks that policies' settings share."""

from math import isfinite


def at_least(policy: str, least: float, **settings: float) -> None:
    """Raise ValueError, naming the setting, unless each is a finite number >= `least`."""
    for name, value in settings.items():
        if not (isfinite(value) and value >= least):
            raise ValueError(f"policy '{policy}': {name} must be at least {least}, got {value!r}")


def one_of(policy: str, options: tuple[str, ...], **settings: str) -> None:
    """Raise ValueError, naming the setting, unless each is one of `options`."""
    for name, value in settings.items():
        if value not in options:
            raise ValueError(f"policy '{policy}': {name} must be one of {', '.join(options)}, got {value!r}")
