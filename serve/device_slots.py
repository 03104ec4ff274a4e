"""Batch slots on a device: pictures of one method, sampling and size share the slots of one program.

A program runs one method with one sampling, so requests that differ in them cannot share it. Each kind of request gets
its own program, created for its first picture, and the programs take turns. Pictures take free slots in queue order,
whatever their kind: no kind waits for another to end, and a picture that would fill a batch better does not overtake.
An idle program is dropped when another program needs its memory.

With `DeviceSettings.draft_if_faster`, every kind of request for a lossless method begins with a trial (see
`runtime.device.trial`): if plain autoregression takes less time for a full batch, it draws the requests that follow.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from itertools import count
from threading import Lock
from time import monotonic
from typing import Final, NamedTuple, cast

import numpy as np
import torch

from underpaint.algos.rows import SamplingParams
from underpaint.runtime.device.devices import open_device
from underpaint.runtime.device.drawing import CapturedProgram, DeviceDrawer, NotDrawn
from underpaint.runtime.device.drawing_plan import DevicePlan, most_images, plan_drawing
from underpaint.runtime.device.folder import DeviceModels
from underpaint.runtime.device.forms import DeviceError
from underpaint.runtime.device.runner import DecodedImage
from underpaint.runtime.device.slots import Arrival, ImageProgress
from underpaint.runtime.device.trial import DraftTrial, trial_result
from underpaint.runtime.drawing import TRIAL_BATCHES, ImageTask
from underpaint.runtime.engines.context import EngineError
from underpaint.runtime.evaluation.comparison import BASELINE
from underpaint.runtime.methods.method import DecodingMethod
from underpaint.serve.models import DeviceSettings, PreparedRequest, ServedModels, build
from underpaint.serve.progress import Finished, Picture, Turn
from underpaint.serve.requests import CellsEvent, RequestError

MOST_PROGRAMS: Final = 8
"""Maximum number of programs in memory."""
_MOST_KINDS: Final = 64
"""Maximum number of kinds of requests whose plans and trials are remembered."""
_POLL: Final = 8
"""Cycles of a GPU program between checks by the host, if no client watches its pictures."""
_LATER: Final = 10
"""Seconds after which a client may retry if there was no memory for its program."""
_LOG = logging.getLogger("underpaint.serve")


class Kind(NamedTuple):
    """The properties that all pictures of one program share."""

    size: str
    method: str
    sampling: SamplingParams

    @classmethod
    def of(cls, prepared: PreparedRequest) -> Kind:
        """Return the kind of a request's pictures."""
        return cls(prepared.size, prepared.request.method, prepared.sampling)


