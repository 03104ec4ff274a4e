import platform
import sys
from pathlib import Path

import pytest

from underpaint.runtime.evaluation import machine
from underpaint.runtime.evaluation.machine import typed_command


@pytest.mark.parametrize(
    ("started", "typed"),
    [
        (["/venv/bin/python3", "-m", "benchmarks.paired_speed", "runs/a"], "python -m benchmarks.paired_speed runs/a"),
        (["/venv/bin/python3", __file__, "distribution", "a fox"], "test_machine.py distribution 'a fox'"),
        (["/venv/bin/python3"], "python"),
    ],
)
def test_the_command_is_one_to_type_again(monkeypatch, started, typed):
    monkeypatch.setattr(sys, "orig_argv", started)
    assert typed_command() == typed


@pytest.mark.parametrize(
    ("table", "told"),
    [
        (
            "cpu family\t: 25\nmodel\t\t: 1\nmodel name\t: EPYC\n\ncpu family\t: 26\n",
            "EPYC (family 25, model 1)",
        ),
        ("model name\t: Neoverse-V2\n", "Neoverse-V2"),
        ("processor\t: 0\n", platform.processor() or platform.machine()),
        (None, platform.processor() or platform.machine()),
    ],
    ids=["family and model", "name alone", "no name", "no file"],
)
def test_kinds_of_a_processor_that_are_named_alike_are_told_apart(table: str | None, told: str, tmp_path: Path) -> None:
    path = tmp_path / "cpuinfo"
    if table is not None:
        path.write_text(table)
    assert machine._processor(path) == told
