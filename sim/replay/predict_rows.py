"""What MuLo-SD should cost: its own loop over the rows that a trace holds, and the target's distributions along
them."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from time import perf_counter
from typing import Any, Final

import numpy as np

from underpaint.algos.accept.neighbours import nearest_codes, table_columns
from underpaint.algos.arrays import FloatArray, IntArray
from underpaint.algos.chance import sampling
from underpaint.algos.protocols import Grid
from underpaint.algos.spatial.cell_rule import CellRule, cell_rule, pooled_codes
from underpaint.algos.spatial.mulo import Repair, draft_and_repair
from underpaint.sim.latency.models import MeasuredCosts
from underpaint.sim.latency.overhead import ModelTimer, TimedGridTarget
from underpaint.sim.replay.predict_fronts import row_fronts
from underpaint.sim.replay.row_trace import DRAFTED_BY, INT8, RecordedGridTarget, RecordedRows, RowTrace, drafting
from underpaint.sim.replay.trace import Trace, dense

_REPAIR: Final = tuple(field.name for field in fields(Repair))
SETTINGS: Final = (*DRAFTED_BY, *_REPAIR, "rule", "k", "tau", "delta")
"""What a recipe of the family says."""


@dataclass(frozen=True, slots=True, eq=False)
class RowRuns:
    """Images I of a trace, each decoded `decodings` times, in sum.

    verify: [I, C + 1], target passes by the tokens they were fed, 1 in the first, over the condition. low: [I, C + 1],
    likewise of the low-resolution model. host_ms, low_host_ms: what a target pass and one of the low-resolution model
    take beside the models, on this machine.
    """

    decodings: int
    verify: IntArray
    low: IntArray
    host_ms: float
    low_host_ms: float

    @property
    def passes(self) -> IntArray:
        """[I] target passes."""
        count: IntArray = self.verify.sum(axis=1)
        return count

    @property
    def low_passes(self) -> IntArray:
        """[I] passes of the low-resolution model."""
        count: IntArray = self.low.sum(axis=1)
        return count

    def image_ms(self, costs: MeasuredCosts) -> FloatArray:
        """[I] ms, a low pass at the price of a target pass over as many tokens; the samplers between are not in it.

        The host's share is the curve's where it holds one. Raises SizeMissing beyond the measured sizes.
        """
        used = np.flatnonzero((self.verify + self.low).any(axis=0))
        ms = (self.verify + self.low)[:, used] @ costs.cells_ms(used)
        ms += self.passes * (costs.overhead_ms or self.host_ms)
        total: FloatArray = ms + self.low_passes * (costs.overhead_ms or self.low_host_ms)
        return total


def rows_for(trace: Trace, settings: Mapping[str, Any]) -> RowTrace | None:
    """The rows of a trace that were drafted as a recipe's settings say; None where it holds none such."""
    return next((rows for rows in trace.rows if {INT8: False, **rows.settings} == drafting(settings)), None)


def run_rows(trace: Trace, rows: RowTrace, settings: Mapping[str, Any], seeds: int, seed: int) -> RowRuns:
    """The decoding loop of MuLo-SD on each recorded image, `seeds` times; ValueError on settings beyond the grid."""
    images, cells = rows.drafts.shape
    rule, repair = _rule(trace, settings), Repair(**{name: settings[name] for name in _REPAIR})
    verify, timer, spent = np.zeros((images, cells + 1), dtype=np.int64), ModelTimer(), 0.0
    for image in range(images):
        distributions = dense(rows.distribution_tokens[image], rows.distribution_probs[image], trace.vocab_size).astype(
            np.float64
        )
        target = TimedGridTarget(RecordedGridTarget(trace.grid, distributions), timer)
        drafter = RecordedRows(rows.drafts[image], trace.grid.width)
        for decoding in range(seeds):
            chance = sampling(seed, decoding * images + image)
            started = perf_counter()
            done = draft_and_repair(target, drafter, rule, repair, rows.rows_per_cycle, chance)
            spent += perf_counter() - started
            verify[image] += np.bincount(np.maximum(np.array(done.passes), 1), minlength=cells + 1)
    host_ms = 1e3 * (spent - timer.seconds) / int(verify.sum())
    return RowRuns(seeds, verify, seeds * rows.low_passes, host_ms, _low_host_ms(trace, settings))


def _rule(trace: Trace, settings: Mapping[str, Any]) -> CellRule:
    near = pooled_codes(nearest_codes(trace.codebook, table_columns(trace.vocab_size)), settings["k"])
    return cell_rule(settings["rule"], near, settings["tau"], settings["delta"], settings["greedy"])


def _low_host_ms(trace: Trace, settings: Mapping[str, Any]) -> float:
    ratio, window = settings["ratio"], settings["draft_window"]
    grid = Grid(trace.grid.height // ratio, trace.grid.width // ratio)
    return row_fronts(grid, trace.vocab_size, grid.width if window is None else window).overhead_ms
