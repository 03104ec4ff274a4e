"""Plans of drawing on a device: which methods can be drawn in batches, and how much memory that takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch

from underpaint.algos.rows import SamplingParams
from underpaint.runtime.device.devices import check_memory, device_name
from underpaint.runtime.device.drawing import DeviceDrawer
from underpaint.runtime.device.folder import DeviceModels, FolderModels
from underpaint.runtime.device.forms import DeviceError, DeviceForm, Layout, form_of
from underpaint.runtime.device.low_models import LowFiles
from underpaint.runtime.device.providers import TORCH, check_engines, check_forward, open_engines
from underpaint.runtime.device.state import needed_bytes
from underpaint.runtime.engines.engine import rows_of
from underpaint.runtime.methods.method import DecodingMethod
from underpaint.runtime.pipeline import Pipeline

MOST_BATCH: Final = 256
"""Images of a batch."""


@dataclass(frozen=True, slots=True)
class DevicePlan:
    """What is to be drawn on a device, checked before any weight is read; make one with `plan_drawing`.

    Attributes:
        pipeline: The models.
        folder: Their decoders.
        device: Where they draw.
        batch: Images that are drawn together.
        rows: Rows of an image: 2 under guidance, else 1.
        needed: Bytes of the largest program's buffers.
        forward: What makes the forward passes, see `providers.FORWARDS`.
        engine_decoders: How many of the folder's decoders run on an engine: the target first, then the drafter.
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
        """The device and the batch in words."""
        by = "" if self.forward == TORCH else f", forward by {self.forward}"
        return f"{device_name(self.device)}, batches of {self.batch}{by}"

    def open(self, models: DeviceModels | None = None) -> DeviceDrawer:
        """Open the engines.

        Args:
            models: Models of the same folder, whose weights are shared; None reads them.
        """
        engines = open_engines(self.folder.decoders[: self.engine_decoders], self.forward, self.device, self.batch)
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
) -> DevicePlan:
    """Check that every method can be drawn in batches, and that memory suffices.

    Args:
        pipeline: Models that were opened for the device.
        methods: What to draw by.
        sampling: How.
        device: Where.
        batch: Images that are drawn together, 1 to `MOST_BATCH`.
        forward: What makes the forward passes.
        loaded: Whether the weights are on the device already; memory is then looked at as buffers are made.

    Raises:
        DeviceError: A batch out of range; a method without a form on the device, with the names of those that have
            one; a tree beyond what the device holds; too little memory, with how much is needed.
        EngineError: A forward that cannot be used here; an engine that is not there, with the command that makes it.
    """
    if not 1 <= batch <= MOST_BATCH:
        raise DeviceError(f"--batch: expected 1 to {MOST_BATCH} images, got {batch}")
    check_forward(forward, device)
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
        """Bytes of a batch of `count` images, by the method that takes most."""
        images = count + (count > 1)  # one more, in which an image begins that takes a free slot
        most = 0
        for form, low in zip(forms, lows, strict=True):
            layout = form.layout(grid, target.vocab_size, target.eol_id, count)
            drafting = 0 if low is None else low.draft_bytes(count, rows, target, grid, folder.dtype)
            models = (target, drafter if form.drafts else None, rows, folder.dtype)
            own = needed_bytes(images, layout.envelope, grid.cells, prefix, *models)
            most = max(most, images * layout.image_bytes + drafting + own)
        return most

    engine_decoders, needed = check_engines(folder, forms, forward, batch, rows), buffers(batch)
    if not loaded:
        small = {form.low_key: low.weight_bytes() for form, low in zip(forms, lows, strict=True) if low is not None}
        weights = folder.weight_bytes() + sum(small.values())
        share = f"({weights / 2**30:.1f} of them for the weights)"
        check_memory(device, needed + weights, share, batch, lambda count: buffers(count) + weights)
    return DevicePlan(pipeline, folder, device, batch, rows, needed, forward, engine_decoders)


def most_images(method: DecodingMethod, sampling: SamplingParams, pipeline: Pipeline) -> int | None:
    """Images of the largest batch that a method has a form for; None for any. DeviceError where it has no form."""
    return _layout(method, form_of(method, sampling, pipeline.grid), FolderModels.of(pipeline), 1).most_images


def _layout(method: DecodingMethod, form: DeviceForm, folder: FolderModels, batch: int) -> Layout:
    target = folder.target.config
    try:
        return form.layout(target.grid, target.vocab_size, target.eol_id, batch)
    except ValueError as error:
        raise _without_form(method, error) from error


def _without_form(method: DecodingMethod, error: ValueError) -> DeviceError:
    return DeviceError(f"method '{method.name}': {str(error).removeprefix('device: ')}")
