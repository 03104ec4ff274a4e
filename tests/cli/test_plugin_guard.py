"""A plug-in that fails, ends the program or prints is told by name, file and line, and spoils no output."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.program import run_program

ROOT = Path(__file__).parents[2]
EXAMPLE = (ROOT / "docs/examples/last_first.py").read_text().replace("import Chance\n", "import At, Chance, Role\n")
BODY = "        return walk(tree, probs, chance, _backwards)\n"
assert BODY in EXAMPLE


def plugin(folder: Path, body: str, head: str = "") -> Path:
    path = folder / "mine.py"
    path.write_text(EXAMPLE.replace(BODY, body) + head)
    return path


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("        raise RuntimeError('broken rule')\n", "RuntimeError: broken rule"),
        ("        return 1 / 0\n", "ZeroDivisionError"),
        ("        raise StopIteration\n", "StopIteration"),
        ("        return 5\n", "must return a Verdict"),
        ("        return None\n", "must return a Verdict with no nodes and a token from 0 to"),
        ("        raise SystemExit(0)\n", "SystemExit: 0"),
        ("        __import__('os')._exit(0)\n", "SystemExit: it ended the program by os._exit(0)"),
        ("        return Verdict((99,), 0)\n", "must return a Verdict with no nodes"),
        ("        return Verdict((), -1)\n", "must return a Verdict"),
        ("        return Verdict((), 0.5)\n", "must return a Verdict"),
        ("        return Verdict((), chance.draw(probs[0] * 0, At(Role.BONUS, 0)))\n", "ValueError: draw: expected"),
    ],
)
def test_a_rule_that_fails_in_use_is_named_with_its_file_and_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, says: str
) -> None:
    path = plugin(tmp_path, body)
    done = run_program(f"--plugin {path.name} exact last_first", tmp_path, monkeypatch)
    assert (done.code, done.crash) == (2, ""), done
    assert says in done.err
    assert "plug-in mine.py" in done.err
    line = 1 + path.read_text()[: path.read_text().index(body)].count("\n")
    assert f"{path}, line {line}" in done.err or f"{path}, line {line - 1}" in done.err
    assert done.out == ""


@pytest.mark.parametrize("callback", ["bound_at", "lossless_when"])
def test_a_callback_that_fails_is_named_with_its_file_and_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, callback: str
) -> None:
    failing = f"{callback}=lambda *given: float('no number')"
    lenient = (ROOT / "docs/examples/lenient.py").read_text()
    start = lenient.index(f"{callback}=")
    end = lenient.index("\n", start)
    (tmp_path / "mine.py").write_text(lenient[:start] + failing + "," + lenient[end:])
    done = run_program("--plugin mine.py exact lenient", tmp_path, monkeypatch)
    assert (done.code, done.crash) == (2, ""), done
    assert "plug-in mine.py: ValueError: could not convert" in done.err
    assert f"mine.py, line {1 + lenient[:start].count(chr(10))}" in done.err


def test_a_value_that_a_plug_in_refuses_is_the_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checks = "    k: int = 1\n\n    def __post_init__(self) -> None:\n        if self.k < 1:\n"
    checks += "            raise ValueError('k: 1 or more')\n\n"
    (tmp_path / "mine.py").write_text(EXAMPLE.replace("    def __call__", checks + "    def __call__"))
    done = run_program("--plugin mine.py exact last_first --set k=0", tmp_path, monkeypatch)
    assert (done.code, done.crash) == (2, ""), done
    assert "k: 1 or more" in done.err
    assert "mend it there" not in done.err


def run(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "underpaint.cli.app", *command],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize(
    "ending", ["import os; os._exit(0)", "from os import _exit; _exit(0)", "import posix; posix._exit(0)"]
)
def test_a_plug_in_that_ends_the_program_as_it_is_loaded_is_bad_input(tmp_path: Path, ending: str) -> None:
    (tmp_path / "mine.py").write_text(f"x = 1\n{ending}\n")
    done = run(tmp_path, "--plugin", "mine.py", "methods")
    assert done.returncode == 2
    assert "plug-in mine.py" in done.stderr
    assert "line 2" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("ending", "named"),
    [
        ("atexit.register(lambda: os._exit(0))", True),
        ("atexit.register(os._exit, 0)", False),
        ("from posix import _exit; atexit.register(lambda: _exit(0))", True),
    ],
)
def test_a_plug_in_does_not_choose_the_exit_code_at_the_end(tmp_path: Path, ending: str, named: bool) -> None:
    (tmp_path / "mine.py").write_text(f"import atexit, os\n{ending}\n")
    done = run(tmp_path, "--plugin", "mine.py", "exact", "block", "--json", "-")
    assert done.returncode == 2
    assert json.loads(done.stdout)["rule"] == "block"
    assert "error: plug-in mine.py: it ended the program by os._exit(0) at its end" in done.stderr
    assert ("mine.py, line 2)" in done.stderr) == named
    assert "Traceback" not in done.stderr


def test_a_rule_that_sleeps_has_a_time_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = plugin(tmp_path, "        import time\n        time.sleep(600)\n")
    done = run_program(f"--plugin {path.name} exact last_first --timeout 0.5", tmp_path, monkeypatch)
    assert (done.code, done.crash, done.out) == (2, "", "")
    assert "plug-in mine.py: rule 'last_first': __call__ gave no answer within 0.5 s" in done.err
    assert "pass a longer --timeout" in done.err
    assert done.seconds < 300


def test_certify_says_once_what_to_mend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plugin(tmp_path, "        return 5\n")
    done = run_program("--plugin mine.py certify rule:last_first", tmp_path, monkeypatch)
    assert (done.code, done.crash) == (2, "")
    assert done.err.count("mend it") == 1, done.err


def test_a_verifier_that_raises_an_interrupt_is_bad_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").write_text("def verify(draft, uniforms):\n    raise KeyboardInterrupt\n")
    done = run_program("certify mine.py:verify", tmp_path, monkeypatch)
    assert (done.code, done.crash) == (2, "")
    assert "crash: KeyboardInterrupt" in done.err
    assert "Traceback" not in done.err


def test_what_a_plug_in_prints_does_not_stand_in_the_results(tmp_path: Path) -> None:
    plugin(
        tmp_path,
        "        print('in use')\n        import os\n        os.write(1, b'raw use')\n        os.system('echo child')\n"
        + BODY,
        "print('loaded')\nimport os, sys\nos.write(1, b'raw')\nsys.stdout.write('direct')\n",
    )
    done = run(tmp_path, "--plugin", "mine.py", "exact", "last_first", "--json", "-")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["rule"] == "last_first"
    for expected in ("loaded", "raw", "direct", "in use", "raw use", "child"):
        assert expected in done.stderr
