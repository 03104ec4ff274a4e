"""The tables of prompt grammars, as the package holds them."""

from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from underpaint.artifacts.manifest import ManifestError
from underpaint.artifacts.strict_json import parse_json


def read_tables(file: str, kinds: Mapping[str, type]) -> dict[str, Any]:
    """The tables in a JSON file of this package, by name; `kinds` says which there must be, and whether list or object.

    Raises ManifestError where the file is missing, damaged or lacks one: the package is then not whole.
    """
    remedy = "the package is damaged: install underpaint again, or restore the file (git checkout)"
    path = files("underpaint.zoo").joinpath(file)
    try:
        tables = parse_json(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ManifestError(f"{path}: expected the tables of the prompt grammar ({error}); {remedy}") from error
    lacking = [
        name for name, kind in kinds.items() if not isinstance(tables, dict) or type(tables.get(name)) is not kind
    ]
    if lacking:
        raise ManifestError(f"{path}: expected tables {', '.join(kinds)}, got none of {', '.join(lacking)}; {remedy}")
    found: dict[str, Any] = tables
    return found
