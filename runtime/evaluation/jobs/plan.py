"""What an evaluation draws: models by methods by prompts by seeds, each drawing a job that its content names."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from underpaint.algos.numbers import whole_number
from underpaint.algos.rows import SamplingParams
from underpaint.runtime.engines.context import EngineContext
from underpaint.runtime.evaluation.comparison import ComparisonPlan, check_opens
from underpaint.runtime.pipeline import Pipeline

MOST_SHARES: Final = 1_000_000
"""Parts that an evaluation is cut into at most."""


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A folder of models at one resolution, as a worker anywhere can open it.

    folder, low: paths that every worker can read. threads: of one worker, >= 1.
    """

    folder: str
    resolution: int | None = None
    low: str | None = None
    backend: str = "cpu"
    threads: int = 1

    def open(self, *, own_threads: bool) -> Pipeline:
        """The models, as `Pipeline.open` does; own_threads: on `threads` threads, else on those the process has."""
        return Pipeline.open(
            Path(self.folder),
            resolution=self.resolution,
            low=None if self.low is None else Path(self.low),
            backend=self.backend,
            context=EngineContext(threads=self.threads, pool="shared") if own_threads else None,
        )


@dataclass(frozen=True, slots=True)
class ModelTask:
    """What a worker has to know to draw by one model: plain values that travel between processes and machines.

    settings: `name=value` texts by method. sha256: of the models' files, by name, as the plan was made with.
    likelihood: whether to tell how likely the target holds the tokens.
    """

    spec: ModelSpec
    methods: tuple[str, ...]
    settings: Mapping[str, tuple[str, ...]]
    preset: str
    sampling: SamplingParams
    sha256: Mapping[str, str]
    likelihood: bool = True


class DrawingJob(NamedTuple):
    """One drawing. key: 24 hex digits of what it is drawn from; model: its place in the plan."""

    key: str
    model: int
    method: str
    prompt: str
    seed: int


@dataclass(frozen=True, slots=True)
class ModelPlan:
    """One model of an evaluation, with what is drawn by it.

    pipeline: opened to plan and to report; workers open their own. prompts_file: see `PromptFile.to_dict`.
    prompt_keys: what the file calls each prompt; empty without one.
    """

    task: ModelTask
    pipeline: Pipeline
    comparison: ComparisonPlan
    fingerprint: Mapping[str, Any]
    prompts_file: Mapping[str, Any]
    prompt_keys: tuple[str, ...]

    @classmethod
    def make(
        cls,
        spec: ModelSpec,
        pipeline: Pipeline,
        comparison: ComparisonPlan,
        settings: Mapping[str, tuple[str, ...]],
        prompts_file: Mapping[str, Any],
        prompt_keys: tuple[str, ...] = (),
        *,
        likelihood: bool = True,
    ) -> ModelPlan:
        """The plan of a model; raises as `check_opens` where a method or a prompt does not fit it."""
        check_opens(pipeline, comparison)
        fingerprint = {**pipeline.fingerprint(), "threads": spec.threads}
        names = tuple(method.name for method in comparison.methods)
        hashes = dict(fingerprint["sha256"])
        task = ModelTask(spec, names, settings, comparison.preset, comparison.sampling, hashes, likelihood)
        return cls(task, pipeline, comparison, fingerprint, prompts_file, prompt_keys)

    def settings(self) -> dict[str, Any]:
        """What tells the model's drawings from others, as JSON holds it."""
        keys = {"prompt_keys": list(self.prompt_keys)} if self.prompt_keys else {}
        return {"model": dict(self.fingerprint), **self.comparison.to_dict(), **keys}

    def jobs(self, place: int) -> Iterator[DrawingJob]:
        """Every drawing in order, each with its key. place: of the model in the evaluation."""
        plain = self.comparison.to_dict()
        features = plain.get("features", {})
        shared = {"model": dict(self.fingerprint), "sampling": dataclasses.asdict(self.comparison.sampling)}
        for method, condition, seed in self.comparison.turns():
            text = condition.caption()
            content = {
                **shared,
                "method": method.name,
                "config": plain["methods"][method.name],
                "prompt": text,
                "features": features.get(text),
                "seed": seed,
            }
            key = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:24]
            yield DrawingJob(key, place, method.name, text, seed)


@dataclass(frozen=True, slots=True)
class EvaluationPlan:
    """Everything that an evaluation draws."""

    models: tuple[ModelPlan, ...]

    def __post_init__(self) -> None:
        told = [json.dumps(model.settings(), sort_keys=True) for model in self.models]
        if not told or len(set(told)) < len(told):
            raise ValueError("evaluate: expected at least one model, each once; two of those named are the same")

    def to_dict(self) -> dict[str, Any]:
        """The plan as JSON holds it."""
        found: dict[str, Any] = json.loads(json.dumps({"models": [model.settings() for model in self.models]}))
        return found

    def tasks(self) -> tuple[ModelTask, ...]:
        """What workers have to know."""
        return tuple(model.task for model in self.models)

    def jobs(self) -> list[DrawingJob]:
        """Every drawing, model after model."""
        return [job for place, model in enumerate(self.models) for job in model.jobs(place)]


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

    def of(self, jobs: list[DrawingJob]) -> list[DrawingJob]:
        """Its part of the jobs; the parts of all are the whole, each job once."""
        return jobs[self.index - 1 :: self.count]
