"""Who draws when: the same pictures whatever else is drawn, fair shares, bounds, deadlines, clients that leave."""

import asyncio
import json
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.serve.served import (
    OTHER,
    PATH,
    PROMPT,
    SECONDS,
    Address,
    ServedPipeline,
    engine_loop,
    events_of,
    expected_pictures,
    gate_of,
    pictures,
    request,
    server,
)
from underpaint.serve.answers import EventStream
from underpaint.serve.engine import EngineLoop
from underpaint.serve.progress import Job, Picture
from underpaint.serve.queueing import FairQueue
from underpaint.serve.requests import CellsEvent, FinishedImage, Limits, PartialImage, RequestError
from underpaint.serve.ticket import Ticket


def until(condition: Callable[[], bool]) -> None:
    """Wait for another thread."""
    end = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.002)


def error_of(ticket: Ticket) -> RequestError:
    (events,) = events_of(ticket)
    assert isinstance(events[-1], RequestError)
    return events[-1]


def let_pass(*tickets: Ticket) -> None:
    """Their deadlines, which are at most 30 seconds away."""
    for ticket in tickets:
        assert time.monotonic() < ticket.deadline <= time.monotonic() + 30.0
        ticket.deadline = time.monotonic()


def busy(engine: EngineLoop) -> tuple[int, int]:
    """Pictures in slots, and pictures that wait."""
    return len(engine._pictures), len(engine._queue)


METHODS = st.sampled_from(("ar", "speculative", "eagle2", "jacobi-lookup", "zipar", "mulo-raster"))
REQUESTS = st.lists(
    st.tuples(
        st.sampled_from((PROMPT, OTHER)), METHODS, st.integers(0, 3), st.sampled_from((0.0, 1.0)), st.integers(0, 9)
    ),
    min_size=1,
    max_size=6,
)


@settings(max_examples=20)
@given(REQUESTS, st.integers(1, 3))
def test_a_picture_does_not_depend_on_what_else_is_drawn(wanted, slots):
    """Requests arrive while others are under way: each after so many passes of those before it."""
    requests = [
        request(prompt, (seed,), method, temperature=1.0 if method == "zipar" else heat)  # its window at 0 is too wide
        for prompt, method, seed, heat, _ in wanted
    ]
    with engine_loop(slots) as engine:
        gate, tickets = gate_of(engine), []
        gate.shut()
        for one, (*_, passes) in zip(requests, wanted, strict=True):
            tickets.append(engine.submit(one))
            gate.let(passes)
        gate.let()
        for one, events in zip(requests, events_of(*tickets), strict=True):
            np.testing.assert_array_equal(pictures(events)[0], expected_pictures(one)[0])


def test_drawings_take_turns_and_requests_join_between_cycles():
    with engine_loop(slots=2) as engine:
        gate = gate_of(engine)
        gate.shut()
        long, short = engine.submit(request(seeds=(0, 1, 2))), engine.submit(request(seeds=(3,), client="b"))
        until(lambda: busy(engine) == (2, 2))
        gate.let()
        events = events_of(long, short)
        assert [len(pictures(one)) for one in events] == [3, 1]
        assert gate.passes == 4 * 15


def finished_in_order(engine: EngineLoop, tickets: dict[str, Ticket]) -> list[str]:
    """The names of tickets by their pictures, as these are finished."""
    order: list[tuple[float, str]] = []
    for name, ticket in tickets.items():
        put = ticket.put

        def noted(event, name=name, put=put):
            if isinstance(event, FinishedImage):
                order.append((time.monotonic(), name))
            return put(event)

        ticket.put = noted  # type: ignore[method-assign]
    gate_of(engine).let()
    events_of(*tickets.values())
    return [name for _, name in sorted(order)]


@pytest.mark.parametrize("share", [True, False])
def test_a_client_that_asks_for_much_waits_behind_itself(share):
    with engine_loop(slots=1) as engine:
        gate_of(engine).shut()
        many = engine.submit(request(seeds=tuple(range(8)), client="a"))
        until(lambda: busy(engine) == (1, 7))
        few = engine.submit(request(seeds=(0, 1), client="b" if share else "a"))
        names = finished_in_order(engine, {"many": many, "few": few})
    first = names.index("few")
    assert first <= 2 if share else first == 8


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from((1.0, 4.0))), min_size=1, max_size=40))
def test_shares_are_fair_and_each_client_is_served_in_order(arrivals):
    queue = FairQueue()
    for number, (client, cost) in enumerate(arrivals):
        queue.push(client, (client, number, cost), cost)
    served = dict.fromkeys("abc", 0.0)
    pending = {client: [one for one in arrivals if one[0] == client] for client in "abc"}
    last = dict.fromkeys("abc", -1)
    while len(queue):
        client, number, cost = queue.pop()
        assert number > last[client]
        last[client] = number
        # Nobody who waits has had less than this client by more than the largest item (Goyal et al., theorem 1).
        for other in "abc":
            if pending[other]:
                assert served[client] - served[other] <= 4.0
        served[client] += cost
        pending[client].pop(0)
    assert not any(pending.values())


