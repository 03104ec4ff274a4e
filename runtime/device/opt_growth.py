"""OPT-Tree's growth on the device: up to the envelope's levels; an image stops early if a level adds too little."""

from typing import Final

import torch
from torch import Tensor

from underpaint.algos.draft.opt import OptTree
from underpaint.algos.rows import SamplingParams
from underpaint.runtime.device.forwards import DeviceDecoder
from underpaint.runtime.device.growth import DraftPasses, Limits, Plan, Room, finite_marks, limits_of
from underpaint.runtime.device.kernels.growth import ExpandedRows
from underpaint.runtime.device.kernels.likeliest import RowScratch, lanes_of
from underpaint.runtime.device.kernels.opt_tree import Gains, Listed, Pool, grow_opt_level
from underpaint.runtime.device.state import Envelope, State


class OptGrowth:
    """Keeps the best path products, level by level. An image whose level added too little expands nothing more."""

    lays_out: Final = True

    def __init__(
        self,
        state: State,
        drafter: DeviceDecoder,
        sampler: SamplingParams,
        limits: Limits,
        threshold: float,
        max_nodes: int,
    ) -> None:
        """Allocate the buffers of the growth; the envelope's frontier is its number of draft nodes.

        Args:
            state: The batch's buffers.
            drafter: The drafter.
            sampler: Sampling parameters of the drafter.
            limits: Limits of every image's next tree.
            threshold: Accepted tokens that a level must add before another one is grown.
            max_nodes: Most nodes to expand in all, see `algos.draft.opt`.
        """
        batch, envelope, device = state.batch, state.envelope, state.roles.device
        self._passes = DraftPasses(drafter, state, state.progress.decided.shape[1] // 2)
        self._sampler, self.limits, self._max_nodes = sampler, limits, max_nodes
        levels, width, draft_nodes = envelope.levels, envelope.frontier, envelope.nodes - 1
        lanes = lanes_of(draft_nodes)
        assert state.draft_cache is not None

        def whole(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.int64, device=device)

        def reals(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.float64, device=device)

        def short(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.int32, device=device)

        rows = (levels, batch, width)
        self._front = ExpandedRows(
            whole(*rows), whole(*rows), whole(*rows), reals(*rows), whole(*rows, state.draft_cache.words)
        )
        self._pool, room = Pool(reals(batch, draft_nodes), short(batch, draft_nodes)), (batch, width * lanes)
        self._listed = Listed(short(*room), reals(*room), short(batch))
        least = torch.tensor([threshold], dtype=torch.float64, device=device)
        self._gains = Gains(reals(batch), least, reals(batch), whole(batch), whole(levels, batch))
        self._scratch = RowScratch.of(batch, width, drafter.config.vocab_size, lanes, device)
        # An image expands the root, and at most max_nodes nodes in all levels, however wide one level is.
        self._counted_rows = -(-(max_nodes - 1) // max(1, levels - 1))

    def begin(self) -> None:
        """See `Growth`. OPT-Tree has no state, but an aborted launch may have left counters above 0."""
        self._scratch.arrivals.zero_()
        self._listed.counts.zero_()

    def grow(self, state: State) -> None:
        finite, most = finite_marks(state), state.progress.decided.shape[1] - 1
        for level in range(state.envelope.levels):
            grow_opt_level(
                self._passes.expand(level, self._front),
                self._sampler,
                self._scratch,
                finite,
                (self._gains.rows if level else state.lengths.level_rows).select(0, level),
                state.lengths.levels,
                self.limits.totals,
                state.progress.roots,
                self._pool,
                self._listed,
                self._gains,
                state.tree,
                state.layout,
                self._front,
                level,
                state.envelope.children,
                self._max_nodes,
                most,
                self._counted_rows,
            )

    def observe(self, state: State) -> None:
        """See `Growth`; OPT-Tree learns nothing."""


def opt_plan(policy: OptTree, room: Room) -> Plan:
    """Return the device form of policy 'opt'."""
    total = min(policy.total_tokens, room.max_nodes - 1)
    levels = max(1, min(policy.max_depth, total, room.grid.cells - 2))

    def make(state: State, drafter: DeviceDecoder, sampler: SamplingParams) -> OptGrowth:
        limits = limits_of(state, policy.max_depth, total, total)
        return OptGrowth(state, drafter, sampler, limits, policy.threshold, room.max_nodes)

    return Plan(Envelope(1 + total, levels, total, min(total, room.vocab_size), total), "top_k", make)
