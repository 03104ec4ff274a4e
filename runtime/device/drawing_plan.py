"""Plans for drawing on a device: which methods can run in batches, and how much memory they need."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch

from underpaint.algos.rows import SamplingParams
from underpaint.runtime.device.devices import REDUCE_BATCH, check_memory, device_name
from underpaint.runtime.device.drawing import DeviceDrawer
from underpaint.runtime.device.engine_forward import EngineForward
from underpaint.runtime.device.folder import DeviceModels, FolderModels
from underpaint.runtime.device.forms import DeviceError, DeviceForm, Layout, form_of
from underpaint.runtime.device.low_models import LowFiles
from underpaint.runtime.device.providers import TORCH, check_engines, check_forward, open_engines
from underpaint.runtime.device.state import needed_bytes
from underpaint.runtime.engines.engine import rows_of
from underpaint.runtime.methods.method import DecodingMethod
from underpaint.runtime.pipeline import Pipeline

MOST_BATCH: Final = 256
"""Largest number of batch slots."""


@dataclass(frozen=True, slots=True)
class DevicePlan:
    """A drawing job that was checked before any weight is read; make one with `plan_drawing`.

    Attributes:
        pipeline: The models.
        folder: Their decoders.
        device: Device that draws.
        batch: Number of batch slots.
        rows: Rows per image: 2 under guidance, else 1.
        needed: Bytes of the largest program's buffers.
        forward: Backend of the forward passes, see `providers.FORWARDS`.
        engine_decoders: How many of the folder's decoders run on an engine, in the order target, drafter.
    """

    pipeline: Pipeline
    folder: FolderModels
    device: torch.device
    batch: int
    rows: int
    needed: int
    forward: str
    engine_decoders: int

    def describe(self) -> str:
        """Return the device, the batch and the backend in words."""
        by = "" if self.forward == TORCH else f", forward by {self.forward}"
        return f"{device_name(self.device)}, batches of {self.batch}{by}"

    def open(self, models: DeviceModels | None = None) -> DeviceDrawer:
        """Open the engines, and load the weights.

        Args:
            models: Models of the same folder, whose engines and weights are reused; None opens and reads all.
        """
        before = [] if models is None else [models.target, models.drafter]
        engines = [one.engine for one in before if isinstance(one, EngineForward)][: self.engine_decoders]
        missing = self.folder.decoders[len(engines) : self.engine_decoders]
        engines.extend(open_engines(missing, self.forward, self.device, self.batch))
        encoder = self.pipeline.high.encoder
        opened = DeviceModels.read(self.folder, encoder, self.rows, self.device, engines, models)
        return DeviceDrawer(self.pipeline, opened, self.batch)


def plan_drawing(
    pipeline: Pipeline,
    methods: Sequence[DecodingMethod],
    sampling: SamplingParams,
    device: torch.device,
    batch: int,
    forward: str = TORCH,
    *,
    loaded: bool = False,
    eager: bool = False,
    remedy: str = REDUCE_BATCH,
) -> DevicePlan:
    """Check that every method can draw in batches, and that the memory suffices.

    Args:
        pipeline: Models that were opened for the device.
        methods: Methods to draw with.
        sampling: Sampling parameters.
        device: Device that draws.
        batch: Number of batch slots, 1 to `MOST_BATCH`.
        forward: Backend of the forward passes.
        loaded: Whether the weights are on the device already; if so, memory is checked when buffers are allocated.
        eager: Whether `ar-eager` draws too, which may need a second copy of the target.
        remedy: What the error says to do if the memory is too small.

    Raises:
        DeviceError: The batch is out of range; a method has no device form (the message lists those that have one); a
            tree is too large for the device; or the memory is too small (the message says how much is needed).
        EngineError: The backend cannot be used here, or an engine is missing (the message has the command to make it).
    """
    if not 1 <= batch <= MOST_BATCH:
        raise DeviceError(f"--batch: expected 1 to {MOST_BATCH} images, got {batch}")
    check_forward(forward, device, pipeline.context.quantization)
    folder, rows = FolderModels.of(pipeline), rows_of(sampling)
    grid, (target, drafter) = pipeline.grid, folder.configs
    prefix = max(1, target.prefix) + target.eol_tokens
    forms, lows = [form_of(method, sampling, grid) for method in methods], list[LowFiles | None]()
    for method, form in zip(methods, forms, strict=True):
        _layout(method, form, folder, batch)
        try:
            lows.append(form.low_files(pipeline))
            form.check(grid, target.vocab_size, target.eol_id)
        except ValueError as error:
            raise _without_form(method, error) from error

    def buffers(count: int) -> int:
        """Return the bytes of a batch of `count` images, for the method that needs most."""
        images = count + (count > 1)  # the extra one starts the images that enter a free slot
        most = 0
        for form, low in zip(forms, lows, strict=True):
            layout = form.layout(grid, target.vocab_size, target.eol_id, count)
            drafting = 0 if low is None else low.draft_bytes(count, rows, target, grid, folder.dtype)
            models = (target, drafter if form.drafts else None, rows, folder.dtype, folder.draft_dtype)
            state_bytes = needed_bytes(images, layout.envelope, grid.cells, prefix, *models)
            most = max(most, images * layout.image_bytes + drafting + state_bytes)
        return most

    engine_decoders, needed = check_engines(folder, forms, forward, batch, rows), buffers(batch)
    if not loaded:
        small = {form.low_key: low.weight_bytes() for form, low in zip(forms, lows, strict=True) if low is not None}
        weights = folder.weight_bytes(forward == TORCH, eager) + sum(small.values())
        share = f"({weights / 2**30:.1f} of them for the weights)"
        check_memory(device, needed + weights, share, batch, lambda count: buffers(count) + weights, remedy)
    return DevicePlan(pipeline, folder, device, batch, rows, needed, forward, engine_decoders)


def most_images(method: DecodingMethod, sampling: SamplingParams, pipeline: Pipeline) -> int | None:
    """Return the largest batch that a method supports, None for any; DeviceError if it has no device form."""
    return _layout(method, form_of(method, sampling, pipeline.grid), FolderModels.of(pipeline), 1).most_images


def _layout(method: DecodingMethod, form: DeviceForm, folder: FolderModels, batch: int) -> Layout:
    target = folder.target.config
    try:
        return form.layout(target.grid, target.vocab_size, target.eol_id, batch)
    except ValueError as error:
        raise _without_form(method, error) from error


def _without_form(method: DecodingMethod, error: ValueError) -> DeviceError:
    return DeviceError(f"method '{method.name}': {str(error).removeprefix('device: ')}")
