"""What stands before replicas, with replicas that die where a test says: nothing is lost, and nothing sent twice."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar
from unittest.mock import MagicMock

import pytest

pytest.importorskip("ray.serve", reason="Ray Serve (extra 'serve-ray') is absent", exc_type=ImportError)

from ray.exceptions import ActorDiedError, RayTaskError

from tests.serve.served import SECONDS
from tests.serve.test_scheduling import until
from underpaint.serve import replica_front, replicas
from underpaint.serve.replica_front import MOST_ATTEMPTS, ReplicaFront
from underpaint.serve.replicas import Deployment, Scale
from underpaint.serve.requests import (
    CellsEvent,
    DrawRequest,
    Event,
    FinishedImage,
    Limits,
    ModelInfo,
    PartialImage,
    RequestError,
)

CELLS = 6
REQUEST = DrawRequest("img-1", "a fox", (7, 8), "eagle2", events=True, partial_images=2)


def events_of(request: DrawRequest) -> list[Event]:
    """What any replica answers: a picture that depends on its seed alone."""
    (seed,) = request.seeds
    done: list[Event] = []
    for cell in range(CELLS):
        token = (cell, 10 * seed + cell)
        done.append(CellsEvent(0, cell + 1, (token,), (), (), (cell,), cell + 1, CELLS))
        if cell in (1, 3):
            done.append(PartialImage(0, cell // 2, cell + 1, f"{seed} after {cell + 1}".encode()))
    picture = FinishedImage(0, seed, f"{seed}".encode(), "8x8", request.method, CELLS, 3, 2, 0.0, 0.1, 4, 6)
    return [*done, picture]


@dataclass
class Replicas:
    """Stand-ins for Ray's. dies: after how many events each call of `draw` in turn ends, None for never."""

    dies: list[int | None] = field(default_factory=list)
    refuses: RequestError | None = None
    holds: bool = False
    fails: bool = False
    drawn: list[DrawRequest] = field(default_factory=list)
    cancelled: int = 0

    info = ModelInfo("tiny", ("8x8",), "8x8", ("eagle2",), "eagle2", {})
    cells: ClassVar[dict[str, int]] = {"8x8": CELLS}

    def end(self) -> None:
        """See `Deployment`."""

    @property
    def checks(self) -> Any:
        async def checked(request: DrawRequest) -> RequestError | None:
            self._fail()
            return self.refuses

        return _Remote(checked)

    @property
    def colours(self) -> Any:
        async def made() -> bytes:
            self._fail()
            return b"123"

        return _Remote(made)

    @property
    def draws(self) -> Any:
        return _Remote(lambda request: _Stream(self, request))

    def _fail(self) -> None:
        if self.fails:
            raise RayTaskError("of a test", "", KeyError(3), proctitle="a test", ip="127.0.0.1")  # type: ignore[no-untyped-call]


@dataclass
class _Remote:
    remote: Callable[..., Any]


class _Stream:
    def __init__(self, owner: Replicas, request: DrawRequest) -> None:
        self.owner, self.request = owner, request
        self.left = owner.dies[len(owner.drawn)] if len(owner.drawn) < len(owner.dies) else None
        owner.drawn.append(request)

    async def __aiter__(self) -> AsyncIterator[Event]:
        for place, event in enumerate(events_of(self.request)):
            if place == self.left:
                raise ActorDiedError
            yield event
            await asyncio.sleep(0)
            while self.owner.holds:
                await asyncio.sleep(0.001)
        if self.left is not None:
            raise ActorDiedError

    def cancel(self) -> None:
        self.owner.cancelled += 1


@pytest.fixture
def front(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., tuple[ReplicaFront, Replicas]]]:
    started: list[ReplicaFront] = []
    monkeypatch.setattr(replica_front.asyncio, "sleep", _no_longer(asyncio.sleep))

    def start(limits: Limits | None = None, **options: Any) -> tuple[ReplicaFront, Replicas]:
        stand_ins = Replicas(**options)
        monkeypatch.setattr(replica_front, "Deployment", lambda *_: stand_ins)
        started.append(ReplicaFront(lambda threads: None, Scale(1, 1), 2, limits))  # type: ignore[arg-type, return-value]
        return started[-1], stand_ins

    yield start
    for one in started:
        ending = threading.Thread(target=one.close, daemon=True)
        ending.start()
        ending.join(SECONDS)
        assert not ending.is_alive(), "a front does not end"


