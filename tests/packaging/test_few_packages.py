"""A machine that has the checkout, NumPy and PyTorch runs it: no installation, and no package that serves one task."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BLOCKED = ("resvg_py", "importlinter", "ray")
"""Packages that a GPU machine without a package index lacks."""


@pytest.mark.parametrize("module", ["benchmarks.gpu"])
def test_benchmarks_start_from_a_bare_checkout(module: str) -> None:
    program = (
        "import runpy, sys\n"
        f"sys.modules.update(dict.fromkeys({BLOCKED!r}))\n"
        f"sys.argv = ['{module}', '--help']\n"
        f"runpy.run_module('{module}', run_name='__main__')\n"
    )
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r})\n{program}"
    done = subprocess.run([sys.executable, "-I", "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "--out" in done.stdout
