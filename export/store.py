"""Write a model file and its manifest: beside, checked, then renamed."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import onnx

from underpaint.artifacts import manifest
from underpaint.artifacts.manifest import Manifest

LICENCE: Final = "Apache-2.0 (weights); trained on pictures under the licences in models/data/LICENCES.md"
PACKAGES: Final = ("torch", "onnx", "onnxruntime", "numpy")


class ParityError(ValueError):
    """An exported graph does not compute what the torch module computes."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where weights come from: `source` in words, `recipe` the command that trains and exports them, `licence`.

    training: how they were really trained, as the checkpoint tells it (`models.checkpoints.story`).
    """

    source: str
    recipe: str
    licence: str = LICENCE
    training: Mapping[str, Any] = field(default_factory=dict)


Differences = Mapping[str, float]
"""Largest absolute difference by case, each divided by max(1, largest absolute value expected)."""


def require_parity(name: str, differences: Differences, most: float) -> None:
    """Raise ParityError unless every difference is a number of at most `most`."""
    wrong = {case: found for case, found in differences.items() if not found <= most}
    if wrong or not differences:
        raise ParityError(
            f"{name}: expected differences from the torch module of at most {most:g}, got {wrong}; nothing was written"
        )


def store_onnx(
    model: onnx.ModelProto,
    draft: Manifest,
    folder: Path,
    compare: Callable[[Path], Differences],
    most: float,
) -> Manifest:
    """Write `<name>.onnx` and `<name>.json` into `folder` if the graph passes `compare`.

    draft: the manifest so far; file, size, hash, shapes, versions and parity are filled in here.
    compare: differences of the file at a path. most: the largest that passes.
    Raises ParityError, leaving the folder as it was.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{draft.name}.onnx"
    beside = path.with_name(f".{path.stem}.{os.getpid()}.onnx")
    content = model.SerializeToString(deterministic=True)
    try:
        beside.write_bytes(content)
        differences = compare(beside)
        require_parity(draft.name, differences, most)
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)
    return _finish(draft, folder, path.name, content, differences, _shapes(model))


def store_bytes(content: bytes, suffix: str, draft: Manifest, folder: Path, shapes: Mapping[str, Any]) -> Manifest:
    """Write `<name><suffix>` and its manifest into `folder`: data that no graph computes."""
    path = folder / f"{draft.name}{suffix}"
    manifest.write_beside(path, content)
    return _finish(draft, folder, path.name, content, {}, shapes)


def draft_manifest(name: str, kind: str, origin: Origin, settings: Mapping[str, Any]) -> Manifest:
    """A manifest that lacks what only the file can tell."""
    return Manifest(
        *(name, kind, "", "", 0, origin.source, origin.licence, origin.recipe, dict(settings)),
        training=dict(origin.training),
    )


def _finish(
    draft: Manifest,
    folder: Path,
    file: str,
    content: bytes,
    differences: Differences,
    shapes: Mapping[str, Any],
) -> Manifest:
    whole = replace(
        draft,
        file=file,
        bytes=len(content),
        sha256=sha256(content).hexdigest(),
        shapes=dict(shapes),
        parity={case: float(f"{found:.3g}") for case, found in differences.items()},
        versions={package: version(package) for package in PACKAGES},
    )
    manifest.write(whole, folder)
    return whole


def _shapes(model: onnx.ModelProto) -> dict[str, list[int | str]]:
    return {
        value.name: [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim]
        for value in (*model.graph.input, *model.graph.output)
    }
