"""Importing this keeps a worker of `pytest -n` on a core of its own; to be imported before a library counts the cores.

Pools of threads over cores that other workers use wait by spinning: half of the processor's time goes into that.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager

NICENESS = "RAY_worker_niceness"


def keep_to_one(worker: str) -> None:
    """worker: pytest-xdist's name of it, gw0 and on; empty where there are no workers, and nothing is done."""
    if worker and hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        # Several runs on one machine begin at different cores.
        os.sched_setaffinity(0, {cores[(os.getppid() + int(worker.removeprefix("gw"))) % len(cores)]})


@contextmanager
def room_for_ray() -> Iterator[None]:
    """Within it, a Ray that this thread starts has every core, and its workers no lower priority than other programs.

    Ray gives itself 30 seconds to start, and its workers a niceness of 15.
    """
    affinity = os.sched_getaffinity(0) if hasattr(os, "sched_setaffinity") else None
    if affinity is not None:
        os.sched_setaffinity(0, range(os.cpu_count() or 1))
    os.environ[NICENESS] = "0"
    try:
        yield
    finally:
        del os.environ[NICENESS]
        if affinity is not None:
            os.sched_setaffinity(0, affinity)


keep_to_one(os.environ.get("PYTEST_XDIST_WORKER", ""))
