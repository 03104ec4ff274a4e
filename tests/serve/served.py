"""An engine loop and a server on synthetic models, whose passes a test may hold back."""

import asyncio
import base64
import io
import json
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from time import monotonic, sleep
from typing import Any

import httpx2
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from tests.cli.synthetic_pipeline import SyntheticPipeline
from tests.wrapped import Wrapped
from underpaint.algos.rows import SamplingParams
from underpaint.algos.step import Target
from underpaint.runtime.conditions import Condition
from underpaint.runtime.drawing import Drawing, draw
from underpaint.runtime.methods.method import Timed
from underpaint.runtime.methods.registry import build_method, resolve
from underpaint.serve.app import create_app
from underpaint.serve.engine import EngineLoop
from underpaint.serve.guard import Keys
from underpaint.serve.models import ServedModels
from underpaint.serve.requests import DrawRequest, Event, FinishedImage, Limits, RequestError
from underpaint.serve.server import Drains, Server, bound_socket
from underpaint.serve.ticket import Ticket

PROMPT = "a woolly fox left of an owl"
OTHER = "a glossy whale right of an owl"
PATH = "/v1/images/generations"
SECONDS = 180.0
"""Nothing here takes so long on the slowest machine."""
_numbers = iter(range(1_000_000))


class Gate:
    """Lets target passes through while it is open, or so many of them."""

    def __init__(self) -> None:
        self.open = True
        self.passes = 0
        self._allowed = 0
        self._changed = threading.Condition()

    def shut(self) -> None:
        self.open = False

    def let(self, passes: int | None = None) -> None:
        """Let so many passes through; None opens it."""
        with self._changed:
            self.open = passes is None
            self._allowed += passes or 0
            self._changed.notify_all()

    @property
    def allowed(self) -> int:
        """Passes that may still go through while it is shut."""
        return self._allowed

    def pass_through(self) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self.open or self._allowed > 0, SECONDS)
            self._allowed -= not self.open
            self.passes += 1


@dataclass
class GatedTarget(Wrapped):
    gate: Gate = field(default_factory=Gate)

    def score(self, asked: Any) -> Any:
        self.gate.pass_through()
        return self.inner.score(asked)


@dataclass
class ServedPipeline(SyntheticPipeline):
    backend: str = "synthetic"
    gate: Gate = field(default_factory=Gate)
    forks: list["ServedPipeline"] = field(default_factory=list)

    def fork(self) -> "ServedPipeline":
        forked = replace(self, forks=[])
        self.forks.append(forked)
        return forked

    def target(self, condition: Condition, sampling: SamplingParams) -> Timed[Target]:
        timed = super().target(condition, sampling)
        return Timed(GatedTarget(timed.model, gate=self.gate), timed.timer)


@contextmanager
def engine_loop(
    slots: int = 2, limits: Limits | None = None, models: ServedModels | None = None
) -> Iterator[EngineLoop]:
    """models: None for synthetic ones; see `gate_of`."""
    engine = EngineLoop(models or ServedModels("synthetic", {"64x64": ServedPipeline()}), slots, limits)
    try:
        yield engine
    finally:
        gate_of(engine).let()
        engine.close()


def gate_of(engine: EngineLoop) -> Gate:
    return engine.models.pipelines["64x64"].gate


def request(prompt: str = PROMPT, seeds: tuple[int, ...] = (0,), method: str = "ar", **more: Any) -> DrawRequest:
    return DrawRequest(f"r{next(_numbers)}", prompt, seeds, method, **more)


def events_of(*tickets: Ticket) -> list[list[Event]]:
    """All events of tickets, taken side by side."""

    async def taken(ticket: Ticket) -> list[Event]:
        return [event async for event in ticket.events()]

    async def all_taken() -> list[list[Event]]:
        return await asyncio.wait_for(asyncio.gather(*map(taken, tickets)), SECONDS)

    return asyncio.run(all_taken())


def pictures(events: list[Event]) -> list[NDArray[np.uint8]]:
    """The finished pictures of a ticket, in the order of its seeds; an error is raised."""
    for event in events:
        if isinstance(event, RequestError):
            raise event
    finished = sorted((one for one in events if isinstance(one, FinishedImage)), key=lambda one: one.image)
    return [pixels(one.content) for one in finished]


def pixels(content: bytes) -> NDArray[np.uint8]:
    return np.asarray(Image.open(io.BytesIO(content)).convert("RGB"))


def drawn_alone(draw_request: DrawRequest, pipeline: Any = None) -> list[Drawing]:
    """What a request asks for, drawn by itself and on the host's own loop."""
    models = pipeline or ServedPipeline()
    sampling = (
        models.sampling
        if draw_request.temperature is None
        else replace(models.sampling, temperature=draw_request.temperature)
    )
    method = build_method(draw_request.method, resolve(draw_request.method, sampling.temperature), models.tables)
    return [draw(models, method, sampling, models.condition(draw_request.prompt), seed) for seed in draw_request.seeds]


def expected_pictures(draw_request: DrawRequest, pipeline: Any = None) -> list[NDArray[np.uint8]]:
    models = pipeline or ServedPipeline()
    return [models.picture(one.tokens_array()) for one in drawn_alone(draw_request, models)]


@dataclass
class Address:
    """A server that listens. client: for requests of one after the other."""

    engine: EngineLoop
    client: httpx2.Client
    host: str
    port: int
    server: Server
    thread: threading.Thread

    def post(self, **body: Any) -> httpx2.Response:
        return self.client.post(PATH, json={"prompt": PROMPT, "method": "ar", **body})

    def stream(self, **body: Any) -> list[tuple[str, dict[str, Any]]]:
        """The events of a streamed request: names and data."""
        response = self.post(stream=True, **body)
        assert response.status_code == 200, response.text
        assert response.headers["content-type"].startswith("text/event-stream")
        events = []
        for block in response.text.strip().split("\n\n"):
            name, data = block.split("\n")
            events.append((name.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
        return events


@contextmanager
def running(app: Any, engine: Drains) -> Iterator[tuple[Server, threading.Thread, int]]:
    """A server of an application in a thread of its own, and its port on loopback, once it listens there."""
    with closing(bound_socket("127.0.0.1", 0)) as bound:
        server = Server(app, engine, drain_seconds=5.0)
        server.handled_signals = ()  # a thread may handle none
        thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]}, daemon=True)
        thread.start()
        try:
            end = monotonic() + SECONDS
            while not server.started:
                assert thread.is_alive(), "the server ended before it listened"
                assert monotonic() < end, f"the server does not listen after {SECONDS:.0f} seconds"
                sleep(0.002)
            yield server, thread, bound.getsockname()[1]
        finally:
            server.should_exit = True
            thread.join(SECONDS)
            assert not thread.is_alive(), f"the server has not ended after {SECONDS:.0f} seconds"


@contextmanager
def listening(engine: EngineLoop, keys: Keys | None = None, log_prompts: bool = False) -> Iterator[Address]:
    app = create_app(engine, engine.limits, keys, log_prompts)
    with (
        running(app, engine) as (server, thread, port),
        httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=SECONDS) as client,
    ):
        try:
            yield Address(engine, client, "127.0.0.1", port, server, thread)
        finally:
            gate_of(engine).let()


@contextmanager
def server(
    slots: int = 2, limits: Limits | None = None, keys: Keys | None = None, log_prompts: bool = False
) -> Iterator[Address]:
    with engine_loop(slots, limits) as engine, listening(engine, keys, log_prompts) as address:
        yield address


def picture_in(answer: dict[str, Any]) -> NDArray[np.uint8]:
    return pixels(base64.b64decode(answer["b64_json"]))
