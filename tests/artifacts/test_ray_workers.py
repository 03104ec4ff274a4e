"""Workers on a stand-in for a Ray cluster: what never starts is not waited for, and what is lost is repeated."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from underpaint.artifacts import workers
from underpaint.artifacts.workers import RayWorkers, WorkerError


class RayError(Exception):
    """The base of Ray's errors."""


class RayTaskError(RayError):
    def __init__(self, cause: Exception) -> None:
        super().__init__(str(cause))
        self.cause = cause


class OutOfMemoryError(RayError):
    """A worker that was killed for lack of memory; no RayActorError."""


class Call:
    """A call of an actor; `value` is None while the actor has no room."""

    def __init__(self, value: Callable[[], Any] | None) -> None:
        self.value = value


class Ray:
    """A cluster with room for so many actors. The first calls of a job in `lost` lose their worker."""

    def __init__(self, room: int, lost: dict[Any, int]) -> None:
        self.room, self.lost = room, dict(lost)
        self.exceptions = SimpleNamespace(RayError=RayError, RayTaskError=RayTaskError)

    def is_initialized(self) -> bool:
        return True

    def remote(self, **_: Any) -> Callable[[Any], Any]:
        return lambda actor: SimpleNamespace(remote=self._make)

    def _make(self, work: Callable[[Any], Any]) -> Any:
        starts = self.room > 0
        self.room -= starts

        def do(job: Any) -> Any:
            if self.lost.get(job, 0):
                self.lost[job] -= 1
                raise OutOfMemoryError("the node is low on memory")
            return work(job)

        ready = SimpleNamespace(remote=lambda: Call((lambda: 1) if starts else None))
        return SimpleNamespace(ready=ready, do=SimpleNamespace(remote=lambda job: Call(lambda: do(job))))

    def wait(self, calls: list[Call], num_returns: int) -> tuple[list[Call], list[Call]]:
        done = next((one for one in calls if one.value is not None), None)
        assert done is not None, "Ray would wait for ever"
        return [done], [one for one in calls if one is not done]

    def get(self, call: Call) -> Any:
        assert call.value is not None
        try:
            return call.value()
        except RayError:
            raise
        except Exception as error:
            raise RayTaskError(error) from error

    def kill(self, actor: Any) -> None:
        self.room += 1


def results(monkeypatch: pytest.MonkeyPatch, ray: Ray, work: Callable[[Any], Any] = lambda job: 10 * job) -> list[Any]:
    monkeypatch.setattr(workers, "load_ray", lambda: ray)
    return sorted(RayWorkers(work, 4, known_errors=(KeyError,)).run(range(6)))


def test_workers_without_room_are_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    assert results(monkeypatch, Ray(1, {})) == [0, 10, 20, 30, 40, 50]


def test_the_job_of_a_worker_that_was_killed_for_memory_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    assert results(monkeypatch, Ray(2, {3: 1})) == [0, 10, 20, 30, 40, 50]


def test_a_job_that_fails_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(job: int) -> int:
        raise KeyError(job) if job == 2 else ValueError(job)

    with pytest.raises(WorkerError, match="failed"):
        results(monkeypatch, Ray(1, {}), fails)
