"""A drafter of a live model: one decoder layer that reads the target's features, run in torch beside it."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from underpaint.algos.arrays import FloatArray, IntArray
from underpaint.artifacts.decoder_config import DecoderConfig
from underpaint.models.decoder import Decoder, initialise
from underpaint.runtime.live.engine import TorchPasses
from underpaint.runtime.live.model import LiveModel, LiveModelError, target_fingerprint

_SCRATCH: Final = 640
"""Slots for drafted nodes, as exported drafters have: ten levels of the widest tree."""


def new_drafter(live: LiveModel) -> Decoder:
    """A drafter with random weights for a live target: EAGLE's one layer (arXiv 2401.15077) on the target's features.

    Embeddings of codes and the head are the target's own, whatever they are made of; they are not learnt. It is fed no
    line ends: codes have the rotary positions that they have in the target's sequence.
    """
    target = live.decoder
    config = DecoderConfig(
        dim=target.dim,
        layers=1,
        heads=target.heads,
        hidden=target.hidden,
        vocab_size=target.vocab_size,
        grid_side=target.grid_side,
        grid_width=target.grid_width,
        prefix=1,
        norm_eps=target.norm_eps,
        rope=target.rope,
        rope_base=target.rope_base,
        condition="none",
        drafter=True,
        fc_bias=False,
        eol_token=target.eol_token,
        capacity=target.cells + _SCRATCH,
    )
    drafter = Decoder(config)
    initialise(drafter)
    return with_ends(drafter, live)


def with_ends(drafter: Decoder, live: LiveModel) -> Decoder:
    """The drafter with its target's embeddings and head, which are no weights of its own."""
    assert drafter.fc is not None
    drafter.codes = _Borrowed(live.embed_codes, drafter.fc)  # type: ignore[assignment]
    drafter.head = _Borrowed(live.head, drafter.fc)  # type: ignore[assignment]
    return drafter.to(next(live.body.parameters()).device)


class _Borrowed(nn.Module):
    """A part of the target that a drafter calls: computed in the target's type, given back in float32."""

    def __init__(self, function: Any, like: nn.Linear) -> None:
        super().__init__()
        self._function, self._like = [function], [like]  # in lists, so that they are no parts of this module

    @property
    def weight(self) -> Tensor:
        """Tells the type and device of the drafter's caches."""
        return self._like[0].weight

    def forward(self, inputs: Tensor) -> Tensor:
        """Call the target's part."""
        result: Tensor = self._function[0](inputs)
        return result.to(self.weight.dtype)


def check_target(live: LiveModel, fingerprint: str, name: str) -> None:
    """LiveModelError unless a drafter was trained for this target."""
    if target_fingerprint(live) != fingerprint:
        raise LiveModelError(
            f"{name}: expected a drafter that was trained for this {live.family} model, got one of another target; "
            "train one for it"
        )


class LiveDrafterDecoder:
    """Implements `engines.engine.LoadedDecoder`."""

    row_counts: tuple[int, ...] | None = None
    name = "drafter"

    def __init__(self, drafter: Decoder) -> None:
        """See `new_drafter`."""
        self.module = drafter.eval()

    @property
    def config(self) -> DecoderConfig:
        return self.module.config

    def max_positions(self, rows: int) -> int | None:
        return None

    def open(self, rows: int) -> DrafterEngine:
        return DrafterEngine(self.module, rows)


class DrafterEngine(TorchPasses):
    """Implements `engines.engine.Engine` for a drafter of `new_drafter`."""

    def __init__(self, drafter: Decoder, rows: int) -> None:
        super().__init__(drafter.config, rows, drafter.head.weight)
        self._drafter = drafter

    def _forward(
        self, ids: Tensor, cells: IntArray, bias: Tensor, features: FloatArray | None
    ) -> tuple[Tensor, NDArray[np.float32]]:
        device = self._like.device
        read = torch.from_numpy(np.ascontiguousarray(features, dtype=np.float32)).to(device)
        at = torch.as_tensor(cells, device=device)
        out = self._drafter.step(ids, at, bias, *self.memory.read(), features=read)
        for layer, pair in enumerate(zip(out.keys, out.values, strict=True)):
            self.memory.update(*pair, layer)
        return out.logits, out.features.cpu().numpy()
