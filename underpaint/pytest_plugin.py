"""pytest's plug-in of Underpaint: `--underpaint-profile ci|nightly`.

`ci` is the same on every run. `nightly` draws more examples, at random, and judges more cases. The plug-in is found by
itself where Underpaint is installed, and does nothing unless the option is given.
"""

import pytest

PROFILES = ("ci", "nightly")


def register_profiles() -> None:
    """Register Hypothesis's profiles `underpaint-ci` and `underpaint-nightly`."""
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
    """Declare the option."""
    group = parser.getgroup("underpaint")
    group.addoption("--underpaint-profile", choices=PROFILES, help="How far property tests look: ci or nightly.")


def pytest_configure(config: pytest.Config) -> None:
    """Load the profile that was asked for."""
    profile = config.getoption("--underpaint-profile")
    if profile is None:
        return
    from underpaint.testing import use_profile

    use_profile(profile)
    try:
        from hypothesis import settings
    except ModuleNotFoundError:
        return  # the assertions need none
    register_profiles()
    settings.load_profile(f"underpaint-{profile}")
