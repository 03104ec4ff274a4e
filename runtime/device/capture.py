"""Capture of CUDA graphs, on a stream of the device that runs them."""

from collections.abc import Callable
from typing import Final, TypeVar

import torch

WARM_UPS: Final = 2
"""Number of runs before a capture: the first compiles, and libraries allocate memory."""
Result = TypeVar("Result")


class GraphCapture:
    """Captures programs of one device. Its graphs share memory, so only buffers outside it pass data between them."""

    def __init__(self, device: torch.device | int) -> None:
        """Make the stream and the memory of the captures.

        Args:
            device: The current device, by its index.
        """
        self._device = device
        # PyTorch's default is one stream for the whole process, on the device of its first capture.
        self._stream: torch.cuda.Stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, run: Callable[[], Result], warm_ups: int = WARM_UPS) -> tuple[torch.cuda.CUDAGraph, Result]:
        """Run `run` several times, then capture it; return the graph, and the result that each replay overwrites.

        Raises RuntimeError if `run` cannot be captured.
        """
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(self._stream):  # `torch.cuda.graph` does not leave its stream if the capture fails
            for _ in range(warm_ups):
                run()
            # Allocations of other threads must not invalidate the capture: engines compile, servers decode pictures.
            with torch.cuda.graph(graph, self._pool, self._stream, capture_error_mode="thread_local"):
                result = run()
        return graph, result
