"""Workers for the jobs of a run: this process, processes of this machine, or Ray actors on a cluster.

If a worker dies, another one repeats its job.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import pickle
import signal
import threading
import traceback
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing import connection
from multiprocessing.process import BaseProcess
from typing import Any, Final, Generic, Protocol, TypeVar

from underpaint.algos.registry import suggest
from underpaint.artifacts.install import install_hint

Job = TypeVar("Job")
Result = TypeVar("Result")

MOST_LOSSES: Final = 3
"""Number of workers that may die at one job before the run stops."""
WORKER_KINDS: Final = ("local", "ray")
ONE_THREAD: Final[Mapping[str, str]] = dict.fromkeys(
    ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"
)
"""The environment of workers with small arrays: it leaves the cores to the processes."""


class WorkerError(RuntimeError):
    """A job fails, or kills its workers."""


JobT_contra = TypeVar("JobT_contra", contravariant=True)
ResultT_co = TypeVar("ResultT_co", covariant=True)


def _no_more(result: Any) -> Iterable[Any]:
    return ()


class Workers(Protocol[JobT_contra, ResultT_co]):
    """Runs jobs with one function, of which each worker has a copy."""

    def run(
        self, jobs: Sequence[JobT_contra], more: Callable[[ResultT_co], Iterable[JobT_contra]] = _no_more
    ) -> Iterator[ResultT_co]:
        """Yield the results as they are finished, in any order.

        Args:
            jobs: The jobs.
            more: Called with each result; the jobs that it returns run next, before the waiting ones.

        Raises:
            WorkerError: A job fails, or kills its workers; the message names the job.
        """
        ...


@dataclass(slots=True)
class ThisProcess(Generic[Job, Result]):
    """Runs jobs in this process; an error in a job is raised as it is."""

    work: Callable[[Job], Result]

    def run(self, jobs: Sequence[Job], more: Callable[[Result], Iterable[Job]] = _no_more) -> Iterator[Result]:
        waiting = _Waiting(deque(jobs))
        while waiting.jobs:
            result = self.work(waiting.jobs.popleft())
            waiting.next(more(result))
            yield result


@dataclass(slots=True)
class _Waiting(Generic[Job]):
    """Jobs that wait for a worker, and the number of workers that each of them has lost."""

    jobs: deque[Job]
    losses: Counter[str] = field(default_factory=Counter)

    def again(self, job: Job) -> None:
        """Put back the job of a dead worker; raises WorkerError if that happens too often."""
        self.losses[str(job)] += 1
        if self.losses[str(job)] >= MOST_LOSSES:
            raise WorkerError(
                f"{MOST_LOSSES} workers died at {job}; look for a lack of memory, or do this part alone in one process"
            )
        self.jobs.appendleft(job)

    def next(self, jobs: Iterable[Job]) -> None:
        """Put `jobs` before all others."""
        self.jobs.extendleft(reversed(list(jobs)))


class _Process:
    """One process, with the pipe to it."""

    def __init__(self, work: bytes, environment: Mapping[str, str], known_errors: tuple[type[Exception], ...]) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process: BaseProcess = context.Process(
            target=_serve, args=(theirs, work, dict(environment), known_errors), daemon=True
        )
        self.process.start()
        theirs.close()
        self.job: Any = None

    def take(self, waiting: _Waiting[Any]) -> None:
        """Take the next waiting job, if any."""
        if waiting.jobs:
            self.job = waiting.jobs.popleft()
            try:
                self.pipe.send(self.job)
            except OSError:  # it died before it had a job; its pipe reports this when it is waited for
                return

    def end(self) -> None:
        self.pipe.close()
        self.process.kill()
        self.process.join()


@dataclass(slots=True)
class Processes(Generic[Job, Result]):
    """Processes of this machine, which end with the process that started them.

    Args:
        work: The function that runs a job; it can be pickled.
        count: Number of processes, at least 1.
        environment: Variables that are set in them before `work` is imported.
        known_errors: Errors of a job that are raised as they are; all others become a WorkerError with their traceback.
    """

    work: Callable[[Job], Result]
    count: int
    environment: Mapping[str, str] = field(default_factory=dict)
    known_errors: tuple[type[Exception], ...] = ()
    _running: list[_Process] = field(default_factory=list)

    def run(self, jobs: Sequence[Job], more: Callable[[Result], Iterable[Job]] = _no_more) -> Iterator[Result]:
        waiting = _Waiting(deque(jobs))
        try:
            self._hand_out(waiting)
            while busy := [worker for worker in self._running if worker.job is not None]:
                ready = connection.wait([worker.pipe for worker in busy])
                for worker in [one for one in busy if one.pipe in ready]:
                    yield from self._finished(worker, waiting, more)
        finally:
            for worker in self._running:
                worker.end()
            self._running.clear()

    def _hand_out(self, waiting: _Waiting[Job]) -> None:
        """Give each free worker a job, and start workers for the remaining jobs."""
        for worker in self._running:
            if worker.job is None:
                worker.take(waiting)
        for _ in range(min(self.count - len(self._running), len(waiting.jobs))):
            self._running.append(_Process(pickle.dumps(self.work), self.environment, self.known_errors))
            self._running[-1].take(waiting)

    def _finished(
        self, worker: _Process, waiting: _Waiting[Job], more: Callable[[Result], Iterable[Job]]
    ) -> Iterator[Result]:
        """Yield a worker's result and hand out the next jobs; if it died, replace it and yield nothing."""
        job, worker.job = worker.job, None
        try:
            done, answer = worker.pipe.recv()
        except (EOFError, OSError):
            worker.end()
            self._running.remove(worker)
            waiting.again(job)
            self._hand_out(waiting)
            return
        if isinstance(answer, Exception) and not done:
            raise answer
        if not done:
            raise WorkerError(f"{job} failed:\n{answer}")
        waiting.next(more(answer))
        self._hand_out(waiting)
        yield answer


