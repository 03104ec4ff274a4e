"""Draws several pictures of a live model at once in shared passes; each picture advances at its own rate."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from itertools import groupby
from queue import SimpleQueue
from time import perf_counter
from typing import TypeVar

from underpaint.algos.rows import SamplingParams
from underpaint.runtime.drawing import Drawing, ImageTask, draw
from underpaint.runtime.engines.engine import rows_of
from underpaint.runtime.evaluation.drawer import JobDrawer
from underpaint.runtime.evaluation.drawing_log import DrawingKey, DrawnJob
from underpaint.runtime.live.drafter import target_layers
from underpaint.runtime.live.model import LiveModelError
from underpaint.runtime.live.padded import LanePass, PaddedPasses, PassAnswer, check_padded
from underpaint.runtime.live.pipeline import LivePipeline
from underpaint.runtime.methods.method import DecodingMethod
from underpaint.runtime.models import OpenModels

Result = TypeVar("Result")


class _Stopped(Exception):
    """Raised in a drawing's thread when the batch stops before the drawing is complete."""


class SharedPasses(PaddedPasses):
    """Shares passes between drawings that run in threads: one pass serves all once every drawing waits for one.

    A drawing holds `turn` while it runs and releases it while it waits, so only one drawing runs at a time.
    """

    def __init__(self, pipeline: LivePipeline, rows: int, lanes: int) -> None:
        """See `PaddedPasses`."""
        drafter = pipeline.loaded_drafter
        layers = () if drafter is None else target_layers(drafter.module)
        super().__init__(pipeline.live, rows, lanes, layers, compiled=pipeline.compiled)
        self.turn = threading.Condition()
        self.stopped = False
        self._waiting: dict[int, LanePass] = {}
        self._answers: dict[int, PassAnswer | BaseException] = {}
        self._drawing = 0
        self._share, self._since = 0.0, 0.0

    def begin(self, lanes: int) -> None:
        """Start a batch of this many drawings."""
        self.stopped, self._drawing = False, lanes
        self._waiting.clear()
        self._answers.clear()
        self._share, self._since = 0.0, perf_counter()

    def leave(self) -> None:
        """Continue with one drawing less; the calling thread must hold `turn`."""
        self.seconds()
        self._drawing -= 1
        self._answer_all()

    def seconds(self) -> float:
        """Seconds since `begin`, each divided by the number of drawings that were active."""
        now = perf_counter()
        self._share += (now - self._since) / max(1, self._drawing)
        self._since = now
        return self._share

    def resume(self) -> None:
        """Leave out of `seconds` the time since it was last called."""
        self._since = perf_counter()

    def stop(self) -> None:
        """Stop every drawing at its next pass."""
        with self.turn:
            self.stopped = True
            self.turn.notify_all()

    def ask(self, lane: int, inputs: LanePass) -> PassAnswer:
        """Wait until every drawing needs a pass, and return this lane's part of it."""
        if self.stopped:
            raise _Stopped
        started = perf_counter()
        self._waiting[lane] = inputs
        self._answer_all()
        while lane not in self._answers:
            if self.stopped:
                raise _Stopped
            self.turn.wait()
        answer = self._answers.pop(lane)
        if isinstance(answer, BaseException):
            raise answer
        return answer._replace(idle=perf_counter() - started - answer.idle)

    def _answer_all(self) -> None:
        """Run the shared pass, unless some drawing is not waiting yet."""
        if not self._waiting or len(self._waiting) < self._drawing:
            return
        requests, started = dict(self._waiting), perf_counter()
        self._waiting.clear()
        try:
            answers = self.run(requests)
        except Exception as error:
            self._answers |= dict.fromkeys(requests, error)
        else:
            share = (perf_counter() - started) / len(requests)
            self._answers |= {lane: answer._replace(idle=share) for lane, answer in answers.items()}
        self.turn.notify_all()


class LaneSessions:
    """Lanes of sessions that share passes and run single decoding cycles; `BatchDrawer` draws whole pictures instead.

    pipelines: One per lane; open a lane's session on its pipeline.
    """

    def __init__(self, pipeline: LivePipeline, rows: int, lanes: int) -> None:
        """Allocate the lanes' caches; see `BatchDrawer` for arguments and errors."""
        self._passes = SharedPasses(pipeline, rows, lanes)
        self.pipelines = [pipeline.fork(self._passes, lane) for lane in range(lanes)]
        self._threads = ThreadPoolExecutor(lanes, "underpaint-lane")

    def run(self, steps: Mapping[int, Callable[[], Result]]) -> dict[int, Future[Result]]:
        """Run one step in each of the given lanes, all at once.

        Args:
            steps: The function to run, by lane.

        Returns:
            The finished future of each lane, with its result or exception.
        """
        self._passes.begin(len(steps))
        futures = {lane: self._threads.submit(self._step, step) for lane, step in steps.items()}
        wait(futures.values())
        return futures

    def forget(self, lane: int) -> None:
        """Clear a lane's KV cache."""
        self._passes.forget(lane)

    def _step(self, step: Callable[[], Result]) -> Result:
        with self._passes.turn:
            try:
                return step()
            finally:
                self._passes.leave()


