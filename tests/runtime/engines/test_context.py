"""Threads and memory are what the context says."""

import subprocess
import sys

import pytest

from underpaint.runtime.engines.context import SHARED, EngineContext, EngineError, usable_cores


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"threads": 0}, "threads must be >= 1, got 0"),
        ({"pool": "each"}, "pool must be own or shared, got 'each'"),
    ],
)
def test_a_context_that_cannot_be_is_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(EngineError, match=message):
        EngineContext(**settings)  # type: ignore[arg-type]


def test_models_that_take_turns_share_by_default() -> None:
    assert SHARED.pool == "shared"
    assert SHARED.threads is None
    assert EngineContext().pool == "own"
    assert usable_cores() >= 1


def test_a_process_has_one_pool() -> None:
    """In a process of its own, because the pool stays for good: whoever comes later runs there, or is told why not."""
    program = """
from pathlib import Path
from underpaint.runtime.engines.context import EngineContext, EngineError, open_session
from underpaint.zoo.load import FOLDER
path = FOLDER / "superres.onnx"
own = open_session(path, EngineContext(threads=1))
shared = [open_session(path, EngineContext(threads=threads, pool="shared")) for threads in (2, None)]
later = open_session(path, EngineContext(threads=1))
for session in (own, *shared, later):
    print(session.get_session_options().use_per_session_threads)
try:
    open_session(path, EngineContext(threads=3, pool="shared"))
except EngineError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        "True",
        "False",
        "False",
        "False",
        "context: this process shares a pool of 2 threads, which cannot become 3; leave threads out, or choose it in a "
        "process of its own",
    ]
