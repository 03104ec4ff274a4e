"""Frozen configurations, built from plain mappings at the seams."""

from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any, TypeVar

Config = TypeVar("Config")


def build(kind: type[Config], values: Mapping[str, Any]) -> Config:
    """Build the frozen dataclass `kind` from a mapping; lists become tuples.

    Raises:
        ValueError: for a key that `kind` has not, or one without a default that is absent.
    """
    known = {field.name: field for field in fields(kind)}  # type: ignore[arg-type]
    unknown = sorted(set(values) - set(known))
    if unknown:
        raise ValueError(f"{kind.__name__} has no key {', '.join(unknown)}; it knows {', '.join(known)}")
    required = {name for name, field in known.items() if field.default is MISSING and field.default_factory is MISSING}
    absent = sorted(required - set(values))
    if absent:
        raise ValueError(f"{kind.__name__} needs {', '.join(absent)}; got {', '.join(sorted(values))}")
    return kind(**{name: tuple(value) if isinstance(value, list) else value for name, value in values.items()})
