"""Hypothesis profiles: `ci` is the same on every run; HYPOTHESIS_PROFILE=nightly looks further, at random.

Plug-ins that UNDERPAINT_PLUGINS names join the registries, so every test over them covers those rules too.
"""

import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from underpaint.algos.plugins import load_plugins, named_by_environment

settings.register_profile(
    "ci",
    derandomize=True,
    deadline=None,
    database=None,
    max_examples=60,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.register_profile("nightly", parent=settings.get_profile("ci"), derandomize=False, max_examples=400)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))
load_plugins(named_by_environment())


@pytest.fixture(scope="session", autouse=True)
def _cache_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Cost curves of the machine go to a folder of the run, which its workers share, and not to the user's."""
    base = tmp_path_factory.getbasetemp()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str((base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "cache"))
        yield
