"""Plans of runs for `compare`, `sweep` and `evaluate`: models by methods by prompts by seeds."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from underpaint.algos.numbers import whole_number
from underpaint.algos.rows import SamplingParams
from underpaint.runtime.engines.context import EngineContext, usable_cores
from underpaint.runtime.evaluation.comparison import ComparisonPlan, check_opens
from underpaint.runtime.evaluation.drawing_log import DrawingKey, DrawingLog
from underpaint.runtime.evaluation.picture_judge import PictureJudge, judge_of, judged_fingerprint
from underpaint.runtime.models import OpenModels
from underpaint.runtime.pipeline import Pipeline

if TYPE_CHECKING:
    from underpaint.runtime.methods.preset_file import PresetFile

MOST_SHARES: Final = 1_000_000
"""Largest number of shards of an evaluation."""


class ModelSource(Protocol):
    """Models that any worker can open: a plain value that can be sent between processes."""

    @property
    def folder(self) -> str:
        """Folder of the models, as every worker can read it."""
        ...

    @property
    def needs_gpu(self) -> bool:
        """Whether a worker needs a GPU."""
        ...

    @property
    def threads(self) -> int:
        """Number of threads of one worker, >= 1."""
        ...

    def open(self, *, own_threads: bool) -> OpenModels:
        """Open the models, on `threads` threads of their own or (not own_threads) on those of the process."""
        ...


def threads_of(spec: ModelSource, fingerprint: Mapping[str, Any], *, inline: bool) -> int:
    """Number of threads that draw: those of a worker, or (inline) of the models that `fingerprint` is of."""
    return int(fingerprint.get("threads") or usable_cores()) if inline else spec.threads


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A folder of exported models at one resolution. Implements `ModelSource`.

    Its paths must hold for every worker.

    Attributes:
        folder: Path of the folder of models.
        resolution: Side of the pictures in pixels; None takes the largest one of the folder.
        low: Path of a second folder, for methods that draft on a smaller grid; see `Pipeline.open`.
        backend: The backend of the models; see `Pipeline.open`.
        threads: Number of threads per worker, >= 1.
        tokenizer: Path of the tokenizer for prompts in words; see `Pipeline.read_words_by`.
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
        """Open the models as `Pipeline.open` does, on own threads or (not own_threads) on those of the process."""
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
    """The data that a worker needs to draw with one model: plain values for other processes and machines.

    Attributes:
        spec: The models to open.
        settings: `name=value` texts by method.
        preset: The preset that the methods' settings start from.
        sampling: Sampling parameters of the target.
        sha256: Hashes of the models' files at planning time, by name.
        likelihood: Whether to compute the target's likelihood of the tokens.
    """

    spec: ModelSource
    settings: Mapping[str, tuple[str, ...]]
    preset: str | PresetFile
    sampling: SamplingParams
    sha256: Mapping[str, str]
    likelihood: bool = True


@dataclass(frozen=True, slots=True)
class ModelPlan:
    """One model of a run, with the drawings to make.

    Attributes:
        pipeline: Opened for planning and reporting; workers open their own.
        comparison: The methods, prompts and seeds.
        judge: Scores pictures; None without a judge.
        fingerprint: Fingerprint of the models and the judge.
        task: The workers' task; None if only this process draws.
        prompts_file: See `PromptFile.to_dict`.
        prompt_keys: The prompts' names in the file; empty without a file.
        device: The device that draws whole batches, as JSON; empty without one.
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
        batch: int = 1,
        inline: bool = False,
    ) -> ModelPlan:
        """Return the plan of a model that workers open.

        Args:
            spec: The models for the workers to open.
            pipeline: The same models, opened for planning and reporting.
            comparison: The methods, prompts and seeds.
            settings: `name=value` texts by method.
            prompts_file: See `PromptFile.to_dict`.
            prompt_keys: The prompts' names in the file; empty without a file.
            likelihood: Whether to compute the target's likelihood of the tokens.
            batch: Number of pictures drawn together. Their seconds are shares of the batch's time, so drawings of
                another batch are another run.
            inline: Whether this process draws, on the threads of `pipeline`.

        Raises:
            ValueError: A method or a prompt does not fit the model; see `check_opens`.
        """
        check_opens(pipeline, comparison)
        judge = judge_of(pipeline)
        fingerprint = judged_fingerprint(pipeline, judge)
        fingerprint["threads"] = threads_of(spec, fingerprint, inline=inline)
        if batch > 1:
            fingerprint["batch"] = batch
        hashes = dict(fingerprint["sha256"])
        task = ModelTask(spec, settings, comparison.preset, comparison.sampling, hashes, likelihood)
        return cls(pipeline, comparison, judge, fingerprint, task, prompts_file, prompt_keys)

    def settings(self) -> dict[str, Any]:
        """Settings that distinguish the model's drawings from others, as JSON."""
        keys = {"prompt_keys": list(self.prompt_keys)} if self.prompt_keys else {}
        device = {"device": dict(self.device)} if self.device else {}
        return {"model": dict(self.fingerprint), **self.comparison.to_dict(), **keys, **device}


