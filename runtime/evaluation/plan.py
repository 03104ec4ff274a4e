"""What a run draws: models by methods by prompts by seeds, whether `compare`, `sweep` or `evaluate` asks for it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from underpaint.algos.numbers import whole_number
from underpaint.algos.rows import SamplingParams
from underpaint.runtime.engines.context import EngineContext
from underpaint.runtime.evaluation.comparison import ComparisonPlan, check_opens
from underpaint.runtime.evaluation.drawing_log import DrawingKey, DrawingLog
from underpaint.runtime.evaluation.picture_judge import PictureJudge, judge_of, judged_fingerprint
from underpaint.runtime.models import OpenModels
from underpaint.runtime.pipeline import Pipeline

if TYPE_CHECKING:
    from underpaint.runtime.methods.preset_file import PresetFile

MOST_SHARES: Final = 1_000_000
"""Parts that an evaluation is cut into at most."""


class ModelSource(Protocol):
    """Models that a worker anywhere can open: a plain value that travels between processes."""

    @property
    def folder(self) -> str:
        """Where they are, as every worker can read it."""
        ...

    @property
    def needs_gpu(self) -> bool:
        """Whether a worker has to have a GPU."""
        ...

    @property
    def threads(self) -> int:
        """Of one worker, >= 1."""
        ...

    def open(self, *, own_threads: bool) -> OpenModels:
        """The models; own_threads: on `threads` threads, else on those the process has."""
        ...


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A folder of exported models at one resolution. Implements `ModelSource`.

    folder, low, tokenizer: paths that every worker can read; see `Pipeline.read_words_by`. threads: of one worker,
    >= 1.
    """

    folder: str
    resolution: int | None = None
    low: str | None = None
    backend: str = "cpu"
    threads: int = 1
    tokenizer: str | None = None

    @property
    def needs_gpu(self) -> bool:
        """See `ModelSource`."""
        return self.backend != "cpu"

    def open(self, *, own_threads: bool) -> Pipeline:
        """The models, as `Pipeline.open` does; own_threads: on `threads` threads, else on those the process has."""
        pipeline = Pipeline.open(
            Path(self.folder),
            resolution=self.resolution,
            low=None if self.low is None else Path(self.low),
            backend=self.backend,
            context=EngineContext(threads=self.threads, pool="shared") if own_threads else None,
        )
        if self.tokenizer is not None:
            pipeline.read_words_by(Path(self.tokenizer))
        return pipeline


@dataclass(frozen=True, slots=True)
class ModelTask:
    """What a worker has to know to draw by one model: plain values that travel between processes and machines.

    settings: `name=value` texts by method. sha256: of the models' files, by name, as the plan was made with.
    likelihood: whether to tell how likely the target holds the tokens.
    """

    spec: ModelSource
    settings: Mapping[str, tuple[str, ...]]
    preset: str | PresetFile
    sampling: SamplingParams
    sha256: Mapping[str, str]
    likelihood: bool = True


@dataclass(frozen=True, slots=True)
class ModelPlan:
    """One model of a run, with what is drawn by it.

    Attributes:
        pipeline: Opened to plan and to report; workers open their own.
        comparison: What is drawn.
        judge: What reads their pictures; None where nothing does.
        fingerprint: Of the models and the judge.
        task: For workers; None where only this process draws.
        prompts_file: See `PromptFile.to_dict`.
        prompt_keys: What the file calls each prompt; empty without one.
        device: What draws whole batches, as JSON holds it; empty where nothing does.
    """

    pipeline: OpenModels
    comparison: ComparisonPlan
    judge: PictureJudge | None
    fingerprint: Mapping[str, Any]
    task: ModelTask | None = None
    prompts_file: Mapping[str, Any] = field(default_factory=dict)
    prompt_keys: tuple[str, ...] = ()
    device: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def for_workers(
        cls,
        spec: ModelSource,
        pipeline: OpenModels,
        comparison: ComparisonPlan,
        settings: Mapping[str, tuple[str, ...]],
        prompts_file: Mapping[str, Any],
        prompt_keys: tuple[str, ...] = (),
        *,
        likelihood: bool = True,
    ) -> ModelPlan:
        """The plan of a model that workers open; raises as `check_opens` where a method or a prompt does not fit it."""
        check_opens(pipeline, comparison)
        judge = judge_of(pipeline)
        fingerprint = {**judged_fingerprint(pipeline, judge), "threads": spec.threads}
        hashes = dict(fingerprint["sha256"])
        task = ModelTask(spec, settings, comparison.preset, comparison.sampling, hashes, likelihood)
        return cls(pipeline, comparison, judge, fingerprint, task, prompts_file, prompt_keys)

    def settings(self) -> dict[str, Any]:
        """What tells the model's drawings from others, as JSON holds it."""
        keys = {"prompt_keys": list(self.prompt_keys)} if self.prompt_keys else {}
        device = {"device": dict(self.device)} if self.device else {}
        return {"model": dict(self.fingerprint), **self.comparison.to_dict(), **keys, **device}


