"""Tree policies on the device: the passes of the drafter that make a cycle's trees, in a fixed envelope.

Adaptive policies are mask contents: an image whose tree is shallower, narrower or smaller than the envelope leaves the
rest unused.
"""

from collections.abc import Callable
from math import ceil
from typing import Final, NamedTuple, Protocol

import torch
from torch import Tensor

from underpaint.algos.draft import POLICIES
from underpaint.algos.draft.adt import AdtTree
from underpaint.algos.draft.chain import Chain, LikeliestChain
from underpaint.algos.draft.eagle1 import Eagle1
from underpaint.algos.draft.eagle2 import Eagle2
from underpaint.algos.draft.shape import chain_shape, ranked_shape
from underpaint.algos.draft.spec import Grid, Policy
from underpaint.algos.rows import SamplingParams
from underpaint.algos.tree import Drawn
from underpaint.runtime.device.forwards import DeviceDecoder, causal_masks, gather_rows, pack_masks
from underpaint.runtime.device.kernels.adapt import AdaptSettings, AdaptState, adapt
from underpaint.runtime.device.kernels.children import draw_children, tile_top, tiles_of
from underpaint.runtime.device.kernels.growth import Candidates, ExpandedRows, grow_level, number_places, take_best
from underpaint.runtime.device.kernels.probs import probs
from underpaint.runtime.device.state import Envelope, State


class Limits(NamedTuple):
    """[B] int64 each: the depth, the width and the drafted nodes of every image's next tree."""

    depths: Tensor
    widths: Tensor
    totals: Tensor


class Growth(Protocol):
    """A policy's part of a cycle; `limits` is what the next cycle is laid out by."""

    limits: Limits

    def begin(self) -> None:
        """Forget the images."""
        ...

    def grow(self, state: State) -> None:
        """Fill the tree's tokens, parents, counts and, where siblings are drawn, the drafter's distributions."""
        ...

    def observe(self, state: State) -> None:
        """Learn from the verdicts, after the images have advanced."""
        ...


class DraftPasses:
    """The drafter's passes of one cycle: over the tokens it was not fed, then over each level's nodes."""

    def __init__(self, drafter: DeviceDecoder, state: State, live: int) -> None:
        if state.draft_cache is None:
            raise ValueError("device: this policy needs a drafter, and the batch was allocated without one")
        self._drafter, self._state, self._cache, self._live = drafter, state, state.draft_cache, live
        count = state.envelope.levels + 1
        masks = causal_masks(count, self._cache.words, state.roles.device)
        self._causal = masks.repeat(state.batch, 1, 1)

    def root(self) -> Tensor:
        """Feed the committed tokens and the root, for good; the root's logits [rows, B, 1, V]."""
        state, lengths, progress = self._state, self._state.lengths, self._state.progress
        attend = self._cache.attend(0, lengths.draft_before, self._causal, self._live)
        embedded = self._drafter.embed(progress.pending)
        made = self._drafter.hidden(embedded, state.pending_features, lengths.pending_positions, attend)
        self._cache.commit(
            state.verdicts.path,
            progress.pending_counts,
            lengths.draft_before,
            progress.pending.shape[1],
            walked=False,
        )
        root = state.predicted.narrow(1, 0, 1)
        root.copy_(gather_rows(made, lengths.last.unsqueeze(1), self._drafter.shape.rows))
        return self._logits(root)

    def level(self, level: int, tokens: Tensor, slots: Tensor, masks: Tensor, first: int) -> Tensor:
        """Feed a level's nodes, tokens [B, F] under parents in `slots` [B, F] (from 1 on; 0: the root).

        Returns their logits [rows, B, F, V]. masks [B, F, words]: the slots that each sees; the nodes take those from
        `first` on.
        """
        state, count = self._state, tokens.shape[1]
        above = gather_rows(state.predicted, slots, self._drafter.shape.rows)
        positions = state.lengths.level_positions.select(0, level).narrow(1, 0, count)
        attend = self._cache.attend(first, state.lengths.draft, masks, self._live)
        made = self._drafter.hidden(self._drafter.embed(tokens), above, positions, attend)
        state.predicted.narrow(1, 1 + first, count).copy_(made)
        return self._logits(made)

    def _logits(self, features: Tensor) -> Tensor:
        shape = self._drafter.shape
        logits = self._drafter.logits(features)
        return logits.view(shape.rows, self._state.batch, -1, shape.vocab_size)


