"""A drafter of a live model: one decoder layer that reads the target's features, run in torch beside it."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from underpaint.algos.arrays import FloatArray, IntArray
from underpaint.algos.protocols import FusedTreeSpec
from underpaint.algos.rows import SamplingParams
from underpaint.artifacts.decoder_config import DecoderConfig
from underpaint.models.decoder import Decoder, initialise
from underpaint.runtime.engines.cache import CacheOwner, KeyValueCache
from underpaint.runtime.engines.context import EngineError
from underpaint.runtime.engines.engine import PassOutput, PassTimer, check_cells
from underpaint.runtime.engines.torch_sampling import sampled_probs
from underpaint.runtime.live.memory import StaticCache
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
        self._drafter = drafter.eval()

    @property
    def config(self) -> DecoderConfig:
        return self._drafter.config

    def max_positions(self, rows: int) -> int | None:
        return None

    def open(self, rows: int) -> DrafterEngine:
        return DrafterEngine(self._drafter, rows)


class DrafterEngine(CacheOwner):
    """Implements `engines.engine.Engine` for a drafter of `new_drafter`."""

    fuses_chains = fuses_trees = False
    makes_probs = True

    def __init__(self, drafter: Decoder, rows: int) -> None:
        self._drafter, self.rows, self.cost = drafter, rows, PassTimer()
        self.memory = StaticCache(drafter.config, rows, drafter.head.weight)
        self.cache = KeyValueCache(self.memory, rows)
        self._params = SamplingParams()

    @property
    def config(self) -> DecoderConfig:
        return self._drafter.config

    def sample_by(self, params: SamplingParams) -> None:
        self._params = params

    def begin(self, hidden: Sequence[int] = (), cond_rows: NDArray[np.float32] | None = None) -> None:
        self.cache.clear(hidden)

    @torch.inference_mode()
    def run(
        self,
        tokens: IntArray,
        cells: IntArray,
        bias: FloatArray,
        past_bias: FloatArray | None = None,
        features: FloatArray | None = None,
        chain_levels: int = 1,
        tree: FusedTreeSpec | None = None,
    ) -> PassOutput:
        if features is None or chain_levels > 1 or tree is not None:
            raise EngineError("live drafter: expected features, and one level a pass")
        check_cells(self.config, cells)
        started, count = perf_counter(), cells.shape[-1]
        device = self._drafter.head.weight.device
        past = self.past_bias if past_bias is None else np.asarray(past_bias)
        whole = np.empty((self.rows, count, self.slots + count), dtype=np.float32)
        whole[:, :, : self.slots] = past if past.ndim > 1 else past[None]
        whole[:, :, self.slots :] = bias
        keys, values = self.memory.read()
        out = self._drafter.step(
            torch.tensor(np.broadcast_to(tokens, (self.rows, count)), device=device),
            torch.as_tensor(cells, device=device),
            torch.from_numpy(whole).to(device),
            keys,
            values,
            features=torch.from_numpy(np.ascontiguousarray(features, dtype=np.float32)).to(device),
        )
        for layer, pair in enumerate(zip(out.keys, out.values, strict=True)):
            self.memory.update(*pair, layer)
        result = PassOutput(
            logits=np.empty((self.rows, count, 0), dtype=np.float32),
            features=out.features.cpu().numpy(),
            probs=sampled_probs(out.logits, self._params).cpu().numpy(),
        )
        self.cost.passes, self.cost.positions = self.cost.passes + 1, self.cost.positions + count
        self.cost.seconds += perf_counter() - started
        return result

    def commit(self, positions: IntArray | slice, counts: Sequence[int] | None = None) -> None:
        self.cache.commit(positions, counts)

    def write_scratch(self, behind: int) -> int:
        return self.cache.write_scratch(behind)

    def write_at(self, positions: IntArray, slots: IntArray) -> None:
        self.cache.write_at(positions, slots)

    def close(self) -> None:
        del self.memory, self.cache