def local_workers(
    work: Callable[[Job], Result], count: int, known_errors: tuple[type[Exception], ...] = ()
) -> Workers[Job, Result]:
    """`count` processes of one thread each, or this process if `count` is 1. See `Processes` for the arguments."""
    return ThisProcess(work) if count == 1 else Processes(work, count, ONE_THREAD, known_errors)


def _serve(
    pipe: connection.Connection, work: bytes, environment: Mapping[str, str], known_errors: tuple[type[Exception], ...]
) -> None:
    """Run the jobs from a pipe until its other end is closed, or the process that started this one ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the starter, which ends this process
    os.environ.update(environment)
    starter = multiprocessing.parent_process()
    if starter is not None:
        threading.Thread(target=_end_with, args=(starter.sentinel,), daemon=True).start()
    do: Callable[[Any], Any] | None = None
    while True:
        try:
            job = pipe.recv()
        except (EOFError, OSError):
            return
        answer: tuple[bool, Any]
        try:
            do = do or pickle.loads(work)
            answer = True, do(job)
        except known_errors as error:
            answer = False, error
        except Exception:
            answer = False, traceback.format_exc()
        try:
            pipe.send(answer)
        except OSError:
            return


def _end_with(sentinel: int) -> None:
    """End this process with the one that started it, as a killed process cannot notify its workers."""
    connection.wait([sentinel])
    os._exit(1)


class _Actor:
    """A worker on a cluster."""

    def __init__(self, work: Callable[[Any], Any]) -> None:
        self._work = work

    def ready(self) -> int:
        """The process id, once the actor has started."""
        return os.getpid()

    def do(self, job: Any) -> Any:
        """Run one job."""
        return self._work(job)


@dataclass(slots=True)
class RayWorkers(Generic[Job, Result]):
    """Actors on the Ray cluster at `address`, or on a local one with `count` workers if it is None.

    A worker on a lost node is replaced if the cluster has room. See `Processes` for `work` and `known`.

    Args:
        threads: Cores of each worker.
        gpus: GPUs of each worker.
    """

    work: Callable[[Job], Result]
    count: int
    address: str | None = None
    threads: int = 1
    gpus: int = 0
    known_errors: tuple[type[Exception], ...] = ()

    def run(self, jobs: Sequence[Job], more: Callable[[Result], Iterable[Job]] = _no_more) -> Iterator[Result]:
        ray = load_ray()
        starts_ray = not ray.is_initialized()
        if starts_ray:
            local = {"num_cpus": self.count * self.threads, "include_dashboard": False}
            here = local if self.address is None else {"address": self.address}
            ray.init(log_to_driver=False, configure_logging=False, **here)
        make = ray.remote(num_cpus=self.threads, num_gpus=self.gpus, max_restarts=0)(_Actor)
        try:
            yield from self._done(ray, make, _Waiting(deque(jobs)), more)
        finally:
            if starts_ray:
                ray.shutdown()

    def _done(
        self, ray: Any, make: Any, waiting: _Waiting[Job], more: Callable[[Result], Iterable[Job]]
    ) -> Iterator[Result]:
        pending: dict[Any, tuple[Any, Job | None]] = {}
        free: list[Any] = []

        def hand_out() -> None:
            while waiting.jobs and free:
                actor, job = free.pop(), waiting.jobs.popleft()
                pending[actor.do.remote(job)] = actor, job
            starting = sum(job is None for _, job in pending.values())
            for _ in range(min(self.count - len(pending) - len(free), len(waiting.jobs) - starting)):
                actor = make.remote(self.work)
                pending[actor.ready.remote()] = actor, None

        hand_out()
        failed = 0
        # Workers that the cluster has no room for never start, so they must not be waited for after the last job.
        while waiting.jobs or any(job is not None for _, job in pending.values()):
            (done,), _ = ray.wait(list(pending), num_returns=1)
            actor, job = pending.pop(done)
            try:
                answer = ray.get(done)
            except ray.exceptions.RayTaskError as error:
                if isinstance(error.cause, self.known_errors):
                    raise error.cause from error
                raise WorkerError(f"{job} failed:\n{error}" if job is not None else str(error)) from error
            except ray.exceptions.RayError as error:  # a lost worker, also one that was killed for lack of memory
                ray.kill(actor)  # it may only be unreachable
                failed = 0 if job is not None else failed + 1
                if failed >= MOST_LOSSES:
                    raise WorkerError(f"{failed} workers in a row could not start: {error}") from error
                if job is not None:
                    waiting.again(job)
                hand_out()
                continue
            free.append(actor)
            if job is not None:
                waiting.next(more(answer))
            hand_out()
            if job is not None:
                yield answer


def check_workers(on: str, address: str | None) -> None:
    """Check where workers should run.

    Args:
        on: One of `WORKER_KINDS`, as in `--on`.
        address: Address of a Ray cluster, as in `--address`, or None.

    Raises:
        ValueError: The kind is unknown, Ray is not installed, or an address is given without Ray.
    """
    if on not in WORKER_KINDS:
        raise ValueError(f"--on: there is no '{on}'; {suggest(on, WORKER_KINDS)}")
    if address is not None and on != "ray":
        raise ValueError("--address needs --on ray; add it, or leave --address out")
    if on == "ray":
        load_ray()


def load_ray() -> Any:
    """Import Ray; raises ValueError if it is not installed."""
    try:
        return importlib.import_module("ray")
    except ModuleNotFoundError as error:
        raise ValueError(f"workers on a cluster need Ray; install it with: {install_hint('cluster')}") from error
