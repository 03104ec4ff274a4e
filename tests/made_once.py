"""Folders that all workers of a run share: the first that needs one makes it, and the others wait for it."""

import fcntl
import os
import shutil
from collections.abc import Callable
from pathlib import Path


def run_folder(base: Path) -> Path:
    """The folder that all workers of this run can see. base: pytest's own temporary folder for this process."""
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base


def made_once(base: Path, name: str, make: Callable[[Path], None]) -> Path:
    """The run's folder `name`, which `make` fills where no worker has; what fails half-way is made anew.

    Tests read it and change nothing in it. base: pytest's own temporary folder for this process.
    """
    place, whole = run_folder(base) / name, run_folder(base) / f"{name}.whole"
    with (run_folder(base) / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not whole.exists():
            shutil.rmtree(place, ignore_errors=True)
            place.mkdir()
            make(place)
            whole.touch()
    return place
