import sys

import pytest

from underpaint.runtime.evaluation.machine import typed_command


@pytest.mark.parametrize(
    ("started", "typed"),
    [
        (["/venv/bin/python3", "-m", "benchmarks.mulo", "--seeds", "2"], "python -m benchmarks.mulo --seeds 2"),
        (["/venv/bin/python3", __file__, "distribution", "a fox"], "test_machine.py distribution 'a fox'"),
        (["/venv/bin/python3"], "python"),
    ],
)
def test_the_command_is_one_to_type_again(monkeypatch, started, typed):
    monkeypatch.setattr(sys, "orig_argv", started)
    assert typed_command() == typed
