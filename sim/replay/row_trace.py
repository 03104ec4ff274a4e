"""Rows drafted by a low-resolution model, and the target's distributions along them, as a part of a trace.

They are recorded along an image of plain autoregression, block by block as MuLo-SD drafts: the rows drafted after the
image so far, and the target's distributions along the draft from one pass. If the whole image is one block, the draft
does not depend on the image, so the record is exactly what MuLo-SD sees before its repair.
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
"""The settings of MuLo-SD that control how rows are drafted; the others control verification and repair."""
INT8: Final = "draft_int8"
"""A setting that earlier records lack; all of those drafted in float32."""
ARRAYS: Final = ("drafts", "distribution_tokens", "distribution_probs", "low_passes")


@dataclass(frozen=True, slots=True, eq=False)
class RowTrace:
    """Rows of I images of C cells, drafted in one way, with the K likeliest tokens of each distribution.

    Attributes:
        settings: The settings in `DRAFTED_BY`.
        rows_per_cycle: Number of rows in a block.
        drafts: [I, C], the draft tokens.
        distribution_tokens, distribution_probs: [I, C, K], the target's distributions along the draft; the other
            tokens share the rest equally.
        low_passes: [I, C + 1], number of low-resolution passes by their input tokens (1 for passes over the condition).
    """

    settings: Mapping[str, Any]
    rows_per_cycle: int
    drafts: IntArray
    distribution_tokens: IntArray
    distribution_probs: FloatArray
    low_passes: IntArray

    def __post_init__(self) -> None:
        (images, cells), top_k = self.drafts.shape, self.distribution_probs.shape[-1]
        expected = {
            "distribution_tokens": (images, cells, top_k),
            "distribution_probs": (images, cells, top_k),
            "low_passes": (images, cells + 1),
        }
        for name, shape in expected.items():
            if getattr(self, name).shape != shape:
                raise ValueError(
                    f"trace, drafted rows: expected {name} {shape}, got {getattr(self, name).shape}; record it again"
                )


def drafting(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a recipe that control how rows are drafted; see `INT8`."""
    full_settings = {INT8: False, **settings}
    return {name: full_settings[name] for name in DRAFTED_BY}


class LowDrafter(Protocol):
    """A `RowDrafter` over a low-resolution model."""

    @property
    def passes(self) -> tuple[int, ...]:
        """Number of input tokens of each pass of the last call; 0 for passes over the condition."""
        ...

    def propose(self, tokens: IntArray, rows: range, chance: Chance) -> RowDraft: ...


class RowRecorder:
    """Records drafted rows with the `keep` likeliest tokens of each distribution. settings: see `drafting`."""

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
            canvas.recompute(cells)  # leave no keys that were computed next to the draft
        likeliest = top(distributions, min(self._keep, target.vocab_size))
        self._rows = rows_per_cycle
        for name, value in zip(ARRAYS, (drafts, likeliest.tokens, likeliest.probs, low_passes), strict=True):
            self._parts[name].append(value)

    def trace(self) -> RowTrace:
        """Build the trace; ValueError if nothing was recorded."""
        if not self._rows:
            raise ValueError("trace, drafted rows: nothing was recorded; add an image first")
        return RowTrace(self.settings, self._rows, **{name: np.stack(parts) for name, parts in self._parts.items()})


@dataclass(frozen=True, slots=True)
class RecordedRows:
    """A `RowDrafter` that proposes recorded rows: the tokens [C] of an image that is `width` cells wide."""

    tokens: IntArray
    width: int

    def propose(self, tokens: IntArray, rows: range, chance: Chance) -> RowDraft:
        return RowDraft(self.tokens[rows.start * self.width : rows.stop * self.width])


@dataclass(frozen=True, slots=True, eq=False)
class RecordedGridTarget:
    """A `GridTarget` that returns the recorded distributions [C, V] for any input tokens."""

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