def _no_longer(sleep: Any) -> Any:
    return lambda seconds: sleep(min(seconds, 0.001))


def received(front: ReplicaFront, request: DrawRequest = REQUEST) -> list[Event]:
    """All that a client gets."""
    ticket = front.submit(request)

    async def collect() -> list[Event]:
        return [event async for event in ticket.events()]

    return asyncio.run(asyncio.wait_for(collect(), SECONDS))


def of_image(events: list[Event], image: int) -> list[Event]:
    image_events = [event for event in events if not isinstance(event, RequestError) and event.image == image]
    return [
        replace(one, image=0, queue_seconds=0.0) if isinstance(one, FinishedImage) else replace(one, image=0)
        for one in image_events
    ]


def expected(seed: int) -> list[Event]:
    return events_of(replace(REQUEST, seeds=(seed,)))


@pytest.mark.parametrize("dies", [[], *[[after] for after in range(9)], [3, 3, 8, 0], [0, None, 2, 7, 8]])
def test_a_client_gets_every_event_once_however_often_replicas_die(front: Any, dies: list[int | None]) -> None:
    one, stand_ins = front(dies=dies)
    events = received(one)
    assert of_image(events, 0) == expected(7)
    assert of_image(events, 1) == expected(8)
    assert len(events) == 2 * (CELLS + 3)
    assert {request.seeds for request in stand_ins.drawn} == {(7,), (8,)}  # never another seed
    lost = sum(after is not None for after in dies[: len(stand_ins.drawn)])
    assert len(stand_ins.drawn) == 2 + lost
    assert f"underpaint_lost_calls_total {float(lost)}" in one.metrics.text().decode()
    assert 'underpaint_pictures_total{method="eagle2"} 2.0' in one.metrics.text().decode()
    assert 'underpaint_acceptance_rate{method="eagle2"} 0.666' in one.metrics.text().decode()


def test_a_picture_that_kills_every_replica_is_given_up(front: Any) -> None:
    one, stand_ins = front(dies=[1] * 100)
    (*_, last) = received(one, replace(REQUEST, seeds=(7,)))
    assert isinstance(last, RequestError)
    assert (last.status, last.code) == (503, "replicas_lost")
    assert len(stand_ins.drawn) == MOST_ATTEMPTS


def test_what_the_models_refuse_is_refused_before_it_waits(front: Any) -> None:
    one, stand_ins = front(refuses=RequestError(400, "prompt: no such word", "invalid_value", "prompt"))
    with pytest.raises(RequestError, match="no such word"):
        one.submit(REQUEST)
    assert not stand_ins.drawn


def test_a_client_that_leaves_frees_its_slots(front: Any) -> None:
    one, stand_ins = front(holds=True)
    gone = one.submit(replace(REQUEST, seeds=(1, 2, 3, 4)))
    until(lambda: len(stand_ins.drawn) == 2)
    gone.cancel()
    until(lambda: stand_ins.cancelled == 2 and "underpaint_batch_occupancy 0.0" in one.metrics.text().decode())
    stand_ins.holds = False
    assert of_image(received(one), 1) == expected(8)
    assert [request.seeds for request in stand_ins.drawn[2:]] == [(7,), (8,)]


def refused_before_they_begin(front: Any, monkeypatch: pytest.MonkeyPatch) -> ReplicaFront:
    """A front whose pictures were cancelled in the same turn of its event loop that gave them their slots."""
    one, stand_ins = front()
    with monkeypatch.context() as patch:
        fill = one._fill
        patch.setattr(one, "_fill", lambda: (fill(), one._refuse_all()))
        (only,) = received(one)
    assert isinstance(only, RequestError)
    assert only.code == "shutting_down"
    assert not stand_ins.drawn
    return one


