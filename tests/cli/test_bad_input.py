"""Bad input, command by command: exit code 2, one message that says what to do, nothing written, no traceback."""

import re
from pathlib import Path

import pytest

import underpaint.runtime.device.language  # noqa: F401  (before a test's export imports Triton, to compile)
from tests.cli.bad_commands import COMMANDS
from tests.cli.bad_files import make_files
from tests.cli.program import listing, run_program, subcommands

MOST_SECONDS = 5.0
HUNG_SECONDS = 300.0
"""By the clock, which runs on while other programs have the processor."""
_USAGE = re.compile(r"^usage:", re.IGNORECASE)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory, cost_curves: None) -> Path:
    folder = tmp_path_factory.mktemp("bad")
    make_files(folder)
    return folder


@pytest.mark.parametrize(("line", "says"), COMMANDS, ids=[line for line, _ in COMMANDS])
def test_bad_input_is_refused(files: Path, monkeypatch: pytest.MonkeyPatch, line: str, says: str) -> None:
    before = listing(files)
    ran = run_program(line, files, monkeypatch)
    assert not ran.crash, ran.crash
    assert ran.code == 2, (ran.code, ran.out, ran.err)
    assert listing(files) == before
    message = ran.err.strip()
    assert message.startswith("error: ") or _USAGE.match(message) or not message, message
    assert message.count("error: ") <= 1, message
    assert says in " ".join((message or ran.out).replace("\u2502", " ").split()), message
    assert ran.cpu_seconds < MOST_SECONDS
    assert ran.seconds < HUNG_SECONDS


def test_every_subcommand_is_among_them() -> None:
    """Each of the program as it is: none is listed by hand."""
    assert len(COMMANDS) >= 150
    assert len({line for line, _ in COMMANDS}) == len(COMMANDS)
    lines = [re.sub(r"^--plugin \S+ ", "", line) for line, _ in COMMANDS]
    names = subcommands()
    assert {"train judge", "simulate predict", "export", "metrics write"} <= set(names)
    assert [name for name in names if not any(f"{line} ".startswith(f"{name} ") for line in lines)] == []
