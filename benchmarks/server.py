"""The server under load: many clients, clients that leave or do not read, memory over time.

Run: python -m benchmarks.server [--parts load,turns,memory,clients] [--seconds 300] [--pictures 2000] [--out FILE]

`underpaint serve` runs in a process of its own, on the shipped models at 64 px, and clients reach it over loopback.
`load`: 64 clients, each with an address of its own, ask for one picture after the other; every picture is compared with
the one that the same seed draws without a server. `turns`: the same method for one client at a time, and by other
numbers of slots. `memory`: the server's resident memory while it draws. `clients`: one client's times while others
leave in mid-stream or read nothing. Parts that are left out keep their figures in FILE; `malformed` there is from
before tests/serve/test_fuzz.py sent such requests. Needs Linux, and the extra `serve` with httpx2. The last line is
JSON.
"""

from __future__ import annotations

import asyncio
import json
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

import httpx2
import numpy as np

from benchmarks.report import at_least, finish, options, parse, refusing
from underpaint.runtime.drawing import draw
from underpaint.runtime.methods.registry import build_method, resolve
from underpaint.runtime.pipeline import Pipeline

PATH: Final = "/v1/images/generations"
METHOD: Final = "jacobi-lookup"
QUICK: Final = "adt+lantern"
"""The method of the memory's many pictures: it takes the fewest passes."""
PROMPTS: Final = (
    "a woolly fox left of an outlined pumpkin",
    "a glossy whale right of an owl",
    "a stone drum above a glossy whale",
    "an outlined owl left of a woolly fox",
)
SEEDS: Final = 8
CLIENTS: Final = 64
SLOTS: Final = 4
LEAVE: Final = 32
STALL: Final = 8
PARTS: Final = ("load", "turns", "memory", "clients")
_HUNG: Final = 900.0


