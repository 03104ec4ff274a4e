"""Conversion between frozen config dataclasses and the plain mappings of checkpoints."""

from collections.abc import Mapping
from typing import Any, TypeVar

from underpaint.artifacts.strict_json import build_typed

Config = TypeVar("Config")


def build(kind: type[Config], values: object) -> Config:
    """Build the dataclass `kind` from a checkpoint's mapping; lists become tuples, which checkpoints store as lists.

    Raises ValueError on an unknown key, a missing key without a default, or a value of the wrong type.
    """
    return build_typed(kind, values, kind.__name__)


def plain(values: Any) -> Any:
    """Convert values to JSON types: keys become strings, and tuples become lists."""
    if isinstance(values, Mapping):
        return {str(name): plain(value) for name, value in values.items()}
    if isinstance(values, list | tuple):
        return [plain(value) for value in values]
    return values