@given(st.lists(st.sampled_from("ab"), min_size=2, max_size=20))
def test_what_is_taken_out_costs_nothing(clients):
    """Who waits for nothing more after leaving stands where somebody new would."""
    queue = FairQueue()
    for number, client in enumerate(clients):
        queue.push(client, (client, number))
    gone = queue.remove(lambda item: item[0] == "a")
    assert sorted(gone) == [(client, number) for number, client in enumerate(clients) if client == "a"]
    queue.push("new", ("new", 98))
    queue.push("a", ("a", 99))
    order = [queue.pop() for _ in range(len(queue))]
    assert order.index(("a", 99)) == order.index(("new", 98)) + 1


def test_a_client_with_a_refund_still_leaves_what_waits():
    queue = FairQueue()
    queue.push("done", "d")
    assert queue.pop() == "d"
    for name in ("b1", "b2"):
        queue.push("b", name)
    assert queue.pop() == "b1"
    for name in ("a1", "a2"):
        queue.push("a", name)
    assert queue.remove(lambda name: name == "a1") == ["a1"]  # now client a ends where a2 starts
    assert queue.pop() == "b2"
    assert queue.remove(lambda name: name == "a2") == ["a2"]
    assert len(queue) == 0


def test_a_full_queue_refuses_and_says_when_to_come_back():
    with server(slots=1, limits=Limits(waiting=3)) as address:
        gate_of(address.engine).shut()
        with ThreadPoolExecutor(4) as pool:
            accepted = [pool.submit(address.post)]
            until(lambda: busy(address.engine) == (1, 0))
            accepted.append(pool.submit(address.post, n=3))
            until(lambda: busy(address.engine) == (1, 3))
            refused = address.post()
            assert (refused.status_code, refused.json()["error"]["code"]) == (429, "queue_full")
            assert 1 <= int(refused.headers["retry-after"]) <= 600
            gate_of(address.engine).let()
            assert [one.result().status_code for one in accepted] == [200, 200]
        assert address.post().status_code == 200


def test_a_request_is_queued_whole_or_not_at_all():
    with engine_loop(slots=1, limits=Limits(waiting=4)) as engine:
        gate_of(engine).shut()
        engine.submit(request())
        until(lambda: busy(engine) == (1, 0))
        engine.submit(request(seeds=(1, 2)))
        with pytest.raises(RequestError, match="asks for 3"):
            engine.submit(request(seeds=(1, 2, 3)))
        assert busy(engine) == (1, 2)


def test_deadlines_end_what_waits_and_what_is_drawn():
    with engine_loop(slots=1) as engine:
        gate = gate_of(engine)
        gate.shut()
        active, waits = engine.submit(request(seconds=30.0)), engine.submit(request(seconds=30.0))
        patient = engine.submit(request(seeds=(9,)))
        until(lambda: busy(engine) == (1, 2))
        let_pass(active, waits)
        gate.let()
        late = [error_of(one) for one in (active, waits)]
        assert [(one.status, one.code) for one in late] == [(504, "deadline_exceeded")] * 2
        np.testing.assert_array_equal(pictures(events_of(patient)[0])[0], expected_pictures(request(seeds=(9,)))[0])
    assert gate.passes < 15 + 15


def test_a_deadline_is_at_most_the_servers():
    with engine_loop(slots=1, limits=Limits(seconds=0.2)) as engine:
        gate_of(engine).shut()
        ticket = engine.submit(request(seconds=100.0))
        time.sleep(0.3)
        gate_of(engine).let()
        assert error_of(ticket).status == 504


def test_who_leaves_frees_its_slot_and_its_place():
    with engine_loop(slots=1) as engine:
        gate = gate_of(engine)
        gate.shut()
        leaves = engine.submit(request(seeds=(1, 2, 3)))
        stays = engine.submit(request(seeds=(5,), client="b"))
        until(lambda: busy(engine) == (1, 3))
        gate.let(2)
        until(lambda: gate.passes == 2)
        leaves.cancel()
        assert len(engine._queue) == 1
        gate.let()
        np.testing.assert_array_equal(pictures(events_of(stays)[0])[0], expected_pictures(request(seeds=(5,)))[0])
        assert gate.passes <= 3 + 15
        until(lambda: busy(engine) == (0, 0) and len(engine.slots._free) == 1)


