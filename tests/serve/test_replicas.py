"""Replicas under Ray Serve, one of which is killed in mid-run: nothing is lost, and nothing is drawn otherwise.

Requests of two streamed pictures each go to two replicas that draw with the shipped models. Once a third of the
pictures is drawn, a replica gets SIGKILL. Every event that a client received is then compared with what one engine loop
gives for the same requests, with nothing killed: cells of every cycle, pictures on the way, finished pictures.
"""

import asyncio
import importlib.util
import os
import signal
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Final, NamedTuple

import pytest

from tests.one_core import room_for_ray
from underpaint.cli.live import LiveOptions
from underpaint.cli.options import DeviceChoice
from underpaint.cli.serve import open_served
from underpaint.serve.engine import EngineLoop
from underpaint.serve.requests import DrawRequest, Event, FinishedImage, RequestError
from underpaint.serve.ticket import Ticket

if TYPE_CHECKING:
    from underpaint.serve.replica_front import ReplicaFront

REQUESTS: Final = 6
SLOTS: Final = 2
METHODS: Final = ("eagle2", "adt+lantern", "jacobi-lookup")
PROMPT: Final = "a woolly fox left of an outlined pumpkin"
NOTICED: Final = 0.5
"""Seconds within which a lost call shows."""

needs_ray = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None or importlib.util.find_spec("grpc") is None,
    reason="Ray Serve (extra 'serve-ray') is absent",
)


def requests() -> list[DrawRequest]:
    """Requests of several methods and clients."""
    return [
        DrawRequest(
            f"request {place}",
            PROMPT,
            (2 * place, 2 * place + 1),
            METHODS[place % len(METHODS)],
            client=f"client {place % 8}",
            partial_images=1,
            events=True,
        )
        for place in range(REQUESTS)
    ]


def received(tickets: Sequence[Ticket]) -> list[list[Event]]:
    """All events of tickets, taken side by side."""

    async def taken(ticket: Ticket) -> list[Event]:
        return [event async for event in ticket.events()]

    async def all_taken() -> list[list[Event]]:
        return await asyncio.wait_for(asyncio.gather(*map(taken, tickets)), 300)

    return asyncio.run(all_taken())


def comparable(events: Sequence[Event]) -> dict[tuple[int, str], list[Event]]:
    """Events by picture and kind, in the order that the client got them, without what the clock decides."""
    kinds: dict[tuple[int, str], list[Event]] = {}
    for event in events:
        image = -1 if isinstance(event, RequestError) else event.image
        if isinstance(event, FinishedImage):
            event = replace(event, queue_seconds=0.0, draw_seconds=0.0)
        kinds.setdefault((image, type(event).__name__), []).append(event)
    return kinds


def replica_processes() -> list[int]:
    """The replicas below this process, by Linux's table of processes."""
    parents: dict[int, int] = {}
    replicas: list[int] = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            stat, command = (folder / "stat").read_text(), (folder / "cmdline").read_bytes()
        except OSError:  # it has just ended
            continue
        parents[int(folder.name)] = int(stat.rpartition(")")[2].split()[1])
        if command.startswith(b"ray::ServeReplica"):
            replicas.append(int(folder.name))

    def is_below(process: int) -> bool:
        while process > 1 and process != os.getpid():
            process = parents.get(process, 0)
        return process == os.getpid()

    return sorted(filter(is_below, replicas))


def kill_in_the_middle(front: "ReplicaFront", processes: Sequence[int]) -> None:
    """Kill a replica that is drawing: the next one where the first turns out to have been idle."""
    while front.finished_pictures < 2 * REQUESTS // 3:
        time.sleep(0.02)
    for process in processes:
        os.kill(process, signal.SIGKILL)
        deadline = time.monotonic() + NOTICED
        while time.monotonic() < deadline:
            if front.lost_calls:
                return
            time.sleep(0.02)


class Run(NamedTuple):
    """The events that clients received with a replica killed and with nothing killed; calls that were made again."""

    replicas: int
    lost_calls: int
    answers: list[list[Event]]
    expected: list[list[Event]]


def run_with_a_killed_replica() -> Run:
    """Draw all requests while a replica is killed, and again by one engine loop."""
    from underpaint.serve.replica_front import ReplicaFront
    from underpaint.serve.replicas import Scale

    open_models = partial(open_served, None, LiveOptions(), 64, None, "cpu", DeviceChoice(), None, False)
    with room_for_ray():
        front = ReplicaFront(open_models, Scale(2, 2), SLOTS)
    try:
        processes = replica_processes()
        with ThreadPoolExecutor(8) as clients:
            tickets = list(clients.map(front.submit, requests()))
        killing = Thread(target=kill_in_the_middle, args=(front, processes), daemon=True)
        killing.start()
        answers = received(tickets)
        killing.join(60)
        lost_calls = front.lost_calls
    finally:
        front.close()
    alone = EngineLoop(open_models(None), SLOTS)
    try:
        return Run(len(processes), lost_calls, answers, received([alone.submit(one) for one in requests()]))
    finally:
        alone.close()


@pytest.mark.slow
@needs_ray
@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="finds replicas in Linux's table of processes")
def test_a_replica_that_is_killed_loses_nothing() -> None:
    with ProcessPoolExecutor(1, get_context("spawn")) as apart:  # Ray's warnings and threads stay out of this process
        run = apart.submit(run_with_a_killed_replica).result()
    assert run.replicas == 2
    assert run.lost_calls > 0
    for answer, plain in zip(run.answers, run.expected, strict=True):
        assert sum(isinstance(event, FinishedImage) for event in answer) == 2
        assert comparable(answer) == comparable(plain)
