"""The models that draft for a method that drafts small: a smaller target, and what enlarges."""

from collections.abc import Callable
from typing import NamedTuple, Self

import torch
from torch import Tensor

from underpaint.algos.protocols import Grid
from underpaint.algos.spatial.row_front import check_window
from underpaint.artifacts.decoder_config import DecoderConfig
from underpaint.runtime.conditions import Condition, ConditionEncoder
from underpaint.runtime.device.decoder import DecoderForward
from underpaint.runtime.device.folder import DeviceModels, EmbeddedBatch, decoder_bytes
from underpaint.runtime.device.forwards import DeviceDecoder
from underpaint.runtime.device.sampler_weights import read_enlarger
from underpaint.runtime.device.state import Envelope, needed_bytes
from underpaint.runtime.device.weights import read_decoder, stored_numbers
from underpaint.runtime.engines.context import EngineError
from underpaint.runtime.engines.elsewhere import ElsewhereDecoder
from underpaint.runtime.pipeline import Pipeline
from underpaint.zoo.load import Located


class LowDraft(NamedTuple):
    """A smaller target that drafts. enlarge: tokens [B, h, w] int64 of `grid` to logits [B, H, W, V] of the picture."""

    target: DeviceDecoder
    enlarge: Callable[[Tensor], Tensor]
    grid: Grid
    prefix: int

    def draft_bytes(self, batch: int, target: DeviceDecoder, grid: Grid) -> int:
        """Return the bytes that drafting takes for a batch; see `draft_bytes`."""
        low = self.target.config
        return draft_bytes(batch, target.rows, target.config, grid, low, self.prefix, target.dtype)


def check_lines(line_token: int | None) -> None:
    """Raise ValueError where the lines of the picture end in a token."""
    if line_token is not None:
        raise ValueError("device: row fronts have no form where the lines of the picture end in a token")


class LowFiles(NamedTuple):
    """The models that draft for a method, checked but not read."""

    target: ElsewhereDecoder
    encoder: ConditionEncoder
    enlarger: Located

    @classmethod
    def of(cls, pipeline: Pipeline, ratio: int, resampler: str, window: int) -> Self:
        """Take those of a pipeline that was opened for the device.

        Args:
            pipeline: The models.
            ratio: Of the two sides.
            resampler: Which network lies between; see `runtime.resampling.registry.LATENT`.
            window: Of the smaller target's row fronts.

        Raises:
            ValueError: A model is missing, or does not fit.
        """
        low = pipeline.low.target(ratio)
        if not isinstance(low.decoder, ElsewhereDecoder):
            raise EngineError(f"{pipeline.folder}: expected models opened with backend device, got {pipeline.backend}")
        check_lines(low.decoder.config.eol_token)
        check_window(window, low.grid, "draft_window")
        return cls(low.decoder, low.encoder, pipeline.low.networks(resampler, ratio)[0])

    @property
    def prefix(self) -> int:
        """Condition positions of the target at most."""
        return max(1, self.target.config.prefix)

    def weight_bytes(self) -> int:
        """Return the bytes that the weights take on the device."""
        return decoder_bytes(self.target) + 4 * stored_numbers(self.enlarger)

    def draft_bytes(self, batch: int, rows: int, target: DecoderConfig, grid: Grid, dtype: torch.dtype) -> int:
        """Return the bytes that drafting takes for a batch; see `draft_bytes`."""
        return draft_bytes(batch, rows, target, grid, self.target.config, self.prefix, dtype)

    def read(self, rows: int, device: torch.device) -> "LowModels":
        """Read the weights; EngineError where a file is not what its manifest says."""
        target = read_decoder(self.target, device)
        models = DeviceModels(DecoderForward(target, rows), None, self.encoder, device)
        return LowModels(models, read_enlarger(self.enlarger, device), self.target.config.grid, self.prefix)


class LowModels(NamedTuple):
    """The models that draft, on a device."""

    models: DeviceModels
    enlarger: Callable[[Tensor], Tensor]
    grid: Grid
    prefix: int

    def draft(self) -> LowDraft:
        """Return them as a program takes them."""
        return LowDraft(self.models.target, self.enlarger, self.grid, self.prefix)

    def embed(self, conditions: list[Condition]) -> EmbeddedBatch:
        """Return the conditions of a batch, embedded for the smaller target."""
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
    """Bytes that drafting and verification take beside the repair's own buffers, weights left out.

    rows: of an image, 2 for a guidance pair. prefix: condition positions of the low target at most.
    """
    fronts = Envelope(min(low.grid) + 1, 0, 1, 1, 1)  # as many rows as a window of 1 opens, and a proxy
    drafting = needed_bytes(batch, fronts, low.grid.cells, prefix, low, None, rows, dtype)
    # Of the pass over the whole picture: features twice, and some 12 widths within a layer.
    features = 14 * rows * batch * grid.cells * target.dim * dtype.itemsize
    # Logits of the whole picture: of the enlarged draft, then, once these are free, of the target's one or two rows.
    return drafting + features + 8 * batch * grid.cells * target.vocab_size
