"""Writes model files with weights and manifests: to a staging folder, checked, then moved together with the index."""

import errno
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from typing import Any, Final, Literal

import onnx
from onnx import TensorProto, numpy_helper

from underpaint.algos.rows import SamplingParams
from underpaint.artifacts import manifest
from underpaint.artifacts.index_writer import write_index
from underpaint.artifacts.lock import folder_lock
from underpaint.artifacts.manifest import ExportRecord, Manifest, WeightsEntry, digest
from underpaint.artifacts.model_index import INDEX
from underpaint.export.graph import external
from underpaint.export.parity import Report
from underpaint.export.weight_file import SUFFIX, WeightFile, header_room

LICENCE: Final = "Apache-2.0 (weights); trained on pictures under the licences in training/data/LICENCES.md"
PACKAGES: Final = ("torch", "onnx", "onnxruntime", "numpy")
_ASIDE: Final = ".export."
_STORAGE: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO})
"""Numbers of errors that say that a folder's disk takes no more."""
_LEAST_WEIGHT: Final = 16
"""Floating-point constants with fewer numbers are not weights but, for example, an epsilon or a scale."""


class ParityError(ValueError):
    """An exported graph does not compute what the torch module computes."""


@dataclass(frozen=True, slots=True)
class Origin:
    """The origin of weights.

    Attributes:
        source: Their source in words.
        recipe: The command that trains and exports them.
        licence: Their licence.
        training: How they were trained, from the checkpoint (`models.checkpoints.story`).
        export: For a published checkpoint, what it was exported from.
    """

    source: str
    recipe: str
    licence: str = LICENCE
    training: Mapping[str, Any] = field(default_factory=dict)
    export: ExportRecord | None = None


Differences = Mapping[str, float]
"""Largest absolute difference by case, each divided by max(1, largest expected absolute value)."""


@contextmanager
def staged(folder: Path, family: str | None = None, sampling_params: SamplingParams | None = None) -> Iterator[Path]:
    """Yield a staging folder whose files are moved into `folder` at the end with a new index: all of them, or none.

    After any error `folder` is unchanged.

    Args:
        folder: The folder of models, which need not exist.
        family: Family in the index; see `artifacts.index_writer.build_index`.
        sampling_params: Sampling in the index; see `artifacts.index_writer.build_index`.

    Raises:
        ManifestError: The models do not belong together.
        OSError: The folder cannot be written, for example because the disk is full.
        FolderInUse: Another process works in the folder.
    """
    is_new = not folder.exists()
    try:
        with folder_lock(folder):
            for leftover in folder.glob(f"{_ASIDE}*"):  # left by a killed export: no other export is running here
                shutil.rmtree(leftover, ignore_errors=True)
            with _moved_into(folder, family, sampling_params) as aside:
                yield aside
    finally:
        if is_new and folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()


@contextmanager
def _moved_into(folder: Path, family: str | None, sampling_params: SamplingParams | None) -> Iterator[Path]:
    aside = Path(mkdtemp(dir=folder, prefix=_ASIDE))
    try:
        yield aside
        _write_index_of_both(folder, aside, family, sampling_params)
        # Manifests last: a model without its manifest is not found, and one with a wrong manifest is refused.
        for file in sorted(aside.iterdir(), key=lambda file: (file.suffix == ".json", file.name == INDEX)):
            os.replace(file, folder / file.name)
    except OSError as error:
        if error.errno not in _STORAGE:  # such as a checkpoint that is not there
            raise
        what = f"{error.strerror} while writing into {folder}, which stays as it was; make room there"
        raise OSError(error.errno, f"{what}, or choose another folder") from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _write_index_of_both(folder: Path, aside: Path, family: str | None, sampling_params: SamplingParams | None) -> None:
    """Write into `aside` the index of the future `folder`, based on its manifests and file names."""
    with TemporaryDirectory() as directory:
        both = Path(directory)
        for file in (*folder.iterdir(), *aside.iterdir()):
            if file.suffix == ".json" and file.is_file():
                shutil.copyfile(file, both / file.name)
        shutil.copyfile(write_index(both, family=family, sampling_params=sampling_params), aside / INDEX)


