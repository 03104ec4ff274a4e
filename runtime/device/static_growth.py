"""Trees whose shape is fixed before drafting: EAGLE-1's, Sequoia's, delayed trees, and chains of sampled tokens."""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import zip_longest
from typing import Final, NamedTuple, Self

import torch
from torch import Tensor

from underpaint.algos.draft.chain import Chain
from underpaint.algos.draft.delayed import DelayedTree
from underpaint.algos.draft.eagle1 import Eagle1, StaticTopK
from underpaint.algos.draft.fused import children
from underpaint.algos.draft.sequoia import Sequoia
from underpaint.algos.draft.shape import chain_shape, ranked_shape, within
from underpaint.algos.protocols import Budget
from underpaint.algos.rows import SamplingParams
from underpaint.algos.tree import Drawn, Shape
from underpaint.runtime.device.forwards import DeviceDecoder, pack_masks
from underpaint.runtime.device.growth import DraftPasses, Limits, Plan, Room
from underpaint.runtime.device.kernels.children import take_children, tiles_of
from underpaint.runtime.device.kernels.drawn_level import DrawnRows, LevelSync, draw_level
from underpaint.runtime.device.kernels.probs import probs
from underpaint.runtime.device.kernels.static_shapes import LevelRows, ShapeLevel, number_places
from underpaint.runtime.device.state import Envelope, State

_NO_PLACE: Final = -2


def expanded_levels(shape: Shape) -> list[list[int]]:
    """Return the nodes of each level that have children, in order; [] for a tree of only the root."""
    below = children(shape)
    levels, here = list[list[int]](), [0] if below[0] else []
    while here:
        levels.append(here)
        here = [child for place in here for child in below[place] if below[child]]
    return levels


def static_envelope(shapes: Sequence[Shape], sampled: bool) -> Envelope:
    """Return the envelope that the trees of all `shapes` fit into."""
    widths = level_widths(shapes)
    most = max(len(below) for shape in shapes for below in children(shape))
    widest = max(widths, default=1)
    rows = sum(widths) if sampled else widest
    return Envelope(max(map(len, shapes)), max(1, len(widths)), widest, max(1, most), max(1, rows))


def level_widths(shapes: Sequence[Shape]) -> list[int]:
    """Return the largest number of nodes that any of `shapes` expands at each level."""
    counts = [[len(places) for places in expanded_levels(shape)] for shape in shapes]
    return [max(level) for level in zip_longest(*counts, fillvalue=0)]


