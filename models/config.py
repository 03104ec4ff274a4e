"""Frozen configurations, built from the plain mappings of checkpoints."""

from collections.abc import Mapping
from typing import Any, TypeVar

from underpaint.artifacts.strict_json import build_typed

Config = TypeVar("Config")


def build(kind: type[Config], values: object) -> Config:
    """The dataclass `kind` of a checkpoint's mapping; lists, which is what a checkpoint makes of tuples, become tuples.

    Raises ValueError for a key that `kind` has not, one without a default that is absent, or a value of another type.
    """
    return build_typed(kind, values, kind.__name__)


def plain(values: Any) -> Any:
    """The same values as JSON keeps them: mappings by text, and lists for tuples."""
    if isinstance(values, Mapping):
        return {str(name): plain(value) for name, value in values.items()}
    if isinstance(values, list | tuple):
        return [plain(value) for value in values]
    return values
