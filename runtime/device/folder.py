"""A pipeline's models on a device: decoders read from its folder, and conditions embedded for a batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, Self

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from underpaint.artifacts.decoder_config import DecoderConfig
from underpaint.models.decoder import Decoder
from underpaint.runtime.conditions import Condition, ConditionEncoder
from underpaint.runtime.device.decoder import DecoderForward
from underpaint.runtime.device.engine_forward import EngineForward, EngineGraphs
from underpaint.runtime.device.forwards import DeviceDecoder
from underpaint.runtime.device.weight_only import WeightOnlyLinear
from underpaint.runtime.device.weights import decoder_bytes, read_decoder, stored_weights
from underpaint.runtime.engines.config_only import ConfigOnlyDecoder
from underpaint.runtime.engines.context import EngineError
from underpaint.runtime.engines.device_memory import TYPES
from underpaint.runtime.pipeline import Pipeline


class EmbeddedBatch(NamedTuple):
    """Conditions of n images: `rows` [R * n, P, F], the conditional ones first, and `hidden` [R * n] int64, the number
    of leading positions that a row does not see."""

    rows: Tensor
    hidden: Tensor


class FolderModels(NamedTuple):
    """The decoders of a folder, checked but not yet read."""

    target: ConfigOnlyDecoder
    drafter: ConfigOnlyDecoder | None

    @classmethod
    def of(cls, pipeline: Pipeline) -> Self:
        """Return the decoders of a pipeline that was opened for the device."""
        target = pipeline.high.decoder
        drafter = None if pipeline.loaded_drafter is None else pipeline.loaded_drafter.decoder
        if not isinstance(target, ConfigOnlyDecoder) or not isinstance(drafter, ConfigOnlyDecoder | None):
            raise EngineError(f"{pipeline.folder}: expected models opened with backend device, got {pipeline.backend}")
        reader = pipeline.loaded_drafter
        if reader is not None and reader.condition_positions:
            raise EngineError(
                f"{pipeline.folder}: expected a drafter that reads no condition, got one that reads "
                f"{reader.condition_positions} positions of a caption, which the device does not feed; draw without "
                "--backend device"
            )
        return cls(target, drafter)

    @property
    def configs(self) -> tuple[DecoderConfig, DecoderConfig | None]:
        """Sizes and options of target and drafter."""
        return self.target.config, None if self.drafter is None else self.drafter.config

    @property
    def dtype(self) -> torch.dtype:
        """Data type of the target's features, keys and values."""
        return TYPES[self.target.config.precision]

    @property
    def draft_dtype(self) -> torch.dtype | None:
        """Data type of the drafter's keys and values; None if there is no drafter."""
        return None if self.drafter is None else TYPES[self.drafter.config.precision]

    @property
    def decoders(self) -> tuple[ConfigOnlyDecoder, ...]:
        """The target, then the drafter if there is one."""
        return (self.target,) if self.drafter is None else (self.target, self.drafter)

    def weight_bytes(self, narrow: bool, eager: bool) -> int:
        """Return the bytes of the weights on the device.

        Args:
            narrow: Whether matrices keep their narrow types; see `read_decoder`.
            eager: Whether a loop of its own runs the target too; see `DeviceModels.module`.
        """
        target, whole = (decoder_bytes(self.target, one) for one in (narrow, False))
        second = whole if eager and (target != whole or not narrow) else 0
        return second + sum(decoder_bytes(one, narrow) for one in self.decoders)


