"""The finished drawings of a run on disk, so that an interrupted `compare`, `sweep` or `evaluate` can resume."""

from __future__ import annotations

import dataclasses
import io
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, NamedTuple

import numpy as np
from PIL import Image

from underpaint.artifacts.files import replacing
from underpaint.artifacts.manifest import check_beside
from underpaint.artifacts.run_log import RunStore
from underpaint.artifacts.strict_json import Within, build_typed
from underpaint.runtime.drawing import Drawing
from underpaint.runtime.engines.images import Picture
from underpaint.runtime.evaluation.quality import Reading

PICTURES: Final = "pictures"
"""Name of the folder of pictures inside a run's folder."""


class DrawingKey(NamedTuple):
    """One drawing that a run requires.

    Attributes:
        method: The method's name.
        prompt: The prompt's text.
        seed: The seed of the noise.
        model: The model's index in the plan.
        repeat: Above 0, the same is drawn again, for its times.
    """

    method: str
    prompt: str
    seed: int
    model: int = 0
    repeat: int = 0

    def __str__(self) -> str:
        return f"{self.prompt!r} by {self.method}, seed {self.seed}"


@dataclass(frozen=True, slots=True)
class DrawnJob:
    """A finished drawing, with a worker's results for it.

    Attributes:
        drawing: The drawing.
        model: The model's index in the plan.
        processor: The processor that drew it; empty if unknown.
        log_likelihood: See `image_log_likelihood`; None if not computed.
        reading: The judge's reading; None if the picture was not judged.
        picture: The picture as PNG; None if it is decoded later.
        stored: Whether the picture is in the run's folder.
        repeat: See `DrawingKey`.
    """

    drawing: Drawing
    model: int = 0
    processor: str = ""
    log_likelihood: float | None = None
    reading: Reading | None = None
    picture: bytes | None = None
    stored: bool = False
    repeat: int = 0

    @property
    def key(self) -> DrawingKey:
        """The key of the drawing."""
        return DrawingKey(self.drawing.method, self.drawing.prompt, self.drawing.seed, self.model, self.repeat)


@dataclass(frozen=True, slots=True)
class _ReadingRecord:
    """The judge's reading as JSON; see `Reading`."""

    values: Mapping[str, str]
    features: list[float]
    scores: Mapping[str, list[float]]


@dataclass(frozen=True, slots=True)
class _ExtraFields:
    """The fields of a line besides its drawing; see `DrawnJob`."""

    model: Annotated[int, Within(0, 1 << 20)] = 0
    processor: str = ""
    log_likelihood: float | None = None
    reading: _ReadingRecord | None = None
    stored: bool = False
    repeat: Annotated[int, Within(0, 1 << 20)] = 0


_TIMES: Final = ("seconds", "target_seconds", "drafter_seconds", "resampler_seconds")
_EXTRA_NAMES: Final = frozenset(field.name for field in fields(_ExtraFields))


@dataclass(frozen=True, slots=True)
class PlannedModel:
    """A model of a run, as recorded in the run's folder.

    Attributes:
        model: See `Pipeline.fingerprint`.
        prompts: The prompts to draw.
        methods: The settings of the methods, by name.
        seeds: The seeds of each prompt.
        prompt_keys: The prompts' names in the prompt file; empty without one.
    """

    model: Mapping[str, Any]
    prompts: tuple[str, ...]
    methods: Mapping[str, Any]
    seeds: tuple[int, ...]
    prompt_keys: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.prompt_keys and len(self.prompt_keys) != len(self.prompts):
            raise ValueError(f"expected a key for each of {len(self.prompts)} prompts, got {len(self.prompt_keys)}")
        if not isinstance(self.model.get("target"), str):
            raise ValueError("model: expected the name of a target")
        check_beside(self.target, "target")

    @property
    def target(self) -> str:
        """Name of the target, which may be part of a file name."""
        return str(self.model["target"])


