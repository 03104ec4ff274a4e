"""What a worker does: it opens a model and draws jobs by it, in the one way that every command draws."""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from PIL import Image

from underpaint.algos.plugins import load_plugins
from underpaint.runtime.drawing import Drawing, draw
from underpaint.runtime.engines.context import EngineError
from underpaint.runtime.evaluation.comparison import build_methods
from underpaint.runtime.evaluation.jobs.plan import DrawingJob, ModelTask
from underpaint.runtime.evaluation.likelihood import image_log_likelihood
from underpaint.runtime.evaluation.machine import describe_machine
from underpaint.runtime.evaluation.quality import Reading
from underpaint.runtime.methods.method import DecodingMethod
from underpaint.runtime.pipeline import Pipeline


class DrawnJob(NamedTuple):
    """A finished job.

    model: its place in the plan. log_likelihood: see `image_log_likelihood`; None where it is left out. reading: what
    the judge sees, None without one. picture: as PNG, None without a decoder.
    """

    key: str
    model: int
    drawing: Drawing
    log_likelihood: float | None
    reading: Reading | None
    picture: bytes | None
    processor: str

    def to_dict(self) -> dict[str, Any]:
        """It as JSON holds it, without the picture."""
        seen = self.reading
        return {
            "key": self.key,
            "model": self.model,
            "drawing": dataclasses.asdict(self.drawing),
            "log_likelihood": self.log_likelihood,
            "reading": None
            if seen is None
            else {
                "values": dict(seen.values),
                "features": seen.features.tolist(),
                "scores": {slot: scores.tolist() for slot, scores in seen.scores.items()},
            },
            "processor": self.processor,
        }


@dataclass(slots=True)
class JobDrawer:
    """Draws jobs, holding the models of one task at a time.

    plugins: modules that register rules and methods. own_threads: see `ModelSpec.open`.
    """

    tasks: Sequence[ModelTask]
    plugins: Sequence[str] = ()
    own_threads: bool = True
    _opened: tuple[int, Pipeline] | None = None
    _methods: dict[str, DecodingMethod] = field(default_factory=dict)
    _processor: str = ""

    def draw(self, job: DrawingJob) -> DrawnJob:
        """Draw one job. Raises EngineError where the files here are not those that the plan was made with."""
        task = self.tasks[job.model]
        pipeline = self._models(job.model)
        condition = pipeline.condition(job.prompt)
        if job.method not in self._methods:
            self._build(pipeline, task, job.method)
            # First passes allocate and page in: one drawing of each method goes uncounted.
            draw(pipeline, self._methods[job.method], task.sampling, condition, job.seed)
            check_files(task.sha256, pipeline)
        drawing = draw(pipeline, self._methods[job.method], task.sampling, condition, job.seed)
        tokens = drawing.tokens_array()
        likely = image_log_likelihood(pipeline, condition, tokens, task.sampling) if task.likelihood else None
        if pipeline.decoder is None:
            return DrawnJob(job.key, job.model, drawing, likely, None, None, self._processor)
        picture = pipeline.picture(tokens)
        stream = io.BytesIO()
        Image.fromarray(picture).save(stream, "PNG")
        reading = None if pipeline.judge is None else pipeline.judge.read(picture)
        return DrawnJob(job.key, job.model, drawing, likely, reading, stream.getvalue(), self._processor)

    def _models(self, place: int) -> Pipeline:
        if self._opened is None or self._opened[0] != place:
            load_plugins(self.plugins)
            self._processor = str(describe_machine()["processor"])
            self._opened, self._methods = None, {}
            self._opened = place, self.tasks[place].spec.open(own_threads=self.own_threads)
        return self._opened[1]

    def _build(self, pipeline: Pipeline, task: ModelTask, name: str) -> None:
        (built,) = build_methods(pipeline, [name], task.sampling.temperature, task.settings, task.preset)
        self._methods[name] = built


def check_files(planned: Mapping[str, str], pipeline: Pipeline) -> None:
    """EngineError unless the models opened here are those that the plan was made with."""
    here = pipeline.fingerprint()["sha256"]
    other = sorted(name for name in here.keys() & planned.keys() if here[name] != planned[name])
    if other:
        raise EngineError(
            f"{pipeline.folder}: {', '.join(other)} on this machine is not what the evaluation was planned with; copy "
            "the folder of models here again"
        )
