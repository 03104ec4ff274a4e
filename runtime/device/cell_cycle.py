"""Base programs for methods that decide cells in any order: their buffers, the conditions, and the target pass.

The KV cache has one slot per cell, and a position sees the filled slots of the cells before its own.
"""

from abc import abstractmethod

import torch
from torch import Tensor

from underpaint.algos.arrays import BoolArray
from underpaint.algos.protocols import Grid
from underpaint.algos.rows import SamplingParams
from underpaint.runtime.device.folder import EmbeddedBatch
from underpaint.runtime.device.forms import BatchCycle
from underpaint.runtime.device.forwards import DeviceDecoder
from underpaint.runtime.device.kernels.attention import Filled
from underpaint.runtime.device.kernels.fronts import FrontPass
from underpaint.runtime.device.kernels.probs import probs
from underpaint.runtime.device.state import Envelope, State, begin_images


def empty_pass(batch: int, count: int, slots: int, device: torch.device) -> FrontPass:
    """Allocate buffers for a pass over `count` positions of each image, with a cache of `slots` positions."""
    tokens, positions, masks, bounds, places, settled = (
        torch.zeros(batch, count, dtype=torch.int64, device=device) for _ in range(6)
    )
    extents = torch.zeros(batch, dtype=torch.int64, device=device)
    filled = torch.zeros(batch, slots, dtype=torch.int32, device=device)
    return FrontPass(tokens, positions, masks, bounds, places, settled, extents, filled)


class CellProgram(BatchCycle):
    """The buffers of a batch, and the steps that all programs over them share."""

    def __init__(
        self, target: DeviceDecoder, envelope: Envelope, grid: Grid, prefix: int, batch: int, device: torch.device
    ) -> None:
        self.grid, self.envelope = grid, envelope
        self._target = target
        self.state = State.allocate(
            batch,
            envelope,
            grid.cells,
            prefix,
            target.config,
            None,
            target.rows,
            target.dtype,
            device,
            places=(target.places, None),
        )
        self._pass = empty_pass(batch, envelope.nodes, self.state.target_cache.committed.shape[4], device)
        self._live = prefix + grid.cells // 2
        self.state.tree.counts.fill_(envelope.nodes)

    def _take_in(self, condition: Tensor, seeds: Tensor, images: Tensor, hidden: Tensor | None) -> Tensor:
        """Begin images with no cell filled; see `begin_images`."""
        features, out = begin_images(self.state, self._target, condition, seeds, images, hidden), self._pass
        out.filled.zero_()
        out.filled[:, : condition.shape[1]] = 1
        out.places.fill_(-1)
        out.settled.fill_(-1)
        return features

    def _features(self) -> Tensor:
        """Run one target pass; return the features [R, T, F] of its positions."""
        state, out = self.state, self._pass
        filled = Filled(out.filled, out.bounds)
        attend = state.target_cache.attend(0, out.extents, out.masks.unsqueeze(2), self._live, filled)
        return self._target.hidden(self._target.embed(out.tokens), out.positions, attend)

    def _logits(self, features: Tensor) -> Tensor:
        """Return logits [rows, B, N, V] of features [R, N, F]."""
        return self._target.logits(features).view(
            self._target.rows, self.state.batch, -1, self._target.config.vocab_size
        )

    def _find_probs(self, features: Tensor, sampler: SamplingParams) -> None:
        """Fill the first N rows of state.tree.probs from `features` [R, N, F]."""
        state, logits = self.state, self._logits(features)
        finite = state.verdicts.finite.narrow(1, 0, logits.shape[2])
        probs(logits, state.tree.probs, state.support, finite, state.tree.counts, sampler)


class CellCycle(CellProgram):
    """A program that repeats one step: call `begin` once, then `run` until every status is above 0."""

    def begin(
        self,
        condition: Tensor,
        seeds: Tensor,
        images: Tensor,
        hidden: Tensor | None = None,
        low: EmbeddedBatch | None = None,
    ) -> None:
        self._start(self._take_in(condition, seeds, images, hidden))

    def decided(self, place: int) -> BoolArray:
        cells = torch.arange(self.grid.width, device=self.state.roles.device)
        return (cells < self._columns(place)[:, None]).flatten().cpu().numpy()

    @abstractmethod
    def _columns(self, place: int) -> Tensor:
        """Return the number of decided cells in each row [H] of an image, from the left."""

    @abstractmethod
    def _start(self, features: Tensor) -> None:
        """Begin the pictures from the features [R, 1, F] after the conditions, which predict the first cell."""
