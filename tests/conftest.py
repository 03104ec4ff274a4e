"""Hypothesis profiles: `ci` is the same on every run; HYPOTHESIS_PROFILE=nightly looks further, at random, and
`no_shrink` is enough where a test asks whether another fails.

Plug-ins that UNDERPAINT_PLUGINS names join the registries, so every test over them covers those rules too.
"""

import gc
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import tests.one_core  # noqa: F401  (before any library counts the cores)

# isort: split
import pytest
from hypothesis import Phase, settings

from tests.made_once import made_once, run_folder
from underpaint.algos import plugins
from underpaint.algos.plugins import load_plugins, named_by_environment
from underpaint.pytest_plugin import register_profiles

ROOT = Path(__file__).resolve().parents[1]


class Wheels(NamedTuple):
    """The distributions of the checkout. core: `underpaint`. zoo: `underpaint-zoo`, the shipped models."""

    core: Path
    zoo: Path


register_profiles()
ci = settings.get_profile("underpaint-ci")
settings.register_profile("underpaint-no_shrink", parent=ci, phases=[Phase.explicit, Phase.generate])
settings.load_profile(f"underpaint-{os.environ.get('HYPOTHESIS_PROFILE', 'ci')}")
load_plugins(named_by_environment())
# Tracing a module makes millions of objects that live on: looking through them often is a third of its time.
gc.set_threshold(50_000, 50, 50)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Modules with slow tests first, so that no worker is left alone with one at the end."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


def pytest_collection_finish() -> None:
    """What was imported stays: no collection needs to look at it again."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    """Let the last collection free what was frozen; else nanobind's modules report it as leaked."""
    gc.unfreeze()


@pytest.fixture(scope="session", autouse=True)
def _cache_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Cost curves of the machine go to a folder of the run, which its workers share, and not to the user's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(run_folder(tmp_path_factory.getbasetemp()) / "cache"))
        yield


@contextmanager
def few_cycles() -> Iterator[None]:
    """Within it, cost curves are rough: one round of passes without warm-up, and few cycles. No test asks for times."""
    from underpaint.runtime.costs import in_cycle, machine_curve, passes

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(in_cycle, "WARM_UP", 1)
        patch.setattr(in_cycle, "MOST_CYCLES", 6)
        patch.setattr(passes, "_WARM_UP", 0)
        patch.setitem(machine_curve._ROUNDS, False, 1)
        patch.setitem(machine_curve._IMAGES, False, 1)
        yield


@pytest.fixture(scope="module")
def rough_costs() -> Iterator[None]:
    """Commands that run in this process measure cost curves on few cycles."""
    with few_cycles():
        yield


def measure_curves(models: Path) -> None:
    """Measure the cost curves of a folder of models, of few cycles, into the cache of this run."""
    from underpaint.runtime.costs.machine_curve import curve_of
    from underpaint.runtime.pipeline import Pipeline

    with few_cycles():
        for side in (64, 128):
            pipeline = Pipeline.open(models, resolution=side)
            assert curve_of(pipeline, pipeline.sampling) is not None


@pytest.fixture(scope="session")
def cost_curves(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Commands of this run know the shipped models' cost curves, of few cycles."""
    from underpaint.zoo.load import FOLDER

    made_once(tmp_path_factory.getbasetemp(), "cost_curves", lambda _: measure_curves(FOLDER))


@pytest.fixture(scope="session")
def small_models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of the shipped models with a small target and drafter, whose cost curves are known: one for the run."""
    from tests.small_models import write_small_models

    def write(place: Path) -> None:
        write_small_models(place / "models", place / "runs")
        measure_curves(place / "models")

    return made_once(tmp_path_factory.getbasetemp(), "small", write) / "models"


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Wheels:
    """Both distributions, built once for all workers."""

    def build(place: Path) -> None:
        command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
        for folder in (ROOT, ROOT / "distributions" / "zoo"):
            shutil.rmtree(folder / "build" / "lib", ignore_errors=True)  # it may hold files that were deleted since
            done = subprocess.run([*command, "--wheel-dir", place, folder], capture_output=True, text=True)
            assert done.returncode == 0, done.stderr

    place = made_once(tmp_path_factory.getbasetemp(), "wheels", build)
    (core,), (zoo,) = place.glob("underpaint-*.whl"), place.glob("underpaint_zoo-*.whl")
    return Wheels(core, zoo)


@pytest.fixture(autouse=True)
def own_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test's plug-ins are no plug-ins of the next one's processes."""
    monkeypatch.setattr(plugins, "_LOADED", list(plugins._LOADED))
