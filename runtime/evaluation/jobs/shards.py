"""Finished jobs on disk: shards of tar, each written by one process, so that runs on one folder do not meet.

A shard holds two members a job, as WebDataset has it: KEY.png, the picture, and then KEY.json, the drawing with its
tokens, its cost and what the judge saw. What a killed process left unfinished at a shard's end does not count.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import secrets
import socket
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Final, NamedTuple

import numpy as np
from PIL import Image

from underpaint.artifacts.manifest import check_beside
from underpaint.artifacts.strict_json import parse_json, read_object
from underpaint.artifacts.typed_json import build_typed
from underpaint.artifacts.versions import check_format
from underpaint.artifacts.whole_file import part_of, written_beside
from underpaint.runtime.drawing import Drawing
from underpaint.runtime.evaluation.drawing_log import drawing_of, settings_hash
from underpaint.runtime.evaluation.jobs.drawer import DrawnJob
from underpaint.runtime.evaluation.jobs.records import EvaluationHead, JobRecord, check_model
from underpaint.runtime.evaluation.picture_judge import Picture
from underpaint.runtime.evaluation.quality import Reading

HEAD_NAME: Final = "evaluation.json"
SHARD_FORMAT: Final = 1
SHARD_JOBS: Final = 1000
"""Jobs of a shard, at most."""


class StoredJobs(NamedTuple):
    """What a folder holds, by the keys of its jobs.

    log_likelihoods, readings, pictures: of the jobs that have them. repeated: jobs drawn more than once; differing: of
    those, how many with other tokens.
    """

    drawings: dict[str, Drawing]
    log_likelihoods: dict[str, float]
    readings: dict[str, Reading]
    pictures: dict[str, StoredPicture]
    processors: dict[str, int]
    repeated: int
    differing: int


class EvaluationFolder:
    """The folder of one evaluation: `evaluation.json`, which says what it draws, and `shards`."""

    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        """Look, and write nothing yet. Raises ValueError where the folder holds another evaluation or none."""
        self.folder = folder
        self._head = {"format": SHARD_FORMAT, "hash": settings_hash(settings), "settings": dict(settings)}
        self._check_head()

    @property
    def shards(self) -> list[Path]:
        """The shards, by name."""
        return sorted((self.folder / "shards").glob("*.tar"))

    def claim(self) -> None:
        """Say what the folder holds, for other runs to see. Raises ValueError where one was quicker with another."""
        path = self.folder / HEAD_NAME
        with written_beside(path) as file:
            file.write(json.dumps(self._head).encode())
            file.flush()
            if not path.exists():
                _publish(part_of(path), path)
        self._check_head()

    def _check_head(self) -> None:
        path = self.folder / HEAD_NAME
        if not path.exists():
            if self.shards:
                raise ValueError(f"{self.folder} holds shards and no {HEAD_NAME}; choose another folder")
            return
        try:
            held = build_typed(EvaluationHead, read_object(path), path.name)
            told, before = held.hash, held.settings
        except ValueError as error:
            raise ValueError(f"{path} is no evaluation ({error}); choose another folder or delete it") from error
        try:
            check_format(held.format, SHARD_FORMAT, "choose another folder")
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error
        if told != self._head["hash"]:
            raise ValueError(
                f"{path} belongs to another evaluation (it differs in {', '.join(_differences(before, self._head))}); "
                "repeat that command to go on with it, or choose another folder"
            )

    def stored_keys(self) -> set[str]:
        """The keys of the jobs that are finished."""
        return {str(record["key"]) for path in self.shards for record, _ in _finished(path)}

    def read(self) -> StoredJobs:
        """Every finished job; of one drawn twice, that of the first shard by name."""
        drawings: dict[str, Drawing] = {}
        likely: dict[str, float] = {}
        pictures: dict[str, StoredPicture] = {}
        readings: dict[str, Reading] = {}
        processors: dict[str, int] = {}
        repeated = differing = 0
        numbers: dict[int, int] = {}
        for path in self.shards:
            for record, picture in _finished(path):
                key, drawing = record["key"], _shared(drawing_of(record["drawing"]), numbers)
                if key in drawings:
                    repeated += 1
                    differing += drawings[key].tokens != drawing.tokens
                    continue
                drawings[key] = drawing
                processors[record["processor"]] = processors.get(record["processor"], 0) + 1
                if record.get("log_likelihood") is not None:
                    likely[key] = record["log_likelihood"]
                if picture is not None:
                    pictures[key] = picture
                if record["reading"] is not None:
                    features = np.array(record["reading"]["features"], dtype=np.float64)
                    told = record["reading"].get("scores", {})
                    scores = {slot: np.array(one, dtype=np.float64) for slot, one in told.items()}
                    readings[key] = Reading(record["reading"]["values"], features, scores)
        return StoredJobs(drawings, likely, readings, pictures, processors, repeated, differing)


class StoredPicture(NamedTuple):
    """A picture of an evaluation, and where its PNG lies. model: the model's place in the plan."""

    model: int
    method: str
    prompt: str
    seed: int
    shard: Path
    offset: int
    size: int

    def png(self) -> bytes:
        """The picture's file."""
        with self.shard.open("rb") as file:
            file.seek(self.offset)
            return file.read(self.size)

    def picture(self) -> Picture:
        """The picture, as it was decoded."""
        return np.asarray(Image.open(io.BytesIO(self.png())).convert("RGB"))


