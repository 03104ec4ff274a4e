"""The device that draws: opening it, its free memory, and time measured by its own events."""

import os
from collections import deque
from collections.abc import Callable
from time import perf_counter
from typing import Final

import numpy as np
import torch

from underpaint.runtime.device.forms import DeviceError
from underpaint.runtime.device.launch import INTERPRETED, MODE, TRITON, kernel, launch, tl

LEAST_CAPABILITY: Final = (8, 0)
REDUCE_BATCH: Final = "lower the batch, or the policy's tree"
"""What lets a batch fit into the memory."""


@kernel
def count_up(numbers):
    """Loop as often as the first of two numbers says, as kernels do that grow trees."""
    for turn in range(tl.load(numbers)):
        tl.store(numbers + 1, turn)


def open_device(name: str) -> torch.device:
    """Open the device "cuda" (the current one), "cuda:1" or "cpu" (interpreted and slow, for trials).

    A CUDA device is returned with its index, because PyTorch's `set_device` takes no other.

    Raises DeviceError if the device does not exist, or this process does not compile kernels for it.
    """
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise DeviceError(f"device '{name}': expected cuda, cuda:1, ... or cpu") from error
    if device.type == "cpu":
        if not INTERPRETED:
            raise DeviceError(
                f"device 'cpu': kernels are compiled in this process; set {MODE}=interpret, and try again"
            )
        _check_interpreter(device)
        return device
    if device.type != "cuda" or not torch.cuda.is_available():
        raise DeviceError(f"device '{name}': there is no CUDA device here; 'cpu' tries it, slowly, by interpreting")
    if device.index is not None and device.index >= torch.cuda.device_count():
        raise DeviceError(f"device '{name}': there are {torch.cuda.device_count()} CUDA devices here, counted from 0")
    if torch.cuda.get_device_capability(device) < LEAST_CAPABILITY:
        major, minor = torch.cuda.get_device_capability(device)
        raise DeviceError(f"device '{name}': expected compute capability 8.0 or newer, got {major}.{minor}")
    if INTERPRETED:
        raise DeviceError(
            f"device '{name}': kernels are interpreted in this process; unset {MODE} and TRITON_INTERPRET"
        )
    if device.index is None:
        device = torch.device("cuda", torch.cuda.current_device())
    torch.cuda.set_device(device)  # Triton launches, and graphs capture, on the current device
    return device


def _check_interpreter(device: torch.device) -> None:
    """Raise DeviceError if Triton's interpreter cannot run a kernel, as with Triton 3.6 and NumPy 2.4."""
    try:
        launch(count_up, (1,), 0, torch.ones(2, dtype=torch.int64, device=device))
    except Exception as error:  # Triton's InterpreterError wraps another error as text
        raise DeviceError(
            f"device 'cpu': Triton {TRITON}'s interpreter fails under NumPy {np.__version__} ({error}); install "
            "Triton 3.9 with: pip install 'triton==3.9.0'; or install 'numpy<2.4'; a GPU needs neither"
        ) from error


def device_name(device: torch.device) -> str:
    """Return the device's name."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else f"{device}, interpreted"


def check_memory(
    device: torch.device,
    needed: int,
    what: str = "beside the weights",
    batch: int = 1,
    smaller: Callable[[int], int] | None = None,
    remedy: str = REDUCE_BATCH,
) -> None:
    """Check that the device has at least `needed` bytes free.

    Args:
        device: The device; on the CPU, the host's memory counts, where the system tells it.
        needed: Number of bytes that the batch needs.
        what: Text that follows the needed size in the error.
        batch: Number of images in the batch.
        smaller: Returns the bytes of a batch of fewer than `batch` images; the error then names the largest one that
            fits.
        remedy: The end of the error, which says what to do.

    Raises:
        DeviceError: Less memory is free; the error says how much is needed.
    """
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
    elif "SC_AVPHYS_PAGES" in os.sysconf_names:
        free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
    else:
        return
    if needed > free:
        fits = next((count for count in range(batch - 1, 0, -1) if smaller is not None and smaller(count) <= free), 0)
        largest = (
            f"the largest that fits has {fits} image{'s' if fits > 1 else ''}; " if fits else "not one image fits; "
        )
        raise DeviceError(
            f"this batch needs {needed / 2**30:.1f} GiB {what}, {needed:,} bytes; the device has {free / 2**30:.1f} "
            f"free, {free:,} bytes; {'' if smaller is None else largest}{remedy}"
        )


class DeviceClock:
    """Measures seconds that the device spends in `with` blocks: by CUDA events, or by the host's clock on the CPU.

    Idle time of the device between two launches of one block counts too.
    """

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._seconds = 0.0
        self._pairs: deque[tuple[torch.cuda.Event, torch.cuda.Event]] = deque()

    def __enter__(self) -> None:
        if self._cuda:
            while self._pairs and self._pairs[0][1].query():  # keeps the queue short in a server that runs for weeks
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
        """Return all seconds measured so far. Waits for the device."""
        if self._cuda:
            torch.cuda.synchronize()
        while self._pairs:
            self._add_first()
        return self._seconds

    def _add_first(self) -> None:
        first, last = self._pairs.popleft()
        self._seconds += 1e-3 * first.elapsed_time(last)
