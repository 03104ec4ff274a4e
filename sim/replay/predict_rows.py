"""Predict the cost of MuLo-SD and ZipAR by running their decoding loops.

MuLo-SD runs on a trace's rows and the target's distributions along them. ZipAR's steps follow from grid and window.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

import numpy as np

from underpaint.algos.accept.neighbours import nearest_codes, table_columns
from underpaint.algos.arrays import IntArray
from underpaint.algos.chance import sampling
from underpaint.algos.protocols import Grid
from underpaint.algos.spatial.cell_rule import CellRule, cell_rule, pooled_codes
from underpaint.algos.spatial.mulo import Repair, draft_and_repair
from underpaint.algos.spatial.zipar import zipar
from underpaint.artifacts.cost_curve import InGridCosts
from underpaint.sim.latency.grid_costs import GridCounts, LowDrafts, grid_times
from underpaint.sim.replay.row_trace import DRAFTED_BY, INT8, RecordedGridTarget, RecordedRows, RowTrace, drafting
from underpaint.sim.replay.trace import Trace, dense
from underpaint.sim.report.statistics import ImageTimes

_REPAIR: Final = tuple(field.name for field in fields(Repair))
SETTINGS: Final = (*DRAFTED_BY, *_REPAIR, "rule", "k", "tau", "delta")
"""The settings in a MuLo-SD recipe."""


@dataclass(frozen=True, slots=True, eq=False)
class RowRuns:
    """Counts of the target and the low-resolution drafter, per image, summed over `decodings` decodings."""

    decodings: int
    target: GridCounts
    low: LowDrafts

    def times(self, costs: InGridCosts) -> ImageTimes:
        """The time of each image; `SizeMissing` if the curve has no measurement for it."""
        return grid_times(costs, self.target, self.low)


def rows_for(trace: Trace, settings: Mapping[str, Any]) -> RowTrace | None:
    """The rows of a trace that were drafted with a recipe's settings; None if there are none."""
    return next((rows for rows in trace.rows if {INT8: False, **rows.settings} == drafting(settings)), None)


def run_rows(trace: Trace, rows: RowTrace, settings: Mapping[str, Any], seeds: int, seed: int) -> RowRuns:
    """Run MuLo-SD's decoding loop on each recorded image `seeds` times; ValueError on settings beyond the grid."""
    images, cells = rows.drafts.shape
    rule, repair = _rule(trace, settings), Repair(**{name: settings[name] for name in _REPAIR})
    fed, drawn = np.zeros((images, cells + 1), dtype=np.int64), np.zeros(images, dtype=np.int64)
    for image in range(images):
        distributions = dense(rows.distribution_tokens[image], rows.distribution_probs[image], trace.vocab_size).astype(
            np.float64
        )
        target = RecordedGridTarget(trace.grid, distributions)
        drafter = RecordedRows(rows.drafts[image], trace.grid.width)
        for decoding in range(seeds):
            chance = sampling(seed, decoding * images + image)
            done = draft_and_repair(target, drafter, rule, repair, rows.rows_per_cycle, chance)
            fed[image] += np.bincount(done.passes[1:], minlength=cells + 1)
            drawn[image] += sum(int(cycle.region.sum()) for cycle in done.cycles)
    every = np.full(images, seeds)
    return RowRuns(seeds, GridCounts(every, fed, drawn, every * cells), _low_drafts(trace, rows, settings, every))


def _low_drafts(trace: Trace, rows: RowTrace, settings: Mapping[str, Any], decodings: IntArray) -> LowDrafts:
    """Counts of the low-resolution model. It begins once per block of rows; a trace counts that as a one-token pass."""
    blocks = -(-trace.grid.height // rows.rows_per_cycle)
    fed = decodings[:, None] * rows.low_passes
    fed[:, 1] -= decodings * blocks
    drawn = decodings * (trace.grid.cells // settings["ratio"] ** 2)
    counts = GridCounts(decodings * blocks, fed, drawn, np.zeros_like(decodings))
    return LowDrafts(counts, settings["ratio"], settings[INT8], settings["resampler"], decodings)


def _rule(trace: Trace, settings: Mapping[str, Any]) -> CellRule:
    near = pooled_codes(nearest_codes(trace.codebook, table_columns(trace.vocab_size)), settings["k"])
    return cell_rule(settings["rule"], near, settings["tau"], settings["delta"], settings["greedy"])


def row_fronts(grid: Grid, window: int) -> GridCounts:
    """Run ZipAR's loop on one image with a fixed window; ValueError on a window beyond the grid."""
    done = zipar(RecordedGridTarget(grid, np.full((grid.cells, 2), 0.5)), window, sampling(0))
    fed = np.bincount(done.passes[1:], minlength=grid.cells + 1)[None]
    return GridCounts(np.ones(1, dtype=np.int64), fed, np.array([grid.cells]), np.zeros(1, dtype=np.int64))
