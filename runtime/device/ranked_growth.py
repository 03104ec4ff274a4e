"""Ranked trees of the drafter's likeliest tokens: EAGLE-2, likeliest chains, ADT-Tree and scheduled trees."""

from collections.abc import Callable
from math import ceil, floor
from typing import Final, Protocol

import torch
from torch import Tensor

from underpaint.algos.draft.adt import AdtTree
from underpaint.algos.draft.chain import LikeliestChain
from underpaint.algos.draft.eagle2 import Eagle2
from underpaint.algos.draft.scheduled import ScheduledTree
from underpaint.algos.protocols import Grid
from underpaint.algos.rows import SamplingParams
from underpaint.runtime.device.forwards import DeviceDecoder
from underpaint.runtime.device.growth import DraftPasses, Limits, Plan, Room, finite_marks, limits_of
from underpaint.runtime.device.kernels.adapt import Adapting, AdaptSettings, AdaptState
from underpaint.runtime.device.kernels.growth import Candidates, ExpandedRows, grow_level
from underpaint.runtime.device.kernels.likeliest import RowScratch, lanes_of
from underpaint.runtime.device.state import Envelope, State


class NextDepths(Protocol):
    """Sets, cycle by cycle, how deep, wide and large the next trees are."""

    def begin(self, limits: Limits) -> None:
        """Set the limits for new images."""
        ...

    def observe(self, state: State, limits: Limits) -> None:
        """Set the limits of the next cycle, after the images have advanced."""
        ...

    def adapting(self, limits: Limits) -> Adapting | None:
        """Return what the launch that advances images needs to set the limits; None if `observe` sets them."""
        ...