def raw_request(address: Address, **body: object) -> socket.socket:
    """A request on a socket of its own, whose answer nobody reads."""
    sent = socket.create_connection((address.host, address.port), SECONDS)
    sent.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    content = json.dumps({"prompt": PROMPT, "method": "ar", **body}).encode()
    head = (
        f"POST {PATH} HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\ncontent-length: {len(content)}\r\n\r\n"
    )
    sent.sendall(head.encode() + content)
    return sent


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_vanishes_frees_its_slot(stream):
    with server(slots=1) as address:
        engine = address.engine
        gate_of(engine).shut()
        sent = raw_request(address, stream=stream, events=stream, n=4)
        until(lambda: busy(engine) == (1, 3))
        sent.close()
        until(lambda: busy(engine) == (1, 0))
        gate_of(engine).let(1)
        until(lambda: busy(engine) == (0, 0))
        gate_of(engine).let()
        assert address.post().status_code == 200
        assert engine.metrics.cancelled._value.get() == 1


def test_a_client_that_reads_nothing_holds_no_slot():
    with server(slots=1, limits=Limits(images=50)) as address, closing(raw_request(address, stream=True, n=50)):
        assert address.post().status_code == 200  # of the same client, so it waits behind the others
        until(lambda: busy(address.engine) == (0, 0) and not address.engine._tickets)
        assert address.post().status_code == 200


def test_a_stream_that_nobody_reads_is_given_up():
    sent = []

    async def send(message):
        sent.append(message["type"])
        if len(sent) > 2:
            await asyncio.sleep(SECONDS)

    async def receive():
        await asyncio.sleep(SECONDS)

    with engine_loop(slots=1) as engine:
        gate_of(engine).shut()
        ticket = engine.submit(request(seeds=(1, 2), events=True))
        gate_of(engine).let(5)
        asyncio.run(EventStream(ticket, stalled_seconds=0.1)({}, receive, send))
        assert ticket.closed
        assert len(sent) == 3
        gate_of(engine).let()
        until(lambda: busy(engine) == (0, 0) and not engine._tickets)


def test_what_a_slow_client_does_not_read_is_bounded():
    with engine_loop(slots=1) as engine:
        ticket = engine.submit(request(picture_every=1, events=True))
        until(lambda: ticket.closed)
        (events,) = events_of(ticket)
    assert sum(type(one).__name__ == "PartialImage" for one in events) <= 4
    assert sum(type(one).__name__ == "CellsEvent" for one in events) == 16


def test_one_client_does_not_fill_the_encoder_with_partial_pictures():
    with engine_loop(slots=1) as engine:
        gate, encoded, may, encodings = gate_of(engine), engine.models.encoded, threading.Event(), []

        def waiting(size, tokens, form):
            assert may.wait(SECONDS)
            encodings.append(form)
            return encoded(size, tokens, form)

        engine.models.encoded = waiting  # type: ignore[method-assign]
        gate.shut()
        ticket = engine.submit(request(picture_every=1))
        until(lambda: busy(engine) == (1, 0))
        gate.let()
        until(lambda: busy(engine) == (0, 0))
        may.set()
        (events,) = events_of(ticket)
    partial = [one for one in events if isinstance(one, PartialImage)]
    assert [one.number for one in partial] == [0, 1, 2, 3]
    assert len(encodings) == 4 + 1


def test_a_partial_picture_that_is_skipped_stays_due():
    def due(picture, *decided):
        return [picture.partial_due(CellsEvent(0, count, (), (), (), (), count, 20)) for count in decided]

    every, evenly = (
        Picture(Job(None, SimpleNamespace(request=asked), 0), np.zeros(20))  # type: ignore[arg-type]
        for asked in (request(picture_every=5), request(partial_images=3))
    )
    assert due(every, 4, 5, 6, 9) == [None, 0, 0, 0]
    every.partial = 1
    assert due(every, 9, 10, 14, 16, 20) == [None, 1, 1, 2, None]
    assert due(evenly, 4, 5, 6) == [None, 0, 0]
    evenly.partial = 2
    assert due(evenly, 14, 15) == [None, 2]
    evenly.partial = 3
    assert due(evenly, 19) == [None]


def test_places_of_partial_pictures_are_free_again_once_they_are_read():
    ticket = Ticket(request(), time.monotonic() + SECONDS, lambda ticket: None)
    picture = PartialImage(0, 0, 1, b"")
    assert [ticket.reserve_partial() for _ in range(5)] == [True] * 4 + [False]
    assert ticket.put(picture)

    async def read_one():
        async for event in ticket.events():
            return event

    assert asyncio.run(read_one()) is picture
    assert [ticket.reserve_partial() for _ in range(2)] == [True, False]  # three are still being encoded
    ticket.cancel()
    assert not ticket.reserve_partial()