def read_plan(folder: Path) -> dict[str, Any]:
    """What an evaluation's folder says that it draws; ValueError where it is none."""
    path = folder / HEAD_NAME
    try:
        found: dict[str, Any] = build_typed(EvaluationHead, read_object(path), path.name).settings
        models = found.get("models")
        if not isinstance(models, list) or not models or not all(isinstance(one, dict) for one in models):
            raise ValueError("settings: expected a list of models")
        for turn, one in enumerate(models):
            check_model(one, turn)
    except (OSError, ValueError) as error:
        raise ValueError(f"{folder} is no folder of `underpaint evaluate` ({path.name}: {error!r})") from error
    return found


@dataclass(frozen=True, slots=True)
class PlannedModel:
    """A model of an evaluation as its folder names it.

    model: see `Pipeline.fingerprint`. prompt_keys: what the file of prompts calls each of `prompts`; empty without one.
    """

    model: Mapping[str, Any]
    prompts: tuple[str, ...]
    prompt_keys: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.prompt_keys and len(self.prompt_keys) != len(self.prompts):
            raise ValueError(f"expected a key for each of {len(self.prompts)} prompts, got {len(self.prompt_keys)}")
        check_beside(self.target, "target")

    @property
    def target(self) -> str:
        """The name of the target, which may be part of a file's name."""
        return str(self.model["target"])


def read_planned_models(folder: Path) -> tuple[PlannedModel, ...]:
    """The models of an evaluation's folder; ValueError where the folder is none, or its head was edited."""
    known = {field.name for field in fields(PlannedModel)}
    models = [{name: one[name] for name in known & one.keys()} for one in read_plan(folder)["models"]]
    try:
        return tuple(build_typed(PlannedModel, one, f"models[{place}]") for place, one in enumerate(models))
    except ValueError as error:
        raise ValueError(f"{folder / HEAD_NAME} was edited or damaged ({error}); evaluate into a new folder") from error


def stored_pictures(folder: Path) -> list[StoredPicture]:
    """The pictures of an evaluation's folder, in an order that says nothing of who drew them, or when.

    Raises ValueError, naming the shard, where a record is not as it was written.
    """
    found: dict[str, StoredPicture] = {}
    models = len(read_plan(folder)["models"])
    for path in sorted((folder / "shards").glob("*.tar")):
        for record, picture in _finished(path):
            if picture is not None and picture.model >= models:
                raise ValueError(f"{path}: {record['key']} is of model {picture.model}, and {HEAD_NAME} has {models}")
            if picture is not None:
                found.setdefault(record["key"], picture)
    return sorted(found.values())