class StaticGrowth:
    """Static shapes, filled with sampled tokens, or with the likeliest tokens as point proposals."""

    lays_out: Final = True

    def __init__(
        self, state: State, drafter: DeviceDecoder, sampler: SamplingParams, shapes: Sequence[Shape], drawn: Drawn
    ) -> None:
        """Build the tables.

        Args:
            state: The batch's buffers.
            drafter: The drafter.
            sampler: Sampling parameters of the drafter.
            shapes: Shapes of trees of at most 0, 1, 2, ... levels; the last serves any more levels.
            drawn: How siblings are drawn.
        """
        sampled, self._repeats = drawn != "top_k", drawn == "iid"
        device, batch, nodes = state.roles.device, state.batch, state.envelope.nodes
        self._passes = DraftPasses(drafter, state, state.progress.decided.shape[1] // 2)
        self._sampler = sampler
        assert state.draft_cache is not None
        words, frontier = state.draft_cache.words, state.envelope.frontier
        self._levels, places_of = list[_Level](), [_Places.of(shape, frontier) for shape in shapes]
        first_row = 0
        for number, width in enumerate(level_widths(shapes)):
            level = _level_of(places_of, number, width, words, device)
            rows = LevelRows(
                torch.zeros(batch, width, dtype=torch.int64, device=device),
                torch.zeros(batch, width, dtype=torch.int64, device=device),
                torch.zeros(batch, width, words, dtype=torch.int64, device=device),
            )
            self._levels.append(_Level(level, rows, width, max(number - 1, 0) * frontier, first_row))
            first_row += width
        most, vocab_size = max((one.shapes.most for one in self._levels), default=1), drafter.config.vocab_size
        self._tops = None if sampled else [_Tops.of(batch, level, vocab_size, most) for level in self._levels]
        self._shapes = torch.full((len(shapes), nodes), _NO_PLACE, dtype=torch.int64, device=device)
        self._rows = torch.full((len(shapes), nodes), -1, dtype=torch.int64, device=device)
        for turn, (shape, places) in enumerate(zip(shapes, places_of, strict=True)):
            self._shapes[turn, : len(shape)] = torch.tensor(shape, device=device)
            for number, here in enumerate(places.levels):
                rows_here = self._levels[number].first_row + torch.arange(len(here), device=device)
                self._rows[turn, torch.tensor(here, device=device)] = rows_here
        self._tokens = torch.zeros(batch, nodes, dtype=torch.int64, device=device)
        self._exists = torch.zeros(batch, nodes, dtype=torch.int64, device=device)
        self._exists.select(1, 0).fill_(1)
        self._sync = LevelSync.allocate(batch, device)
        full = torch.full((batch,), len(shapes) - 1, dtype=torch.int64, device=device)
        self.limits = Limits(full, full, full)

    def begin(self) -> None:
        """See `Growth`. A static tree has no state, but an aborted launch may have left counters above 0."""
        for arrivals in (*self._sync, *(tops.arrivals for tops in self._tops or ())):
            arrivals.zero_()

    def grow(self, state: State) -> None:
        levels = state.lengths.levels
        for number, level in enumerate(self._levels):
            logits = self._passes.root() if number == 0 else self._passes.level(number, *level.rows, level.first_slot)
            following = self._levels[number + 1] if number + 1 < len(self._levels) else None
            if self._tops is None:
                self._draw(state, number, level, logits, following)
            else:
                self._take(state, number, logits, self._tops[number], following)
        filled = (self._tokens, self._exists, levels, self._shapes, self._rows, state.progress.roots)
        depth, most = max(1, state.envelope.levels), state.progress.decided.shape[1] - 1
        number_places(*filled, state.tree, state.layout, depth, most)

    def _draw(self, state: State, number: int, level: "_Level", logits: Tensor, following: "_Level | None") -> None:
        below = None if following is None else (following.shapes, following.rows)
        out = DrawnRows(
            state.tree.draft_probs.narrow(1, level.first_row, level.width),
            state.draft_support.narrow(1, level.first_row, level.width),
            state.verdicts.finite.narrow(1, state.envelope.nodes + level.first_row, level.width),
        )
        draw_level(
            logits,
            out,
            state.lengths.level_rows.select(0, number),
            self._sync,
            state.tree.uniforms,
            level.shapes,
            self._tokens,
            self._exists,
            state.lengths.levels,
            below,
            self._repeats,
            self._sampler,
        )

    def _take(self, state: State, number: int, logits: Tensor, tops: "_Tops", following: "_Level | None") -> None:
        level, below = self._levels[number].shapes, None if following is None else (following.shapes, following.rows)
        finite = state.verdicts.finite.narrow(1, state.envelope.nodes, state.envelope.draft_rows)
        rows = state.lengths.level_rows.select(0, number)
        probs(logits, tops.probs, state.draft_support, finite, rows, self._sampler)
        take_children(*tops, level, self._tokens, self._exists, state.lengths.levels, below)

    def observe(self, state: State) -> None:
        """See `Growth`; a static tree learns nothing."""


class _Places(NamedTuple):
    """The nodes of one shape: those expanded at each level, and the children and parents of every node.

    rows: index of a node among those of its level. seen: drafter slots that a node sees, its own included.
    """

    levels: list[list[int]]
    below: tuple[tuple[int, ...], ...]
    rows: dict[int, int]
    seen: dict[int, list[int]]
    parents: Shape

    @classmethod
    def of(cls, shape: Shape, frontier: int) -> Self:
        levels, rows, seen = expanded_levels(shape), {0: 0}, dict[int, list[int]]({0: []})
        for number, here in enumerate(levels[1:]):
            for turn, place in enumerate(here):
                rows[place], seen[place] = turn, [*seen[shape[place]], number * frontier + turn]
        return cls(levels, children(shape), rows, seen, shape)


class _Level(NamedTuple):
    """One level of all shapes: tables, drafter inputs, number of rows, first drafter slot and first distribution."""

    shapes: ShapeLevel
    rows: LevelRows
    width: int
    first_slot: int
    first_row: int


def _level_of(shapes: Sequence[_Places], number: int, width: int, words: int, device: torch.device) -> ShapeLevel:
    """Return the tables of a level, padded with unused rows."""
    here = [shape.levels[number] if number < len(shape.levels) else [] for shape in shapes]
    rest = [[0] * (width - len(places)) for places in here]

    def table(rows: list[list[int]]) -> Tensor:
        return torch.tensor([row + more for row, more in zip(rows, rest, strict=True)], device=device)

    pairs = list(zip(shapes, here, strict=True))
    firsts = [shape.below[places[0]][0] if places else 0 for shape, places in pairs]
    above = [[shape.rows[max(0, shape.parents[place])] for place in places] for shape, places in pairs]
    masks = [
        pack_masks([*(shape.seen[place] for place in places), *([] for _ in range(width - len(places)))], words, device)
        for shape, places in pairs
    ]
    child_counts = table([[len(shape.below[place]) for place in places] for shape, places in pairs])
    return ShapeLevel(
        table(here),
        child_counts,
        max(1, *(len(shape.below[place]) for shape, places in pairs for place in places)),
        torch.tensor(firsts, device=device),
        max(1, *firsts),
        table(above),
        torch.stack(masks),
    )


class _Tops(NamedTuple):
    """A level's distributions [B, F, V], the likeliest tokens of their tiles, and counters of programs [B]."""

    probs: Tensor
    packed: Tensor
    arrivals: Tensor

    @classmethod
    def of(cls, batch: int, level: _Level, vocab_size: int, most: int) -> Self:
        device = level.rows.tokens.device
        packed = torch.zeros(batch, level.width, tiles_of(vocab_size), most, dtype=torch.int64, device=device)
        arrivals = torch.zeros(batch, dtype=torch.int32, device=device)
        return cls(torch.zeros(batch, level.width, vocab_size, device=device), packed, arrivals)


def chain_plan(policy: Chain, room: Room) -> Plan:
    """Return the device form of policy 'chain'."""
    length = min(policy.length, room.max_nodes - 1)
    return _plan(partial(within, chain_shape(length)), length, room)


def widths_plan(policy: Eagle1 | StaticTopK, room: Room) -> Plan:
    """Return the device form of policies 'eagle1' and 'static_top_k'."""
    shape = ranked_shape(tuple(policy.widths))
    if len(shape) > room.max_nodes:
        raise ValueError(
            f"device: the static tree has {len(shape)} nodes, the target scores at most {room.max_nodes}; lower its "
            "widths"
        )
    return _plan(partial(within, shape), len(policy.widths), room)


def sequoia_plan(policy: Sequoia, room: Room) -> Plan:
    """Return the device form of policies 'sequoia' and 'sequoia_top_k'."""
    return _plan(policy.shape_within, min(policy.max_depth, room.max_nodes - 1), room)


def delayed_plan(policy: DelayedTree, room: Room) -> Plan:
    """Return the device form of policy 'delayed'."""
    return _plan(policy.shape_within, min(policy.trunk + policy.branch, room.max_nodes - 1), room)


def _plan(shape_of: Callable[[Budget], Shape], depth: int, room: Room) -> Plan:
    """Plan static shapes of at most `depth` levels: one for each number of levels that may fit."""
    deepest = max(0, min(depth, room.grid.cells - 2))
    shapes = [shape_of(Budget(levels, room.max_nodes)) for levels in range(deepest + 1)]
    while len(shapes) > 1 and shapes[-1] == shapes[-2]:
        shapes.pop()
    return Plan(
        static_envelope(shapes, room.drawn != "top_k"),
        room.drawn,
        lambda state, drafter, sampler: StaticGrowth(state, drafter, sampler, shapes, room.drawn),
    )