class _Running:
    """A program, and the pictures in its slots by their numbers."""

    def __init__(self, kind: Kind, program: CapturedProgram, first: ImageTask) -> None:
        """Open a batch of the program; for `first`, see `CapturedProgram.open_batch`."""
        self.kind, self.program, self.batch = kind, program, program.open_batch(first)
        self.pictures: dict[int, Picture] = {}
        self._cells: dict[int, int] = {}
        self._drafts, self._seconds = kind.method != BASELINE, 0.0
        self._trials: dict[int, tuple[DraftTrial, float]] = {}

    def add(self, number: int, picture: Picture, arrival: Arrival, trial: DraftTrial | None) -> None:
        """Add a picture to the batch, which must have room for it."""
        self.batch.add(number, arrival)
        self.pictures[number] = picture
        if trial is not None:
            trial.begin(self._drafts)
            self._trials[number] = trial, self._seconds

    def step(self) -> dict[int, DecodedImage]:
        """Run one or a few cycles; return the images that ended, by number."""
        watched, started = any(picture.watched for picture in self.pictures.values()), monotonic()
        ended = dict(self.batch.step(1 if watched else _POLL))
        self._seconds += monotonic() - started
        return ended

    def leave(self, number: int) -> Picture:
        """Remove and return a picture that is no longer in the batch."""
        self._cells.pop(number, None)
        if number in self._trials:
            self._trials.pop(number)[0].drop(self._drafts)
        return self.pictures.pop(number)

    def fail(self, number: int, error: Exception) -> Turn:
        """Return the last turn of a picture that ended with an error."""
        self._add_to_trial(number, drawn=False)
        return Turn(self.leave(number), error=error)

    def _add_to_trial(self, number: int, *, drawn: bool) -> None:
        """Add a picture's share of a full batch's time to its trial, if it is part of one."""
        trial, before = self._trials.pop(number, (None, 0.0))
        if trial is None or trial.ended:
            return
        slots = len(self.batch) + self.batch.room
        trial.add(self._drafts, (self._seconds - before) / slots if drawn else None)
        if trial.ended:
            _LOG.info("%s", trial_result(trial.method, *trial.means, trial.method if trial.drafts else BASELINE))

    def advanced(self, number: int) -> Turn:
        """Return the turn of an unfinished picture; it is empty while the picture waits to join the batch."""
        picture = self.pictures[number]
        if number not in self.batch.cells:
            return Turn(picture)
        count = self.batch.cells[number]
        before, self._cells[number] = self._cells.get(number, 0), count
        events = self._events(picture, self.batch.progress(number)) if picture.watched else ()
        return Turn(picture, count - before, events)

    def ended(self, number: int, image: DecodedImage) -> Turn:
        """Return the last turn of a picture that ended."""
        before, picture = self._cells.get(number, 0), self.pictures[number]
        prepared, seed = picture.job.prepared, picture.job.seed
        seconds = max(1e-9, monotonic() - picture.started)
        outcome = self.program.outcome(ImageTask(prepared.condition, seed), image, seconds, 0.0)
        if isinstance(outcome, NotDrawn) or image.tokens is None:
            reason = outcome.error if isinstance(outcome, NotDrawn) else "it has no tokens"
            return self.fail(number, ValueError(f"the picture was not drawn: {reason}"))
        self._add_to_trial(number, drawn=True)
        self.leave(number)
        all_decided, refused = np.ones(image.tokens.size, dtype=np.bool_), None
        if image.kept_cells is not None:
            refused = np.setdiff1d(np.arange(image.tokens.size), image.kept_cells)
        last = ImageProgress(image.tokens, all_decided, image.cycles, image.history, refused)
        done = Finished.of(image.tokens, outcome.target_nfe, outcome.drafter_nfe, outcome)
        events = self._events(picture, last) if picture.watched else ()
        return Turn(picture, image.tokens.size - before, events, done)

    def _events(self, picture: Picture, now: ImageProgress) -> Iterator[CellsEvent]:
        if self.program.counts_drafts:
            return picture.after_verdicts(now.tokens, now.history)
        return picture.after_cells(now.tokens, now.decided, now.cycles, now.refused)


