"""OPT-Tree's growth on the device: as many levels as the envelope has, an image goes on while they add enough."""

from typing import Final

import torch
from torch import Tensor

from underpaint.algos.draft.opt import OptTree
from underpaint.algos.rows import SamplingParams
from underpaint.runtime.device.forwards import DeviceDecoder
from underpaint.runtime.device.growth import DraftPasses, Limits, Plan, Room, limits_of
from underpaint.runtime.device.kernels.children import tiles_of
from underpaint.runtime.device.kernels.growth import ExpandedRows
from underpaint.runtime.device.kernels.opt_candidates import Gains, Pool, add_candidates
from underpaint.runtime.device.kernels.opt_tree import keep_best
from underpaint.runtime.device.kernels.probs import probs
from underpaint.runtime.device.state import Envelope, State


class OptGrowth:
    """The best path products so far, level by level; an image whose level added too little expands nothing more."""

    lays_out: Final = False

    def __init__(
        self,
        state: State,
        drafter: DeviceDecoder,
        sampler: SamplingParams,
        limits: Limits,
        threshold: float,
        max_nodes: int,
    ) -> None:
        """max_nodes: expanded in all, see `algos.draft.opt`. The envelope's frontier is its drafted nodes."""
        batch, envelope, device = state.batch, state.envelope, state.roles.device
        self._passes = DraftPasses(drafter, state, state.progress.decided.shape[1] // 2)
        self._sampler, self.limits, self._max_nodes = sampler, limits, max_nodes
        self._threshold = torch.tensor([threshold], dtype=torch.float64, device=device)
        levels, width, vocab_size = envelope.levels, envelope.frontier, drafter.config.vocab_size
        assert state.draft_cache is not None

        def whole(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.int64, device=device)

        def reals(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.float64, device=device)

        rows = (levels + 1, batch, width)
        self._front = ExpandedRows(
            whole(*rows), whole(*rows), whole(*rows), reals(*rows), whole(*rows, state.draft_cache.words)
        )
        size = (batch, envelope.nodes - 1 + width * envelope.children)
        self._pool = Pool(whole(*size), whole(*size), whole(*size), reals(*size), whole(*size))
        self._gains = Gains(reals(batch), reals(batch), whole(batch), whole(levels + 1, batch))
        self._probs = torch.zeros(batch, width, vocab_size, device=device)
        self._root_probs = torch.zeros(batch, 1, vocab_size, device=device)
        self._tops = whole(batch, width, tiles_of(vocab_size), envelope.children)
        self._root_tops = whole(batch, 1, tiles_of(vocab_size), envelope.children)
        self._arrivals = torch.zeros(batch, dtype=torch.int32, device=device)
        self._row_arrivals = torch.zeros(batch * width, dtype=torch.int32, device=device)
        # An image expands the root, and at most max_nodes in all its levels, whatever the width of one.
        self._counted_rows = -(-(max_nodes - 1) // max(1, levels - 1))

    def begin(self) -> None:
        """See `Growth`; OPT-Tree carries no state, but a launch that was cut short may have left counts."""
        self._arrivals.zero_()
        self._row_arrivals.zero_()

    def grow(self, state: State) -> None:
        front, gains, envelope, tree = self._front, self._gains, state.envelope, state.tree
        finite = state.verdicts.finite.narrow(1, envelope.nodes, envelope.draft_rows)
        for level in range(envelope.levels):
            logits = self._passes.expand(level, front)
            out, tops = (self._probs, self._tops) if level else (self._root_probs, self._root_tops)
            rows = (gains.rows if level else state.lengths.level_rows).select(0, level)
            probs(logits, out, state.draft_support, finite, rows, self._sampler, self._counted_rows)
            parts = (out, rows, tops, self._row_arrivals, front, gains, self._pool)
            add_candidates(*parts, envelope.nodes - 1, level, self._counted_rows)
            keep_best(
                self._pool,
                self._arrivals,
                rows,
                gains,
                state.lengths.levels,
                self.limits.totals,
                state.progress.roots,
                self._threshold,
                tree,
                front,
                level,
                self._max_nodes,
            )

    def observe(self, state: State) -> None:
        """See `Growth`; OPT-Tree learns nothing."""


def opt_plan(policy: OptTree, room: Room) -> Plan:
    """The device form of policy 'opt'."""
    total = min(policy.total_tokens, room.max_nodes - 1)
    levels = max(1, min(policy.max_depth, total, room.grid.cells - 2))

    def make(state: State, drafter: DeviceDecoder, sampler: SamplingParams) -> OptGrowth:
        limits = limits_of(state, policy.max_depth, total, total)
        return OptGrowth(state, drafter, sampler, limits, policy.threshold, room.max_nodes)

    return Plan(Envelope(1 + total, levels, total, min(total, room.vocab_size), total), "top_k", make)
