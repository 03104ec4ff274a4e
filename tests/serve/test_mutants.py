"""Mistakes that servers make, planted one by one: each is caught by the test that is named."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.serve import served, test_scheduling
from underpaint.runtime.drawing import noise_of
from underpaint.serve import sessions
from underpaint.serve.engine import EngineLoop
from underpaint.serve.queueing import FairQueue
from underpaint.serve.sessions import SessionSlots, Slot


@pytest.fixture(autouse=True)
def _hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(test_scheduling, "SECONDS", 2.0)
    monkeypatch.setattr(served, "SECONDS", 2.0)


@contextmanager
def caught() -> Iterator[None]:
    with pytest.raises((AssertionError, TimeoutError)):
        yield


def test_a_slot_that_is_not_freed_when_a_client_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    drop = SessionSlots.drop

    def kept(self: SessionSlots, picture: Any) -> None:
        drop(self, picture)
        if picture.job.ticket.closed:
            self._free.pop()

    monkeypatch.setattr(SessionSlots, "drop", kept)
    with caught():
        test_scheduling.test_who_leaves_frees_its_slot_and_its_place()


def test_noise_that_depends_on_the_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = Slot.open

    def noted(self: Slot, prepared: Any, models: Any = None) -> Any:
        monkeypatch.setattr(sessions, "noise_of", lambda condition, seed: noise_of(condition, seed + id(self) % 7919))
        return opened(self, prepared, models)

    monkeypatch.setattr(Slot, "open", noted)
    with caught():
        test_scheduling.test_who_leaves_frees_its_slot_and_its_place()


def test_a_queue_that_never_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FairQueue, "__len__", lambda self: min(1, len(self._heap)))
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        test_scheduling.test_a_request_is_queued_whole_or_not_at_all()


def test_a_queue_that_serves_in_order_of_arrival_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    push = FairQueue.push
    monkeypatch.setattr(FairQueue, "push", lambda self, client, item, cost=1.0: push(self, "", item, cost))
    with caught():
        test_scheduling.test_a_client_that_asks_for_much_waits_behind_itself(True)


def test_deadlines_that_nobody_looks_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EngineLoop, "_refuse_late", lambda self: None)
    with caught():
        test_scheduling.test_a_deadline_is_at_most_the_servers()
