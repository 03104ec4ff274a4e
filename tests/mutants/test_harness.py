"""What counts as caught: a failed assertion or a refusal of the product, and nothing else."""

import numpy as np
import pytest

from tests.mutants.harness import caught
from underpaint.algos.accept import RULES
from underpaint.algos.accept.walk import excess


def test_a_failed_assertion_and_a_refusal_count() -> None:
    with caught():
        assert np.zeros(1).any()
    with caught():
        RULES["no such rule"]


def test_a_crash_does_not_count() -> None:
    with pytest.raises(ValueError, match="broadcast"), caught():
        excess(np.zeros(2), np.zeros(3))  # NumPy refuses within a line of the product that raises nothing
    with pytest.raises(IndexError), caught():
        np.zeros(1)[2]
    with pytest.raises(ValueError, match="not of the product"), caught():
        raise ValueError("not of the product")


def test_a_bug_that_shows_nowhere_does_not_count() -> None:
    with pytest.raises(pytest.fail.Exception, match="not caught"), caught():
        pass
