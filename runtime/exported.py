"""What an export folder records beside its models: where each came from, and the weights that lie outside its file."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from underpaint.algos.registry import build
from underpaint.artifacts.manifest import ManifestError, digest
from underpaint.zoo.load import manifest, names

RECORD: Final = "export.record"
BUCKETS: Final = (1, 8, 16, 32, 64)
"""Numbers of new positions that engines of static shapes are built for; prefill comes on top."""


@dataclass(frozen=True, slots=True)
class Data:
    """A file of weights beside a graph."""

    file: str
    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Record:
    """One exported model. request: what was asked; checkpoint_sha256: over its files."""

    request: Mapping[str, Any]
    checkpoint_sha256: str
    opset: int
    buckets: tuple[int, ...]
    data: Data | None


def read_records(folder: Path) -> Mapping[str, Record]:
    """The records of a folder by model. Raises ManifestError where there are none or they are damaged."""
    path = folder / RECORD
    if not path.is_file():
        raise ManifestError(f"no {RECORD} in {folder}; it is no export, make one with `underpaint export --kind ...`")
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        return {name: _record(found, path) for name, found in values.items()}
    except (ValueError, AttributeError, TypeError) as error:
        raise ManifestError(f"{path}: damaged ({error}); export again") from error


def _record(values: Mapping[str, Any], path: Path) -> Record:
    data = values.get("data")
    known = {
        **values,
        "buckets": tuple(values.get("buckets", ())),
        "data": None if data is None else build(Data, data, f"{path}: data"),
    }
    return build(Record, known, str(path))


def check_data(folder: Path, name: str) -> None:
    """Compare the weights beside model `name` with their record; ManifestError on any difference."""
    record = read_records(folder).get(name)
    if record is None or record.data is None:
        return
    path = folder / record.data.file
    if not path.is_file() or path.stat().st_size != record.data.bytes or digest(path) != record.data.sha256:
        raise ManifestError(f"{path}: missing, cut short or changed; export '{name}' again")


def hashes_of(folder: Path, wanted: Iterable[str]) -> dict[str, str]:
    """The SHA-256 of those of the `wanted` models that a folder holds, and of weights that lie beside them."""
    found = {name: manifest(name, folder).sha256 for name in sorted(set(wanted) & set(names(folder)))}
    outside = [record.data for name, record in read_records(folder).items() if name in found]
    return found | {data.file: data.sha256 for data in outside if data is not None}
