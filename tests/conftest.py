"""Hypothesis profiles: `ci` is the same on every run; HYPOTHESIS_PROFILE=nightly looks further, at random.

Plug-ins that UNDERPAINT_PLUGINS names join the registries, so every test over them covers those rules too.
"""

import os

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
