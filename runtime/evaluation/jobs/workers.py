"""Where jobs are drawn: in this process, in processes of this machine, or by Ray actors on a cluster.

A worker that dies loses the job that it was drawing; another one draws it again.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import signal
import traceback
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing import connection
from multiprocessing.process import BaseProcess
from typing import Any, Final, Protocol

from underpaint.artifacts.install import install_hint
from underpaint.runtime.evaluation.jobs.drawer import DrawnJob, JobDrawer
from underpaint.runtime.evaluation.jobs.plan import DrawingJob, ModelTask

MOST_LOSSES: Final = 3
"""Workers that may die over one job before the evaluation stops."""
WORKER_KINDS: Final = ("local", "ray")


class WorkerError(RuntimeError):
    """A job fails, or kills whoever draws it."""


class WorkerPool(Protocol):
    """Draws jobs by several workers."""

    def run(self, jobs: Sequence[DrawingJob]) -> Iterator[DrawnJob]:
        """The jobs as they are finished, in any order. Raises WorkerError."""
        ...

    def pids(self) -> list[int]:
        """Processes that draw now."""
        ...


@dataclass(slots=True)
class InlineWorker:
    """This process."""

    drawer: JobDrawer

    def run(self, jobs: Sequence[DrawingJob]) -> Iterator[DrawnJob]:
        yield from map(self.drawer.draw, jobs)

    def pids(self) -> list[int]:
        return [os.getpid()]


@dataclass(slots=True)
class _Waiting:
    """Jobs that wait for a worker, and how many workers each of them lost."""

    jobs: deque[DrawingJob]
    losses: Counter[str] = field(default_factory=Counter)

    def again(self, job: DrawingJob) -> None:
        """Put back what a dead worker was drawing; WorkerError where that happens too often."""
        self.losses[job.key] += 1
        if self.losses[job.key] >= MOST_LOSSES:
            raise WorkerError(
                f"{MOST_LOSSES} workers died while they drew {job.prompt!r} by {job.method}, seed {job.seed}; look for "
                "a lack of memory, or draw it alone with `underpaint generate`"
            )
        self.jobs.appendleft(job)


class _Process:
    """One process and the pipe to it."""

    def __init__(self, tasks: Sequence[ModelTask], plugins: Sequence[str]) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process: BaseProcess = context.Process(target=_serve, args=(theirs, tasks, plugins), daemon=True)
        self.process.start()
        theirs.close()
        self.job: DrawingJob | None = None

    def take(self, job: DrawingJob) -> None:
        self.job = job
        self.pipe.send(job)

    def end(self) -> None:
        self.pipe.close()
        self.process.kill()
        self.process.join()


@dataclass(slots=True)
class ProcessWorkers:
    """Processes of this machine. They end with the process that started them."""

    tasks: Sequence[ModelTask]
    count: int
    plugins: Sequence[str] = ()
    _running: list[_Process] = field(default_factory=list)

    def run(self, jobs: Sequence[DrawingJob]) -> Iterator[DrawnJob]:
        waiting = _Waiting(deque(jobs))
        try:
            for _ in range(min(self.count, len(jobs))):
                self._start(waiting)
            while busy := [worker for worker in self._running if worker.job is not None]:
                ready = connection.wait([worker.pipe for worker in busy])
                for worker in [one for one in busy if one.pipe in ready]:
                    found = self._finished(worker, waiting)
                    if found is not None:
                        yield found
        finally:
            for worker in self._running:
                worker.end()
            self._running.clear()

    def pids(self) -> list[int]:
        return [worker.process.pid for worker in self._running if worker.process.pid is not None]

    def _start(self, waiting: _Waiting) -> None:
        worker = _Process(self.tasks, self.plugins)
        self._running.append(worker)
        _next(worker, waiting)

    def _finished(self, worker: _Process, waiting: _Waiting) -> DrawnJob | None:
        """What a worker drew, with its next job handed out; None where it died, and another is there instead."""
        job, worker.job = worker.job, None
        assert job is not None
        try:
            found = worker.pipe.recv()
        except (EOFError, OSError):
            worker.end()
            self._running.remove(worker)
            waiting.again(job)
            self._start(waiting)
            return None
        if isinstance(found, DrawnJob):
            _next(worker, waiting)
            return found
        raise WorkerError(f"{job.prompt!r} by {job.method}, seed {job.seed}, failed:\n{found}")


def _next(worker: _Process, waiting: _Waiting) -> None:
    if waiting.jobs:
        try:
            worker.take(waiting.jobs.popleft())
        except OSError:  # it died before it had anything to lose; its pipe tells so when it is waited for
            return


def _serve(pipe: connection.Connection, tasks: Sequence[ModelTask], plugins: Sequence[str]) -> None:
    """Draw what comes through a pipe until its other end is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the starter's, who ends this process
    drawer = JobDrawer(tasks, plugins)
    while True:
        try:
            job = pipe.recv()
        except (EOFError, OSError):
            return
        found: DrawnJob | str
        try:
            found = drawer.draw(job)
        except Exception:
            found = traceback.format_exc()
        try:
            pipe.send(found)
        except OSError:
            return


