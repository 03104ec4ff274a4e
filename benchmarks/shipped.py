"""Whether a record is of the models that ship, told by the hashes of both."""

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Final

from underpaint.zoo.load import manifest, names

NO_MORE: Final = "of models that ship no more"
NOTICE: Final = f"{NO_MORE.capitalize()}."
"""What stands above a table of such a record, and how a claim says it of its record."""


def named_models(value: object) -> Iterator[tuple[str, str]]:
    """Every model that a record names, with its hash, wherever it stands in the record."""
    if isinstance(value, dict):
        named = value.get("sha256")
        if isinstance(named, dict):
            yield from ((name, digest) for name, digest in named.items() if isinstance(digest, str))
        for inner in value.values():
            yield from named_models(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from named_models(inner)


@cache
def _shipped() -> Mapping[str, str]:
    held = {name: manifest(name) for name in names()}
    return {name: (one.weights or one).sha256 for name, one in held.items()}


def ships(record: object) -> bool | None:
    """Whether all models that a record names ship as they were; None where it names none."""
    found = list(named_models(record))
    return all(_shipped().get(name) == digest for name, digest in found) if found else None
