"""Frozen configurations, built from the plain mappings of checkpoints."""

from collections.abc import Mapping
from typing import Any, TypeVar

from underpaint.algos import registry

Config = TypeVar("Config")


def build(kind: type[Config], values: Mapping[str, Any]) -> Config:
    """`algos.registry.build` of the dataclass `kind`; lists, which is what a checkpoint makes of tuples, become tuples.

    Raises ValueError for a key that `kind` has not, or one without a default that is absent.
    """
    plain = {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
    return registry.build(kind, plain, kind.__name__)


def plain(values: Any) -> Any:
    """The same values as JSON keeps them: mappings by text, and lists for tuples."""
    if isinstance(values, Mapping):
        return {str(name): plain(value) for name, value in values.items()}
    if isinstance(values, list | tuple):
        return [plain(value) for value in values]
    return values