class RayDrawer:
    """A worker on a cluster, as a Ray actor."""

    def __init__(self, tasks: Sequence[ModelTask], plugins: Sequence[str]) -> None:
        self._drawer = JobDrawer(tasks, plugins)

    def ready(self) -> int:
        """Its process, once it stands."""
        return os.getpid()

    def draw(self, job: DrawingJob) -> DrawnJob:
        """Draw one job."""
        return self._drawer.draw(job)


@dataclass(slots=True)
class RayWorkers:
    """Actors on the Ray cluster at `address`, or on a local one of `count` workers where it is None.

    gpus: of each worker. A worker whose node is lost is replaced where the cluster has room; the others go on.
    """

    tasks: Sequence[ModelTask]
    count: int
    address: str | None = None
    gpus: int = 0
    plugins: Sequence[str] = ()
    _pids: dict[Any, int] = field(default_factory=dict)

    def run(self, jobs: Sequence[DrawingJob]) -> Iterator[DrawnJob]:
        ray = load_ray()
        own = not ray.is_initialized()
        threads = max(task.spec.threads for task in self.tasks)
        if own:
            local = {"num_cpus": self.count * threads, "include_dashboard": False}
            here = local if self.address is None else {"address": self.address}
            ray.init(log_to_driver=False, configure_logging=False, **here)
        make = ray.remote(num_cpus=threads, num_gpus=self.gpus, max_restarts=0)(RayDrawer)
        try:
            yield from self._drawn(ray, make, _Waiting(deque(jobs)), len(jobs))
        finally:
            self._pids.clear()
            if own:
                ray.shutdown()

    def pids(self) -> list[int]:
        return list(self._pids.values())

    def _drawn(self, ray: Any, make: Any, waiting: _Waiting, left: int) -> Iterator[DrawnJob]:
        asked: dict[Any, tuple[Any, DrawingJob | None]] = {}

        def start() -> None:
            actor = make.remote(tuple(self.tasks), tuple(self.plugins))
            asked[actor.ready.remote()] = actor, None

        for _ in range(min(self.count, left)):
            start()
        failed = 0
        while left:
            (done,), _ = ray.wait(list(asked), num_returns=1)
            actor, job = asked.pop(done)
            try:
                found = ray.get(done)
            except ray.exceptions.RayActorError as error:
                self._pids.pop(actor, None)
                ray.kill(actor)  # it may only be out of reach
                failed = 0 if job is not None else failed + 1
                if failed >= MOST_LOSSES:
                    raise WorkerError(f"{failed} workers in a row could not start: {error}") from error
                if job is not None:
                    waiting.again(job)
                start()
                continue
            except ray.exceptions.RayTaskError as error:
                raise WorkerError(f"{job.prompt!r} by {job.method} failed:\n{error}" if job else str(error)) from error
            if job is None:
                self._pids[actor] = found
            else:
                left -= 1
                yield found
            if waiting.jobs:
                job = waiting.jobs.popleft()
                asked[actor.draw.remote(job)] = actor, job


def load_ray() -> Any:
    """Ray's module; ValueError where it is not installed."""
    try:
        return importlib.import_module("ray")
    except ModuleNotFoundError as error:
        raise ValueError(f"workers on a cluster need Ray; install it with: {install_hint('cluster')}") from error