@dataclass(frozen=True, slots=True)
class RunPlan:
    """Everything that a run draws: models by methods, at their settings, by prompts by seeds."""

    models: tuple[ModelPlan, ...]

    def __post_init__(self) -> None:
        settings = [json.dumps(model.settings(), sort_keys=True) for model in self.models]
        if not settings or len(set(settings)) < len(settings):
            raise ValueError("evaluate: expected at least one model, each once; two of those named are the same")

    @classmethod
    def of(
        cls, pipeline: OpenModels, comparison: ComparisonPlan, judge: PictureJudge | None = None, **more: Any
    ) -> RunPlan:
        """The plan of one model that is open in this process; more: other fields of `ModelPlan`."""
        return cls((ModelPlan(pipeline, comparison, judge, judged_fingerprint(pipeline, judge), **more),))

    def to_dict(self) -> dict[str, Any]:
        """The plan as JSON holds it."""
        plain: dict[str, Any] = json.loads(json.dumps({"models": [model.settings() for model in self.models]}))
        return plain

    def tasks(self) -> tuple[ModelTask, ...]:
        """What workers have to know."""
        return tuple(model.task for model in self.models if model.task is not None)

    def jobs(self) -> list[DrawingKey]:
        """Every drawing, model after model."""
        return [key for place, model in enumerate(self.models) for key in model.comparison.jobs(place)]

    def open_log(self, folder: Path, *, fresh: bool = False, shared: bool = False) -> DrawingLog:
        """The log of the plan's drawings in a folder; see `RunStore` for arguments and errors.

        Raises:
            ValueError: A recorded drawing is none of the plan's, or not of these models: a log that was edited.
        """
        log = DrawingLog(folder, self.to_dict(), fresh=fresh, shared=shared)
        known = set(self.jobs())
        for job in log:
            pipeline, drawing = self.models[job.model].pipeline, job.drawing
            cells, codes = pipeline.grid.cells, pipeline.tables.vocab_size
            wrong = ""
            if job.key not in known:
                wrong = "is not of this comparison"
            elif len(drawing.tokens) != cells or not all(0 <= token < codes for token in drawing.tokens):
                wrong = f"should hold {cells} tokens from 0 to {codes - 1}"
            elif drawing.accepted is not None and 1 + sum(drawing.accepted) + len(drawing.accepted) != cells:
                wrong = f"has cycles that do not cover {cells} cells"
            elif any(cell >= cells for cell in drawing.kept_cells or ()):
                wrong = f"keeps a cell beyond {cells - 1}"
            if wrong:
                raise ValueError(
                    f"{log.path}: the drawing of {drawing.prompt!r} by {drawing.method}, seed {drawing.seed}, {wrong}: "
                    f"the file was edited, or is of other models; {log.REMEDY}"
                )
        return log


@dataclass(frozen=True, slots=True)
class JobShare:
    """The part of the jobs that one of several processes of a batch system draws: number `index` of `count`, from 1."""

    index: int = 1
    count: int = 1

    @classmethod
    def parse(cls, text: str) -> JobShare:
        """ "2/8" as (2, 8); ValueError for anything else."""
        first, _, second = text.partition("/")
        try:
            count = whole_number(second, 1, MOST_SHARES)
            return cls(whole_number(first, 1, count), count)
        except ValueError as error:
            raise ValueError(
                f"--shard: expected i/n with i from 1 to n, and n up to {MOST_SHARES:,}, such as 2/8, got {text[:80]!r}"
            ) from error

    def of(self, jobs: list[DrawingKey]) -> list[DrawingKey]:
        """Its part of the drawings; the parts of all are the whole, each drawing once."""
        return jobs[self.index - 1 :: self.count]
