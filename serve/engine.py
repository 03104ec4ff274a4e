"""The engine loop of one device: open drawings take turns, and requests join between their cycles."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from threading import Condition, Thread
from time import monotonic
from typing import Final, NamedTuple

import numpy as np

from underpaint.algos.arrays import IntArray
from underpaint.algos.spatial.mulo import RepairCycle
from underpaint.algos.spatial.zipar import CellStep
from underpaint.algos.step import Cycle
from underpaint.algos.tree import NO_TOKEN, emitted
from underpaint.runtime.drawing import noise_of
from underpaint.runtime.methods.method import DecodingSession
from underpaint.serve.metrics import Metrics
from underpaint.serve.models import PreparedRequest, ServedModels, Slot
from underpaint.serve.queueing import FairQueue
from underpaint.serve.requests import (
    SHUTTING_DOWN,
    CellsEvent,
    CellToken,
    DrawRequest,
    FinishedImage,
    Limits,
    ModelInfo,
    PartialImage,
    RequestError,
    queue_full,
)
from underpaint.serve.ticket import Ticket

SLOTS: Final = 4
"""Pictures that are drawn side by side."""
_LOG = logging.getLogger("underpaint.serve")


class _Job(NamedTuple):
    """One picture that waits for a slot. image: its place in the request."""

    ticket: Ticket
    prepared: PreparedRequest
    image: int

    @property
    def seed(self) -> int:
        return self.prepared.request.seeds[self.image]


@dataclass(slots=True, eq=False)
class _Drawing:
    """A picture in a slot. tokens: [cells], `NO_TOKEN` where none is decided. partial: pictures on the way so far."""

    job: _Job
    slot: Slot
    session: DecodingSession
    tokens: IntArray
    before: tuple[int, int]
    started: float = field(default_factory=monotonic)
    cycles: int = 0
    partial: int = 0


class EngineLoop:
    """Draws for all clients in a thread of its own; `submit`, `cancel` and `drain` may be called from any thread.

    Every drawing makes one cycle in turn, on a cache of its own, so a picture depends on its seed alone and not on what
    else is drawn. The loop batches no passes of several pictures; see docs/results/server.md for what that costs.
    """

    def __init__(self, models: ServedModels, slots: int = SLOTS, limits: Limits | None = None) -> None:
        """Start the loop.

        Args:
            models: What draws.
            slots: Pictures that are drawn side by side, each on a cache of its own.
            limits: What is refused.
        """
        self.models, self.limits = models, limits or Limits()
        self._free = [Slot(models) for _ in range(slots)]
        self._drawings: list[_Drawing] = []
        self._queue: FairQueue[_Job] = FairQueue()
        self._tickets: set[Ticket] = set()
        self._changed = Condition()
        self._draining_until: float | None = None
        self._closing = False
        self._seconds_a_picture = 1.0
        self.metrics = Metrics(lambda: len(self._queue), lambda: len(self._drawings), slots)
        self._encoder = ThreadPoolExecutor(1, "underpaint-pictures")
        self._thread = Thread(target=self._run, name="underpaint-engine", daemon=True)
        self._thread.start()

    @property
    def info(self) -> ModelInfo:
        """What the models are called and what they draw."""
        return self.models.info()

    @property
    def alive(self) -> bool:
        """Whether the loop runs; False after a failure that no request caused, and once it is closed."""
        return self._thread.is_alive()

    @property
    def ready(self) -> bool:
        """Whether it takes requests."""
        return self.alive and self._draining_until is None

    def code_colours(self) -> bytes:
        """See `page.code_colours`."""
        return self.models.code_colours

    def submit(self, request: DrawRequest) -> Ticket:
        """Check a request, read its prompt in this thread, and let its pictures wait for slots.

        Raises:
            RequestError: The models do not draw this, too many pictures wait already, or the loop drains.
        """
        started = monotonic()
        prepared = self.models.prepare(request)
        self.metrics.stages.labels("encode").observe(monotonic() - started)
        seconds = min(self.limits.seconds, request.seconds or self.limits.seconds)
        ticket = Ticket(request, started + seconds, self._forget)
        jobs = [_Job(ticket, prepared, image) for image in range(len(request.seeds))]
        with self._changed:
            if not self.ready:
                raise RequestError(503, SHUTTING_DOWN, "shutting_down")
            if len(self._queue) + len(jobs) > self.limits.waiting:
                raise self._full(len(jobs))
            for job in jobs:
                self._queue.push(request.client, job, self.models.pipelines[prepared.size].grid.cells)
            self._tickets.add(ticket)
            self._changed.notify_all()
        return ticket

    def drain(self, seconds: float) -> None:
        """Take no more requests from now on, and refuse what is not finished after `seconds`; returns at once."""
        with self._changed:
            until = monotonic() + seconds
            self._draining_until = min(until, self._draining_until or until)
            self._changed.notify_all()

    def close(self, seconds: float = 0.0) -> None:
        """Drain, wait until nothing is drawn, and end the thread."""
        self.drain(seconds)
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join()
        self._encoder.shutdown()

    def _full(self, count: int) -> RequestError:
        slots = len(self._free) + len(self._drawings)
        wait = len(self._queue) * self._seconds_a_picture / max(1, slots)
        return queue_full(len(self._queue), self.limits.waiting, count, wait)

    def _forget(self, ticket: Ticket) -> None:
        """The client left: see `Ticket.cancel`."""
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
                for ticket in self._tickets:
                    ticket.put(RequestError(500, "the server's engine ended; its log says why", "internal_error"))
            raise

    def _turn(self) -> bool:
        """Let requests join, then make one cycle of every drawing; False once the loop is to end."""
        with self._changed:
            while not self._queue and not self._drawings:
                if self._closing:
                    return False
                self._changed.wait()
            self._refuse_late()
            joining = []
            while self._free and self._queue:
                joining.append((self._queue.pop(), self._free.pop()))
        for job, slot in joining:
            self._guarded(job.ticket, partial(self._start, job, slot))
        for drawing in tuple(self._drawings):
            if drawing.job.ticket.closed:
                self._leave(drawing)
            else:
                self._guarded(drawing.job.ticket, partial(self._advance, drawing))
        return True

    def _refuse_late(self) -> None:
        """End the tickets whose time is over; the lock is held."""
        now, draining = monotonic(), self._draining_until
        for ticket in tuple(self._tickets):
            if draining is not None and now >= draining:
                ticket.put(RequestError(503, SHUTTING_DOWN, "shutting_down"))
            elif now >= ticket.deadline:
                late = f"the request was not finished within its {ticket.deadline - ticket.arrived:.0f} seconds"
                ticket.put(RequestError(504, f"{late}; allow more, or ask for fewer pictures", "deadline_exceeded"))
            if ticket.closed:
                self._tickets.discard(ticket)
        self._queue.remove(lambda job: job.ticket.closed)

    def _guarded(self, ticket: Ticket, work: Callable[[], None]) -> None:
        """Let an error of one drawing end its request, and no other."""
        try:
            work()
        except Exception as error:
            if isinstance(error, ValueError):
                ticket.put(RequestError(400, str(error), "cannot_draw"))
            else:
                _LOG.exception("request %s failed", ticket.request.id)
                ticket.put(RequestError(500, "the server failed to draw this; its log says why", "internal_error"))

    def _start(self, job: _Job, slot: Slot) -> None:
        try:
            session = slot.open(job.prepared)
            session.begin(noise_of(job.prepared.condition, job.seed))
        except BaseException:
            self._free.append(slot)
            raise
        cells = self.models.pipelines[job.prepared.size].grid.cells
        tokens = np.full(cells, NO_TOKEN, dtype=np.int64)
        drawing = _Drawing(job, slot, session, tokens, _passes(session))
        self.metrics.stages.labels("queue").observe(drawing.started - job.ticket.arrived)
        self._drawings.append(drawing)

    def _leave(self, drawing: _Drawing) -> None:
        """Free a drawing's slot."""
        self._drawings.remove(drawing)
        self._free.append(drawing.slot)

    def _advance(self, drawing: _Drawing) -> None:
        """Make one cycle of a drawing."""
        try:
            more = drawing.session.step()
        except BaseException:
            self._leave(drawing)
            raise
        if not more:
            self._leave(drawing)
            self._finish(drawing)
            return
        job, request = drawing.job, drawing.job.prepared.request
        drawing.cycles += 1
        event = cells_event(job.image, drawing.cycles, drawing.session.cycle, drawing.tokens)
        self.metrics.decided(len(event.accepted) + len(event.redrawn) + len(event.drawn))
        if request.events:
            job.ticket.put(event)
        if event.decided < event.cells and _picture_due(drawing, event):
            self._encode(job, partial(self._partial, job, drawing.partial, drawing.tokens.copy(), event.decided))
            drawing.partial += 1

    def _encode(self, job: _Job, work: Callable[[], None]) -> None:
        """Decode and encode a picture beside the loop."""

        def encode() -> None:
            if not job.ticket.closed:
                self._guarded(job.ticket, work)
            if job.ticket.closed:
                with self._changed:
                    self._tickets.discard(job.ticket)

        self._encoder.submit(encode)

    def _partial(self, job: _Job, number: int, tokens: IntArray, decided: int) -> None:
        content, _ = self.models.encoded(job.prepared.size, tokens, job.prepared.request.output_format)
        job.ticket.put(PartialImage(job.image, number, decided, content))

    def _finish(self, drawing: _Drawing) -> None:
        job, result = drawing.job, drawing.session.result()
        target, drafter = (now - then for now, then in zip(_passes(drawing.session), drawing.before, strict=True))
        method, seconds = job.prepared.request.method, monotonic() - drawing.started
        self.metrics.finished(method, result, target)
        self.metrics.stages.labels("draw").observe(seconds)
        self._seconds_a_picture += 0.1 * (seconds - self._seconds_a_picture)

        def hand_over() -> None:
            started = monotonic()
            content, size = self.models.encoded(job.prepared.size, result.tokens, job.prepared.request.output_format)
            self.metrics.stages.labels("decode").observe(monotonic() - started)
            waited = drawing.started - job.ticket.arrived
            job.ticket.put(
                FinishedImage(
                    job.image, job.seed, content, size, method, result.tokens.size, target, drafter, waited, seconds
                )
            )

        self._encode(job, hand_over)