class DrawingLog(RunStore[DrawingKey, DrawnJob]):
    """The drawings of a run, in `folder/drawings.jsonl` or in the files of processes that share the folder."""

    NAME: ClassVar[str] = "drawings"
    VERSION: ClassVar[int] = 4
    WHAT: ClassVar[str] = "comparison"
    REMEDY: ClassVar[str] = "choose another folder, or discard it (compare and sweep: --fresh)"

    def __init__(self, *args: Any, **options: Any) -> None:
        self._places: dict[int, dict[str, int]] = {}
        self._numbers: dict[int, int] = {}
        super().__init__(*args, **options)

    def read(self, line: Mapping[str, Any]) -> tuple[DrawingKey, DrawnJob]:
        extras = build_typed(
            _ExtraFields, {name: value for name, value in line.items() if name in _EXTRA_NAMES}, "a drawing"
        )
        models = self.settings.get("models", [])
        if self.settings and (not isinstance(models, list) or extras.model >= len(models)):
            raise ValueError(f"a drawing of model {extras.model}, which the run does not have")
        model_settings = models[extras.model] if models else {}
        drawing = drawing_of({name: value for name, value in line.items() if name not in _EXTRA_NAMES}, model_settings)
        # Use one object per number: there are many tokens, but few different ones.
        tokens = tuple(self._numbers.setdefault(one, one) for one in drawing.tokens)
        drawing = dataclasses.replace(drawing, tokens=tokens)
        seen = extras.reading
        reading = None
        if seen is not None:
            scores = {slot: np.array(one, dtype=np.float64) for slot, one in seen.scores.items()}
            reading = Reading(seen.values, np.array(seen.features, dtype=np.float64), scores)
        about = (extras.model, extras.processor, extras.log_likelihood)
        job = DrawnJob(drawing, *about, reading, stored=extras.stored, repeat=extras.repeat)
        return job.key, job

    def plain(self, record: DrawnJob) -> dict[str, Any]:
        seen = record.reading
        extras = {
            "model": record.model or None,
            "processor": record.processor or None,
            "log_likelihood": record.log_likelihood,
            "reading": None
            if seen is None
            else {
                "values": dict(seen.values),
                "features": seen.features.tolist(),
                "scores": {slot: scores.tolist() for slot, scores in seen.scores.items()},
            },
            "stored": record.stored or None,
            "repeat": record.repeat or None,
        }
        return dataclasses.asdict(record.drawing) | {name: one for name, one in extras.items() if one is not None}

    def keep(self, job: DrawnJob) -> None:
        """Append a finished drawing after storing its picture; both are on disk when this returns. See `add`."""
        if job.picture is not None:
            with replacing(self.picture_path(job.key)) as file:
                file.write(job.picture)
                file.flush()
                os.fsync(file.fileno())
        self.add(job.key, dataclasses.replace(job, picture=None, stored=job.picture is not None))

    def drawing(self, key: DrawingKey) -> Drawing:
        """The drawing of a key, which must be in the log."""
        return self.records[key].drawing

    def timed(self, key: DrawingKey) -> Drawing:
        """The drawing of a key, which must be in the log, with the mean times of itself and its repeats."""
        repeats = [self.drawing(key)]
        while (again := key._replace(repeat=key.repeat + len(repeats))) in self:
            repeats.append(self.drawing(again))
        if len(repeats) == 1:
            return repeats[0]
        times = {name: sum(getattr(one, name) for one in repeats) / len(repeats) for name in _TIMES}
        return dataclasses.replace(repeats[0], **times)

    def models(self) -> tuple[PlannedModel, ...]:
        """The models of the run.

        Raises:
            ValueError: The folder holds no run, or its settings were edited.
        """
        if not self.settings:
            raise ValueError(f"{self.folder} is no folder of `underpaint evaluate`: it holds no record of drawings")
        names = {field.name for field in fields(PlannedModel)}
        planned = self.settings.get("models")
        if not isinstance(planned, list) or not planned or not all(isinstance(one, dict) for one in planned):
            raise ValueError("settings: expected a list of models")
        return tuple(
            build_typed(PlannedModel, {name: one[name] for name in names & one.keys()}, f"settings: models[{turn}]")
            for turn, one in enumerate(planned)
        )

    def check_settings(self) -> None:
        self.models()

    def picture_path(self, key: DrawingKey) -> Path:
        """Path of a drawing's PNG: pictures/METHOD/PROMPT-seedSEED.png, with prompts numbered in order."""
        models = self.settings["models"]
        folder = self.folder / PICTURES / (str(key.model) if len(models) > 1 else "")
        if key.model not in self._places:
            self._places[key.model] = {prompt: place for place, prompt in enumerate(models[key.model]["prompts"])}
        place = self._places[key.model][key.prompt]
        return folder / key.method.replace(":", "_") / f"{place:04d}-seed{key.seed}.png"

    def picture(self, key: DrawingKey) -> Picture | None:
        """The stored picture of a drawing, [height, width, 3], or None."""
        path = self.picture_path(key)
        if not self.records[key].stored or not path.is_file():
            return None
        return np.asarray(Image.open(io.BytesIO(path.read_bytes())).convert("RGB"))