class RankedGrowth:
    """EAGLE-2's tree and its relatives: a level's best candidates are expanded, and the best of all are verified."""

    def __init__(
        self,
        state: State,
        drafter: DeviceDecoder,
        sampler: SamplingParams,
        limits: Limits,
        adaptation: "Adaptation | None",
    ) -> None:
        batch, envelope, device = state.batch, state.envelope, state.roles.device
        self._passes = DraftPasses(drafter, state, state.progress.decided.shape[1] // 2)
        self._sampler, self.limits, self._adaptation = sampler, limits, adaptation
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
        count = levels * width * children
        self._found = Candidates(
            whole(batch, count),
            whole(batch, count),
            torch.zeros(batch, count, dtype=torch.float64, device=device),
            whole(batch, count),
            whole(batch, count),
        )
        vocab_size = drafter.shape.vocab_size
        self._probs = torch.zeros(batch, width, vocab_size, device=device)
        self._root_probs = torch.zeros(batch, 1, vocab_size, device=device)
        self._tops = whole(batch, width, tiles_of(vocab_size), children)
        self._root_tops = whole(batch, 1, tiles_of(vocab_size), children)

    def begin(self) -> None:
        if self._adaptation is not None:
            self._adaptation.begin(self.limits)

    def grow(self, state: State) -> None:
        front, width = self._front, state.envelope.frontier
        finite = state.verdicts.finite.narrow(1, state.envelope.nodes, state.envelope.draft_rows)
        for level in range(state.envelope.levels):
            if level == 0:
                logits, made, tops = self._passes.root(), self._root_probs, self._root_tops
            else:
                tokens, slots, masks = (part.select(0, level) for part in (front.tokens, front.slots, front.masks))
                logits = self._passes.level(level, tokens, slots, masks, (level - 1) * width)
                made, tops = self._probs, self._tops
            rows = state.lengths.level_rows.select(0, level)
            probs(logits, made, state.draft_support, finite, rows, self._sampler)
            tile_top(made, tops)
            grow_level(tops, self.limits.widths, state.lengths.levels, front, self._found, level)
        tree = state.tree
        take_best(self._found, self.limits.totals, state.progress.roots, tree.tokens, tree.parents, tree.counts)

    def observe(self, state: State) -> None:
        if self._adaptation is not None:
            self._adaptation.observe(state, self.limits)


class Adaptation:
    """ADT-Tree's memory and settings; see `kernels.adapt`."""

    def __init__(self, policy: AdtTree, state: State, grid: Grid) -> None:
        if policy.init == "random":
            raise ValueError(
                "device: ADT-Tree's init 'random' has no form on the device; those that have one: horizontal, vertical"
            )
        self._row = grid.width
        self._settings = AdaptSettings(
            beta=float(policy.beta),
            ratio=policy.acceptance == "ratio",
            vertical=policy.init == "vertical",
            row_start={"carry": 0, "upper": 1, "default": 2}[policy.row_start],
            of_last=policy.acceptance_of == "last_tree",
            steps=(policy.step_depth, policy.step_width),
            start=(policy.start_depth, policy.start_width),
            least=(policy.min_depth, policy.min_width),
            most=(policy.max_depth, policy.max_width),
            total=policy.total_tokens,
            proportional=policy.nodes == "proportional",
        )
        size, device = (state.batch, grid.cells + 1), state.roles.device
        self._state = AdaptState(
            torch.zeros(size, dtype=torch.int64, device=device),
            torch.zeros(size, dtype=torch.int64, device=device),
            torch.full(size, -1.0, dtype=torch.float64, device=device),
        )

    def begin(self, limits: Limits) -> None:
        """Start images: no cell has a tree, and the next tree has the start's depth and width."""
        settings, held = self._settings, self._state
        held.depths.zero_()
        held.widths.zero_()
        held.accepted.fill_(-1.0)
        for kept, limit, start in (
            (held.depths, limits.depths, settings.start[0]),
            (held.widths, limits.widths, settings.start[1]),
        ):
            kept.select(1, kept.shape[1] - 1).fill_(start)
            limit.fill_(start)
        limits.totals.fill_(settings.total)

    def observe(self, state: State, limits: Limits) -> None:
        """Learn from the verdicts."""
        adapt(
            self._state,
            self._settings,
            state.depths,
            state.tree.counts,
            state.verdicts.taken,
            state.progress.cells,
            *limits,
            self._row,
        )


class DrawnGrowth:
    """Static shapes filled by draws without replacement: EAGLE-1's tree, and speculative sampling's chain."""

    def __init__(self, state: State, drafter: DeviceDecoder, sampler: SamplingParams, shape: tuple[int, ...]) -> None:
        device, batch = state.roles.device, state.batch
        self._passes = DraftPasses(drafter, state, state.progress.decided.shape[1] // 2)
        self._sampler = sampler
        below: list[list[int]] = [[] for _ in shape]
        for place, above in enumerate(shape[1:], start=1):
            below[above].append(place)
        self._levels: list[_Level] = []
        here, row, rows = [0], 0, [-1] * len(shape)
        slots: dict[int, int] = {0: 0}
        seen: dict[int, list[int]] = {0: []}
        assert state.draft_cache is not None
        while here:
            following = [child for place in here for child in below[place] if below[child]]
            first = (len(self._levels) - 1) * state.envelope.frontier
            if self._levels:
                for turn, place in enumerate(here):
                    slots[place], seen[place] = first + turn + 1, [*seen[shape[place]], first + turn]
            for turn, place in enumerate(here):
                rows[place] = row + turn
            masks = pack_masks([seen[place] for place in here], state.draft_cache.words, device)
            parents = [slots[shape[place]] if place else 0 for place in here]
            self._levels.append(
                _Level(
                    torch.tensor(here, device=device),
                    torch.tensor([len(below[place]) for place in here], device=device),
                    torch.tensor(parents, device=device).repeat(batch, 1),
                    masks.repeat(batch, 1, 1),
                    max(first, 0),
                    row,
                    below[here[0]][0],
                )
            )
            row, here = row + len(here), following
        self._most = max(map(len, below))
        self._shape = torch.tensor(shape, device=device)
        self._rows = torch.tensor(rows, device=device)
        self._tokens = torch.zeros(batch, len(shape), dtype=torch.int64, device=device)
        self._exists = torch.zeros(batch, len(shape), dtype=torch.int64, device=device)
        self._exists.select(1, 0).fill_(1)
        full = torch.full((batch,), len(self._levels), dtype=torch.int64, device=device)
        self.limits = Limits(full, full, torch.full_like(full, len(shape) - 1))

    def begin(self) -> None:
        """See `Growth`; a static tree carries no state."""

    def grow(self, state: State) -> None:
        tree, nodes = state.tree, state.envelope.nodes
        for number, level in enumerate(self._levels):
            count = level.places.shape[0]
            if number == 0:
                logits = self._passes.root()
            else:
                tokens = self._tokens.index_select(1, level.places)
                logits = self._passes.level(number, tokens, level.slots, level.masks, level.first_slot)
            made, support = (part.narrow(1, level.first_row, count) for part in (tree.draft_probs, state.draft_support))
            finite = state.verdicts.finite.narrow(1, nodes + level.first_row, count)
            rows = state.lengths.level_rows.select(0, number)
            probs(logits, made, support, finite, rows, self._sampler)
            draw_children(
                made,
                support,
                tree.uniforms,
                level.places,
                level.wanted,
                self._tokens,
                self._exists,
                state.lengths.levels,
                level.first_child,
                number,
                self._most,
            )
        number_places(
            self._tokens,
            self._exists,
            self._shape,
            self._rows,
            state.progress.roots,
            tree.tokens,
            tree.parents,
            tree.draft_rows,
            tree.counts,
        )

    def observe(self, state: State) -> None:
        """See `Growth`; a static tree learns nothing."""


class _Level(NamedTuple):
    """A level of a static shape: places expanded, their numbers of children, their parents' slots."""

    places: Tensor
    wanted: Tensor
    slots: Tensor
    masks: Tensor
    first_slot: int
    first_row: int
    first_child: int


class Plan(NamedTuple):
    """What a policy needs on the device. make: its growth, given the batch's buffers, the drafter and its sampler."""

    envelope: Envelope
    drawn: Drawn
    make: Callable[[State, DeviceDecoder, SamplingParams], Growth]


DEVICE_POLICIES: Final = (Chain, LikeliestChain, Eagle1, Eagle2, AdtTree)
"""Policies with a form on the device."""


def plan_of(policy: Policy, grid: Grid, vocab_size: int, max_nodes: int) -> Plan:
    """The envelope and the growth of a policy; ValueError for one without a form on the device."""
    if isinstance(policy, Chain | Eagle1):
        length = min(getattr(policy, "length", 1), max_nodes - 1, grid.cells - 2)
        shape = chain_shape(length) if isinstance(policy, Chain) else ranked_shape(tuple(policy.widths))
        return _drawn_plan(shape, "iid" if isinstance(policy, Chain) else "without_replacement", max_nodes)
    if isinstance(policy, LikeliestChain):
        return _ranked_plan((policy.length, 1, policy.length), None, grid, vocab_size, max_nodes, policy.length)
    if isinstance(policy, Eagle2):
        settings = (policy.depth, policy.top_k, policy.total_tokens)
        return _ranked_plan(settings, None, grid, vocab_size, max_nodes, policy.total_tokens)
    if isinstance(policy, AdtTree):
        most = policy.total_tokens
        if policy.nodes == "proportional":
            most = ceil(most * policy.max_depth * policy.max_width / (policy.start_depth * policy.start_width))
        settings = (policy.max_depth, policy.max_width, policy.total_tokens)
        return _ranked_plan(settings, policy, grid, vocab_size, max_nodes, most)
    raise ValueError(
        f"device: policy {type(policy).__name__} has no form on the device; those that have one: "
        f"{', '.join(spec.name for spec in POLICIES if spec.make in DEVICE_POLICIES)}; choose one of them, or decode "
        "on the host"
    )


def _drawn_plan(shape: tuple[int, ...], drawn: Drawn, max_nodes: int) -> Plan:
    if len(shape) > max_nodes:
        raise ValueError(
            f"device: the static tree has {len(shape)} nodes, the target scores at most {max_nodes}; lower its widths"
        )
    depths = [0] * len(shape)
    counts = [0] * len(shape)
    for place, above in enumerate(shape[1:], start=1):
        depths[place] = depths[above] + 1
        counts[above] += 1
    expanded = [depths[place] for place in range(len(shape)) if counts[place]]
    widest = max(expanded.count(depth) for depth in set(expanded))
    envelope = Envelope(len(shape), max(depths), widest, max(counts), len(expanded))
    return Plan(envelope, drawn, lambda state, drafter, sampler: DrawnGrowth(state, drafter, sampler, shape))


def _ranked_plan(
    settings: tuple[int, int, int], adaptive: AdtTree | None, grid: Grid, vocab_size: int, max_nodes: int, most: int
) -> Plan:
    depth, width, total = settings
    nodes = 1 + min(most, max_nodes - 1)
    levels = max(1, min(depth, nodes - 1, grid.cells - 2))
    width = min(width, vocab_size)
    envelope = Envelope(nodes, levels, width, width, max(1, width))

    def make(state: State, drafter: DeviceDecoder, sampler: SamplingParams) -> Growth:
        limits = Limits(
            *(
                torch.full((state.batch,), number, dtype=torch.int64, device=state.roles.device)
                for number in (depth, width, min(total, max_nodes - 1))
            )
        )
        adaptation = None if adaptive is None else Adaptation(adaptive, state, grid)
        return RankedGrowth(state, drafter, sampler, limits, adaptation)

    return Plan(envelope, "top_k", make)