class RankedGrowth:
    """EAGLE-2's tree and its variants: the best candidates of a level are expanded, the best of all are verified."""

    lays_out: Final = True

    def __init__(
        self,
        state: State,
        drafter: DeviceDecoder,
        sampler: SamplingParams,
        limits: Limits,
        depths: "NextDepths | None",
    ) -> None:
        batch, envelope, device = state.batch, state.envelope, state.roles.device
        self._passes = DraftPasses(drafter, state, state.progress.decided.shape[1] // 2)
        self._sampler, self.limits, self._depths = sampler, limits, depths
        levels, width, children = envelope.levels, envelope.frontier, envelope.children
        assert state.draft_cache is not None

        def whole(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.int64, device=device)

        shape = (levels, batch, width)
        self._front = ExpandedRows(
            whole(*shape),
            whole(*shape),
            whole(*shape),
            torch.zeros(shape, dtype=torch.float64, device=device),
            whole(*shape, state.draft_cache.words),
        )
        self._front.scores.select(0, 0).select(1, 0).fill_(1.0)
        self._front.candidates.select(0, 0).fill_(-1)
        count, lanes = levels * width * children, lanes_of(children)
        self._candidates = Candidates(
            whole(batch, count),
            whole(batch, count),
            torch.zeros(batch, count, dtype=torch.float64, device=device),
            whole(batch, lanes_of(envelope.nodes)),
        )
        self._scratch = RowScratch.of(batch, width, drafter.config.vocab_size, lanes, device)

    def begin(self) -> None:
        self._scratch.arrivals.zero_()  # an aborted launch may have left counts
        if self._depths is not None:
            self._depths.begin(self.limits)

    def grow(self, state: State) -> None:
        finite, most = finite_marks(state), state.progress.decided.shape[1] - 1
        for level in range(state.envelope.levels):
            grow_level(
                self._passes.expand(level, self._front),
                self._sampler,
                self._scratch,
                finite,
                state.lengths.level_rows.select(0, level),
                self.limits.widths,
                state.lengths.levels,
                self.limits.totals,
                state.progress.roots,
                self._front,
                self._candidates,
                state.tree,
                state.layout,
                level,
                most,
            )

    def observe(self, state: State) -> None:
        if self._depths is not None:
            self._depths.observe(state, self.limits)

    @property
    def adapting(self) -> Adapting | None:
        """See `NextDepths`."""
        return None if self._depths is None else self._depths.adapting(self.limits)


class Adaptation:
    """ADT-Tree's memory and settings; see `kernels.adapt`."""

    def __init__(self, policy: AdtTree, state: State, grid: Grid) -> None:
        beta = torch.tensor([policy.beta], dtype=torch.float64, device=state.roles.device)
        self._settings = AdaptSettings(
            *(beta, grid.width, int(policy.acceptance == "ratio"), int(policy.init == "vertical")),
            *({"carry": 0, "upper": 1, "default": 2}[policy.row_start], int(policy.acceptance_of == "last_tree")),
            *(policy.step_depth, policy.step_width, policy.start_depth, policy.start_width),
            *(policy.min_depth, policy.min_width, policy.max_depth, policy.max_width),
            *(policy.total_tokens, int(policy.nodes == "proportional")),
        )
        size, device = (state.batch, grid.cells + 1), state.roles.device
        self._state = AdaptState(
            torch.zeros(size, dtype=torch.int64, device=device),
            torch.zeros(size, dtype=torch.int64, device=device),
            torch.full(size, -1.0, dtype=torch.float64, device=device),
        )

    def begin(self, limits: Limits) -> None:
        """Start images: no cell has a tree yet, and the next tree has the start depth and width."""
        settings, memory = self._settings, self._state
        memory.accepted.fill_(-1.0)
        starts = (settings.start_depth, settings.start_width)
        for sizes, limit, start in zip((memory.depths, memory.widths), limits, starts, strict=False):
            sizes.zero_()
            sizes.select(1, sizes.shape[1] - 1).fill_(start)
            limit.fill_(start)
        limits.totals.fill_(settings.total)

    def observe(self, state: State, limits: Limits) -> None:
        """Do nothing: the limits were set when the images advanced."""

    def adapting(self, limits: Limits) -> Adapting:
        """Return its memory, its settings and the limits."""
        return Adapting(self._state, self._settings, *limits)


class Schedule:
    """Depths that follow a given mean, whatever was accepted; see `algos.draft.scheduled`."""

    def __init__(self, policy: ScheduledTree, state: State) -> None:
        cells, mean = state.progress.decided.shape[1], policy.mean_depth
        # A cycle's number is one more than the number of trees before it: cycle 0 drafts nothing.
        depths = [max(1, floor(tree * mean) - floor((tree - 1) * mean)) for tree in range(1, cells + 1)]
        self._depths = torch.tensor([depths[0], *depths], dtype=torch.int64, device=state.roles.device)

    def begin(self, limits: Limits) -> None:
        """Start images at the beginning of the schedule."""
        limits.depths.copy_(self._depths[:1].expand_as(limits.depths))

    def observe(self, state: State, limits: Limits) -> None:
        """Set the depths of the next cycles."""
        torch.index_select(self._depths, 0, state.progress.cycles, out=limits.depths)

    def adapting(self, limits: Limits) -> None:
        """Return None: the depths follow from the numbers of the cycles."""


def eagle2_plan(policy: Eagle2, room: Room) -> Plan:
    """Return the device form of policy 'eagle2'."""
    return _plan((policy.depth, policy.top_k, policy.total_tokens), policy.total_tokens, room)


def likeliest_chain_plan(policy: LikeliestChain, room: Room) -> Plan:
    """Return the device form of policy 'chain_top1'."""
    return _plan((policy.length, 1, policy.length), policy.length, room)


def scheduled_plan(policy: ScheduledTree, room: Room) -> Plan:
    """Return the device form of policy 'scheduled'."""
    settings = (ceil(policy.mean_depth), policy.top_k, policy.total_tokens)
    return _plan(settings, policy.total_tokens, room, lambda state: Schedule(policy, state))


def adt_plan(policy: AdtTree, room: Room) -> Plan:
    """Return the device form of policy 'adt'."""
    if policy.init == "random":
        raise ValueError(
            "device: ADT-Tree's init 'random' has no form on the device; those that have one: horizontal, vertical"
        )
    most = policy.total_tokens
    if policy.nodes == "proportional":
        most = ceil(most * policy.max_depth * policy.max_width / (policy.start_depth * policy.start_width))
    settings = (policy.max_depth, policy.max_width, policy.total_tokens)
    return _plan(settings, most, room, lambda state: Adaptation(policy, state, room.grid))


def _plan(
    settings: tuple[int, int, int], most: int, room: Room, depths: Callable[[State], NextDepths] | None = None
) -> Plan:
    """Plan trees of `settings`: depth, width and draft nodes. `most` is the draft nodes of the largest tree; `depths`
    changes the settings from cycle to cycle."""
    depth, width, total = settings
    nodes = 1 + min(most, room.max_nodes - 1)
    levels = max(1, min(depth, nodes - 1, room.grid.cells - 2))
    width = min(width, room.vocab_size)

    def make(state: State, drafter: DeviceDecoder, sampler: SamplingParams) -> RankedGrowth:
        limits = limits_of(state, depth, width, min(total, room.max_nodes - 1))
        return RankedGrowth(state, drafter, sampler, limits, None if depths is None else depths(state))

    return Plan(Envelope(nodes, levels, width, width, max(1, width)), "top_k", make)
