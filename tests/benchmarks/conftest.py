"""Benchmarks choose the threads of the process's pool; here they share a process with all other tests."""

import pytest

from underpaint.runtime.engines import context

_require_pool = context._require_pool


@pytest.fixture(autouse=True)
def _any_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever pool the process has already, they take it for the one that they asked for."""
    monkeypatch.setattr(context, "_require_pool", lambda threads: _require_pool(None))
