"""Graphs are captured on a stream of their own device, on one stream per runner, and a failed capture leaves it."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from tests.runtime.device.test_runner import condition, runner_of
from underpaint.algos.draft.choice import NOTHING
from underpaint.runtime.device.capture import WARM_UPS, GraphCapture

GPU = torch.device("cuda", 1)


class Stream:
    """A CUDA stream; `current` is that of this thread."""

    current: "Stream"

    def __init__(self, device: Any) -> None:
        self.device = device

    def wait_stream(self, other: "Stream") -> None:
        assert other is Stream.current


class Graph:
    """What PyTorch's CUDA graphs do to streams: a capture that fails does not leave the one that it was on."""

    captures: list[tuple[Stream, object]]

    def __init__(self) -> None:
        self.replays = 0

    def replay(self) -> None:
        self.replays += 1

    @staticmethod
    @contextmanager
    def capture(graph: "Graph", pool: object, stream: Stream, capture_error_mode: str) -> Iterator[None]:
        assert capture_error_mode == "thread_local"
        before, Stream.current = Stream.current, stream
        Graph.captures.append((stream, pool))
        yield
        Stream.current = before


@contextmanager
def on(stream: Stream) -> Iterator[None]:
    before, Stream.current = Stream.current, stream
    try:
        yield
    finally:
        Stream.current = before


@pytest.fixture(autouse=True)
def cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    Graph.captures, Stream.current = [], Stream(GPU)
    replaced = {
        "Stream": Stream,
        "current_stream": lambda device: Stream.current,
        "stream": on,
        "graph_pool_handle": object,
        "CUDAGraph": Graph,
        "graph": Graph.capture,
    }
    for name, stand_in in replaced.items():
        monkeypatch.setattr(torch.cuda, name, stand_in)


def test_a_program_is_warmed_up_and_captured_on_a_stream_of_its_device() -> None:
    before, streams = Stream.current, list[Stream]()

    def run() -> int:
        streams.append(Stream.current)
        return len(streams)

    capture = GraphCapture(GPU)
    (_, result), (_, again) = capture(run), capture(run, warm_ups=0)
    assert (result, again) == (WARM_UPS + 1, WARM_UPS + 2)
    assert {stream.device for stream in streams} == {GPU}
    assert len({*streams}) == 1
    assert len({*Graph.captures}) == 1, "graphs that share memory are captured on one stream"
    assert Stream.current is before


def test_a_capture_that_fails_leaves_its_stream() -> None:
    before = Stream.current

    def refuse() -> None:
        if Graph.captures:
            raise RuntimeError("operation not permitted when stream is capturing")

    with pytest.raises(RuntimeError, match="not permitted"):
        GraphCapture(GPU)(refuse)
    assert Stream.current is before


def test_a_runner_captures_on_its_own_device() -> None:
    runners = [runner_of(1) for _ in range(2)]
    for number, runner in enumerate(runners):
        runner._capture_graph = GraphCapture(torch.device("cuda", number))
        runner.begin(condition(1), [0], [0])
        runner.capture()
        assert runner.captured
    assert [stream.device.index for stream, _ in Graph.captures] == [0, 1]


def test_a_chosen_program_is_run_captured_and_replayed_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    runner, runs = runner_of(1), list[None]()
    runner._capture_graph = GraphCapture(GPU)
    monkeypatch.setattr(runner.cycle, "run", lambda: runs.append(None))
    program = (NOTHING.kind, 1, NOTHING.shape)
    for _ in range(3):
        runner._launch(program)
    graph: Any = runner._chosen[program]
    assert (len(runs), len(Graph.captures), graph.replays) == (2, 1, 2)