class BatchDrawer:
    """Draws several pictures of a live model at once; when one is complete, the next starts in its batch slot."""

    def __init__(self, pipeline: LivePipeline, lanes: int, rows: int) -> None:
        """Allocate the lanes' caches.

        Args:
            pipeline: The model, with an optional drafter.
            lanes: Number of pictures drawn at once. One needs no shared passes: any model draws one after another.
            rows: Rows per picture: 2 with guidance, else 1.

        Raises:
            LiveModelError: For several lanes: near-ties are verified, which only works for one picture at a time, or
                the model's passes cannot be padded.
        """
        check_batch(pipeline, lanes)
        self.lanes, self.rows = lanes, rows
        self._passes: SharedPasses | None = None
        self._pipelines = [pipeline]
        if lanes > 1 or pipeline.shares_passes:
            self._passes = passes = SharedPasses(pipeline, rows, lanes)
            self._pipelines = [pipeline.fork(passes, lane) for lane in range(lanes)]

    def draw(
        self,
        method: Callable[[], DecodingMethod],
        sampling: SamplingParams,
        tasks: Sequence[ImageTask],
        *,
        pauses: bool = False,
    ) -> Iterator[tuple[int, Drawing]]:
        """Draw pictures; yields each one's number and drawing when it is complete.

        The seconds of a drawing are its share: each second is divided among the pictures active in it.

        Args:
            method: Builds the method; called once per lane, because rules may keep state.
            sampling: The sampling settings.
            tasks: The pictures to draw.
            pauses: Whether the others pause while the caller has a drawing, so that the caller's work takes none of
                their seconds.

        Raises:
            ValueError: Any error of a drawing; the other drawings are stopped.
        """
        passes = self._passes
        if passes is None:
            alone = method()
            for number, one in enumerate(tasks):
                yield number, draw(self._pipelines[0], alone, sampling, one.condition, one.seed)
            return
        done: SimpleQueue[tuple[int, Drawing | BaseException] | None] = SimpleQueue()
        numbers, count = iter(range(len(tasks))), min(self.lanes, len(tasks))
        passes.begin(count)

        def draw_in(lane: int, method: DecodingMethod) -> Callable[[ImageTask], Drawing]:
            return lambda one: draw(self._pipelines[lane], method, sampling, one.condition, one.seed)

        threads = [
            threading.Thread(
                target=self._lane, args=(passes, lane, draw_in(lane, method()), tasks, numbers, done), daemon=True
            )
            for lane in range(count)
        ]
        for thread in threads:
            thread.start()
        try:
            while count:
                ended = done.get()
                if ended is None:
                    count -= 1
                    continue
                number, drawing = ended
                if isinstance(drawing, BaseException):
                    raise drawing
                if not pauses:
                    yield number, drawing
                    continue
                with passes.turn:
                    passes.seconds()
                    yield number, drawing
                    passes.resume()
        finally:
            passes.stop()
            for thread in threads:
                thread.join()

    def _lane(
        self,
        passes: SharedPasses,
        lane: int,
        draw_one: Callable[[ImageTask], Drawing],
        tasks: Sequence[ImageTask],
        numbers: Iterator[int],
        done: SimpleQueue[tuple[int, Drawing | BaseException] | None],
    ) -> None:
        """Draw one picture after another in a lane until none are left."""
        number = -1
        with passes.turn:
            try:
                for number in numbers:
                    before = passes.seconds()
                    drawing = draw_one(tasks[number])
                    done.put((number, replace(drawing, seconds=passes.seconds() - before, batch=self.lanes)))
                    if passes.stopped:
                        break
            except _Stopped:
                pass
            except BaseException as error:
                done.put((number, error))
            finally:
                passes.forget(lane)
                passes.leave()
                done.put(None)


@dataclass(frozen=True, slots=True)
class BatchWorkers:
    """Implements `artifacts.workers.Workers` in this process; draws several jobs of a method at once.

    Attributes:
        drawer: Opens models and methods and records drawings.
        batch: Number of jobs drawn at once.
    """

    drawer: JobDrawer
    batch: int

    def run(
        self, jobs: Sequence[DrawingKey], more: Callable[[DrawnJob], Iterable[DrawingKey]] = lambda _: ()
    ) -> Iterator[DrawnJob]:
        """Draw the jobs, grouped by model and method; `more` returns further jobs after each drawn one."""
        waiting = list(jobs)
        while waiting:
            waiting.sort(key=_model_and_method)
            _, group = next(groupby(waiting, _model_and_method))
            together = list(group)
            waiting = waiting[len(together) :]
            for drawn_job in self._together(together):
                waiting.extend(more(drawn_job))
                yield drawn_job

    def _together(self, jobs: Sequence[DrawingKey]) -> Iterator[DrawnJob]:
        models, sampling = self.drawer.models(jobs[0]), self.drawer.tasks[jobs[0].model].sampling
        drawer = open_batches(models, self.batch, sampling)
        tasks = [ImageTask(models.condition(job.prompt), job.seed) for job in jobs]
        for _ in drawer.draw(lambda: self.drawer.method(jobs[0]), sampling, tasks[: self.batch]):
            pass  # warm-up: the first passes allocate memory, so one batch of each method is not counted
        for number, drawing in drawer.draw(lambda: self.drawer.method(jobs[0]), sampling, tasks, pauses=True):
            yield self.drawer.record(jobs[number], drawing)


def check_batch(models: OpenModels, lanes: int) -> None:
    """Raise LiveModelError unless a live model can draw `lanes` pictures at once; see `BatchDrawer`."""
    assert isinstance(models, LivePipeline)
    if lanes < 1:
        raise LiveModelError(f"batch: expected 1 picture or more at once, got {lanes}")
    if lanes > 1 and models.verifies_ties:
        raise LiveModelError(
            f"batch: expected 1 where near-ties are verified in float32, got {lanes}; leave one of the two out"
        )
    if lanes > 1:
        check_padded(models.live)


def open_batches(models: OpenModels, batch: int, sampling: SamplingParams) -> BatchDrawer:
    """A `BatchDrawer` of a live model for this sampling; raises LiveModelError if the model cannot be batched."""
    assert isinstance(models, LivePipeline)
    return BatchDrawer(models, batch, rows_of(sampling))


def _model_and_method(job: DrawingKey) -> tuple[int, str]:
    return job.model, job.method
