"""The files that results of an export folder are of."""

from collections.abc import Iterable
from pathlib import Path

from underpaint.zoo.load import manifest, names


def hashes_of(folder: Path, wanted: Iterable[str]) -> dict[str, str]:
    """The SHA-256 of those of the `wanted` models that a folder holds, and of the weights beside them."""
    found: dict[str, str] = {}
    for name in sorted(set(wanted) & set(names(folder))):
        held = manifest(name, folder)
        found[name] = held.sha256
        if held.weights is not None:
            found[held.weights.file] = held.weights.sha256
    return found