def require_parity(name: str, differences: Differences, most: float) -> None:
    """Raise ParityError unless every difference is a number no larger than `most`."""
    wrong = {case: difference for case, difference in differences.items() if not difference <= most}
    if wrong or not differences:
        raise ParityError(
            f"{name}: expected differences from the torch module of at most {most:g}, got {wrong}; nothing was written"
        )


def store_onnx(
    model: onnx.ModelProto, draft: Manifest, folder: Path, compare: Callable[[Path], Report], most: float
) -> Manifest:
    """Write `<name>.onnx`, its weights and `<name>.json` into `folder` if the graph passes `compare`.

    Args:
        model: The graph.
        draft: The manifest so far.
        folder: A folder of `staged`, which is discarded after an error.
        compare: Reports on the file at a path.
        most: Largest accepted difference.

    Returns:
        The complete manifest.

    Raises:
        ParityError: A difference is larger than `most`.
    """
    path = folder / f"{draft.name}.onnx"
    externalize(model, path)
    differences = compare(path).worst()
    require_parity(draft.name, differences, most)
    return finish(draft, path, differences)


def externalize(model: onnx.ModelProto, path: Path) -> None:
    """Write `model` to `path` and its floating-point weights to `<name>.safetensors` there; changes `model`."""
    room = header_room(tensor.name for tensor in model.graph.initializer)
    with WeightFile(path.with_suffix(SUFFIX), room) as file:
        for tensor in model.graph.initializer:
            if tensor.data_type in (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16):
                values = numpy_helper.to_array(tensor)
                if values.size >= _LEAST_WEIGHT:
                    tensor.CopyFrom(external(tensor.name, values, file))
    path.write_bytes(model.SerializeToString(deterministic=True))


def store_bytes(content: bytes, suffix: str, draft: Manifest, folder: Path, shapes: Mapping[str, Any]) -> Manifest:
    """Write `<name><suffix>` and its manifest into `folder`, for data that is not a graph."""
    path = folder / f"{draft.name}{suffix}"
    path.write_bytes(content)
    return finish(draft, path, {}, shapes)


def draft_manifest(name: str, kind: str, origin: Origin, settings: Mapping[str, Any]) -> Manifest:
    """Return a manifest without the fields that are read from the file."""
    return Manifest(
        *(name, kind, "", "", 0, origin.source, origin.licence, origin.recipe, dict(settings)),
        training=dict(origin.training),
        export=origin.export,
    )


def finish(
    draft: Manifest,
    path: Path,
    differences: Differences,
    shapes: Mapping[str, Any] | None = None,
    shared: Path | None = None,
    matrices: Literal["scaled_rows"] | None = None,
) -> Manifest:
    """Write the manifest of the model at `path`; fills in file, size, hash, weights, shapes, versions and parity.

    Args:
        draft: The manifest so far.
        path: File of the model.
        differences: Differences from the torch module by case.
        shapes: Inputs and outputs by name; None reads them from the graph.
        shared: The weights file, if several graphs share it.
        matrices: See `WeightsEntry`.

    Returns:
        The complete manifest.
    """
    weights_path = shared or path.with_suffix(SUFFIX)
    weights = (
        WeightsEntry(weights_path.name, weights_path.stat().st_size, digest(weights_path), matrices)
        if weights_path.is_file()
        else None
    )
    whole = replace(
        draft,
        file=path.name,
        bytes=path.stat().st_size,
        sha256=digest(path),
        weights=weights,
        shapes=dict(_shapes(path) if shapes is None else shapes),
        parity={case: float(f"{difference:.3g}") for case, difference in differences.items()},
        versions={package: version(package) for package in PACKAGES},
    )
    manifest.write(whole, path.parent)
    return whole


def _shapes(path: Path) -> dict[str, list[int | str]]:
    graph = onnx.load(path, load_external_data=False).graph
    return {
        value.name: [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim]
        for value in (*graph.input, *graph.output)
    }