class StoredPicture(NamedTuple):
    """A stored picture of a run.

    Attributes:
        model: The model's index in the plan.
        method: The method's name.
        prompt: The prompt's text.
        seed: The seed of the noise.
        path: The path of its PNG.
    """

    model: int
    method: str
    prompt: str
    seed: int
    path: Path

    def png(self) -> bytes:
        """The content of the PNG file."""
        return self.path.read_bytes()


def stored_pictures(log: DrawingLog) -> list[StoredPicture]:
    """The stored pictures of drawings, in an order that does not reveal who drew them or when."""
    keys = (job.key for job in log if job.stored)
    pictures = (StoredPicture(key.model, key.method, key.prompt, key.seed, log.picture_path(key)) for key in keys)
    return sorted(one for one in pictures if one.path.is_file())


def drawing_of(plain: object, settings: Mapping[str, Any] | None = None) -> Drawing:
    """Parse the drawing in a line of a log.

    Args:
        plain: The drawing as JSON.
        settings: Settings of the run's model, which must list the drawing's method, prompt and seed; None does not
            check these.

    Raises:
        ValueError: A field is missing, unknown, of another type or range, or two fields contradict each other.
    """
    drawing = build_typed(Drawing, plain, "a drawing")
    cells = len(drawing.tokens)
    if not cells:
        raise ValueError("a drawing: tokens: expected at least one")
    kept_cells = drawing.kept_cells or ()
    if any(low >= high for low, high in pairwise(kept_cells)) or (kept_cells and kept_cells[-1] >= cells):
        raise ValueError(f"a drawing: kept_cells: expected rising cells below {cells}, got {kept_cells}")
    recipe = _recipe_of(drawing, settings or {})
    if drawing.accepted is not None:
        _check_cycles(drawing, drawing.accepted, skips="skipping" in recipe)
    elif drawing.depths is not None or drawing.nodes is not None:
        raise ValueError("a drawing: expected depths and nodes only of cycles, and accepted is null")
    return drawing


def _recipe_of(drawing: Drawing, settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """The method's settings; raises ValueError if the run does not have the drawing's method, prompt or seed."""
    for name, value in (("methods", drawing.method), ("prompts", drawing.prompt), ("seeds", drawing.seed)):
        if name in settings and value not in settings[name]:
            raise ValueError(f"a drawing of {name.removesuffix('s')} {value!r}, which the run does not have")
    methods = settings.get("methods", {})
    recipe = methods.get(drawing.method, {}) if isinstance(methods, Mapping) else {}
    return recipe if isinstance(recipe, Mapping) else {}


def _check_cycles(drawing: Drawing, accepted: Sequence[int], *, skips: bool) -> None:
    """Raise ValueError if the cycles of a drawing do not match its tokens and target passes.

    skips: some cycles are not verified, so there may be fewer passes than cycles.
    """
    for name in ("depths", "nodes"):
        listed = getattr(drawing, name)
        if listed is not None and len(listed) != len(accepted):
            raise ValueError(f"a drawing: {name}: expected {len(accepted)}, one a cycle, got {len(listed)}")
    if any(count > depth for count, depth in zip(accepted, drawing.depths or accepted, strict=True)):
        raise ValueError("a drawing: accepted: expected no more tokens than the draft tree is deep")
    cells = 1 + len(accepted) + sum(accepted)
    if cells != len(drawing.tokens):
        raise ValueError(f"a drawing: its cycles decide {cells} cells, and it has {len(drawing.tokens)} tokens")
    passes = len(accepted) + 1
    if drawing.target_nfe > passes or (drawing.target_nfe < passes and not skips):
        raise ValueError(
            f"a drawing: target_nfe: expected {passes}, as it has {passes} cycles, got {drawing.target_nfe}"
        )
