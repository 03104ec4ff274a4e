"""Rows that a low-resolution model drafted alone, and what the target thought of them: a part of a trace.

Recorded beside a picture of plain autoregression, block by block as MuLo-SD drafts them: the rows drafted after the
picture so far, and the target's distributions along the draft in one pass. Where the whole image is one block, nothing
of the
picture is read: that is what the method itself sees before its repair.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np

from underpaint.algos.arrays import FloatArray, IntArray
from underpaint.algos.chance import Chance
from underpaint.algos.draft.top_tokens import top
from underpaint.algos.protocols import Grid
from underpaint.algos.spatial.canvas import Canvas
from underpaint.algos.spatial.mulo import RowDraft
from underpaint.algos.spatial.target import Feed, GridTarget
from underpaint.algos.tree import NO_TOKEN

DRAFTED_BY: Final = ("resampler", "ratio", "rows", "draft_window", "draft_adaptive", "draft_int8")
"""The settings of MuLo-SD that say how rows are drafted; the others say what becomes of them."""
INT8: Final = "draft_int8"
"""The one that earlier records, all in float32, do not name."""
ARRAYS: Final = ("drafts", "distribution_tokens", "distribution_probs", "low_passes")


@dataclass(frozen=True, slots=True, eq=False)
class RowTrace:
    """Rows drafted for images I of cells C in one way; K likeliest tokens of each distribution.

    settings: those of `DRAFTED_BY`. rows_per_cycle: rows of a block.
    drafts: [I, C], the drafted tokens. distribution_tokens, distribution_probs: [I, C, K], the target's distributions
    along the draft; beyond the
        K likeliest, a distribution is taken as even over the rest. low_passes: [I, C + 1], passes of the low-resolution
        model by the tokens they were fed, 1 for those over the condition.
    """

    settings: Mapping[str, Any]
    rows_per_cycle: int
    drafts: IntArray
    distribution_tokens: IntArray
    distribution_probs: FloatArray
    low_passes: IntArray

    def __post_init__(self) -> None:
        (images, cells), kept = self.drafts.shape, self.distribution_probs.shape[-1]
        expected = {
            "distribution_tokens": (images, cells, kept),
            "distribution_probs": (images, cells, kept),
            "low_passes": (images, cells + 1),
        }
        for name, shape in expected.items():
            if getattr(self, name).shape != shape:
                raise ValueError(
                    f"trace, drafted rows: expected {name} {shape}, got {getattr(self, name).shape}; record it again"
                )


def drafting(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Those of a recipe's settings that say how rows are drafted; see `INT8`."""
    known = {INT8: False, **settings}
    return {name: known[name] for name in DRAFTED_BY}


class LowDrafter(Protocol):
    """A `RowDrafter` over a low-resolution model."""

    @property
    def passes(self) -> tuple[int, ...]:
        """The tokens that each pass of the last call was fed; 0 for those over the condition."""
        ...

    def propose(self, tokens: IntArray, rows: range, chance: Chance) -> RowDraft: ...


class RowRecorder:
    """Collects drafted rows of images, keeping the `keep` likeliest tokens of each distribution; settings: see
    `RowTrace`."""

    def __init__(self, settings: Mapping[str, Any], keep: int) -> None:
        self.settings = drafting(settings)
        self._keep, self._rows = keep, 0
        self._parts: dict[str, list[Any]] = {name: [] for name in ARRAYS}

    def add(
        self, target: GridTarget, drafter: LowDrafter, image: IntArray, rows_per_cycle: int, chance: Chance
    ) -> None:
        """Record the rows drafted along `image` [C], which plain autoregression drew."""
        grid, canvas = target.grid, Canvas.begin(target)
        drafts = np.full(grid.cells, NO_TOKEN, dtype=np.int64)
        distributions = np.empty((grid.cells, target.vocab_size))
        low_passes = np.zeros(grid.cells + 1, dtype=np.int64)
        for start in range(0, grid.height, rows_per_cycle):
            rows = range(start, min(start + rows_per_cycle, grid.height))
            cells = np.arange(rows.start * grid.width, rows.stop * grid.width)
            drafts[cells] = drafter.propose(canvas.tokens.copy(), rows, chance).tokens
            sizes = np.maximum(np.array(drafter.passes, dtype=np.int64), 1)
            low_passes += np.bincount(sizes, minlength=low_passes.size)
            distributions[cells] = canvas.draft_distributions(cells, drafts, np.zeros(grid.cells, dtype=np.int64))
            canvas.put_all(cells, image[cells])
            canvas.keep()
            canvas.recompute(cells)  # no key of the picture is left from beside the draft
        likeliest = top(distributions, min(self._keep, target.vocab_size))
        self._rows = rows_per_cycle
        for name, value in zip(ARRAYS, (drafts, likeliest.tokens, likeliest.probs, low_passes), strict=True):
            self._parts[name].append(value)

    def trace(self) -> RowTrace:
        """What was recorded; ValueError if nothing was."""
        if not self._rows:
            raise ValueError("trace, drafted rows: nothing was recorded; add an image first")
        return RowTrace(self.settings, self._rows, **{name: np.stack(parts) for name, parts in self._parts.items()})


@dataclass(frozen=True, slots=True)
class RecordedRows:
    """A `RowDrafter` that proposes recorded rows, tokens [C] of an image `width` cells wide."""

    tokens: IntArray
    width: int

    def propose(self, tokens: IntArray, rows: range, chance: Chance) -> RowDraft:
        return RowDraft(self.tokens[rows.start * self.width : rows.stop * self.width])


@dataclass(frozen=True, slots=True, eq=False)
class RecordedGridTarget:
    """A `GridTarget` whose cells have the recorded distributions [C, V], whatever it is shown."""

    grid: Grid
    distributions: FloatArray

    @property
    def vocab_size(self) -> int:
        return int(self.distributions.shape[1])

    def begin(self) -> FloatArray:
        first: FloatArray = self.distributions[0]
        return first

    def score(self, feed: Feed) -> FloatArray:
        distributions: FloatArray = self.distributions[np.minimum(feed.cells + 1, self.grid.cells - 1)]
        return distributions

    def commit(self, rows: IntArray) -> None: ...
