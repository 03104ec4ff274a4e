"""No file outside the folders that are the project's or were named."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROMPT = "a fox left of a panda"


def test_a_drawing_leaves_nothing_in_the_user_s_home(tmp_path: Path) -> None:
    home, work = tmp_path / "home", tmp_path / "work"
    home.mkdir()
    work.mkdir()
    # CI and a test runner's own variables would switch telemetry off too, and hide that we do.
    variable_names = ("PATH", "LD_LIBRARY_PATH", "VIRTUAL_ENV")
    environment = {name: value for name, value in os.environ.items() if name in variable_names}
    environment |= {"HOME": str(home), "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    program = "from underpaint.cli.app import main; main()"
    command = [sys.executable, "-c", program, "generate", PROMPT, "--resolution", "64", "--out", "fox.png"]
    done = subprocess.run(command, cwd=work, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert [path.relative_to(home) for path in home.rglob("*") if path.is_file()] == []
    assert [path.name for path in work.rglob("*")] == ["fox.png"]
