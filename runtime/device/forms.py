"""A method's form on the device: the sizes of its passes, what it needs, and the program of a batch.

A family of methods names its form as "module:function" in `MethodConfig.device`; nothing here knows a family.
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
    """The device, the batch or the memory is not what decoding needs."""


class Layout(NamedTuple):
    """The sizes of a form's passes.

    image_bytes: held for an image beside what the envelope takes. most_images: of a batch; None for any number.
    """

    envelope: Envelope
    image_bytes: int = 0
    most_images: int | None = None


class BatchSizes(NamedTuple):
    """What the program of a batch is made for.

    prefix: condition positions at most. line_token: what the target embeds behind every line of the picture but the
    last; None for nothing.
    """

    grid: Grid
    prefix: int
    batch: int
    device: torch.device
    line_token: int | None = None


Stage: TypeAlias = tuple[Callable[[], None], int | None]
"""A program and how many times it runs before the next one; None for until every image is done."""


class BatchCycle(ABC):
    """The program of a batch: `begin` once for a batch of images, then every stage in its turn.

    chooser: what settles the program of every cycle, where a policy chooses.
    """

    state: State
    envelope: Envelope
    chooser: ChosenGrowth | None = None

    @property
    def stages(self) -> tuple[Stage, ...]:
        """What runs, in order."""
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
        """Take in the conditions of a batch.

        Args:
            condition: [R, P, F], the conditional rows first.
            seeds: [B] int64, with `images` the noise of each image.
            images: [B] int64.
            hidden: [R] int64, leading condition positions that a row does not see; None for none.
            low: The condition of the target that drafts, where one does.
        """

    @abstractmethod
    def run(self) -> None:
        """Make one cycle of every image that is not done."""

    def decided(self, place: int) -> BoolArray:
        """Which cells [cells] of an image are decided, waiting for the device: the first ones, in raster order."""
        progress = self.state.progress
        return np.arange(progress.decided.shape[1]) < int(progress.cells[place])

    def refused(self, place: int) -> IntArray | None:
        """Cells [n] of an image whose drafts were refused, waiting for the device; None where no picture is drafted."""
        return None

    def launch(self) -> None:
        """Run what a cycle runs on the device, once its chooser, if there is one, has settled it."""
        self.run()

    def draft_outcome(self) -> tuple[list[IntArray], list[int]] | None:
        """Return what became of a drafted picture, waiting for the device; None where no picture is drafted.

        Returns:
            Of each image, the cells [n], ascending, that hold what was drafted for them, and how many drafts the rule
            refused.
        """
        return None


class DeviceForm(ABC):
    """A method as the device takes it; a value.

    counts_drafts: whether a cycle is a draft tree and its verdict, which `Progress.history` counts.
    """

    __slots__ = ()

    counts_drafts: ClassVar[bool] = False

    @property
    def drafts(self) -> bool:
        """Whether a drafter makes passes."""
        return False

    @property
    def engine_gap(self) -> str | None:
        """Why no engine of fixed sizes makes its passes; None where one can."""
        return None

    @property
    def low_key(self) -> Any:
        """What tells its smaller models from those of another form; None where it takes none."""
        return None

    @abstractmethod
    def layout(self, grid: Grid, vocab_size: int, line_token: int | None, batch: int) -> Layout:
        """Return the sizes of its passes.

        Args:
            grid: The image as cells.
            vocab_size: V.
            line_token: What the target embeds behind every line of the picture but the last; None for nothing.
            batch: Images that are drawn together.

        Raises:
            ValueError: It has no form for these sizes.
        """

    @abstractmethod
    def cycle(
        self, target: DeviceDecoder, drafter: DeviceDecoder | None, sizes: BatchSizes, low: LowDraft | None = None
    ) -> BatchCycle:
        """Return the program of a batch."""

    def check(self, grid: Grid, vocab_size: int, line_token: int | None) -> None:
        """Raise ValueError where a part of it has no form for passes of these sizes; see `layout`."""
        return

    def low_files(self, pipeline: Pipeline) -> LowFiles | None:
        """Return the models that draft for it; ValueError where one is missing, or does not fit."""
        return None

    def low_passes(self, low: Grid) -> int:
        """Return the passes of the smaller target for an image."""
        return 0


def form_of(method: DecodingMethod, sampling: SamplingParams, grid: Grid) -> DeviceForm:
    """Return a method as the device takes it.

    Raises:
        DeviceError: It has no form on the device; the message names what has one.
    """
    config = method.config
    if config.device is None:
        known = ", ".join(spec.name for spec in METHODS if spec.tuned.at(sampling.temperature).runs_on_device)
        raise DeviceError(
            f"method '{method.name}' has no form on the device; those that have one: {known}, and POLICY:RULE of "
            "such parts; choose one of them, or another --backend"
        )
    if config.device_gap is not None:
        raise DeviceError(f"method '{method.name}': {config.device_gap}")
    make: Callable[[DecodingMethod, SamplingParams, Grid], DeviceForm] = load_form(config.device)
    try:
        return make(method, sampling, grid)
    except ValueError as error:
        raise DeviceError(f"method '{method.name}': {error}") from error