class DeviceModels:
    """Decoders on the device, with one or two guidance rows per image."""

    def __init__(
        self,
        target: DecoderForward | EngineForward,
        drafter: DecoderForward | EngineForward | None,
        encoder: ConditionEncoder,
        device: torch.device,
        read_target: Callable[[], Decoder] | None = None,
    ) -> None:
        """Keep the models.

        Args:
            target: The target.
            drafter: The drafter; None without one.
            encoder: Encoder of conditions.
            device: Device of the models.
            read_target: Reads the target in the precision of its passes, for `module`.
        """
        self.target, self.drafter, self.rows, self.device = target, drafter, target.rows, device
        self._encoder, self._read_target = encoder, read_target

    @property
    def module(self) -> Decoder:
        """The target in torch, for loops that run it themselves.

        Each access reads it, if an engine runs the passes or the device's weights are narrower than those of the loops.
        """
        if isinstance(self.target, DecoderForward) and not any(
            isinstance(part, WeightOnlyLinear) for part in self.target.model.modules()
        ):
            return self.target.model
        assert self._read_target is not None
        return self._read_target()

    @classmethod
    def read(
        cls,
        folder: FolderModels,
        encoder: ConditionEncoder,
        rows: int,
        device: torch.device,
        engines: Sequence[EngineGraphs] = (),
        previous: DeviceModels | None = None,
    ) -> Self:
        """Read the weights.

        Args:
            folder: The decoders.
            encoder: Encoder of conditions.
            rows: Rows per image: 2 under guidance, else 1.
            device: Device for the weights.
            engines: Engines of the target, and of the drafter if there are two; none for torch. For a decoder on an
                engine only embeddings are read. If there are engines, a decoder without one is not read at all.
            previous: Models of the same folder on the same device, whose weights are reused if they are the same.

        Raises:
            EngineError: A file does not match its manifest.
        """

        def forward(decoder: ConfigOnlyDecoder, place: int) -> DecoderForward | EngineForward:
            before = None if previous is None else (previous.target, previous.drafter)[place]
            if not engines:
                model = before.model if isinstance(before, DecoderForward) else read_decoder(decoder, device, True)
                return DecoderForward(model, rows)
            if isinstance(before, EngineForward):
                embeddings = before.embeddings
            else:
                embeddings = stored_weights(decoder.located).embeddings(decoder.config, device)
            return EngineForward(decoder.config, embeddings, rows, engines[place])

        decoders = folder.decoders[: len(engines) or None]
        target, *others = (forward(decoder, place) for place, decoder in enumerate(decoders))
        return cls(target, others[0] if others else None, encoder, device, partial(read_decoder, folder.target, device))

    @torch.no_grad()
    def embed(self, conditions: Sequence[Condition]) -> EmbeddedBatch:
        """Embed conditions, padded at their beginning to the longest; EngineError if the model does not take one."""
        return embed_conditions(conditions, self._encoder, self.target.embed_condition, self.target, self.device)


def embed_conditions(
    conditions: Sequence[Condition],
    encoder: ConditionEncoder,
    embed: Callable[[Tensor, Tensor | None], Tensor],
    target: DeviceDecoder,
    device: torch.device,
) -> EmbeddedBatch:
    """Embed the conditions of a batch.

    Args:
        conditions: One per image.
        encoder: Makes the ids [R, P] of a condition, or its features [R, C, F].
        embed: Embeds ids, and features if there are any, as rows [R, P, D].
        target: The model that reads the rows.
        device: Device of the target.
    """
    rows, hidden = list[Tensor](), list[Tensor]()
    for one in map(encoder.encode, conditions):
        tokens = torch.from_numpy(np.ascontiguousarray(one.tokens[: target.rows])).to(device)
        outside = None if one.cond_rows is None else torch.from_numpy(one.cond_rows).to(device)
        rows.append(embed(tokens, outside).to(target.dtype))
        hidden.append(torch.tensor(one.hidden[: target.rows], dtype=torch.int64, device=device))
    return padded_rows(rows, hidden)


def padded_rows(conditions: Sequence[Tensor], hidden: Sequence[Tensor | None]) -> EmbeddedBatch:
    """Pad the conditions of images at their beginning to the longest one.

    Args:
        conditions: [R, P, F] each, the conditional row first.
        hidden: [R] int64 each, number of leading positions that a row does not see; None means 0.
    """
    longest = max(one.shape[1] for one in conditions)
    missing = [longest - one.shape[1] for one in conditions]
    rows = torch.stack([pad(one, (0, 0, more, 0)) for one, more in zip(conditions, missing, strict=True)], dim=1)
    unseen = [
        torch.full(one.shape[:1], more, device=one.device) + (0 if leading is None else leading)
        for one, more, leading in zip(conditions, missing, hidden, strict=True)
    ]
    return EmbeddedBatch(rows.flatten(0, 1), torch.stack(unseen, dim=1).flatten())
