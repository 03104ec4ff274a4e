"""The manifest next to every model file: what the model is, where it came from, and the hash of its file."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from underpaint.artifacts.files import replacing
from underpaint.artifacts.strict_json import build_typed, check_format, read_object

FORMAT: Final = 2
"""Version of the manifest's fields and of the meaning of graph inputs and outputs (`artifacts.decoder_graph`)."""
DRAFT_TARGET: Final = "draft_target"
"""The kind of a target that only drafts for larger ones: the same weights, multiplied in 8 bits."""
_REMEDY: Final = (
    "make the folder again: `underpaint export ... --out FOLDER` writes every model, its manifest and the index"
)


class ManifestError(ValueError):
    """A model file or its manifest is missing, damaged, or not what its manifest says."""


@dataclass(frozen=True, slots=True)
class WeightsEntry:
    """The weights of a graph, in a safetensors file in the manifest's folder that the graph points into.

    Graphs of one model for several grids share one file.

    Attributes:
        file: Name of the file.
        bytes: Size of the file.
        sha256: Hash of the file.
        matrices: "scaled_rows" if some matrices are stored in 8 bits with one scale per row (`artifacts.scaled_rows`)
            and widened when read; None otherwise.
    """

    file: str
    bytes: int
    sha256: str
    matrices: Literal["scaled_rows"] | None = None


@dataclass(frozen=True, slots=True)
class ExportRecord:
    """The source of an exported graph, so that the graph can be compared with it again.

    Attributes:
        request: The export options, as `export` reads them.
        checkpoint_sha256: Hash of the files that were read.
        opset: The opset of ONNX.
        buckets: Numbers of new positions that its engines are built for.
    """

    request: Mapping[str, Any]
    checkpoint_sha256: str
    opset: int
    buckets: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Manifest:
    """The description of one model file.

    Attributes:
        name: The model's name, which is also that of the manifest's file.
        kind: "target", "drafter", `DRAFT_TARGET`, "image_encoder", "image_decoder", "judge", "codebook", "upsampler",
            "downsampler" or "superres", among others.
        file: The model's file name, in the manifest's folder.
        sha256: Hash of that file.
        bytes: Size of that file.
        source: Source of the weights.
        licence: Licence of the weights.
        recipe: The command that makes the file again.
        settings: What an engine must know (vocabulary, grid, layers, ...); see the engine of that kind.
        shapes: Inputs and outputs by name; a free dimension is a string.
        versions: Versions of the packages that wrote the file.
        parity: Largest absolute differences from the torch module, by case.
        training: The training steps taken, in the form of `models.checkpoints.story`; empty if unknown.
        weights: Weights in a separate file, which identify a new graph of the same weights; None if the graph has them.
        export: The published checkpoint that the graph was exported from; None for other models.
        format: Version of the manifest, `FORMAT`.
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
    weights: WeightsEntry | None = None
    export: ExportRecord | None = None
    format: int = FORMAT

    @property
    def content_sha256(self) -> str:
        """The hash that results record: of the weights if they have a file of their own, else of the model's file."""
        return self.sha256 if self.weights is None else self.weights.sha256


def digest(path: Path) -> str:
    """The SHA-256 of a file in hex."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def write_beside(path: Path, content: bytes) -> None:
    """Write `content` next to `path`, then rename it: readers see the old file or the complete new one."""
    with replacing(path) as file:
        file.write(content)


def write(manifest: Manifest, folder: Path) -> Path:
    """Write `<name>.json` to `folder`, whose model file must be there and match; return its path."""
    check(manifest, folder)
    path = folder / f"{manifest.name}.json"
    write_beside(path, (json.dumps(asdict(manifest), indent=1, sort_keys=True) + "\n").encode())
    return path


def read(path: Path) -> Manifest:
    """Read a manifest; raises ManifestError if it is missing, not JSON, of another format, or has wrong fields."""
    if not path.is_file():
        raise ManifestError(f"no manifest at {path}; {_REMEDY}")
    try:
        values = read_object(path)
    except ValueError as error:
        raise ManifestError(f"{path}: {error}; {_REMEDY}") from error
    try:
        check_format(values.get("format"), FORMAT, _REMEDY)
    except ValueError as error:
        raise ManifestError(f"{path}: {error}") from error
    try:
        manifest = build_typed(Manifest, values, f"manifest {path}")
        for file in (manifest.file, *([manifest.weights.file] if manifest.weights else [])):
            check_beside(file, f"manifest {path}")
    except ValueError as error:
        raise ManifestError(f"{error}; {_REMEDY}") from error
    return manifest


def check_beside(file: str, what: str) -> None:
    """Raise ValueError unless `file` is a plain file name, so that the file is in the same folder as its manifest."""
    if not file or file in (".", "..") or Path(file).name != file or "\\" in file or "\0" in file:
        raise ValueError(f"{what}: expected the name of a file in its own folder, got {file!r}")


def check(manifest: Manifest, folder: Path) -> Path:
    """The path of the model file, after a check of its and its weights' size and SHA-256.

    Raises ManifestError for any difference.
    """
    if manifest.weights is not None:
        _check_file(manifest.name, folder / manifest.weights.file, manifest.weights.bytes, manifest.weights.sha256)
    path = folder / manifest.file
    _check_file(manifest.name, path, manifest.bytes, manifest.sha256)
    return path


def _check_file(name: str, path: Path, size: int, sha256: str) -> None:
    if not path.is_file():
        raise ManifestError(f"{name}: no model file at {path}; export the model again")
    actual_size = path.stat().st_size
    if actual_size != size:
        raise ManifestError(
            f"{path}: expected {size} bytes, got {actual_size}: the file is cut short or is another one; "
            "export the model again"
        )
    actual_sha256 = digest(path)
    if actual_sha256 != sha256:
        raise ManifestError(
            f"{path}: expected sha256 {sha256}, got {actual_sha256}: the file was changed; export the model again"
        )
