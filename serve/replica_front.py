"""The front of several replicas: it holds the queue, and redraws a picture with the same result if its replica dies."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from functools import partial
from threading import Thread
from time import monotonic
from typing import Any, Final

from prometheus_client import Counter
from ray.exceptions import RayError, RayTaskError
from ray.serve.exceptions import RayServeException

from underpaint.serve.metrics import Metrics
from underpaint.serve.queueing import FairQueue
from underpaint.serve.replicas import Deployment, OpenModels, Scale
from underpaint.serve.requests import (
    CellsEvent,
    DrawRequest,
    Event,
    FinishedImage,
    Limits,
    PartialImage,
    RequestError,
    failed,
    shutting_down,
    too_late,
)
from underpaint.serve.ticket import Ticket

MOST_ATTEMPTS: Final = 5
"""Maximum number of replicas that may die in a row on one picture; the picture itself may crash them."""
_LOG = logging.getLogger("underpaint.serve")


@dataclass(slots=True, eq=False)
class _Picture:
    """One picture of a request, which any replica may draw.

    image: its index in the request. cycle, partial: number of the last event of each kind sent to the client, so that
    events of a second replica are not sent twice.
    """

    ticket: Ticket
    request: DrawRequest
    image: int
    cycle: int = 0
    partial: int = -1
    started: float | None = None
    task: asyncio.Task[None] | None = None

    def is_new(self, event: Event) -> bool:
        """Return whether the client has not received this event yet; it then counts as sent."""
        if isinstance(event, CellsEvent):
            new, self.cycle = event.number > self.cycle, max(event.number, self.cycle)
            return new
        if isinstance(event, PartialImage):
            new, self.partial = event.number > self.partial, max(event.number, self.partial)
            return new
        return True


class ReplicaFront:
    """Makes all replicas look like one engine; see `app.DrawingEngine`.

    It holds the queue and distributes single pictures, as many as the replicas have slots. A picture depends only on
    its seed, so if its replica dies, another redraws it, and the client gets the missing events. All state belongs to
    the thread of one event loop.
    """

    def __init__(
        self,
        open_models: OpenModels,
        scale: Scale,
        slots: int,
        limits: Limits | None = None,
        gpus: int = 0,
        address: str | None = None,
    ) -> None:
        """Start the replicas, and wait until the first ones have loaded their models.

        Args:
            open_models: Loads the models in a replica.
            scale: Minimum and maximum number of replicas.
            slots: Number of batch slots per replica.
            limits: The limits on requests; None uses the defaults.
            gpus: Number of GPUs per replica.
            address: Address of a Ray cluster; None starts a local one, whose cores the replicas share.

        Raises:
            ValueError: Ray cannot be reached, or the replicas do not start.
        """
        self.limits = limits or Limits()
        self._most = slots * scale.most
        self._replicas = Deployment(open_models, scale, slots, self.limits.seconds, gpus, address)
        self.info = self._replicas.info
        self._queue: FairQueue[_Picture] = FairQueue()
        self._drawn: set[_Picture] = set()
        self._tickets: dict[Ticket, asyncio.TimerHandle] = {}
        self._draining = False
        self.metrics = Metrics(lambda: len(self._queue), lambda: len(self._drawn), self._most)
        registry = self.metrics.registry
        self._counted_lost = Counter("underpaint_lost_calls", "Calls of dead replicas, made again", registry=registry)
        self._lost = self._finished = 0
        self._seconds_a_picture = 1.0
        self._colours: bytes | RequestError | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, name="underpaint-front", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether it is running."""
        return self._thread.is_alive()

    @property
    def ready(self) -> bool:
        """Whether it accepts requests."""
        return self.alive and not self._draining

    @property
    def lost_calls(self) -> int:
        """Number of replica calls that were lost to a dead replica."""
        return self._lost

    @property
    def finished_pictures(self) -> int:
        """Number of pictures completed for clients."""
        return self._finished

    def code_colours(self) -> bytes:
        """See `page.code_colours`; a replica computes them."""
        if self._colours is None:
            future = asyncio.run_coroutine_threadsafe(
                self._unless_lost("codes", self._replicas.colours.remote), self._loop
            )
            self._colours = future.result()
        if isinstance(self._colours, RequestError):
            raise self._colours.with_traceback(None)  # which would grow with every request
        return self._colours

    def submit(self, request: DrawRequest) -> Ticket:
        """See `EngineLoop.submit`; a replica checks the request."""
        return asyncio.run_coroutine_threadsafe(self._accept(request), self._loop).result()

    def drain(self, seconds: float) -> None:
        """Stop accepting requests now, and refuse those not finished after `seconds`; returns immediately."""
        self._draining = True
        self._loop.call_soon_threadsafe(self._loop.call_later, seconds, self._refuse_all)

    def close(self, seconds: float = 0.0) -> None:
        """Drain, wait until no picture is in progress, and end the replicas."""
        if not self.alive:
            return
        self.drain(seconds)
        asyncio.run_coroutine_threadsafe(self._idle(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._replicas.end()

    async def _accept(self, request: DrawRequest) -> Ticket:
        arrived, count = monotonic(), len(request.seeds)
        seconds = self.limits.seconds_of(request)
        self._refuse_if_full(count)
        try:
            async with asyncio.timeout(seconds):
                refusal = await self._unless_lost(request.id, lambda: self._replicas.checks.remote(request))
        except TimeoutError:
            refusal = too_late(seconds)
        if refusal is not None:
            raise refusal
        self._refuse_if_full(count)  # other requests may have come in the meantime
        self.metrics.stages.labels("encode").observe(monotonic() - arrived)
        ticket = Ticket(request, arrived + seconds, self._forget)
        size = self.info.default_size if request.size not in self._replicas.cells else request.size
        seconds_left = max(0.0, ticket.deadline - monotonic())
        self._tickets[ticket] = self._loop.call_later(seconds_left, self._end, ticket, too_late(seconds))
        for image, seed in enumerate(request.seeds):
            self._queue.push(
                request.client, _Picture(ticket, replace(request, seeds=(seed,)), image), self._replicas.cells[size]
            )
        self._fill()
        return ticket

    def _refuse_if_full(self, count: int) -> None:
        if not self.ready:
            raise shutting_down()
        self.limits.check_room(len(self._queue), count, self._seconds_a_picture / self._most)

    async def _unless_lost(self, name: str, call: Callable[[], Awaitable[Any]]) -> Any:
        """Call, and again if the replica dies; returns the result, or a RequestError if it fails or too many die."""
        for attempt in range(MOST_ATTEMPTS):
            try:
                return await call()
            except RayTaskError:
                _LOG.exception("request %s failed on its replica", name)
                return failed()
            except (RayError, RayServeException) as error:
                self._lost += 1
                self._counted_lost.inc()
                _LOG.warning("request %s lost its replica (%s) and goes to another", name, type(error).__name__)
                await asyncio.sleep(0.1 * attempt)
        lost = f"{MOST_ATTEMPTS} replicas in a row ended while they worked on this request; send it again, or another"
        return RequestError(503, lost, "replicas_lost")

    def _fill(self) -> None:
        """Distribute pictures while the replicas have free slots."""
        while len(self._queue) and len(self._drawn) < self._most:
            picture = self._queue.pop()
            self._drawn.add(picture)
            picture.task = self._loop.create_task(self._draw(picture))
            # A task cancelled before its first step runs nothing of `_draw`, not even a `finally`.
            picture.task.add_done_callback(partial(self._free, picture))

    def _free(self, picture: _Picture, _: asyncio.Task[None]) -> None:
        """Free the slot of a picture whose task has ended, for the next picture."""
        self._drawn.discard(picture)
        if picture.ticket.closed:
            self._settle(picture.ticket)
        self._fill()

    async def _draw(self, picture: _Picture) -> None:
        """Draw a picture, on further replicas if one dies."""
        picture.started = monotonic()
        try:
            failure = await self._unless_lost(picture.request.id, lambda: self._draw_once(picture))
            if failure is not None:
                self._end(picture.ticket, failure)
        except Exception:
            _LOG.exception("request %s failed", picture.request.id)
            self._end(picture.ticket, failed())

    async def _draw_once(self, picture: _Picture) -> RequestError | None:
        """Draw a picture on one replica; None when the client has it."""
        response = self._replicas.draws.remote(picture.request)
        try:
            async for event in response:
                if isinstance(event, RequestError):
                    return event
                if picture.is_new(event):
                    self._hand_over(picture, event)
                    if isinstance(event, FinishedImage):
                        return None
        except asyncio.CancelledError:
            response.cancel()
            raise
        raise RayServeException("the stream ended before the picture")

    def _hand_over(self, picture: _Picture, event: CellsEvent | PartialImage | FinishedImage) -> None:
        if isinstance(event, FinishedImage):
            self._finished += 1
            waited = (picture.started or 0.0) - picture.ticket.arrived + event.queue_seconds
            event = replace(event, queue_seconds=waited)
            counts = event.tokens, event.target_passes, event.accepted, event.drafted
            self.metrics.finished(event.method, *counts)
            self.metrics.stages.labels("queue").observe(waited)
            self.metrics.stages.labels("draw").observe(event.draw_seconds)
            self.metrics.decided(event.tokens)
            self._seconds_a_picture += 0.1 * (event.draw_seconds - self._seconds_a_picture)
        if isinstance(event, PartialImage) and not picture.ticket.reserve_partial():
            return
        picture.ticket.put(replace(event, image=picture.image))

    def _end(self, ticket: Ticket, error: RequestError) -> None:
        """End a request with an error."""
        ticket.put(error)
        self._settle(ticket)

    def _refuse_all(self) -> None:
        for ticket in tuple(self._tickets):
            self._end(ticket, shutting_down())

    def _forget(self, ticket: Ticket) -> None:
        """Drop a request whose client has left; see `Ticket.cancel`."""
        self.metrics.cancelled.inc()
        self._loop.call_soon_threadsafe(self._settle, ticket)

    def _settle(self, ticket: Ticket) -> None:
        """Clean up a closed ticket: remove its pictures from the queue and cancel those in progress."""
        timer = self._tickets.pop(ticket, None)
        if timer is not None:
            timer.cancel()
        self._queue.remove(lambda picture: picture.ticket is ticket)
        for picture in self._drawn:
            if picture.ticket is ticket and picture.task is not None and picture.task is not asyncio.current_task():
                picture.task.cancel()

    async def _idle(self) -> None:
        while self._tickets or self._drawn:
            await asyncio.sleep(0.05)
