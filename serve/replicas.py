"""Engine loops under Ray Serve: each replica draws, and a picture whose replica dies is drawn again, the same."""

from __future__ import annotations

import asyncio
import logging
import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from threading import Thread
from time import monotonic
from typing import Any, Final, NamedTuple, Self, TypeAlias
from uuid import uuid4

import numpy as np
import ray
from prometheus_client import Counter
from ray import serve
from ray.exceptions import RayError, RayTaskError
from ray.serve.exceptions import RayServeException

from underpaint.algos.memory import usable_cores
from underpaint.runtime.methods.method import DecodingResult
from underpaint.serve.engine import EngineLoop
from underpaint.serve.metrics import Metrics
from underpaint.serve.models import ServedModels
from underpaint.serve.queueing import FairQueue
from underpaint.serve.requests import (
    SHUTTING_DOWN,
    CellsEvent,
    DrawRequest,
    Event,
    FinishedImage,
    Limits,
    ModelInfo,
    PartialImage,
    RequestError,
    queue_full,
)
from underpaint.serve.ticket import Ticket

OpenModels: TypeAlias = Callable[[int | None], ServedModels]
"""Opens the models of a replica, on so many threads; None takes all cores. It can be pickled."""
MOST_ATTEMPTS: Final = 5
"""Replicas in a row that one picture may lose before it is given up: it may be what kills them."""
_CHECKS: Final = 16
"""Requests that a replica checks while all its slots draw."""
_BOUNDLESS: Final = 1 << 30
_FAILED: Final = RequestError(500, "the server failed to draw this; its log says why", "internal_error")
_LOG = logging.getLogger("underpaint.serve")


class Scale(NamedTuple):
    """Replicas, at least and at most; Ray's autoscaling moves between the two."""

    least: int
    most: int

    @classmethod
    def read(cls, text: str) -> Self:
        """Read "N" or "MIN:MAX".

        Raises:
            ValueError: It is neither, or out of order.
        """
        parts = re.fullmatch(r"(\d{1,4})(?::(\d{1,4}))?", text)
        least, most = (int(parts[1]), int(parts[2] or parts[1])) if parts else (0, 0)
        if not 1 <= least <= most:
            raise ValueError(f"--ray: expected a number of replicas such as 2, or MIN:MAX such as 1:4, got {text!r}")
        return cls(least, most)


class Cost(NamedTuple):
    """What a replica counted of a finished picture: drafted tokens that were kept, of how many."""

    accepted: int
    drafted: int


class Replica:
    """One engine loop in a process of Ray's."""

    def __init__(self, open_models: OpenModels, threads: int | None, slots: int) -> None:
        """Open the models; the front holds the limits, so none apply here."""
        limits = Limits(seconds=float(_BOUNDLESS), waiting=_BOUNDLESS)
        self._refusal = ""
        try:
            self._engine = EngineLoop(open_models(threads), slots, limits)
        except (ValueError, OSError) as error:  # told by `info`: Ray would try again, and say less
            self._refusal = str(error)

    def check_health(self) -> None:
        """Tell Ray that it must be replaced; RuntimeError where the loop has ended."""
        if not self._refusal and not self._engine.alive:
            raise RuntimeError("the engine loop has ended")

    async def info(self) -> tuple[ModelInfo, dict[str, int]] | str:
        """What it draws, and the cells of a picture by size; why it cannot, where its models do not open."""
        if self._refusal:
            return self._refusal
        pipelines = self._engine.models.pipelines
        return self._engine.info, {size: models.grid.cells for size, models in pipelines.items()}

    async def code_colours(self) -> bytes | RequestError:
        """See `page.code_colours`."""
        try:
            return await asyncio.to_thread(self._engine.code_colours)
        except RequestError as error:
            return error

    async def check(self, request: DrawRequest) -> RequestError | None:
        """Why the models do not draw a request; None where they do."""
        try:
            await asyncio.to_thread(self._engine.models.prepare, request)
        except RequestError as error:
            return error
        return None

    async def draw(self, request: DrawRequest) -> AsyncIterator[Event | Cost]:
        """Draw one picture: its events, and what it cost before the last one. A client that leaves frees its slot."""
        try:
            ticket = await asyncio.to_thread(self._engine.submit, replace(request, events=True))
        except RequestError as error:
            yield error
            return
        kept = refused = 0
        try:
            async for event in ticket.events():
                if isinstance(event, CellsEvent):
                    kept, refused = kept + len(event.accepted), refused + len(event.rejected)
                    if not request.events:
                        continue
                if isinstance(event, FinishedImage):
                    yield Cost(kept, kept + refused)
                yield event
        finally:
            if not ticket.closed:
                ticket.cancel()


