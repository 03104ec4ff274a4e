"""Bad input, command by command: exit code 2, one message that says what to do, nothing written, no traceback."""

import re
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from time import process_time
from typing import Any

import pytest

import underpaint.runtime.device.launch  # noqa: F401  (before a test's export imports Triton, to compile)
from tests.cli.bad_commands import COMMANDS
from tests.cli.bad_files import make_files
from tests.cli.program import listing, run_program, subcommands
from underpaint.runtime.pipeline import Pipeline

MOST_SECONDS = 5.0
HUNG_SECONDS = 300.0
"""By the clock, which runs on while other programs have the processor."""
_USAGE = re.compile(r"^usage:", re.IGNORECASE)


OPENING = [0.0]
"""Processor seconds that it took to open the models that the last command shared."""


@pytest.fixture(scope="module")
def opened_once() -> Iterator[None]:
    """Commands that name the same models share them; models that do not open are opened by each command.

    What a command changes in a pipeline stays its own.
    """
    open_models = Pipeline.open

    @lru_cache(maxsize=4)
    def timed(*args: Any, **named: Any) -> tuple[Pipeline, float]:
        started = process_time()
        return open_models(*args, **named), process_time() - started

    def opened(*args: Any, **named: Any) -> Pipeline:
        hits = timed.cache_info().hits
        pipeline, seconds = timed(*args, **named)
        OPENING[0] += seconds * (timed.cache_info().hits - hits)
        return replace(pipeline, hashes=dict(pipeline.hashes))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Pipeline, "open", opened)
        yield


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory, cost_curves: None, opened_once: None) -> Path:
    folder = tmp_path_factory.mktemp("bad")
    make_files(folder)
    return folder


@pytest.fixture(scope="module")
def before(files: Path) -> dict[str, tuple[int, int]]:
    return listing(files)


@pytest.mark.parametrize(("line", "says"), COMMANDS, ids=[line for line, _ in COMMANDS])
def test_bad_input_is_refused(
    files: Path, before: dict[str, tuple[int, int]], monkeypatch: pytest.MonkeyPatch, line: str, says: str
) -> None:
    OPENING[0] = 0.0
    ran = run_program(line, files, monkeypatch)
    assert not ran.crash, ran.crash
    assert ran.code == 2, (ran.code, ran.out, ran.err)
    now = listing(files)
    changed = before.items() ^ now.items()
    before.clear()
    before.update(now)  # the next command is judged by itself
    assert not changed
    message = ran.err.strip()
    assert message.startswith("error: ") or _USAGE.match(message) or not message, message
    assert message.count("error: ") <= 1, message
    assert says in " ".join((message or ran.out).replace("\u2502", " ").split()), message
    assert ran.cpu_seconds + OPENING[0] < MOST_SECONDS
    assert ran.seconds < HUNG_SECONDS


def test_every_subcommand_is_among_them() -> None:
    """Each of the program as it is: none is listed by hand."""
    assert len(COMMANDS) >= 150
    assert len({line for line, _ in COMMANDS}) == len(COMMANDS)
    lines = [re.sub(r"^--plugin \S+ ", "", line) for line, _ in COMMANDS]
    names = subcommands()
    assert {"train judge", "simulate predict", "export", "metrics write"} <= set(names)
    assert [name for name in names if not any(f"{line} ".startswith(f"{name} ") for line in lines)] == []
