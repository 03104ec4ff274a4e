"""The engine loop of one device: pictures join between cycles, first come, first served, with fair client shares."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Condition, Thread
from time import monotonic
from typing import Final

import numpy as np

from underpaint.algos.arrays import IntArray
from underpaint.algos.tree import NO_TOKEN
from underpaint.serve.metrics import Metrics
from underpaint.serve.models import PreparedRequest, ServedModels
from underpaint.serve.progress import Finished, Job, Picture, PictureSlots, Turn
from underpaint.serve.queueing import FairQueue
from underpaint.serve.requests import (
    DrawRequest,
    FinishedImage,
    Limits,
    ModelInfo,
    PartialImage,
    RequestError,
    failed,
    invalid,
    shutting_down,
    too_late,
)
from underpaint.serve.sessions import SessionSlots
from underpaint.serve.ticket import Ticket

SLOTS: Final = 4
"""Default number of batch slots."""
_LOG = logging.getLogger("underpaint.serve")


class EngineLoop:
    """Draws for all clients in its own thread; `submit`, `cancel` and `drain` may be called from any thread.

    Pictures leave the queue in its order, whatever their settings, as soon as a batch slot is free; `device_slots`
    and `sessions` draw them. A picture depends only on its seed, not on the other pictures in the batch.
    """

    def __init__(self, models: ServedModels, slots: int = SLOTS, limits: Limits | None = None) -> None:
        """Start the loop.

        Args:
            models: The models to draw with.
            slots: Number of batch slots: pictures drawn at once.
            limits: The limits on requests; None uses the defaults.

        Raises:
            ValueError: The models cannot run on this machine.
        """
        self.models, self.limits, self._count = models, limits or Limits(), slots
        self.slots = open_slots(models, slots)
        self._pictures: list[Picture] = []
        self._queue: FairQueue[Job] = FairQueue()
        self._tickets: set[Ticket] = set()
        self._changed = Condition()
        self._draining_until: float | None = None
        self._closing = False
        self._seconds_a_picture = 1.0
        self.metrics = Metrics(lambda: len(self._queue), lambda: len(self._pictures), slots)
        self._encoder = ThreadPoolExecutor(1, "underpaint-pictures")
        self._thread = Thread(target=self._run, name="underpaint-engine", daemon=True)
        self._thread.start()

    @property
    def info(self) -> ModelInfo:
        """Names, sizes and methods of the models."""
        return self.models.info()

    @property
    def alive(self) -> bool:
        """Whether the loop is running; False after an internal failure and after `close`."""
        return self._thread.is_alive()

    @property
    def ready(self) -> bool:
        """Whether it accepts requests."""
        return self.alive and self._draining_until is None

    def code_colours(self) -> bytes:
        """See `page.code_colours`."""
        return self.models.code_colours

    def prepare(self, request: DrawRequest) -> PreparedRequest:
        """Check a request and read its prompt, in this thread; raises RequestError if it cannot be drawn."""
        prepared = self.models.prepare(request)
        try:
            self.slots.check(prepared)
        except ValueError as error:
            raise invalid(str(error), "method") from error
        return prepared

    def submit(self, request: DrawRequest) -> Ticket:
        """Check a request, read its prompt in this thread, and queue its pictures.

        Raises:
            RequestError: The models cannot draw this, too many pictures already wait, or the loop is draining.
        """
        started = monotonic()
        with self._changed:
            self._refuse_if_full(len(request.seeds))  # before its prompt is read, which takes longest
        prepared = self.prepare(request)
        self.metrics.stages.labels("encode").observe(monotonic() - started)
        ticket = Ticket(request, started + self.limits.seconds_of(request), self._forget)
        jobs = [Job(ticket, prepared, image) for image in range(len(request.seeds))]
        with self._changed:
            self._refuse_if_full(len(jobs))  # other requests may have come in the meantime
            for job in jobs:
                self._queue.push(request.client, job, self.models.pipelines[prepared.size].grid.cells)
            self._tickets.add(ticket)
            self._changed.notify_all()
        return ticket

    def _refuse_if_full(self, count: int) -> None:
        """Raise RequestError unless `count` more pictures are accepted; the lock must be held."""
        if not self.ready:
            raise shutting_down()
        self.limits.check_room(len(self._queue), count, self._seconds_a_picture / self._count)

    def drain(self, seconds: float) -> None:
        """Stop accepting requests now, and refuse those not finished after `seconds`; returns immediately."""
        with self._changed:
            until = monotonic() + seconds
            self._draining_until = min(until, self._draining_until or until)
            self._changed.notify_all()

    def close(self, seconds: float = 0.0) -> None:
        """Drain, wait until no picture is in progress, and end the thread."""
        self.drain(seconds)
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join()
        self._encoder.shutdown()

    def _forget(self, ticket: Ticket) -> None:
        """Drop a request whose client has left; see `Ticket.cancel`."""
        self.metrics.cancelled.inc()
        with self._changed:
            self._queue.remove(lambda job: job.ticket is ticket)
            self._tickets.discard(ticket)
            self._changed.notify_all()

    def _run(self) -> None:
        try:
            while self._turn():
                pass
        except BaseException:
            _LOG.exception("the engine loop ended")
            with self._changed:
                self._draining_until = monotonic()  # the thread lives on for a moment, and must accept nothing then
                for ticket in self._tickets:
                    ticket.put(RequestError(500, "the server's engine ended; its log says why", "internal_error"))
            raise

    def _turn(self) -> bool:
        """Start queued pictures, then run cycles of all pictures; False once the loop must end."""
        with self._changed:
            while not self._queue and not self._pictures:
                if self._closing:
                    return False
                self._changed.wait()
            self._refuse_late()
        for picture in tuple(self._pictures):
            if picture.job.ticket.closed:
                self.slots.drop(picture)
                self._pictures.remove(picture)
        while (job := self._next_job()) is not None:
            self._guarded(job.ticket, partial(self._start, job))
        for turn in self.slots.turn():
            if turn.finished is not None or turn.error is not None:
                self._pictures.remove(turn.picture)
            self._guarded(turn.picture.job.ticket, partial(self._take, turn))
        return True

    def _next_job(self) -> Job | None:
        """Return the next picture of the queue, or None if there is no slot for it; no other picture overtakes it."""
        with self._changed:
            if (
                not self._queue
                or len(self._pictures) == self._count
                or not self.slots.takes(self._queue.first.prepared)
            ):
                return None
            return self._queue.pop()

    def _refuse_late(self) -> None:
        """End the tickets whose deadline has passed; the lock must be held."""
        now, draining = monotonic(), self._draining_until
        for ticket in tuple(self._tickets):
            if draining is not None and now >= draining:
                ticket.put(shutting_down())
            elif now >= ticket.deadline:
                ticket.put(too_late(self.limits.seconds_of(ticket.request)))
            if ticket.closed:
                self._tickets.discard(ticket)
        self._queue.remove(lambda job: job.ticket.closed)

    def _guarded(self, ticket: Ticket, work: Callable[[], None]) -> None:
        """Run `work`, so that an error ends only its own request. What a client can change was refused by `prepare`."""
        try:
            work()
        except RequestError as error:
            ticket.put(error)
        except Exception:
            _LOG.exception("request %s failed", ticket.request.id)
            ticket.put(failed())

    def _start(self, job: Job) -> None:
        cells = self.models.pipelines[job.prepared.size].grid.cells
        picture = Picture(job, np.full(cells, NO_TOKEN, dtype=np.int64))
        self.slots.open(picture)
        self.metrics.stages.labels("queue").observe(picture.started - job.ticket.arrived)
        self._pictures.append(picture)

    def _take(self, turn: Turn) -> None:
        """Send a client the results of a turn of its picture."""
        picture, job = turn.picture, turn.picture.job
        self.metrics.decided(turn.decided)
        for event in turn.events:
            if job.prepared.request.events:
                job.ticket.put(event)
            number = picture.partial_due(event)
            if number is not None and job.ticket.reserve_partial():
                self._encode(job, partial(self._partial, job, number, picture.tokens.copy(), event.decided))
                picture.partial = number + 1
        if turn.error is not None:
            raise turn.error
        if turn.finished is not None:
            self._finish(picture, turn.finished)

    def _encode(self, job: Job, work: Callable[[], None]) -> None:
        """Decode and encode a picture in another thread."""

        def encode() -> None:
            if not job.ticket.closed:
                self._guarded(job.ticket, work)
            if job.ticket.closed:
                with self._changed:
                    self._tickets.discard(job.ticket)

        self._encoder.submit(encode)

    def _partial(self, job: Job, number: int, tokens: IntArray, decided: int) -> None:
        content, _ = self.models.encoded(job.prepared.size, tokens, job.prepared.request.output_format)
        job.ticket.put(PartialImage(job.image, number, decided, content))

    def _finish(self, picture: Picture, done: Finished) -> None:
        job, method, seconds = picture.job, picture.job.prepared.request.method, monotonic() - picture.started
        count, waited = done.tokens.size, picture.started - picture.job.ticket.arrived
        self.metrics.finished(method, count, done.target_passes, done.accepted, done.drafted)
        self.metrics.stages.labels("draw").observe(seconds)
        self._seconds_a_picture += 0.1 * (seconds - self._seconds_a_picture)

        def hand_over() -> None:
            started = monotonic()
            content, size = self.models.encoded(job.prepared.size, done.tokens, job.prepared.request.output_format)
            self.metrics.stages.labels("decode").observe(monotonic() - started)
            passes, drafts = (done.target_passes, done.drafter_passes), (done.accepted, done.drafted)
            cost = FinishedImage(job.image, job.seed, content, size, method, count, *passes, waited, seconds, *drafts)
            job.ticket.put(cost)

        self._encode(job, hand_over)


def open_slots(models: ServedModels, count: int) -> PictureSlots:
    """Create batch slots for so many pictures; raises ValueError if that is not possible on this machine."""
    if models.device is None:
        return SessionSlots(models, count)
    from underpaint.serve.device_slots import DeviceSlots

    return DeviceSlots(models, models.device, count)
