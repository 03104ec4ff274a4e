"""TensorRT plans on disk, with records of how they were built; a plan that does not fit is rejected."""

import importlib
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from types import ModuleType
from typing import Final, Literal, NamedTuple, TypeAlias

from underpaint.algos.registry import build
from underpaint.artifacts.install import install_hint
from underpaint.artifacts.lock import folder_lock
from underpaint.artifacts.manifest import Manifest
from underpaint.artifacts.strict_json import read_object
from underpaint.runtime.engines.context import EngineError

Backend: TypeAlias = Literal["tensorrt", "tensorrt-rtx"]
RTX: Final = "tensorrt-rtx"
MODULES: Final[Mapping[str, str]] = {"tensorrt": "tensorrt", "tensorrt-rtx": "tensorrt_rtx"}
_INSTALL: Final[Mapping[str, str]] = {
    "tensorrt": "pip install tensorrt-cu13 (its libraries come from NVIDIA's own index)",
    "tensorrt-rtx": install_hint("tensorrt-rtx"),
}
ANY_GPU: Final = "any"
"""The GPU name of an engine that was built on a machine without a GPU."""


@dataclass(frozen=True, slots=True)
class EngineRecord:
    """The graph, GPU and version that a plan was built from; a plan contains no weights, but reads them.

    Attributes:
        model: The part of a decoder that the plan runs, see `part_of`.
        backend: "tensorrt" or "tensorrt-rtx".
        version: The version of the backend's package.
        gpu: The GPU that the plan was built for, or `ANY_GPU`.
        onnx_sha256: SHA-256 of the decoder's graph.
        engine_sha256: SHA-256 of the plan.
        engine_bytes: Size of the plan in bytes.
        precision: The decoder's precision, as in its config.
        rows: Least and largest number of rows of a pass.
        places: Places of the cache, 0 if the plan reads no cache.
        passes: Least and largest number of new positions of each optimisation profile, in order.
        version_compatible: Whether later versions can run the plan.
    """

    model: str
    backend: str
    version: str
    gpu: str
    onnx_sha256: str
    engine_sha256: str
    engine_bytes: int
    precision: str
    rows: tuple[int, int]
    places: int
    passes: tuple[tuple[int, int], ...]
    version_compatible: bool = False

    def fitting(self, count: int) -> int | None:
        """Return the profile with the narrowest range that includes `count` new positions, or None."""
        sizes = [(most - least, place) for place, (least, most) in enumerate(self.passes) if least <= count <= most]
        return min(sizes)[1] if sizes else None


class Paths(NamedTuple):
    """The files of a plan."""

    engine: Path
    record: Path
    runtime: Path
    """The kernels that TensorRT for RTX compiled on this machine for the plan; compiled again if missing."""


def paths(folder: Path, model: str, backend: str) -> Paths:
    """Return the paths of the plan for a part of a decoder."""
    return Paths(*(folder / f"{model}.{backend}.{part}" for part in Paths._fields))


def part_of(model: str, part: str, device: bool = False) -> str:
    """Return the plan's name for a part of a decoder; device: for the device runtime, which has its own passes."""
    return f"{model}.device.{part}" if device else f"{model}.{part}"


def backend_module(backend: str) -> ModuleType:
    """Import the Python package of a backend; raise EngineError, which says how to install it, if it is missing."""
    if backend not in MODULES:
        raise EngineError(f"--backend: expected {' or '.join(MODULES)}, got {backend!r}")
    try:
        return importlib.import_module(MODULES[backend])
    except ImportError as error:
        raise EngineError(f"{backend} is not installed ({error}); install it with: {_INSTALL[backend]}") from error


def write_engine(folder: Path, content: bytes, record: EngineRecord) -> Path:
    """Write a plan and its record, and return the plan's path; a full disk (OSError) keeps an earlier pair."""
    place = paths(folder, record.model, record.backend)
    staged = folder / f".{place.engine.name}.staged"  # overwrites the files of an aborted build
    with folder_lock(staged):
        _write_pair(staged, place, content, record)
    return place.engine