class Served(NamedTuple):
    """A server in a process of its own. log: what it wrote to standard error."""

    url: str
    process: subprocess.Popen[str]
    log: Path

    @property
    def address(self) -> tuple[str, int]:
        """Host and port."""
        host, _, port = self.url.removeprefix("http://").partition(":")
        return host, int(port)

    def memory_mib(self) -> float:
        """Resident memory."""
        (kib,) = re.findall(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{self.process.pid}/status").read_text(encoding="ascii"))
        return int(kib) / 1024

    def metric(self, name: str) -> float:
        """One figure of /metrics."""
        text = httpx2.get(f"{self.url}/metrics", timeout=_HUNG).text
        return float(re.findall(rf"^{name} (\S+)$", text, re.MULTILINE)[0])

    def tracebacks(self) -> int:
        """How many stand in its log."""
        return self.log.read_text(encoding="utf-8").count("Traceback")


@contextmanager
def served(slots: int = SLOTS, *more: str) -> Iterator[Served]:
    """A server that is ready; it is stopped by SIGTERM, and must end with code 0."""
    command = [sys.executable, "-m", "underpaint", "serve", "--port", "0", "--resolution", "64", "--slots", str(slots)]
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        with log.open("w") as errors:
            process = subprocess.Popen([*command, *more], stdout=subprocess.PIPE, stderr=errors, text=True)
        try:
            assert process.stdout is not None
            said = process.stdout.readline()
            if not said:
                raise RuntimeError(f"the server did not start: {log.read_text(encoding='utf-8')}")
            (url,) = re.findall(r"http://\S+:\d+", said)
            yield Served(url, process, log)
            process.terminate()
            if process.wait(_HUNG) != 0:
                raise RuntimeError(f"the server ended with code {process.returncode}")
        finally:
            process.kill()
            process.communicate()


class Asked(NamedTuple):
    """One request. wrong: whether its picture is another than its seed's. status 0: no answer came."""

    client: int
    status: int
    seconds: float
    wrong: bool = False


async def ask(client: httpx2.AsyncClient, number: int, turn: int, known: dict[tuple[str, int], str]) -> Asked:
    """Ask for one picture; `known` keeps the first answer for each prompt and seed."""
    prompt, seed = PROMPTS[(number + turn) % len(PROMPTS)], turn % SEEDS
    started = time.monotonic()
    try:
        answer = await client.post(PATH, json={"prompt": prompt, "seed": seed, "method": METHOD})
    except httpx2.HTTPError:
        return Asked(number, 0, time.monotonic() - started)
    took = time.monotonic() - started
    if answer.status_code != 200:
        return Asked(number, answer.status_code, took)
    picture = answer.json()["data"][0]["b64_json"]
    return Asked(number, 200, took, known.setdefault((prompt, seed), picture) != picture)


async def load(url: str, clients: int, seconds: float, known: dict[tuple[str, int], str]) -> list[Asked]:
    """Clients ask for one picture after the other until the time is over, then wait for their last."""
    end = time.monotonic() + seconds

    async def one(number: int) -> list[Asked]:
        transport = httpx2.AsyncHTTPTransport(local_address=f"127.0.0.{2 + number}")
        async with httpx2.AsyncClient(base_url=url, transport=transport, timeout=_HUNG) as client:
            found = list[Asked]()
            while time.monotonic() < end:
                found.append(await ask(client, number, len(found), known))
            return found

    return [asked for found in await asyncio.gather(*map(one, range(clients))) for asked in found]


def expected() -> dict[tuple[str, int], tuple[int, ...]]:
    """The tokens of every picture that clients ask for, drawn without a server."""
    pipeline = Pipeline.open(resolution=64)
    method = build_method(METHOD, resolve(METHOD, pipeline.sampling.temperature), pipeline.tables)
    return {
        (prompt, turn): draw(pipeline, method, pipeline.sampling, pipeline.condition(prompt), turn).tokens
        for prompt in PROMPTS
        for turn in range(SEEDS)
    }


def other_pictures(known: dict[tuple[str, int], str]) -> int:
    """How many of the server's pictures are not those of the same seed without a server."""
    from tests.serve.served import picture_in

    pipeline, tokens = Pipeline.open(resolution=64), expected()
    return sum(
        not np.array_equal(picture_in({"b64_json": content}), pipeline.picture(np.array(tokens[key])))
        for key, content in known.items()
    )


def figures(asked: Sequence[Asked], seconds: float) -> dict[str, Any]:
    """What a run came to."""
    fine = np.array([one.seconds for one in asked if one.status == 200])
    each = Counter(one.client for one in asked if one.status == 200)
    return {
        "seconds": seconds,
        "pictures": len(fine),
        "errors": sum(one.status != 200 for one in asked),
        "lost": sum(one.status == 0 for one in asked),
        "changed": sum(one.wrong for one in asked),
        "p50_s": float(np.percentile(fine, 50)),
        "p99_s": float(np.percentile(fine, 99)),
        "pictures_a_second": len(fine) / seconds,
        "tokens_a_second": 64 * len(fine) / seconds,
        "fewest_a_client": min(each.values()),
        "most_a_client": max(each.values()),
    }


def run_load(clients: int, seconds: float, slots: int) -> dict[str, Any]:
    """A server under so many clients; its pictures are compared with those that are drawn without a server."""
    known: dict[tuple[str, int], str] = {}
    with served(slots) as server:
        asyncio.run(load(server.url, min(clients, slots), 1.0, known))  # first passes allocate
        started = time.monotonic()
        asked = asyncio.run(load(server.url, clients, seconds, known))
        found = figures(asked, time.monotonic() - started)
        found |= {"tracebacks": server.tracebacks(), "memory_mib": server.memory_mib()}
    return {"clients": clients, "slots": slots, **found, "other_pictures": other_pictures(known)}


def run_turns(seconds: float) -> dict[str, Any]:
    """The same method without a server, for one client at a time, and by several numbers of slots."""
    pipeline = Pipeline.open(resolution=64)
    method = build_method(METHOD, resolve(METHOD, pipeline.sampling.temperature), pipeline.tables)
    conditions = [pipeline.condition(prompt) for prompt in PROMPTS]
    draw(pipeline, method, pipeline.sampling, conditions[0], 0)
    took, started = list[float](), time.monotonic()
    while time.monotonic() - started < seconds:
        turn = len(took)
        before = time.monotonic()
        drawing = draw(pipeline, method, pipeline.sampling, conditions[turn % len(conditions)], turn % SEEDS)
        pipeline.picture(drawing.tokens_array())
        took.append(time.monotonic() - before)
    alone = figures([Asked(0, 200, one) for one in took], time.monotonic() - started)
    rows = [run_load(clients, seconds, slots) for clients, slots in ((1, 1), (16, 1), (16, 2), (16, 4), (16, 8))]
    return {"no_server": alone, "rows": rows}


def run_memory(count: int) -> dict[str, Any]:
    """Resident memory, each time a twentieth of the pictures is drawn."""
    seen = list[tuple[int, float]]()
    with served() as server, httpx2.Client(base_url=server.url, timeout=_HUNG) as client:
        started = time.monotonic()
        for drawn in range(0, count, 10):
            body = {"prompt": PROMPTS[drawn % len(PROMPTS)], "seed": drawn, "n": 10, "method": QUICK}
            if client.post(PATH, json=body).status_code != 200:
                raise RuntimeError("a picture was refused")
            if (drawn + 10) % max(10, count // 20) == 0:
                seen.append((drawn + 10, server.memory_mib()))
        seconds = time.monotonic() - started
    later = seen[len(seen) // 4 :]
    slope = np.polyfit(*zip(*later, strict=True), 1)[0]
    return {
        "pictures": count,
        "seconds": seconds,
        "seen": [[drawn, round(mib, 1)] for drawn, mib in seen],
        "first_quarter_mib": later[0][1],
        "last_mib": later[-1][1],
        "growth_mib_per_1000": 1000 * float(slope),
    }


def raw_request(server: Served, **body: Any) -> socket.socket:
    """A request for many streamed pictures, on a socket of its own."""
    content = json.dumps({"prompt": PROMPTS[0], "method": METHOD, "stream": True, "events": True, **body}).encode()
    head = (
        f"POST {PATH} HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\ncontent-length: {len(content)}\r\n\r\n"
    )
    sent = socket.create_connection(server.address, _HUNG)
    sent.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sent.sendall(head.encode() + content)
    return sent


def run_clients() -> dict[str, Any]:
    """One client's times: alone, after others left in mid-stream, and beside others that read nothing.

    The others share an address, and this client has one of its own.
    """
    transport = httpx2.HTTPTransport(local_address="127.0.0.2")
    with served(SLOTS) as server, httpx2.Client(base_url=server.url, transport=transport, timeout=_HUNG) as client:

        def times(count: int) -> dict[str, float]:
            took = list[float]()
            for turn in range(count):
                started = time.monotonic()
                answer = client.post(PATH, json={"prompt": PROMPTS[1], "seed": turn, "method": METHOD})
                took.append(time.monotonic() - started)
                answer.raise_for_status()
            return {"p50_s": float(np.median(took)), "longest_s": max(took)}

        def open_pictures() -> float:
            return server.metric("underpaint_batch_occupancy") + server.metric("underpaint_queue_pictures")

        times(2)
        alone = times(20)
        for _ in range(LEAVE):
            with closing(raw_request(server, n=10)) as leaving:
                leaving.recv(1000)
        started = time.monotonic()
        while open_pictures() > 0:
            time.sleep(0.01)
        freed, cancelled = time.monotonic() - started, server.metric("underpaint_cancelled_requests_total")
        after = times(20)
        stalled = [raw_request(server, n=10) for _ in range(STALL)]
        while open_pictures() < 10 * STALL:
            time.sleep(0.01)
        beside = times(20)
        while open_pictures() > 0:
            time.sleep(0.1)
        behind = times(20)
        for one in stalled:
            with suppress(OSError):
                one.close()
        tracebacks = server.tracebacks()
    rows = {
        "alone": alone,
        f"after {LEAVE} clients left in mid-stream": after,
        f"while {10 * STALL} pictures are drawn for {STALL} clients that read nothing": beside,
        "after that, their answers still unread": behind,
    }
    return {
        "left": LEAVE,
        "cancelled": int(cancelled),
        "freed_s": freed,
        "tracebacks": tracebacks,
        "rows": [{"what": what, **row} for what, row in rows.items()],
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = options("server", __doc__)
    parser.add_argument("--parts", default=",".join(PARTS), help="parts to measure, with commas between")
    parser.add_argument("--seconds", type=at_least(1), default=300, help="of `load`; a tenth in each row of `turns`")
    parser.add_argument("--pictures", type=at_least(200), default=2_000, help="of `memory`")
    asked = parse(parser, arguments)
    with refusing(parser):
        parts = asked.parts.split(",")
        if not set(parts) <= set(PARTS):
            raise ValueError(f"--parts: expected some of {', '.join(PARTS)}, got {asked.parts}")
        held = asked.out is not None and asked.out.is_file()
        record = json.loads(asked.out.read_text(encoding="utf-8")) if held else {}
    made = {
        "load": lambda: run_load(CLIENTS, asked.seconds, SLOTS),
        "turns": lambda: run_turns(max(1.0, asked.seconds / 10)),
        "memory": lambda: run_memory(asked.pictures),
        "clients": run_clients,
    }
    for part in parts:
        record[part] = made[part]()
        print(f"{part}: {json.dumps(record[part])}", file=sys.stderr, flush=True)
    finish({name: part for name, part in record.items() if name not in ("machine", "command")}, asked.out)


if __name__ == "__main__":
    main()
