"""A replica of the server is killed in mid-run: is a request lost, and is any picture another one for it?

Run: python -m benchmarks.server_replicas [--requests 60] [--replicas 2] [--resolution 64] [--out FILE]

Requests of two streamed pictures each, with seeds of their own, go to replicas under Ray Serve. Once a third of the
pictures is drawn, one replica gets kill -9. Every event that a client received is then compared with what one engine
loop gives for the same requests, with nothing killed: cells of every cycle, pictures on the way, finished pictures.
Needs Linux, whose table of processes names the replicas. The last line is JSON; --out writes it to a file too.
"""

import asyncio
import os
import signal
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any, Final

from benchmarks.report import at_least, finish, options, parse, refusing
from underpaint.artifacts.install import install_hint
from underpaint.cli.live import LiveOptions
from underpaint.cli.options import DeviceChoice
from underpaint.cli.serve import open_served
from underpaint.serve.requests import DrawRequest, Event, FinishedImage, RequestError

if TYPE_CHECKING:
    from underpaint.serve.replica_front import ReplicaFront
    from underpaint.serve.ticket import Ticket

METHODS: Final = ("eagle2", "adt+lantern", "jacobi-lookup")
PROMPT: Final = "a woolly fox left of an outlined pumpkin"
SLOTS: Final = 2
_NOTICED: Final = 0.5
"""Seconds within which a lost call shows."""


def requests(count: int) -> list[DrawRequest]:
    """Requests of two pictures each, of several methods and clients."""
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
        for place in range(count)
    ]


def received(tickets: "Sequence[Ticket]") -> list[list[Event]]:
    """All events of tickets, taken side by side."""

    async def taken(ticket: "Ticket") -> list[Event]:
        return [event async for event in ticket.events()]

    async def all_taken() -> list[list[Event]]:
        return list(await asyncio.gather(*map(taken, tickets)))

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
    """The replicas below this process."""
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


def replica_kill(count: int, replicas: int, resolution: int) -> dict[str, Any]:
    """Draw `count` requests while one of `replicas` replicas is killed, and compare.

    Raises:
        ValueError: The replicas do not start.
    """
    from underpaint.serve.engine import EngineLoop
    from underpaint.serve.replica_front import ReplicaFront
    from underpaint.serve.replicas import Scale

    open_models = partial(open_served, None, LiveOptions(), resolution, None, "cpu", DeviceChoice(), None)
    asked = requests(count)
    front = ReplicaFront(open_models, Scale(replicas, replicas), SLOTS)
    try:
        processes = replica_processes()
        started = time.monotonic()
        with ThreadPoolExecutor(8) as clients:
            tickets = list(clients.map(front.submit, asked))
        killing = Thread(target=_kill_in_the_middle, args=(front, processes, 2 * count // 3))
        killing.start()
        answers = received(tickets)
        seconds = time.monotonic() - started
        killing.join()
        calls = front.lost_calls
    finally:
        front.close()
    alone = EngineLoop(open_models(None), SLOTS)
    started = time.monotonic()
    expected = received([alone.submit(one) for one in asked])
    seconds_alone = time.monotonic() - started
    alone.close()
    pairs = zip(map(comparable, answers), map(comparable, expected), strict=True)
    finished = [sum(isinstance(event, FinishedImage) for event in events) for events in answers]
    return {
        "requests": count,
        "pictures": sum(finished),
        "replicas": replicas,
        "replicas_seen": len(processes),
        "calls_made_again": calls,
        "lost_requests": sum(number < 2 for number in finished),
        "requests_with_other_events": sum(got != plain for got, plain in pairs),
        "events": sum(map(len, answers)),
        "seconds": round(seconds, 2),
        "seconds_of_one_loop": round(seconds_alone, 2),
    }


def _kill_in_the_middle(front: "ReplicaFront", processes: Sequence[int], pictures: int) -> None:
    """Kill a replica that is drawing: the next one where the first turns out to have been idle."""
    while front.finished_pictures < pictures:
        time.sleep(0.02)
    for process in processes:
        os.kill(process, signal.SIGKILL)
        deadline = time.monotonic() + _NOTICED
        while time.monotonic() < deadline:
            if front.lost_calls:
                return
            time.sleep(0.02)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run it and print one JSON line."""
    parser = options("server_replicas", __doc__)
    parser.add_argument("--requests", type=at_least(3), default=60, help="of two pictures each; default: 60")
    parser.add_argument("--replicas", type=at_least(2), default=2, help="default: 2")
    parser.add_argument("--resolution", type=int, choices=(64, 128), default=64, help="default: 64")
    asked = parse(parser, arguments)
    with refusing(parser):
        if find_spec("ray") is None:
            raise ValueError(f"replicas need Ray Serve; install it with: {install_hint('serve-ray')}")
        if not Path("/proc/self/cmdline").exists():
            raise ValueError("this machine has no /proc, by which the replicas are told; run it on Linux")
    finish({"replica_kill": replica_kill(asked.requests, asked.replicas, asked.resolution)}, asked.out)


if __name__ == "__main__":
    main()
