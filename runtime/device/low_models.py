"""The models that draft for methods with a smaller target: that target, and a network that enlarges its tokens."""

from collections.abc import Callable
from typing import NamedTuple, Self

import torch
from torch import Tensor

from underpaint.algos.protocols import Grid
from underpaint.algos.spatial.row_front import check_window
from underpaint.artifacts.decoder_config import DecoderConfig
from underpaint.runtime.conditions import Condition, ConditionEncoder
from underpaint.runtime.device.decoder import DecoderForward
from underpaint.runtime.device.folder import DeviceModels, EmbeddedBatch
from underpaint.runtime.device.forwards import DeviceDecoder
from underpaint.runtime.device.sampler_weights import read_enlarger
from underpaint.runtime.device.state import Envelope, needed_bytes
from underpaint.runtime.device.weights import decoder_bytes, read_decoder, stored_numbers
from underpaint.runtime.engines.config_only import ConfigOnlyDecoder
from underpaint.runtime.engines.context import EngineError
from underpaint.runtime.pipeline import Pipeline
from underpaint.zoo.load import Located


class LowDraft(NamedTuple):
    """A smaller target that drafts.

    Attributes:
        target: The smaller target.
        enlarge: Maps tokens [B, h, w] int64 of `grid` to logits [B, H, W, V].
        grid: Grid of the smaller target's cells.
        prefix: Largest number of condition positions of the smaller target.
    """

    target: DeviceDecoder
    enlarge: Callable[[Tensor], Tensor]
    grid: Grid
    prefix: int

    def draft_bytes(self, batch: int, target: DeviceDecoder, grid: Grid) -> int:
        """Return the bytes that drafting needs for a batch; see `draft_bytes`."""
        low = self.target.config
        return draft_bytes(batch, target.rows, target.config, grid, low, self.prefix, target.dtype)


def check_lines(line_token: int | None) -> None:
    """Raise ValueError if the lines of the picture end in a token."""
    if line_token is not None:
        raise ValueError("device: row fronts have no form where the lines of the picture end in a token")


class LowFiles(NamedTuple):
    """The models that draft for a method, checked but not yet read."""

    target: ConfigOnlyDecoder
    encoder: ConditionEncoder
    enlarger: Located

    @classmethod
    def of(cls, pipeline: Pipeline, ratio: int, resampler: str, window: int) -> Self:
        """Select the drafting models of a pipeline that was opened for the device.

        Args:
            pipeline: The models.
            ratio: Ratio of the two side lengths.
            resampler: Name of the enlarging network; see `runtime.resampling.registry.LATENT`.
            window: Window of the smaller target's row fronts.

        Raises:
            ValueError: A model is missing or does not fit.
        """
        low = pipeline.low.target(ratio)
        if not isinstance(low.decoder, ConfigOnlyDecoder):
            raise EngineError(f"{pipeline.folder}: expected models opened with backend device, got {pipeline.backend}")
        check_lines(low.decoder.config.eol_token)
        check_window(window, low.grid, "draft_window")
        return cls(low.decoder, low.encoder, pipeline.low.networks(resampler, ratio)[0])

    @property
    def prefix(self) -> int:
        """Largest number of condition positions of the smaller target."""
        return max(1, self.target.config.prefix)

    def weight_bytes(self) -> int:
        """Return the bytes of the weights on the device."""
        return decoder_bytes(self.target) + 4 * stored_numbers(self.enlarger)

    def draft_bytes(self, batch: int, rows: int, target: DecoderConfig, grid: Grid, dtype: torch.dtype) -> int:
        """Return the bytes that drafting needs for a batch; see `draft_bytes`."""
        return draft_bytes(batch, rows, target, grid, self.target.config, self.prefix, dtype)

    def read(self, rows: int, device: torch.device) -> "LowModels":
        """Read the weights; EngineError if a file does not match its manifest."""
        target = read_decoder(self.target, device, narrow=True)
        models = DeviceModels(DecoderForward(target, rows), None, self.encoder, device)
        return LowModels(models, read_enlarger(self.enlarger, device), self.target.config.grid, self.prefix)


class LowModels(NamedTuple):
    """The drafting models, on a device."""

    models: DeviceModels
    enlarger: Callable[[Tensor], Tensor]
    grid: Grid
    prefix: int

    def draft(self) -> LowDraft:
        """Return the models in the form that a program takes."""
        return LowDraft(self.models.target, self.enlarger, self.grid, self.prefix)

    def embed(self, conditions: list[Condition]) -> EmbeddedBatch:
        """Embed the conditions of a batch for the smaller target."""
        return self.models.embed(conditions)


def draft_bytes(
    batch: int,
    rows: int,
    target: DecoderConfig,
    grid: Grid,
    low: DecoderConfig,
    prefix: int,
    dtype: torch.dtype,
) -> int:
    """Return the bytes that drafting and verification need besides the repair's own buffers, without weights.

    Args:
        batch: Number of images.
        rows: Rows per image, 2 for a guidance pair.
        target: Sizes of the target that verifies.
        grid: Grid of the whole picture's cells.
        low: Sizes of the smaller target.
        prefix: Largest number of condition positions of the smaller target.
        dtype: Data type of features, keys and values.
    """
    fronts = Envelope(min(low.grid) + 1, 0, 1, 1, 1)  # the rows that a window of 1 opens, and a proxy
    drafting = needed_bytes(batch, fronts, low.grid.cells, prefix, low, None, rows, dtype)
    # The pass over the whole picture: its features twice, and about 12 widths within a layer.
    features = 14 * rows * batch * grid.cells * target.dim * dtype.itemsize
    # Logits of the whole picture: first the enlarged draft's; once these are free, the target's one or two rows.
    return drafting + features + 8 * batch * grid.cells * target.vocab_size
