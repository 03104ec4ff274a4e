"""Every launch of these tests is looked at by the race detector, until enough of its kernel were."""

from collections.abc import Iterator

import pytest

from tests.runtime.device.races import RaceDetector

DETECTOR = RaceDetector(most=3)


@pytest.fixture(autouse=True)
def no_races() -> Iterator[None]:
    """A test fails whose kernels race."""
    before = len(DETECTOR.races)
    with DETECTOR.watch():
        yield
    races = sorted(set(DETECTOR.races[before:]))
    assert not races, "\n".join(races)