def test_a_picture_that_is_cancelled_before_it_begins_frees_its_slot(
    front: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = refused_before_they_begin(front, monkeypatch)
    assert of_image(received(one), 1) == expected(8)


def test_a_slot_that_is_freed_by_what_was_drawn_alone(front: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mutant, which the test above sees."""
    free = ReplicaFront._free
    monkeypatch.setattr(ReplicaFront, "_free", lambda self, one, task: one.started and free(self, one, task))
    one = refused_before_they_begin(front, monkeypatch)
    ticket = one.submit(REQUEST)
    asyncio.run_coroutine_threadsafe(asyncio.sleep(0), one._loop).result(SECONDS)
    assert (len(one._drawn), ticket.closed) == (2, False)
    one._drawn.clear()


def test_models_that_do_not_open_are_told_as_without_replicas(monkeypatch: pytest.MonkeyPatch) -> None:
    handle, ended = MagicMock(), list[bool]()
    handle.info.remote.return_value.result.return_value = "no folder nowhere"
    monkeypatch.setattr(replicas.serve, "run", lambda *_, **__: handle)
    monkeypatch.setattr(replicas.serve, "deployment", lambda **_: lambda cls: MagicMock())
    monkeypatch.setattr(Deployment, "_start_ray", lambda *_: None)
    monkeypatch.setattr(Deployment, "end", lambda self: ended.append(True))
    with pytest.raises(ValueError, match=r"^no folder nowhere$"):
        Deployment(lambda threads: None, Scale(1, 1), 2, 1.0, 0, None)  # type: ignore[arg-type, return-value]
    assert ended


def test_a_replica_makes_the_colours_of_the_page(front: Any) -> None:
    one, _ = front()
    assert one.code_colours() == one.code_colours() == b"123"


def test_an_error_that_is_raised_again_does_not_grow(front: Any) -> None:
    one, _ = front(fails=True)

    def told(ask: Callable[[], object]) -> int:
        with pytest.raises(RequestError, match="its log says why") as error:
            ask()
        assert error.value.status == 500
        return len(error.traceback)

    for ask in (lambda: one.submit(REQUEST), one.code_colours):
        assert len({told(ask) for _ in range(3)}) == 1


def test_limits_hold_before_the_replicas(front: Any) -> None:
    one, stand_ins = front(Limits(waiting=3), holds=True)
    one.submit(replace(REQUEST, seeds=(1, 2)))
    until(lambda: len(stand_ins.drawn) == 2)
    one.submit(replace(REQUEST, seeds=(3, 4, 5)))
    with pytest.raises(RequestError, match="3 pictures wait already, of at most 3") as full:
        one.submit(REQUEST)
    assert (full.value.status, full.value.retry_after) == (429, 2)


def test_a_deadline_is_at_most_the_servers(front: Any) -> None:
    one, _ = front(Limits(seconds=0.1), holds=True)
    late = received(one)[-1]
    assert isinstance(late, RequestError)
    assert (late.status, late.code) == (504, "deadline_exceeded")


def test_what_was_accepted_is_finished_before_the_end(front: Any) -> None:
    one, stand_ins = front(holds=True)
    ticket = one.submit(REQUEST)
    one.drain(SECONDS)
    assert not one.ready
    with pytest.raises(RequestError, match="shutting down"):
        one.submit(REQUEST)
    ending = threading.Thread(target=one.close, args=(SECONDS,))
    ending.start()
    stand_ins.holds = False

    async def collect() -> list[Event]:
        return [event async for event in ticket.events()]

    assert of_image(asyncio.run(collect()), 0) == expected(7)
    ending.join(SECONDS)
    assert not one.alive


@pytest.mark.parametrize("text", ["0", "-1", "two", "3:2", "1:", "0:2", "2.5", ""])
def test_a_wrong_number_of_replicas_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"--ray: expected a number of replicas such as 2, or MIN:MAX such as 1:4"):
        Scale.read(text)
    assert Scale.read("2") == (2, 2)
    assert Scale.read("1:4") == (1, 4)