def _picture_due(drawing: _Drawing, event: CellsEvent) -> bool:
    """Whether the client is to see the picture on the way now."""
    request, sent = drawing.job.prepared.request, drawing.partial
    if request.picture_every:
        return drawing.cycles % request.picture_every == 0
    return sent < request.partial_images and event.decided * (request.partial_images + 1) >= (sent + 1) * event.cells


def cells_event(image: int, number: int, cycle: Cycle | RepairCycle | CellStep | None, tokens: IntArray) -> CellsEvent:
    """What a cycle did; its tokens are put into `tokens` [cells].

    Args:
        image: The picture's place in the request.
        number: Of the cycle.
        cycle: What `DecodingSession.cycle` holds.
        tokens: Of the picture so far, `NO_TOKEN` where a cell has none.
    """
    accepted: list[CellToken] = []
    redrawn: list[CellToken] = []
    drawn: list[CellToken] = []
    rejected: list[int] = []
    if isinstance(cycle, Cycle):
        placed = [(cycle.cell + place, int(token)) for place, token in enumerate(emitted(cycle.tree, cycle.verdict))]
        kept, beyond = len(cycle.verdict.path), cycle.cell + cycle.tree.depth
        accepted = placed[:kept]
        rejected = list(range(cycle.cell + kept, beyond))
        (redrawn if rejected else drawn).extend(placed[kept:])
    elif isinstance(cycle, RepairCycle):
        before = tokens.size - cycle.tokens.size  # a preview's cells, drawn before the picture's
        inside = np.flatnonzero(cycle.draft.ravel() != NO_TOKEN).tolist()
        region, now = cycle.region.ravel(), cycle.tokens.ravel()
        for cell in inside:
            (redrawn if region[cell] else accepted).append((before + cell, int(now[cell])))
        rejected = [before + cell for cell in np.flatnonzero(cycle.rejected).tolist()]
    elif cycle is not None:
        drawn = list(zip(cycle.cells, cycle.tokens, strict=True))
    for cell, token in (*accepted, *redrawn, *drawn):
        tokens[cell] = token
    decided = int(np.count_nonzero(tokens != NO_TOKEN))
    lists = (tuple(accepted), tuple(redrawn), tuple(drawn), tuple(rejected))
    return CellsEvent(image, number, *lists, decided, tokens.size)


def _passes(session: DecodingSession) -> tuple[int, int]:
    """Passes of the target and of the drafter so far."""
    target, drafter, _ = session.timers
    return target.passes, 0 if drafter is None else drafter.passes