class DeviceSlots:
    """Implements `progress.PictureSlots` with device programs; every method except `check` must run in one thread."""

    def __init__(self, served: ServedModels, settings: DeviceSettings, slots: int) -> None:
        """Load the weights of the models.

        Raises:
            ValueError: The device does not exist, has too little memory, or cannot run the models.
        """
        self._served, self._slots, self._settings = served, slots, settings
        self._device = open_device(settings.name)
        self._lock = Lock()
        self._weights: dict[str, DeviceModels] = {}
        self._drawers: dict[tuple[str, int, int, int], DeviceDrawer] = {}
        self._running: list[_Running] = []
        self._plans: dict[Kind, DevicePlan] = {}
        self._trials: dict[Kind, DraftTrial | None] = {}
        self._numbers = count()
        for size, pipeline in served.pipelines.items():
            plan = self._planned(size, served.usual_method(size), pipeline.sampling, loaded=False)
            self._drawer(size, plan)

    def check(self, prepared: PreparedRequest) -> None:
        self._plan(prepared)

    def takes(self, prepared: PreparedRequest) -> bool:
        if self._with_room(Kind.of(self._chosen(prepared)[0])) is not None:
            return True
        return len(self._running) < MOST_PROGRAMS or not all(one.pictures for one in self._running)

    def open(self, picture: Picture) -> None:
        prepared, trial = self._chosen(picture.job.prepared)
        picture.job = picture.job._replace(prepared=prepared)
        task = ImageTask(prepared.condition, picture.job.seed)
        running = self._with_room(Kind.of(prepared)) or self._start(prepared, task)
        number = next(self._numbers)
        (arrival,) = running.program.arrivals([task])
        running.add(number, picture, arrival, trial)
        self._running.remove(running)
        self._running.append(running)  # most recently used last; the first idle program is dropped

    def drop(self, picture: Picture) -> None:
        for running in self._running:
            for number, other in running.pictures.items():
                if other is picture:
                    running.batch.remove(number)
                    running.leave(number)
                    return

    def turn(self) -> Iterator[Turn]:
        for running in tuple(self._running):
            if not running.pictures:
                continue
            try:
                ended = running.step()
            except Exception as error:
                self._running.remove(running)
                if self._device.type == "cuda":
                    torch.cuda.synchronize()  # raises where the device itself failed, which ends the loop
                full = isinstance(error, torch.OutOfMemoryError)
                for number in tuple(running.pictures):
                    yield running.fail(number, self._no_memory(running.kind.method, error) if full else error)
                continue
            for number in tuple(running.pictures):
                yield running.ended(number, ended[number]) if number in ended else running.advanced(number)

    def _chosen(self, prepared: PreparedRequest) -> tuple[PreparedRequest, DraftTrial | None]:
        """Return the request as it is drawn now, drafted or not, and the trial of its kind, if there is one."""
        if not self._settings.draft_if_faster:
            return prepared, None
        kind = Kind.of(prepared)
        if kind in self._trials:
            trial = self._trials.pop(kind)
        else:
            method, pictures = build(prepared, self._served.pipelines[prepared.size]), TRIAL_BATCHES * self._slots
            trial = DraftTrial(method.name, pictures) if method.lossless and method.drafts else None
        self._trials[kind] = trial  # most recently used last
        if len(self._trials) > _MOST_KINDS:
            del self._trials[next(iter(self._trials))]
        return prepared if trial is None or trial.drafts else self._served.undrafted(prepared), trial

    def _with_room(self, kind: Kind) -> _Running | None:
        return next((one for one in self._running if one.kind == kind and one.batch.room), None)

    def _start(self, prepared: PreparedRequest, first: ImageTask) -> _Running:
        """Create a program; idle programs are dropped if it needs their place or their memory."""
        if self._device.type == "cuda":
            torch.cuda.set_device(self._device)  # the current device is set per thread
        if len(self._running) >= MOST_PROGRAMS:
            self._drop_idle()
        plan, method = self._plan(prepared), build(prepared, self._served.pipelines[prepared.size])
        while True:
            try:
                drawer = self._drawer(prepared.size, plan)
                # No variable holds the program here, so one that ran out of memory is freed before the next try.
                running = _Running(Kind.of(prepared), drawer.captured(method, prepared.sampling), first)
            except (DeviceError, EngineError, torch.OutOfMemoryError) as error:  # TensorRT lacks memory by EngineError
                if self._drop_idle():
                    continue
                if isinstance(error, EngineError) and not self._running:
                    raise  # no other program holds memory, so the engine itself is at fault
                refusal = self._no_memory(prepared.request.method, error)
                raise refusal from error.with_traceback(None)  # the traceback's frames hold the program
            self._running.append(running)
            return running

    def _no_memory(self, method: str, error: Exception) -> RequestError:
        """Return the answer to a request for which the device lacks memory; how much it lacks is logged."""
        _LOG.warning("the device has no memory for %s with so many --slots: %s", method, error)
        message, later = f"the device has no memory for {method}", _LATER if self._running else None
        message += " while other methods draw; send this again later" if self._running else "; use another method"
        return RequestError(503, message, "no_memory", retry_after=later)

    def _drop_idle(self) -> bool:
        """Drop the program that has been idle longest; False if there is none."""
        idle = next((one for one in self._running if not one.pictures), None)
        if idle is not None:
            self._running.remove(idle)
        return idle is not None

    def _plan(self, prepared: PreparedRequest) -> DevicePlan:
        kind = Kind.of(prepared)
        with self._lock:
            plan = self._plans.pop(kind, None)
            if plan is None:
                method = build(prepared, self._served.pipelines[prepared.size])
                plan = self._planned(prepared.size, method, prepared.sampling, loaded=True)
            self._plans[kind] = plan  # most recently used last
            if len(self._plans) > _MOST_KINDS:
                del self._plans[next(iter(self._plans))]
            return plan

    def _planned(self, size: str, method: DecodingMethod, sampling: SamplingParams, *, loaded: bool) -> DevicePlan:
        """A plan for all slots, or for one slot if the method draws single pictures, which then get a program each."""
        pipeline = self._served.pipelines[size].folder_models()
        assert pipeline is not None, "live models are not opened for a device"
        batch = min(self._slots, most_images(method, sampling, pipeline) or self._slots)
        more = (self._device, batch, self._settings.forward)
        return plan_drawing(pipeline, [method], sampling, *more, loaded=loaded, remedy="lower --slots")

    def _drawer(self, size: str, plan: DevicePlan) -> DeviceDrawer:
        key = (size, plan.batch, plan.rows, plan.engine_decoders)
        if key not in self._drawers:
            self._drawers[key] = plan.open(self._weights.get(size))
            models = cast(DeviceModels, self._drawers[key].models)
            if size not in self._weights or models.drafter is not None:
                self._weights[size] = models  # the target, and the drafter once a method needs it
        return self._drawers[key]
