"""Draws the missing jobs of a run with workers of any kind, always in the same way."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from underpaint.algos.plugins import load_plugins
from underpaint.artifacts.workers import ThisProcess, Workers
from underpaint.runtime.drawing import Drawing, draw
from underpaint.runtime.engines.context import EngineError
from underpaint.runtime.engines.images import encoded
from underpaint.runtime.evaluation.comparison import ComparisonPlan, build_methods, named_variants
from underpaint.runtime.evaluation.drawing_log import DrawingKey, DrawingLog, DrawnJob
from underpaint.runtime.evaluation.likelihood import image_log_likelihood
from underpaint.runtime.evaluation.machine import describe_machine
from underpaint.runtime.evaluation.picture_judge import PictureJudge, judge_of
from underpaint.runtime.evaluation.plan import ModelTask, RunPlan
from underpaint.runtime.methods.method import DecodingMethod, PipelineModels
from underpaint.runtime.models import OpenModels


class RunProgress(NamedTuple):
    """Progress of a run: drawings finished and in total, and the last one (None before the first)."""

    finished: int
    size: int
    last: Drawing | None


@dataclass(slots=True)
class _OpenModel:
    """One model of a run, opened in a worker."""

    pipeline: OpenModels
    judge: PictureJudge | None
    processor: str
    methods: dict[str, DecodingMethod] = field(default_factory=dict)


@dataclass(slots=True)
class JobDrawer:
    """Draws jobs with one open model at a time; each worker has its own copy.

    Args:
        tasks: The task of each model.
        plugins: Modules that register rules and methods.
        own_threads: See `ModelSpec.open`.
    """

    tasks: Sequence[ModelTask]
    plugins: Sequence[str] = ()
    own_threads: bool = True
    _place: int | None = None
    _open: _OpenModel | None = None

    def __call__(self, job: DrawingKey) -> DrawnJob:
        """Draw one job; raises EngineError if the files here differ from those that the plan was made with."""
        pipeline, sampling = self.models(job), self.tasks[job.model].sampling
        condition, methods = pipeline.condition(job.prompt), self._model(job.model).methods
        if job.method not in methods:
            methods[job.method] = self.method(job)
            # First passes allocate memory and load pages, so the first drawing of each method does not count.
            draw(pipeline, methods[job.method], sampling, condition, job.seed)
        return self.record(job, draw(pipeline, methods[job.method], sampling, condition, job.seed))

    def models(self, job: DrawingKey) -> OpenModels:
        """The models of a job; raises EngineError as above."""
        return self._model(job.model).pipeline

    def method(self, job: DrawingKey) -> DecodingMethod:
        """Build the method of a job."""
        task, pipeline = self.tasks[job.model], self.models(job)
        variants = named_variants([job.method], task.settings)
        (method,) = build_methods(pipeline, variants, task.sampling.temperature, task.preset)
        return method

    def record(self, job: DrawingKey, drawing: Drawing) -> DrawnJob:
        """A drawing with its picture, likelihood and judge reading."""
        task, model = self.tasks[job.model], self._model(job.model)
        pipeline, tokens = model.pipeline, drawing.tokens_array()
        condition = pipeline.condition(job.prompt)
        likely = image_log_likelihood(pipeline, condition, tokens, task.sampling) if task.likelihood else None
        if pipeline.decoder is None:
            return DrawnJob(drawing, job.model, model.processor, likely)
        picture = pipeline.picture(tokens)
        reading = None if model.judge is None else model.judge.read(picture)
        return DrawnJob(drawing, job.model, model.processor, likely, reading, encoded(picture))

    def _model(self, place: int) -> _OpenModel:
        if self._open is None or self._place != place:
            load_plugins(self.plugins)
            self._open = None
            pipeline = self.tasks[place].spec.open(own_threads=self.own_threads)
            check_files(self.tasks[place].sha256, pipeline)
            self._place = place
            self._open = _OpenModel(pipeline, judge_of(pipeline), str(describe_machine()["processor"]))
        return self._open


class OpenedDrawer:
    """Draws with models and methods opened in this process; nothing else runs between two drawings."""

    def __init__(self, models: PipelineModels, plan: ComparisonPlan) -> None:
        self._models, self._sampling = models, plan.sampling
        self._methods = {method.name: method for method in plan.methods}
        self._conditions = {condition.caption(): condition for condition in plan.conditions}
        self._warm: set[str] = set()
        self._processor = str(describe_machine()["processor"])

    def __call__(self, job: DrawingKey) -> DrawnJob:
        """Draw one job of the plan."""
        method, condition = self._methods[job.method], self._conditions[job.prompt]
        if job.method not in self._warm:
            draw(self._models, method, self._sampling, condition, job.seed)
            self._warm.add(job.method)
        return DrawnJob(draw(self._models, method, self._sampling, condition, job.seed), processor=self._processor)


def check_files(planned: Mapping[str, str], pipeline: OpenModels) -> None:
    """Raise EngineError unless the models opened here are those that the plan was made with."""
    here = pipeline.fingerprint()["sha256"]
    other = sorted(name for name in here.keys() & planned.keys() if here[name] != planned[name])
    if other:
        raise EngineError(
            f"{pipeline.folder}: {', '.join(other)} on this machine is not what the run was planned with; copy the "
            "folder of models here again"
        )


def draw_missing(
    jobs: Sequence[DrawingKey],
    log: DrawingLog,
    workers: Workers[DrawingKey, DrawnJob],
    report: Callable[[RunProgress], None],
) -> None:
    """Draw the `jobs` that are missing in `log`. After an interrupt (Ctrl-C), every finished drawing is in the log.

    Raises:
        OtherRun: The folder now belongs to another run.
        RunLogInUse: Another process also writes to the log.
        WorkerError: A job cannot be drawn.
    """
    missing = [job for job in jobs if job not in log]
    if not missing:
        return
    log.begin()
    finished = len(jobs) - len(missing)
    report(RunProgress(finished, len(jobs), None))
    for drawn_job in workers.run(missing):
        log.keep(drawn_job)
        finished += 1
        report(RunProgress(finished, len(jobs), drawn_job.drawing))


def run(plan: RunPlan, log: DrawingLog, report: Callable[[RunProgress], None]) -> None:
    """Draw the missing drawings of a plan of one model, with the models opened here; see `draw_missing`."""
    (model,) = plan.models
    draw_missing(plan.jobs(), log, ThisProcess(OpenedDrawer(model.pipeline, model.comparison)), report)
