"""Row fronts on the device: several rows are decided at once, each a fixed window behind the row above (ZipAR).

A pass is over cells in any order: the cache has a slot a cell, and a position sees the filled slots of the cells
before its own. The reference is `algos.spatial.zipar.zipar`.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from underpaint.algos.chance import Role
from underpaint.algos.draft.spec import Grid
from underpaint.algos.rows import SamplingParams
from underpaint.runtime.device.forwards import DeviceDecoder
from underpaint.runtime.device.kernels.attention import Filled
from underpaint.runtime.device.kernels.cell_uniforms import cell_uniforms
from underpaint.runtime.device.kernels.commit_cells import commit_cells
from underpaint.runtime.device.kernels.fronts import FrontPass, advance_fronts, lay_fronts, settle
from underpaint.runtime.device.kernels.probs import probs
from underpaint.runtime.device.state import Envelope, State


class FrontMethod(NamedTuple):
    """Row fronts in a fixed window, 1 to the width of the grid, which is raster order.

    role, noise_cycle: the address of the cells' noise.
    """

    window: int
    sampler: SamplingParams
    role: Role = Role.CELL
    noise_cycle: int = 0


def front_envelope(window: int, grid: Grid) -> Envelope:
    """The sizes of a pass: a position for each row that can be open, and one for the proxy of the next.

    ValueError for a window beyond the grid.
    """
    if not 1 <= window <= grid.width:
        raise ValueError(f"device: window: expected 1..{grid.width} on this grid, got {window}")
    return Envelope(min(grid.height, -(-grid.width // window)) + 1, 0, 1, 1, 1)


def empty_pass(batch: int, count: int, slots: int, device: torch.device) -> FrontPass:
    """Buffers for a pass over `count` positions of each image, whose cache has `slots`."""
    tokens, positions, masks, bounds, places, settled = (
        torch.zeros(batch, count, dtype=torch.int64, device=device) for _ in range(6)
    )
    extents = torch.zeros(batch, dtype=torch.int64, device=device)
    filled = torch.zeros(batch, slots, dtype=torch.int32, device=device)
    return FrontPass(tokens, positions, masks, bounds, places, settled, extents, filled)


class FrontCycle:
    """The program of a batch, as `cycle.DeviceCycle`: `begin` once, then `run` until every status is above 0."""

    def __init__(
        self,
        target: DeviceDecoder,
        method: FrontMethod,
        grid: Grid,
        prefix: int,
        batch: int,
        device: torch.device,
    ) -> None:
        self.grid, self.envelope, self.method = grid, front_envelope(method.window, grid), method
        self._target = target
        self.state = State.allocate(batch, self.envelope, grid.cells, prefix, target.shape, None, target.dtype, device)
        count = self.envelope.nodes

        def whole(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.int64, device=device)

        self._pass = empty_pass(batch, count, self.state.target_cache.committed.shape[4], device)
        self._uniforms = torch.zeros(batch, 1, count, dtype=torch.float64, device=device)
        self._noise_cycle = whole(batch).fill_(method.noise_cycle)
        self._role = torch.tensor([int(method.role)], dtype=torch.int64, device=device)
        self._live = prefix + grid.cells // 2
        self.state.tree.counts.fill_(count)

    def begin(self, condition: Tensor, seeds: Tensor, images: Tensor, hidden: Tensor | None = None) -> None:
        """Take in conditions and decide every image's first cell; see `DeviceCycle.begin`."""
        state, progress, out = self.state, self.state.progress, self._pass
        state.noise.seeds.copy_(seeds)
        state.noise.images.copy_(images)
        for part in (progress.cells, progress.cycles, state.verdicts.status):
            part.zero_()
        state.verdicts.finite.fill_(1)
        length = condition.shape[1]
        progress.prefixes.fill_(length)
        cache = state.target_cache
        cache.clear()
        if hidden is not None:
            cache.unseen.copy_(hidden)
        positions = torch.arange(-length, 0, device=condition.device).repeat(state.batch, 1)
        made = self._target.hidden(condition, positions, cache.prefill())
        out.filled.zero_()
        out.filled[:, :length] = 1
        out.places.fill_(-1)
        out.settled.fill_(-1)
        out.settled[:, 0] = 0
        self._decide(made[:, -1:].expand(-1, self.envelope.nodes, -1).contiguous())

    def run(self) -> None:
        """One step of every image that is not done."""
        state, out = self.state, self._pass
        lay_fronts(state.verdicts.status, state.progress, out, self.grid, self.method.window)
        filled = Filled(out.filled, out.bounds)
        attend = state.target_cache.attend(0, out.extents, out.masks.unsqueeze(2), self._live, filled)
        made = self._target.hidden(self._target.embed(out.tokens), out.positions, attend)
        commit_cells(state.target_cache.committed, state.target_cache.slots, out.places)
        self._decide(made)

    def _decide(self, features: Tensor) -> None:
        state, out, shape = self.state, self._pass, self._target.shape
        cell_uniforms(self._uniforms, *state.noise, self._noise_cycle, out.settled, self._role)
        logits = self._target.logits(features).view(shape.rows, state.batch, -1, shape.vocab_size)
        tree, finite = state.tree, state.verdicts.finite.narrow(1, 0, logits.shape[2])
        probs(logits, tree.probs, state.support, finite, tree.counts, self.method.sampler)
        settle(tree.probs, self._uniforms, out, state.progress, state.verdicts)
        advance_fronts(out, state.progress, state.verdicts)