@dataclass(frozen=True, slots=True)
class RunPlan:
    """All drawings of a run: models by methods, with their settings, by prompts by seeds."""

    models: tuple[ModelPlan, ...]

    def __post_init__(self) -> None:
        settings = [json.dumps(model.settings(), sort_keys=True) for model in self.models]
        if not settings or len(set(settings)) < len(settings):
            raise ValueError("evaluate: expected at least one model, each once; two of those named are the same")

    @classmethod
    def of(
        cls, pipeline: OpenModels, comparison: ComparisonPlan, judge: PictureJudge | None = None, **more: Any
    ) -> RunPlan:
        """The plan of one model opened in this process; more: other fields of `ModelPlan`."""
        return cls((ModelPlan(pipeline, comparison, judge, judged_fingerprint(pipeline, judge), **more),))

    def to_dict(self) -> dict[str, Any]:
        """The plan as JSON."""
        plain: dict[str, Any] = json.loads(json.dumps({"models": [model.settings() for model in self.models]}))
        return plain

    def tasks(self) -> tuple[ModelTask, ...]:
        """The tasks for workers."""
        return tuple(model.task for model in self.models if model.task is not None)

    def jobs(self) -> list[DrawingKey]:
        """Every drawing, model after model."""
        return [key for place, model in enumerate(self.models) for key in model.comparison.jobs(place)]

    def open_log(self, folder: Path, *, fresh: bool = False, shared: bool = False) -> DrawingLog:
        """Open the log of the plan's drawings in a folder; see `RunStore` for arguments and errors.

        Raises:
            ValueError: A recorded drawing is not in the plan or not of these models, so the log was edited.
        """
        log = DrawingLog(folder, self.to_dict(), fresh=fresh, shared=shared)
        keys = set(self.jobs())
        for job in log:
            pipeline, drawing = self.models[job.model].pipeline, job.drawing
            cells, codes = pipeline.grid.cells, pipeline.tables.vocab_size
            wrong = ""
            if job.key._replace(repeat=0) not in keys:
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
    """The shard of the jobs that one of several batch processes draws: number `index` of `count`, from 1."""

    index: int = 1
    count: int = 1

    @classmethod
    def parse(cls, text: str) -> JobShare:
        """Parse "2/8" as (2, 8); raises ValueError for anything else."""
        first, _, second = text.partition("/")
        try:
            count = whole_number(second, 1, MOST_SHARES)
            return cls(whole_number(first, 1, count), count)
        except ValueError as error:
            raise ValueError(
                f"--shard: expected i/n with i from 1 to n, and n up to {MOST_SHARES:,}, such as 2/8, got {text[:80]!r}"
            ) from error

    def of(self, jobs: list[DrawingKey]) -> list[DrawingKey]:
        """The shard's drawings; every drawing is in exactly one shard."""
        return jobs[self.index - 1 :: self.count]
