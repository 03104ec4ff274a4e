"""Replicas under Ray Serve, one of which is killed in mid-run: nothing is lost, and nothing is drawn otherwise."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

needs_ray = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None or importlib.util.find_spec("grpc") is None,
    reason="Ray Serve (extra 'serve-ray') is absent",
)


@pytest.mark.slow
@needs_ray
@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="finds replicas in Linux's table of processes")
def test_a_replica_that_is_killed_loses_nothing() -> None:
    command = [sys.executable, "-m", "benchmarks.server_replicas", "--requests", "6"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout.splitlines()[-1])["replica_kill"]
    assert (figures["pictures"], figures["replicas_seen"]) == (12, 2)
    assert figures["calls_made_again"] > 0
    assert (figures["lost_requests"], figures["requests_with_other_events"]) == (0, 0)
