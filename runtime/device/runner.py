"""Decoding batches on the device: one captured graph, replayed until every image is done."""

from collections.abc import Sequence
from typing import Final, NamedTuple

import torch
from torch import Tensor

from underpaint.algos.arrays import IntArray
from underpaint.algos.draft.spec import Grid
from underpaint.runtime.device.cycle import DeviceCycle, DeviceMethod, method_plan
from underpaint.runtime.device.forwards import DeviceDecoder
from underpaint.runtime.device.kernels.walk import DONE, NO_SUPPORT, NOT_DRAWN, NOT_FINITE
from underpaint.runtime.device.state import Envelope, needed_bytes

LEAST_CAPABILITY: Final = (8, 0)
ENDINGS: Final = {
    NOT_FINITE: "its logits held NaN or infinity; check the weights and their precision",
    NO_SUPPORT: "a distribution held no token; check the sampler's settings",
    NOT_DRAWN: "a drafted token had no probability under the drafter's distribution",
}


class DeviceError(ValueError):
    """The device, the batch or the memory is not what decoding needs."""


class DecodedImage(NamedTuple):
    """One image. tokens: [cells] int64, None where it ended with an error; cycles: how many it took."""

    tokens: IntArray | None
    cycles: int
    error: str | None


def open_device(name: str) -> torch.device:
    """The device "cuda", "cuda:1" or "cpu" (interpreted: slow, for trying things).

    Raises DeviceError where there is none, or one that kernels are not compiled for.
    """
    device = torch.device(name)
    if device.type == "cpu":
        return device
    if device.type != "cuda" or not torch.cuda.is_available():
        raise DeviceError(f"device '{name}': there is no CUDA device here; 'cpu' tries it, slowly, by interpreting")
    if torch.cuda.get_device_capability(device) < LEAST_CAPABILITY:
        major, minor = torch.cuda.get_device_capability(device)
        raise DeviceError(f"device '{name}': expected compute capability 8.0 or newer, got {major}.{minor}")
    return device


class DeviceRunner:
    """Decodes up to `batch` images at a time by one method."""

    def __init__(
        self,
        target: DeviceDecoder,
        drafter: DeviceDecoder | None,
        method: DeviceMethod,
        grid: Grid,
        prefix: int,
        batch: int,
        device: torch.device,
    ) -> None:
        self.batch, self.grid, self._device = batch, grid, device
        plan = method_plan(method, grid, target.shape.vocab_size)
        envelope = Envelope(1, 0, 1, 1, 1) if plan is None else plan.envelope
        shapes = (target.shape, None if drafter is None or plan is None else drafter.shape)
        number_bytes = torch.empty(0, dtype=target.dtype).element_size()
        check_memory(device, needed_bytes(batch, envelope, grid.cells, prefix, *shapes, number_bytes))
        self.cycle = DeviceCycle(target, drafter, method, grid, prefix, batch, device)
        self._graph: torch.cuda.CUDAGraph | None = None

    @torch.no_grad()
    def begin(self, condition: Tensor, seeds: Sequence[int], images: Sequence[int], hidden: int = 0) -> None:
        """Start images; condition [rows * n, P, F] for n <= batch images, the conditional rows first.

        seeds and images name their noise. A short batch is filled up with copies of its last image.
        """
        count = len(images)
        if not 1 <= count <= self.batch or len(seeds) != count:
            raise DeviceError(
                f"expected 1 to {self.batch} images, as many as were captured, a seed each, got {count} images and "
                f"{len(seeds)} seeds; make a larger runner, or decode in parts"
            )
        rows = condition.shape[0] // count
        filled = torch.tensor([min(place, count - 1) for place in range(self.batch)], device=condition.device)
        index = torch.cat([filled + row * count for row in range(rows)])
        kept = filled.tolist()
        keys = torch.tensor([[part[place] for place in kept] for part in (seeds, images)], device=self._device)
        self.cycle.begin(condition[index], keys[0], keys[1], hidden)

    @torch.no_grad()
    def capture(self) -> None:
        """Compile every kernel and capture a cycle as a CUDA graph; call it after the first `begin`, once."""
        if self._device.type != "cuda" or self._graph is not None:
            return
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):
                self.cycle.run()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.cycle.run()
        self._graph = graph

    @torch.no_grad()
    def step(self) -> None:
        """One cycle of every image that is not done; nothing is read back."""
        if self._graph is None:
            self.cycle.run()
        else:
            self._graph.replay()

    def finish(self, count: int, poll: int = 8) -> list[DecodedImage]:
        """Go on until the first `count` images are done, looking every `poll` cycles, and read them back."""
        state = self.cycle.state
        status = state.verdicts.status
        while not bool((status > 0).all()):
            for _ in range(poll if self._device.type == "cuda" else 1):
                self.step()
        decided, cycles, ended = state.progress.decided.cpu(), state.progress.cycles.tolist(), status.tolist()
        made = []
        for place in range(count):
            error = None if ended[place] == DONE else ENDINGS[ended[place]]
            tokens = decided[place].numpy() if error is None else None
            made.append(DecodedImage(tokens, cycles[place], error))
        return made


def check_memory(device: torch.device, needed: int) -> None:
    """Raise DeviceError, saying how much is needed, where the device has less memory free."""
    if device.type != "cuda":
        return
    free, _ = torch.cuda.mem_get_info(device)
    if needed > free:
        raise DeviceError(
            f"this batch needs {needed / 2**30:.1f} GiB beside the weights, the device has {free / 2**30:.1f} free; "
            "lower the batch, or the policy's tree"
        )
