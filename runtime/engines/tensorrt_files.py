"""TensorRT engines on disk: what an engine was built from, for and by, and its refusal where anything differs."""

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
from underpaint.artifacts.lock import held
from underpaint.artifacts.manifest import Manifest, ManifestError
from underpaint.artifacts.strict_json import read_object
from underpaint.runtime.engines.context import EngineError
from underpaint.zoo.load import manifest

Backend: TypeAlias = Literal["tensorrt", "tensorrt-rtx"]
MODULES: Final[Mapping[str, str]] = {"tensorrt": "tensorrt", "tensorrt-rtx": "tensorrt_rtx"}
_INSTALL: Final[Mapping[str, str]] = {
    "tensorrt": "pip install tensorrt-cu13 (its libraries come from NVIDIA's own index)",
    "tensorrt-rtx": install_hint("tensorrt-rtx"),
}
ANY_GPU: Final = "any"
"""The GPU of an engine that was built on a machine without one."""


@dataclass(frozen=True, slots=True)
class Profile:
    """Input shapes of one optimisation profile: least, best and most, by input."""

    shapes: Mapping[str, tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]]


@dataclass(frozen=True, slots=True)
class EngineRecord:
    """What ties an engine to its graph, its GPU and the version that built it.

    rows: of every pass. One engine for several numbers of rows would hold its weights once for each of them, and load
    them all. counts: new positions of each optimisation profile, in order; profiles share the weights.
    passes: in their place, of an engine for the device runtime: the least and the most new positions of each profile,
    and the committed positions and slots behind them.
    """

    model: str
    backend: str
    version: str
    gpu: str
    onnx_sha256: str
    weights_sha256: str | None
    engine_sha256: str
    engine_bytes: int
    precision: str
    rows: int
    counts: tuple[int, ...]
    passes: tuple[tuple[int, int, int, int], ...] = ()


class Paths(NamedTuple):
    """The files of an engine."""

    engine: Path
    record: Path
    runtime: Path
    """What TensorRT for RTX compiled for this machine when it ran the engine; made again where it is missing."""


def paths(folder: Path, model: str, backend: str, rows: int) -> Paths:
    """Where the engine of `model` for passes of `rows` rows lies."""
    return Paths(*(folder / f"{model}.{backend}.rows{rows}.{part}" for part in Paths._fields))


def row_counts(folder: Path, model: str, backend: str) -> tuple[int, ...]:
    """The numbers of rows that `model` has engines for."""
    start, end = f"{model}.{backend}.rows", ".record"
    counts = (file.name.removeprefix(start).removesuffix(end) for file in folder.glob(f"{start}*{end}"))
    return tuple(sorted(int(text) for text in counts if text.isdecimal()))


def backend_module(backend: str) -> ModuleType:
    """The Python package of a backend; EngineError tells how to install it."""
    if backend not in MODULES:
        raise EngineError(f"--backend: expected {' or '.join(MODULES)}, got {backend!r}")
    try:
        return importlib.import_module(MODULES[backend])
    except ImportError as error:
        raise EngineError(f"{backend} is not installed ({error}); install it with: {_INSTALL[backend]}") from error


def write_engine(folder: Path, content: bytes, record: EngineRecord) -> Path:
    """Write an engine, then its record; return the engine's path.

    Raises OSError, as for a full disk: the engine that was there before, and its record, stay.
    """
    place = paths(folder, record.model, record.backend, record.rows)
    staged = folder / f".{place.engine.name}.staged"  # what a killed build left there is written over
    with held(staged):
        _write_pair(staged, place, content, record)
    return place.engine


def _write_pair(staged: Path, place: Paths, content: bytes, record: EngineRecord) -> None:
    try:
        (staged / place.engine.name).write_bytes(content)
        (staged / place.record.name).write_text(json.dumps(asdict(record), indent=1) + "\n", encoding="utf-8")
        place.record.unlink(missing_ok=True)  # an engine without a record is refused, a wrong pair never stands
        for part in (place.engine, place.record):
            os.replace(staged / part.name, part)
    except OSError as error:
        what = f"{error.strerror} while writing the engine of '{record.model}' into {staged.parent}"
        raise OSError(error.errno, f"{what}; make room there and build it again") from error
    finally:
        shutil.rmtree(staged, ignore_errors=True)


class EngineFile(NamedTuple):
    """An engine that fits this machine: its bytes, what it was built from, and the manifest of that."""

    content: bytes
    record: EngineRecord
    manifest: Manifest


def read_record(folder: Path, model: str, backend: str, rows: int, again: str | None = None) -> EngineRecord:
    """What the engine of a model for `rows` rows was built from; EngineError where it is missing or damaged.

    again: what to do about it, where that is more than a command for these rows.
    """
    place, hint = paths(folder, model, backend, rows), "" if again else ", of which guidance 1 takes 1 and any other 2"
    again = again or _again(folder, backend, rows)
    if not place.record.is_file() or not place.engine.is_file():
        built = ", ".join(str(count) for count in row_counts(folder, model, backend)) or "none"
        raise EngineError(
            f"{folder} holds no {backend} engine of '{model}' for {rows} rows{hint} (built for: {built}); {again}"
        )
    try:
        values = read_object(place.record)
        counts = tuple(int(count) for count in values["counts"])
        passes = tuple((int(a), int(b), int(c), int(d)) for a, b, c, d in values.get("passes", ()))
        return build(EngineRecord, {**values, "counts": counts, "passes": passes}, str(place.record))
    except (ValueError, KeyError, TypeError) as error:
        raise EngineError(f"{place.record}: damaged ({error}); {again}") from error


def _again(folder: Path, backend: str, rows: int) -> str:
    return f"build it with `underpaint engine {folder} --backend {backend} --rows {rows}`"


def part_of(model: str, part: str | None) -> str:
    """The name that engines of a part of a model go by; None for the whole."""
    return model if part is None else f"{model}.{part}"


def read_engine(
    folder: Path,
    model: str,
    kind: str,
    backend: str,
    rows: int,
    version: str,
    gpu: str,
    part: str | None = None,
    again: str | None = None,
) -> EngineFile:
    """The engine of a model, read and hashed once. The graph that it was built from need not be there to run it.

    part: of the model, see `artifacts.device_graph`; again: see `read_record`.
    Raises ManifestError without a manifest of this kind; EngineError where the engine is missing, damaged, or was built
    from another graph, for another GPU, or by another version.
    """
    known = manifest(model, folder)
    if known.kind != kind:
        raise ManifestError(f"'{model}' is a {known.kind}, expected a {kind}; choose another model")
    named = part_of(model, part)
    record, place = read_record(folder, named, backend, rows, again), paths(folder, named, backend, rows)
    again = again or _again(folder, backend, rows)
    content = place.engine.read_bytes()
    for what, recorded, expected in (
        ("model", record.model, named),
        ("rows", record.rows, rows),
        ("graph (sha256)", record.onnx_sha256, known.sha256),
        ("weights (sha256)", record.weights_sha256, None if known.weights is None else known.weights.sha256),
        (f"{backend} version", record.version, version),
        ("engine bytes", record.engine_bytes, len(content)),
        ("engine (sha256)", record.engine_sha256, sha256(content).hexdigest()),
    ):
        if recorded != expected:
            raise EngineError(f"{place.engine}: expected {what} {expected}, got {recorded}; {again}")
    if record.gpu not in (ANY_GPU, gpu):
        raise EngineError(f"{place.engine}: built for {record.gpu}, this machine has {gpu}; {again}")
    return EngineFile(content, record, known)
