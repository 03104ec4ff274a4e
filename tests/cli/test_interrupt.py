"""Ctrl-C ends every command in one line and with exit code 130, from its first import on."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PRESSED = """
import os, runpy, signal, sys

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it, and so do its children

class Presses:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            sys.meta_path.remove(self)
            os.kill(os.getpid(), signal.SIGINT)
        return None

sys.meta_path.insert(0, Presses())
sys.argv[1:] = {arguments!r}
runpy.run_module("underpaint.cli.app", run_name="__main__", alter_sys=True)
"""


@pytest.mark.parametrize(
    ("module", "arguments"),
    [
        ("typer", ["methods"]),
        ("underpaint.algos.plugin_guard", ["methods"]),
        ("underpaint.algos.registry", ["methods"]),
        ("numpy", ["methods"]),
        ("underpaint.cli.certify", ["certify", "rule:chain"]),
        ("underpaint.cli.train.commands", ["train", "judge"]),
        ("rich.console", ["methods"]),
        ("underpaint.runtime.methods.registry", ["methods"]),
        ("underpaint.runtime.pipeline", ["generate", "a cat"]),
        ("onnxruntime", ["generate", "a woolly fox left of an outlined pumpkin"]),
        ("underpaint.sim.exact.rule_report", ["exact", "chain"]),
        ("mine", ["--plugin", "mine", "methods"]),
    ],
)
def test_an_interrupt_during_an_import_ends_in_one_line(tmp_path: Path, module: str, arguments: list[str]) -> None:
    (tmp_path / "mine.py").write_text("")
    done = subprocess.run(
        [sys.executable, "-c", PRESSED.format(module=module, arguments=arguments)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT), str(tmp_path)))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 130, done.stderr
    assert done.stderr.splitlines() == ["stopped: nothing of what was not finished is kept"]
    assert done.stdout == ""
