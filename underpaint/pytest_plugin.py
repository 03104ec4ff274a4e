"""Underpaint's pytest plugin, which adds the option `--underpaint-profile ci|nightly`.

`ci` is the same on every run. `nightly` draws more examples, at random, and checks more cases. pytest finds the plugin
where Underpaint is installed; without the option, the plugin does nothing.
"""

import pytest

PROFILES = ("ci", "nightly")


def register_profiles() -> None:
    """Register the Hypothesis profiles `underpaint-ci` and `underpaint-nightly`."""
    from hypothesis import HealthCheck, settings

    settings.register_profile(
        "underpaint-ci",
        derandomize=True,
        deadline=None,
        database=None,
        max_examples=60,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    ci = settings.get_profile("underpaint-ci")
    settings.register_profile("underpaint-nightly", parent=ci, derandomize=False, max_examples=400)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option `--underpaint-profile`."""
    group = parser.getgroup("underpaint")
    group.addoption("--underpaint-profile", choices=PROFILES, help="How far property tests look: ci or nightly.")


def pytest_configure(config: pytest.Config) -> None:
    """Load the profile that `--underpaint-profile` names, if any."""
    profile = config.getoption("--underpaint-profile")
    if profile is None:
        return
    from underpaint.testing import use_profile

    use_profile(profile)
    try:
        from hypothesis import settings
    except ModuleNotFoundError:
        return  # the assertions work without Hypothesis
    register_profiles()
    settings.load_profile(f"underpaint-{profile}")
