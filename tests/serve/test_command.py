"""`underpaint serve` as a shell starts it."""

import json
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx2
import pytest

from tests.cli.program import run_program
from tests.serve.served import PATH, PROMPT


def test_a_port_in_use_is_bad_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ran = run_program(f"serve --port {listener.getsockname()[1]}", tmp_path, monkeypatch)
    assert (ran.code, ran.crash) == (2, "")
    assert "where nothing listens, got: Address already in use; choose another port" in ran.err
    assert ran.err.count("error: ") == 1


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fastapi", None)
    for name in [name for name in sys.modules if name.startswith("underpaint.serve.")]:
        monkeypatch.delitem(sys.modules, name)
    ran = run_program("serve --port 0", tmp_path, monkeypatch)
    assert (ran.code, ran.crash) == (2, "")
    assert ran.err.startswith("error: `underpaint serve` needs fastapi; install it with: pip install")


@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_after_what_it_accepted(sign: signal.Signals) -> None:
    command = [sys.executable, "-m", "underpaint", "serve", "--port", "0", "--resolution", "64"]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert running.stdout is not None
        first_line = running.stdout.readline()
        where = re.search(r"http://127.0.0.1:\d+", first_line)
        assert where is not None, first_line
        body = {"prompt": PROMPT, "seed": 1, "stream": True, "events": True, "method": "ar"}
        with httpx2.Client(timeout=120) as client, client.stream("POST", where.group() + PATH, json=body) as answer:
            lines = answer.iter_lines()
            assert next(lines) == "event: underpaint.cells"
            running.send_signal(sign)
            events = [line for line in lines if line.startswith("event: ")]
        assert events[-1] == "event: image_generation.completed"
        out, err = running.communicate(timeout=120)
        assert running.returncode == 0, err
        assert "Traceback" not in out + err
        assert json.dumps(PROMPT) not in err
    finally:
        running.kill()
        running.communicate()
