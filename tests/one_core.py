"""Importing this keeps a worker of `pytest -n` on a core of its own; to be imported before a library counts the cores.

Pools of threads over cores that other workers use wait by spinning: half of the processor's time goes into that.
"""

import os


def keep_to_one(worker: str) -> None:
    """worker: pytest-xdist's name of it, gw0 and on; empty where there are no workers, and nothing is done."""
    if worker and hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        # Several runs on one machine begin at different cores.
        os.sched_setaffinity(0, {cores[(os.getppid() + int(worker.removeprefix("gw"))) % len(cores)]})


keep_to_one(os.environ.get("PYTEST_XDIST_WORKER", ""))
