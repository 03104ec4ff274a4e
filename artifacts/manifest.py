"""The manifest beside every model file: what it is, where it came from, and how to tell that it is whole."""

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from underpaint.algos.registry import build

FORMAT: Final = 1
"""Version of the manifest's own fields."""
LAYOUT: Final = 1
"""Version of what a graph's inputs and outputs mean; an engine refuses any other."""


class ManifestError(ValueError):
    """A model file or its manifest is missing, damaged, or not what its manifest says."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """One model file.

    kind: "target", "drafter", "image_encoder", "image_decoder", "judge", "codebook", "upsampler", "downsampler" or
        "superres", among others.
    file: the model's file name, in the manifest's own folder; bytes, sha256: of that file.
    recipe: the command that makes it again. source, licence: of the weights.
    settings: what an engine must know (vocabulary, grid, layers, ...); see the engine of that kind.
    shapes: inputs and outputs by name; a free dimension is a string.
    versions: packages that wrote the file. parity: largest absolute differences from the torch module, by case.
    training: the steps that were really taken, as `models.checkpoints.story` tells them; empty where nothing tells.
    """

    name: str
    kind: str
    file: str
    sha256: str
    bytes: int
    source: str
    licence: str
    recipe: str
    settings: Mapping[str, Any]
    shapes: Mapping[str, list[int | str]] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    parity: Mapping[str, float] = field(default_factory=dict)
    training: Mapping[str, Any] = field(default_factory=dict)
    format: int = FORMAT
    layout: int = LAYOUT


def digest(path: Path) -> str:
    """The SHA-256 of a file, in hex."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def write_beside(path: Path, content: bytes) -> None:
    """Write `content` to a neighbour of `path`, then rename it: a reader sees the old file or the whole new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        beside.write_bytes(content)
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)


def write(manifest: Manifest, folder: Path) -> Path:
    """Write `<name>.json` into `folder`, whose model file must be there and match; return its path."""
    check(manifest, folder)
    path = folder / f"{manifest.name}.json"
    write_beside(path, (json.dumps(asdict(manifest), indent=1, sort_keys=True) + "\n").encode())
    return path


def read(path: Path) -> Manifest:
    """The manifest at `path`. Raises ManifestError: absent, not JSON, unknown or missing fields, another format."""
    if not path.is_file():
        raise ManifestError(f"no manifest at {path}; write the model with `underpaint export`")
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ManifestError(f"{path}: expected JSON, got {error}; export the model again") from error
    if not isinstance(values, dict):
        raise ManifestError(f"{path}: expected a JSON object, got {type(values).__name__}; export the model again")
    try:
        manifest = build(Manifest, values, f"manifest {path}")
    except ValueError as error:
        raise ManifestError(f"{error}; export the model again with this version") from error
    for what, found, expected in (("format", manifest.format, FORMAT), ("layout", manifest.layout, LAYOUT)):
        if found != expected:
            raise ManifestError(f"{path}: expected {what} {expected}, got {found}; export the model again")
    return manifest


def check(manifest: Manifest, folder: Path) -> Path:
    """The path of the model file, after comparing its length and SHA-256; ManifestError on any difference."""
    path = folder / manifest.file
    if not path.is_file():
        raise ManifestError(f"{manifest.name}: no model file at {path}; export the model again")
    size = path.stat().st_size
    if size != manifest.bytes:
        raise ManifestError(
            f"{path}: expected {manifest.bytes} bytes, got {size}: the file is cut short or is another one; "
            "export the model again"
        )
    found = digest(path)
    if found != manifest.sha256:
        raise ManifestError(
            f"{path}: expected sha256 {manifest.sha256}, got {found}: the file was changed; export the model again"
        )
    return path
