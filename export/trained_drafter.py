"""Opens the target of an exported folder in torch to train a drafter for it, and exports the drafter."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import torch

from underpaint.export.decoders import GraphFormat, export_decoder
from underpaint.export.store import Origin, staged
from underpaint.models.decoder import Decoder
from underpaint.runtime.device.weights import read_decoder
from underpaint.runtime.engines.config_only import ConfigOnlyDecoder
from underpaint.runtime.engines.context import DEVICE
from underpaint.runtime.live.pipeline import LivePipeline
from underpaint.runtime.live.published import published
from underpaint.runtime.pipeline import Pipeline
from underpaint.training.drafter import begun_drafter


class ExportedTarget(NamedTuple):
    """The target of a folder as a live model, and a new drafter that starts with the target's last norm."""

    folder: Path
    pipeline: LivePipeline
    drafter: Decoder

    def export(self, recipe: str) -> None:
        """Write the drafter into the folder and its index.

        Args:
            recipe: The command that trained it.
        """
        origin = Origin("a drafter of this folder's target, on pictures that it drew", recipe)
        form = GraphFormat(self.pipeline.live.decoder.precision)
        with staged(self.folder) as aside:
            export_decoder("drafter", self.drafter.cpu().eval(), None, form, aside, origin)


def open_exported(folder: Path, device: str) -> ExportedTarget:
    """Open the target of a folder written by `underpaint export` on a torch device.

    Raises:
        ValueError: The folder already has a drafter, or its target is not conditioned on classes.
    """
    models = Pipeline.open(folder, backend=DEVICE)
    if models.entry.drafter is not None:
        raise ValueError(
            f"--models {folder}: expected a folder without a drafter, got one with {models.entry.drafter!r}; export "
            "the target into a folder of its own"
        )
    decoder = models.high.decoder
    assert isinstance(decoder, ConfigOnlyDecoder)
    if decoder.config.condition != "table" or decoder.config.prompted or decoder.config.prefix != 1:
        raise ValueError(
            f"--models {folder}: expected a target that is conditioned on classes, got one that reads prompts or "
            "features; train a drafter for its live model, with --live"
        )
    target = read_decoder(decoder, torch.device(device)).float().requires_grad_(False)
    live = published("llamagen-c2i", target)
    return ExportedTarget(folder, LivePipeline(live, folder=folder), begun_drafter(target))
