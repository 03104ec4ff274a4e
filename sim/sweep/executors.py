"""Where the parts of a sweep run: in this process, on all local cores, or on Ray. The results are the same."""

import importlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import connection
from typing import Any, Protocol, TypeVar

from underpaint.artifacts.install import install_hint

Item = TypeVar("Item")
Result = TypeVar("Result")

ENGINES = ("local", "ray")


class Executor(Protocol):
    """Runs one function over many items."""

    def run(self, function: Callable[[Item], Result], items: Sequence[Item]) -> Iterator[Result]:
        """The results as they are finished, in any order. An error in one stops the rest and is raised."""
        ...


def usable_cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _begin_worker() -> None:
    """Leave the cores to the processes, as the arrays are small; and end with the process that started this one.

    A killed process tells its workers nothing: they would wait for work for ever.
    """
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = "1"
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C reaches the workers too: without a traceback
    starter = multiprocessing.parent_process()
    if starter is not None:
        threading.Thread(target=_end_with, args=(starter.sentinel,), daemon=True).start()


def _end_with(sentinel: int) -> None:
    connection.wait([sentinel])
    os._exit(1)


@dataclass(frozen=True, slots=True)
class LocalExecutor:
    """Processes of this machine; with one job, this process."""

    jobs: int

    def run(self, function: Callable[[Item], Result], items: Sequence[Item]) -> Iterator[Result]:
        if self.jobs == 1 or len(items) < 2:
            yield from map(function, items)
            return
        context = multiprocessing.get_context("spawn")
        pool = ProcessPoolExecutor(min(self.jobs, len(items)), mp_context=context, initializer=_begin_worker)
        try:
            for done in as_completed([pool.submit(function, item) for item in items]):
                yield done.result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


@dataclass(frozen=True, slots=True)
class RayExecutor:
    """Tasks on Ray: the cluster at `address`, or a local one of `jobs` cores where it is None."""

    jobs: int
    address: str | None = None

    def run(self, function: Callable[[Item], Result], items: Sequence[Item]) -> Iterator[Result]:
        ray = _ray()
        own = not ray.is_initialized()
        if own:
            here: dict[str, Any] = {"num_cpus": self.jobs} if self.address is None else {"address": self.address}
            ray.init(include_dashboard=False, log_to_driver=False, configure_logging=False, **here)
        try:
            task = ray.remote(num_cpus=1)(function)
            waiting = [task.remote(item) for item in items]
            while waiting:
                ready, waiting = ray.wait(waiting, num_returns=1)
                yield ray.get(ready[0])
        finally:
            if own:
                ray.shutdown()


def _ray() -> Any:
    try:
        return importlib.import_module("ray")
    except ModuleNotFoundError as error:
        raise ValueError(f"engine 'ray' needs Ray; install it with: {install_hint('cluster')}") from error


def executor(engine: str, jobs: int | None = None, address: str | None = None) -> Executor:
    """The executor by name; ValueError on an unknown one, or one that is not installed."""
    count = usable_cores() if jobs is None else jobs
    if count < 1:
        raise ValueError(f"jobs: expected at least 1, got {count}")
    if engine == "local" and address is not None:
        raise ValueError(f"--address {address}: a cluster's address needs --engine ray; leave it out to run here")
    if engine == "local":
        return LocalExecutor(count)
    if engine == "ray":
        _ray()
        return RayExecutor(count, address)
    raise ValueError(f"engine: there is no '{engine}'; known: {', '.join(ENGINES)}")
