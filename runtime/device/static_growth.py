"""Trees whose shape is fixed before anything is drafted: EAGLE-1's, drawn chains, and trees of the likeliest."""

from typing import NamedTuple, Self

import torch
from torch import Tensor

from underpaint.algos.rows import SamplingParams
from underpaint.runtime.device.forwards import DeviceDecoder, pack_masks
from underpaint.runtime.device.growth import DraftPasses, Limits
from underpaint.runtime.device.kernels.children import draw_children, take_children, tile_top, tiles_of
from underpaint.runtime.device.kernels.growth import number_places
from underpaint.runtime.device.kernels.probs import probs
from underpaint.runtime.device.state import State


class StaticGrowth:
    """Static shapes, filled by draws without replacement, or by the likeliest tokens as point proposals."""

    def __init__(
        self, state: State, drafter: DeviceDecoder, sampler: SamplingParams, shape: tuple[int, ...], sampled: bool
    ) -> None:
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
        vocab_size = drafter.shape.vocab_size
        self._tops = None if sampled else [_Tops.of(batch, level, vocab_size, self._most) for level in self._levels]
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
        tree = state.tree
        for number, level in enumerate(self._levels):
            if number == 0:
                logits = self._passes.root()
            else:
                tokens = self._tokens.index_select(1, level.places)
                logits = self._passes.level(number, tokens, level.slots, level.masks, level.first_slot)
            if self._tops is None:
                self._draw(state, number, level, logits)
            else:
                self._take(state, number, level, logits, self._tops[number])
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

    def _draw(self, state: State, number: int, level: "_Level", logits: Tensor) -> None:
        tree, count = state.tree, level.places.shape[0]
        made, support = (part.narrow(1, level.first_row, count) for part in (tree.draft_probs, state.draft_support))
        finite = state.verdicts.finite.narrow(1, state.envelope.nodes + level.first_row, count)
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

    def _take(self, state: State, number: int, level: "_Level", logits: Tensor, tops: "_Tops") -> None:
        finite = state.verdicts.finite.narrow(1, state.envelope.nodes, state.envelope.draft_rows)
        rows = state.lengths.level_rows.select(0, number)
        probs(logits, tops.probs, state.draft_support, finite, rows, self._sampler)
        tile_top(tops.probs, tops.packed)
        take_children(
            tops.packed,
            level.places,
            level.wanted,
            self._tokens,
            self._exists,
            state.lengths.levels,
            level.first_child,
            number,
            self._most,
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


class _Tops(NamedTuple):
    """A level's distributions [B, F, V], and the likeliest tokens of their tiles."""

    probs: Tensor
    packed: Tensor

    @classmethod
    def of(cls, batch: int, level: _Level, vocab_size: int, most: int) -> Self:
        count, device = level.places.shape[0], level.places.device
        packed = torch.zeros(batch, count, tiles_of(vocab_size), most, dtype=torch.int64, device=device)
        return cls(torch.zeros(batch, count, vocab_size, device=device), packed)
