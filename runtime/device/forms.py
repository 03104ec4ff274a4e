"""Device forms of methods: the sizes of a method's passes, what it needs, and its program for a batch.

A family of methods names its form as "module:function" in `MethodConfig.device`; this module knows no family.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from underpaint.algos.arrays import BoolArray, IntArray
from underpaint.algos.protocols import Grid
from underpaint.algos.rows import SamplingParams
from underpaint.runtime.device.chosen_growth import ChosenGrowth
from underpaint.runtime.device.folder import EmbeddedBatch
from underpaint.runtime.device.forwards import DeviceDecoder
from underpaint.runtime.device.low_models import LowDraft, LowFiles
from underpaint.runtime.device.rules import load_form
from underpaint.runtime.device.state import Envelope, State
from underpaint.runtime.methods.method import DecodingMethod
from underpaint.runtime.methods.registry import METHODS
from underpaint.runtime.pipeline import Pipeline


class DeviceError(ValueError):
    """Decoding is not possible with this device, method, batch or memory."""


class Layout(NamedTuple):
    """The sizes of a method's passes.

    Attributes:
        envelope: Fixed sizes that every cycle fits into.
        image_bytes: Bytes per image beyond the envelope's buffers.
        most_images: Largest batch; None for any.
    """

    envelope: Envelope
    image_bytes: int = 0
    most_images: int | None = None


class BatchSizes(NamedTuple):
    """The sizes that the program of a batch is made for.

    Attributes:
        grid: Grid of the image's cells.
        prefix: Largest number of condition positions.
        batch: Number of batch slots.
        device: Device of the models.
        line_token: Token that the target embeds after every line of the picture except the last; None for none.
    """

    grid: Grid
    prefix: int
    batch: int
    device: torch.device
    line_token: int | None = None


Stage: TypeAlias = tuple[Callable[[], None], int | None]
"""A program and how many times it runs before the next stage; None repeats it until every image is done."""


class BatchCycle(ABC):
    """The program of a batch: call `begin` once for a batch of images, then run every stage in order.

    `chooser` settles the program of each cycle, if a policy chooses it; else it is None.
    """

    state: State
    envelope: Envelope
    chooser: ChosenGrowth | None = None

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The stages, in the order in which they run."""
        return ((self.run, None),)

    @abstractmethod
    def begin(
        self,
        condition: Tensor,
        seeds: Tensor,
        images: Tensor,
        hidden: Tensor | None = None,
        low: EmbeddedBatch | None = None,
    ) -> None:
        """Take in the conditions of a batch, and begin its images.

        Args:
            condition: Embedded conditions [R, P, F], the conditional rows first.
            seeds: First half of each image's noise key, [B] int64.
            images: Second half of each image's noise key, [B] int64.
            hidden: Number of leading condition positions that a row does not see, [R] int64; None means 0.
            low: Condition of the smaller target that drafts, if there is one.
        """

    @abstractmethod
    def run(self) -> None:
        """Run one cycle of every image that is not done. If there is a `chooser`, it must have settled the program."""

    def decided(self, place: int) -> BoolArray:
        """Return which cells [cells] of an image are decided: the first ones, in raster order. Waits for the device."""
        progress = self.state.progress
        return np.arange(progress.decided.shape[1]) < int(progress.cells[place])

    def refused(self, place: int) -> IntArray | None:
        """Return an image's cells [n] with refused drafts; None if no picture is drafted. Waits for the device."""
        return None

    def draft_outcome(self) -> tuple[list[IntArray], list[int]] | None:
        """Return what became of each drafted picture; None if the method drafts none. Waits for the device.

        Returns:
            For each image, the cells [n], ascending, whose final token is the draft token, and the number of drafts
            that the rule refused.
        """
        return None


class DeviceForm(ABC):
    """A method's form on the device, which is an immutable value.

    `counts_drafts` says whether each cycle is one draft tree and its verdict, which `Progress.history` counts.
    """

    __slots__ = ()

    counts_drafts: ClassVar[bool] = False

    @property
    def drafts(self) -> bool:
        """Whether a drafter makes passes for the method."""
        return False

    @property
    def engine_gap(self) -> str | None:
        """Why no engine with fixed pass sizes can run the method; None if one can."""
        return None

    @property
    def low_key(self) -> Any:
        """Key that tells its smaller models from those of other forms; None if it uses none."""
        return None

    @abstractmethod
    def layout(self, grid: Grid, vocab_size: int, line_token: int | None, batch: int) -> Layout:
        """Return the sizes of the method's passes.

        Args:
            grid: Grid of the image's cells.
            vocab_size: Vocabulary size V.
            line_token: Token that the target embeds after every line of the picture except the last; None for none.
            batch: Number of batch slots.

        Raises:
            ValueError: The method does not support these sizes.
        """

    @abstractmethod
    def cycle(
        self, target: DeviceDecoder, drafter: DeviceDecoder | None, sizes: BatchSizes, low: LowDraft | None = None
    ) -> BatchCycle:
        """Return the program of a batch."""

    def check(self, grid: Grid, vocab_size: int, line_token: int | None) -> None:
        """Raise ValueError if a part of the method does not support passes of these sizes; see `layout`."""
        return

    def low_files(self, pipeline: Pipeline) -> LowFiles | None:
        """Return the smaller models that draft for the method, if any; ValueError if one is missing or does not fit."""
        return None

    def low_passes(self, low: Grid) -> int:
        """Return the number of passes of the smaller target per image."""
        return 0


def form_of(method: DecodingMethod, sampling: SamplingParams, grid: Grid) -> DeviceForm:
    """Return the device form of a method.

    Raises:
        DeviceError: The method has no device form; the message lists the methods that have one.
    """
    config = method.config
    if config.device is None:
        names = ", ".join(spec.name for spec in METHODS if spec.tuned.at(sampling.temperature).runs_on_device)
        raise DeviceError(
            f"method '{method.name}' has no form on the device; those that have one: {names}, and POLICY:RULE of "
            "such parts; choose one of them, or another --backend"
        )
    if config.device_gap is not None:
        raise DeviceError(f"method '{method.name}': {config.device_gap}")
    make: Callable[[DecodingMethod, SamplingParams, Grid], DeviceForm] = load_form(config.device)
    try:
        return make(method, sampling, grid)
    except ValueError as error:
        raise DeviceError(f"method '{method.name}': {error}") from error