@dataclass(slots=True, eq=False)
class _Picture:
    """One picture of a request, which any replica may draw.

    image: its place in the request. cycle, partial: the last event of each kind that the client has, so that a second
    replica's are not sent twice.
    """

    ticket: Ticket
    request: DrawRequest
    image: int
    cycle: int = 0
    partial: int = -1
    cost: Cost | None = None
    started: float | None = None
    task: asyncio.Task[None] | None = None

    def is_new(self, event: Event) -> bool:
        """Whether the client does not have this event yet; it is then counted as sent."""
        if isinstance(event, CellsEvent):
            new, self.cycle = event.number > self.cycle, max(event.number, self.cycle)
            return new
        if isinstance(event, PartialImage):
            new, self.partial = event.number > self.partial, max(event.number, self.partial)
            return new
        return True


class ReplicaFront:
    """Stands for all replicas as one engine does for the application; see `app.DrawingEngine`.

    It holds the queue and hands out single pictures, as many as the replicas have slots. A picture is drawn by its seed
    alone, so one whose replica dies is drawn again by another, and its client gets what is missing. All state belongs
    to a thread with an event loop of its own.
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
        """Start the replicas, and wait until the first ones have opened their models.

        Args:
            open_models: How a replica opens them.
            scale: How many replicas.
            slots: Pictures that a replica draws side by side.
            limits: What is refused.
            gpus: GPUs of a replica.
            address: Of a Ray cluster; None starts a local one, whose cores the replicas share.

        Raises:
            ValueError: Ray cannot be reached, or the replicas do not start.
        """
        self.limits = limits or Limits()
        self._scale, self._slots = scale, slots
        self._queue: FairQueue[_Picture] = FairQueue()
        self._drawn: set[_Picture] = set()
        self._tickets: dict[Ticket, asyncio.TimerHandle] = {}
        self._draining = False
        self.metrics = Metrics(lambda: len(self._queue), lambda: len(self._drawn), slots * scale.most)
        registry = self.metrics.registry
        self._counted_lost = Counter("underpaint_lost_calls", "Calls of dead replicas, made again", registry=registry)
        self._lost = self._finished = 0
        self._handles: tuple[Any, ...] = ()
        self._seconds_a_picture = 1.0
        self._colours: bytes | RequestError | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, name="underpaint-front", daemon=True)
        self._own_ray, self._address = not ray.is_initialized(), address
        self._name = f"underpaint-{uuid4().hex[:8]}"
        try:
            handle = self._deploy(open_models, gpus)
            info = handle.info.remote().result()
            self._draws, self._checks = handle.options(stream=True).draw, handle.check
            self._makes_colours = handle.code_colours
            self._handles = (handle, self._draws, self._checks, self._makes_colours)
        except (RuntimeError, ConnectionError, ValueError, RayError) as error:
            self._loop.close()
            self._end_ray()
            raise ValueError(f"--ray: the replicas did not start: {str(error).strip().splitlines()[-1]}") from error
        if isinstance(info, str):
            self._loop.close()
            self._end_ray()
            raise ValueError(info)
        self.info: ModelInfo = info[0]
        self._cells: dict[str, int] = info[1]
        self._thread.start()

    def _deploy(self, open_models: OpenModels, gpus: int) -> Any:
        cores = usable_cores()
        threads = None if self._address is not None else max(1, cores // self._scale.most)
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
        quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
        if self._own_ray and self._address is None:
            # The front draws nothing, so the replicas have all cores; more replicas than cores share them.
            ray.init(num_cpus=max(cores, self._scale.most * (threads or 1)), include_dashboard=False, **quiet)
        elif self._own_ray:
            ray.init(address=self._address, **quiet)
        logging.getLogger("ray.serve").setLevel(logging.WARNING)
        serve.start(http_options={"location": "NoServer"}, logging_config={"log_level": "WARNING"})
        deployed = serve.deployment(
            max_ongoing_requests=self._slots + _CHECKS,
            autoscaling_config={
                "min_replicas": self._scale.least,
                "max_replicas": self._scale.most,
                "initial_replicas": self._scale.least,
                "target_ongoing_requests": self._slots,
                "upscale_delay_s": 5.0,
            },
            ray_actor_options={"num_cpus": threads or 1, "num_gpus": gpus},
            health_check_period_s=2.0,
            graceful_shutdown_timeout_s=self.limits.seconds,  # a replica that Ray retires finishes what it draws
        )(Replica)
        return serve.run(deployed.bind(open_models, threads, self._slots), name=self._name, route_prefix=None)

    @property
    def alive(self) -> bool:
        """Whether it works."""
        return self._thread.is_alive()

    @property
    def ready(self) -> bool:
        """Whether it takes requests."""
        return self.alive and not self._draining

    @property
    def lost_calls(self) -> int:
        """Calls of replicas that died, which were made again."""
        return self._lost

    @property
    def finished_pictures(self) -> int:
        """Pictures that clients have whole."""
        return self._finished

    def code_colours(self) -> bytes:
        """See `page.code_colours`; a replica makes them."""
        if self._colours is None:
            made = asyncio.run_coroutine_threadsafe(self._unless_lost("codes", self._makes_colours.remote), self._loop)
            self._colours = made.result()
        if isinstance(self._colours, RequestError):
            raise self._colours
        return self._colours

    def submit(self, request: DrawRequest) -> Ticket:
        """See `EngineLoop.submit`; a replica checks the request."""
        return asyncio.run_coroutine_threadsafe(self._accept(request), self._loop).result()

    def drain(self, seconds: float) -> None:
        """Take no more requests from now on, and refuse what is not finished after `seconds`; returns at once."""
        self._draining = True
        self._loop.call_soon_threadsafe(self._loop.call_later, seconds, self._refuse_all)

    def close(self, seconds: float = 0.0) -> None:
        """Drain, wait until nothing is drawn, and end the replicas."""
        if not self.alive:
            return
        self.drain(seconds)
        asyncio.run_coroutine_threadsafe(self._idle(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._end_ray()

    def _end_ray(self) -> None:
        """Withdraw the application, and end Ray where it was started here."""
        for handle in self._handles:
            handle.shutdown()  # what it does in the background would start Ray again
        if self._own_ray and self._address is None:
            ray.shutdown()
        elif ray.is_initialized():
            with suppress(RayError, RayServeException):  # the cluster may be what failed
                serve.delete(self._name)
            if self._own_ray:
                ray.shutdown()

    async def _accept(self, request: DrawRequest) -> Ticket:
        arrived, count = monotonic(), len(request.seeds)
        seconds = min(self.limits.seconds, request.seconds or self.limits.seconds)
        self._refuse_if_full(count)
        try:
            async with asyncio.timeout(seconds):
                refusal = await self._unless_lost(request.id, lambda: self._checks.remote(request))
        except TimeoutError:
            refusal = _late(seconds)
        if refusal is not None:
            raise refusal
        self._refuse_if_full(count)  # others came meanwhile
        self.metrics.stages.labels("encode").observe(monotonic() - arrived)
        ticket = Ticket(request, arrived + seconds, self._forget)
        size = self.info.default_size if request.size not in self._cells else request.size
        left = max(0.0, ticket.deadline - monotonic())
        self._tickets[ticket] = self._loop.call_later(left, self._end, ticket, _late(seconds))
        for image, seed in enumerate(request.seeds):
            self._queue.push(
                request.client, _Picture(ticket, replace(request, seeds=(seed,)), image), self._cells[size]
            )
        self._fill()
        return ticket

    def _refuse_if_full(self, count: int) -> None:
        if not self.ready:
            raise RequestError(503, SHUTTING_DOWN, "shutting_down")
        if len(self._queue) + count > self.limits.waiting:
            wait = len(self._queue) * self._seconds_a_picture / (self._slots * self._scale.most)
            raise queue_full(len(self._queue), self.limits.waiting, count, wait)

    async def _unless_lost(self, name: str, call: Callable[[], Awaitable[Any]]) -> Any:
        """What `call` returns, made again where its replica dies; a RequestError where too many die in a row."""
        for attempt in range(MOST_ATTEMPTS):
            try:
                return await call()
            except RayTaskError:
                _LOG.exception("request %s failed on its replica", name)
                return _FAILED
            except (RayError, RayServeException) as error:
                self._lost += 1
                self._counted_lost.inc()
                _LOG.warning("request %s lost its replica (%s) and goes to another", name, type(error).__name__)
                await asyncio.sleep(0.1 * attempt)
        lost = f"{MOST_ATTEMPTS} replicas in a row ended while they worked on this request; send it again, or another"
        return RequestError(503, lost, "replicas_lost")

    def _fill(self) -> None:
        """Hand out pictures while the replicas have slots."""
        while len(self._queue) and len(self._drawn) < self._slots * self._scale.most:
            picture = self._queue.pop()
            self._drawn.add(picture)
            picture.task = self._loop.create_task(self._draw(picture))

    async def _draw(self, picture: _Picture) -> None:
        """Draw a picture, on one replica after another if need be."""
        picture.started = monotonic()
        try:
            failure = await self._unless_lost(picture.request.id, lambda: self._draw_once(picture))
            if failure is not None:
                self._end(picture.ticket, failure)
        except Exception:
            _LOG.exception("request %s failed", picture.request.id)
            self._end(picture.ticket, _FAILED)
        finally:
            self._drawn.discard(picture)
            if picture.ticket.closed:
                self._settle(picture.ticket)
            self._fill()

    async def _draw_once(self, picture: _Picture) -> RequestError | None:
        """Draw a picture on one replica; None once the client has it."""
        response = self._draws.remote(picture.request)
        try:
            async for event in response:
                if isinstance(event, Cost):
                    picture.cost = event
                elif isinstance(event, RequestError):
                    return event
                elif picture.is_new(event):
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
            accepted, drafted = picture.cost or (0, 0)
            counted = DecodingResult(np.zeros(event.tokens, np.int64), accepted=(accepted,), depths=(drafted,))
            self.metrics.finished(event.method, counted, event.target_passes)
            self.metrics.stages.labels("queue").observe(waited)
            self.metrics.stages.labels("draw").observe(event.draw_seconds)
            self.metrics.decided(event.tokens)
            self._seconds_a_picture += 0.1 * (event.draw_seconds - self._seconds_a_picture)
        picture.ticket.put(replace(event, image=picture.image))

    def _end(self, ticket: Ticket, error: RequestError) -> None:
        """Refuse the rest of a request."""
        ticket.put(error)
        self._settle(ticket)

    def _refuse_all(self) -> None:
        for ticket in tuple(self._tickets):
            self._end(ticket, RequestError(503, SHUTTING_DOWN, "shutting_down"))

    def _forget(self, ticket: Ticket) -> None:
        """The client left: see `Ticket.cancel`."""
        self.metrics.cancelled.inc()
        self._loop.call_soon_threadsafe(self._settle, ticket)

    def _settle(self, ticket: Ticket) -> None:
        """Drop what is left of a closed ticket: its pictures leave the queue and their replicas."""
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


def _late(seconds: float) -> RequestError:
    late = f"the request was not finished within its {seconds:.0f} seconds"
    return RequestError(504, f"{late}; allow more, or ask for fewer pictures", "deadline_exceeded")
