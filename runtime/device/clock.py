"""How long the device takes, by its own events."""

from collections import deque
from time import perf_counter

import torch


class DeviceClock:
    """Seconds that the device spends within `with` blocks: by CUDA events, on the CPU by the clock.

    A pause of the device between two launches of one block counts as the device's.
    """

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self.restart()

    def restart(self) -> None:
        """Forget what was measured."""
        self._seconds = 0.0
        self._pairs: deque[tuple[torch.cuda.Event, torch.cuda.Event]] = deque()

    def __enter__(self) -> None:
        if self._cuda:
            while self._pairs and self._pairs[0][1].query():  # a server draws for weeks
                self._add_first()
            first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            first.record()
            self._pairs.append((first, last))
        else:
            self._seconds -= perf_counter()

    def __exit__(self, *_: object) -> None:
        if self._cuda:
            self._pairs[-1][1].record()
        else:
            self._seconds += perf_counter()

    def seconds(self) -> float:
        """What was measured since the start; waits for the device."""
        if self._cuda:
            torch.cuda.synchronize()
        while self._pairs:
            self._add_first()
        return self._seconds

    def _add_first(self) -> None:
        first, last = self._pairs.popleft()
        self._seconds += 1e-3 * first.elapsed_time(last)