def test_an_error_ends_its_own_request_alone(caplog):
    with engine_loop(slots=2) as engine:
        gate = gate_of(engine)
        gate.shut()
        for fails in (ValueError("expected finite logits, got NaN"), KeyError(3)):
            fine = engine.submit(request(seeds=(4,)))
            until(lambda: busy(engine)[0] == 1)
            broken = engine.submit(request(seeds=(5,)))
            gate.let(1)  # it joins behind this pass
            until(lambda: busy(engine)[0] == 2)

            def step(fails=fails):
                raise fails

            engine.slots._drawings[1].session.step = step  # type: ignore[method-assign]
            gate.let()
            error = error_of(broken)
            assert (error.status, error.code) == (500, "internal_error")
            assert "NaN" not in str(error)
            np.testing.assert_array_equal(pictures(events_of(fine)[0])[0], expected_pictures(request(seeds=(4,)))[0])
            gate.shut()
            until(lambda: len(engine.slots._free) == 2)
    assert "KeyError" in caplog.text
    assert "expected finite logits" in caplog.text


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_loop_that_ends_fails_its_requests_and_says_so():
    with server(slots=1) as address:
        engine = address.engine
        gate_of(engine).shut()
        ticket = engine.submit(request())
        until(lambda: busy(engine)[0] == 1)
        engine._refuse_late = lambda: (_ for _ in ()).throw(MemoryError)  # type: ignore[method-assign]
        gate_of(engine).let()
        assert error_of(ticket).status == 500
        until(lambda: not engine.alive)
        assert address.client.get("/health").status_code == 503
        assert address.client.get("/ready").status_code == 503
        assert address.post().status_code == 503


def test_no_request_is_accepted_while_the_loop_ends(monkeypatch):
    told = list[str]()
    with engine_loop(slots=1) as engine:

        def ask(_):
            assert engine._thread.is_alive()
            with pytest.raises(RequestError) as refused:
                engine.submit(request())
            told.append(refused.value.code)

        monkeypatch.setattr(threading, "excepthook", ask)
        engine._refuse_late = lambda: (_ for _ in ()).throw(MemoryError)  # type: ignore[method-assign]
        assert error_of(engine.submit(request())).status == 500
        until(lambda: not engine.alive)
    assert told == ["shutting_down"]


def test_a_prompt_is_not_read_for_a_request_that_is_refused_anyway(monkeypatch):
    read, condition = list[str](), ServedPipeline.condition
    monkeypatch.setattr(ServedPipeline, "condition", lambda self, text: read.append(text) or condition(self, text))
    with engine_loop(slots=1, limits=Limits(waiting=1)) as engine:
        gate_of(engine).shut()
        engine.submit(request())
        until(lambda: busy(engine) == (1, 0))
        engine.submit(request())
        for code in ("queue_full", "shutting_down"):
            with pytest.raises(RequestError) as refused:
                engine.submit(request(OTHER))
            assert refused.value.code == code
            engine.drain(0.0)
    assert read == [PROMPT]


def test_draining_finishes_what_was_accepted_and_refuses_the_rest():
    with engine_loop(slots=1) as engine:
        gate_of(engine).shut()
        accepted = engine.submit(request(seeds=(1, 2)))
        engine.drain(SECONDS)
        with pytest.raises(RequestError) as error:
            engine.submit(request())
        assert (error.value.status, error.value.code) == (503, "shutting_down")
        gate_of(engine).let()
        assert len(pictures(events_of(accepted)[0])) == 2


def test_draining_tells_who_cannot_be_served_in_time():
    with engine_loop(slots=1) as engine:
        gate = gate_of(engine)
        gate.shut()
        accepted = [engine.submit(request()), engine.submit(request())]
        until(lambda: busy(engine) == (1, 1))
        engine.drain(0.0)
        gate.let(1)
        assert [error_of(one).code for one in accepted] == ["shutting_down"] * 2
        ends = threading.Thread(target=engine.close)
        ends.start()
        gate.let()
        ends.join(SECONDS)
        assert not engine.alive


def test_a_stopped_server_answers_what_it_accepted():
    with server(slots=1) as address:
        gate_of(address.engine).shut()
        with ThreadPoolExecutor(2) as pool:
            accepted = pool.submit(address.post, n=2)
            until(lambda: busy(address.engine) == (1, 1))
            address.server.handle_exit(15, None)
            until(lambda: not address.engine.ready)
            gate_of(address.engine).let()
            assert len(accepted.result().json()["data"]) == 2
        address.thread.join(SECONDS)
        assert not address.thread.is_alive()