def _write_pair(staged: Path, place: Paths, content: bytes, record: EngineRecord) -> None:
    try:
        (staged / place.engine.name).write_bytes(content)
        (staged / place.record.name).write_text(json.dumps(asdict(record), indent=1) + "\n", encoding="utf-8")
        place.record.unlink(missing_ok=True)  # an engine without a record is rejected, so the pair never mismatches
        for part in (place.engine, place.record):
            os.replace(staged / part.name, part)
    except OSError as error:
        what = f"{error.strerror} while writing the engine of '{record.model}' into {staged.parent}"
        raise OSError(error.errno, f"{what}; make room there and build it again") from error
    finally:
        shutil.rmtree(staged, ignore_errors=True)


class EngineFile(NamedTuple):
    """The bytes and the record of a plan that fits this machine."""

    content: bytes
    record: EngineRecord


def read_record(folder: Path, model: str, backend: str, again: str | None = None) -> EngineRecord:
    """Read a plan's record; if missing or damaged, raise EngineError with the remedy `again` (None: build it)."""
    place, again = paths(folder, model, backend), again or build_again(folder, backend)
    if not place.record.is_file() or not place.engine.is_file():
        raise EngineError(f"{folder} holds no {backend} engine of '{model}'; {again}")
    try:
        values = read_object(place.record)
        least, most = (int(count) for count in values["rows"])
        passes = tuple((int(first), int(last)) for first, last in values["passes"])
        return build(EngineRecord, {**values, "rows": (least, most), "passes": passes}, str(place.record))
    except (ValueError, KeyError, TypeError) as error:
        raise EngineError(f"{place.record}: damaged ({error}); {again}") from error


def build_again(folder: Path, backend: str, rows: int | None = None) -> str:
    """Return the command that builds the plans of a folder; rows: rows of a pass, if not the default."""
    return f"build it with `underpaint engine {folder} --backend {backend}{f' --rows {rows}' if rows else ''}`"


def check_rows(record: EngineRecord, rows: int, folder: Path, again: str | None = None) -> None:
    """Raise EngineError, with the accepted numbers of rows, unless a plan takes passes of `rows` rows."""
    least, most = record.rows
    if not least <= rows <= most:
        option = f"1,{rows}" if again is None and least == 1 else rows
        raise EngineError(
            f"{folder}: expected passes of {least} to {most} rows, for which the {record.backend} engine of "
            f"'{record.model}' was built, got {rows} (an image takes 1 under guidance 1, else 2); "
            + (again or f"build it with `underpaint engine {folder} --backend {record.backend} --rows {option}`")
        )


def read_engine(
    folder: Path, model: str, backend: str, manifest: Manifest, version: str, gpu: str, again: str | None = None
) -> EngineFile:
    """Read and check the plan for a part of a decoder, and its record.

    Args:
        folder: The folder of the decoder.
        model: The part of the decoder; see `part_of`.
        backend: "tensorrt" or "tensorrt-rtx".
        manifest: The decoder's manifest.
        version: The version of the backend's package on this machine.
        gpu: The GPU of this machine; see `tensorrt_runtime.gpu_name`.
        again: See `read_record`.

    Raises:
        EngineError: The plan is missing or damaged, or was built from another graph, for another GPU, or by an
            incompatible version.
    """
    record, place = read_record(folder, model, backend, again), paths(folder, model, backend)
    again = again or build_again(folder, backend)
    content = place.engine.read_bytes()
    if record.version_compatible and _is_later(version, record.version):
        version = record.version
    for what, recorded, expected in (
        ("model", record.model, model),
        ("graph (sha256)", record.onnx_sha256, manifest.sha256),
        (f"{backend} version", record.version, version),
        ("engine bytes", record.engine_bytes, len(content)),
        ("engine (sha256)", record.engine_sha256, sha256(content).hexdigest()),
    ):
        if recorded != expected:
            raise EngineError(f"{place.engine}: expected {what} {expected}, got {recorded}; {again}")
    if record.gpu not in (ANY_GPU, gpu):
        raise EngineError(f"{place.engine}: built for {record.gpu}, this machine has {gpu}; {again}")
    return EngineFile(content, record)


def _is_later(version: str, built: str) -> bool:
    """Return whether `version` has the same major number as `built` and is not older."""
    numbers = [[int(part) for part in text.split(".") if part.isdecimal()] for text in (version, built)]
    return numbers[0][:1] == numbers[1][:1] and numbers[0] >= numbers[1]