class ShardWriter:
    """Writes shards that no other process writes to. A context manager."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "shards"
        self._name = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
        self._file: BinaryIO | None = None
        self._tar: tarfile.TarFile | None = None
        self._jobs = 0

    def __enter__(self) -> ShardWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def add(self, job: DrawnJob) -> None:
        """Write a finished job; it is on the disk when this returns."""
        if self._jobs % SHARD_JOBS == 0:
            self._close()
            self._folder.mkdir(parents=True, exist_ok=True)
            self._file = (self._folder / f"{self._name}-{self._jobs // SHARD_JOBS:05d}.tar").open("xb")
            self._tar = tarfile.open(fileobj=self._file, mode="w")  # noqa: SIM115
        assert self._tar is not None
        assert self._file is not None
        if job.picture is not None:
            _add(self._tar, f"{job.key}.png", job.picture)
        _add(self._tar, f"{job.key}.json", json.dumps(job.to_dict()).encode())
        self._file.flush()
        os.fsync(self._file.fileno())
        self._jobs += 1

    def _close(self) -> None:
        if self._tar is not None and self._file is not None:
            self._tar.close()
            self._file.close()
        self._tar = self._file = None


def _publish(beside: Path, path: Path) -> None:
    """Give a whole file its name, never over another's; a file system without links gets a copy."""
    try:
        os.link(beside, path)
    except FileExistsError:
        return
    except OSError:
        if not path.exists():
            path.write_bytes(beside.read_bytes())


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    tar.addfile(member, io.BytesIO(content))


def _members(path: Path) -> Iterator[tuple[tarfile.TarInfo, bytes]]:
    """Head and content of the whole members of a shard, up to where a killed process stopped."""
    with contextlib.suppress(tarfile.ReadError), tarfile.open(path, "r:") as tar:
        for member in tar:
            held = tar.extractfile(member)
            content = b"" if held is None else held.read()
            if len(content) == member.size:
                yield member, content


def _finished(path: Path) -> Iterator[tuple[dict[str, Any], StoredPicture | None]]:
    """The finished jobs of a shard, each with where its picture lies; None where it has none.

    Raises ValueError, naming the shard and the member, where one is no record of a job.
    """
    places: dict[str, tuple[int, int]] = {}
    for member, content in _members(path):
        key, _, kind = member.name.partition(".")
        if kind == "png":
            places[key] = member.offset_data, member.size
        elif kind == "json":
            try:
                record: dict[str, Any] = parse_json(content)
                build_typed(JobRecord, record, "a finished job")
                drawing, place = drawing_of(record["drawing"]), places.get(key)
            except ValueError as error:
                raise ValueError(
                    f"{path}: {member.name}: {error}; move the shard away and repeat the command to draw its jobs again"
                ) from error
            told = record["model"], drawing.method, drawing.prompt, drawing.seed
            yield record, None if place is None else StoredPicture(*told, path, *place)


def _shared(drawing: Drawing, numbers: dict[int, int]) -> Drawing:
    """A drawing that keeps one object a number, as there are few of them and tokens are many."""

    def shared(held: tuple[int, ...] | None) -> tuple[int, ...] | None:
        return None if held is None else tuple(numbers.setdefault(one, one) for one in held)

    return replace(
        drawing,
        tokens=shared(drawing.tokens) or (),
        accepted=shared(drawing.accepted),
        depths=shared(drawing.depths),
        kept_cells=shared(drawing.kept_cells),
        nodes=shared(drawing.nodes),
    )


def _differences(before: Mapping[str, Any], head: Mapping[str, Any]) -> list[str]:
    """In which settings of which models two evaluations differ."""
    theirs, ours = before.get("models", []), head["settings"].get("models", [])
    if len(theirs) != len(ours):
        return [f"the number of models, {len(theirs)} and {len(ours)}"]
    return sorted(
        {
            key
            for old, new in zip(theirs, ours, strict=True)
            for key in old.keys() | new.keys()
            if old.get(key) != new.get(key)
        }
    )
