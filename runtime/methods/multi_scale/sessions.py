"""MuLo-SD sessions on two targets, or on one target that draws a preview of its images."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from underpaint.algos.arrays import IntArray
from underpaint.algos.chance import Chance
from underpaint.algos.spatial.mulo import RepairCycle, RowDraft, RowDrafter, repair_cycles
from underpaint.algos.spatial.target import GridTarget
from underpaint.algos.spatial.zipar import zipar
from underpaint.algos.tree import NO_TOKEN
from underpaint.runtime.methods.method import (
    DecodingResult,
    DecodingSession,
    DecodingSteps,
    Preview,
    SessionTimers,
)
from underpaint.runtime.methods.multi_scale.low_rows import LowRows

if TYPE_CHECKING:
    from underpaint.runtime.methods.multi_scale.method import MuloMethod


class MuloSession(DecodingSession):
    """A session with access to its models: `drafter` drafts rows, and `target` verifies them."""

    def __init__(
        self, timers: SessionTimers, target: GridTarget, drafter: LowRows, method: MuloMethod, rows_per_cycle: int
    ) -> None:
        """See `repair_cycles` for the arguments; `method` provides the rule and the repair settings."""

        def start(chance: Chance) -> DecodingSteps:
            return _repaired(target, drafter, method, rows_per_cycle, chance)

        super().__init__(timers, start)
        self.target, self.drafter, self.rows_per_cycle = target, drafter, rows_per_cycle


def _repaired(
    target: GridTarget, drafter: RowDrafter, method: MuloMethod, rows_per_cycle: int, chance: Chance
) -> DecodingSteps:
    """Yield the cycles of an image, then return the result."""
    cycles: list[RepairCycle] = []
    for cycle in repair_cycles(target, drafter, method.rule, method.config, rows_per_cycle, chance):
        cycles.append(cycle)
        yield cycle
    stays = np.any([(cycle.draft != NO_TOKEN) & ~cycle.region for cycle in cycles], axis=0)
    return DecodingResult(
        cycles[-1].tokens.reshape(-1),
        kept_cells=tuple(np.flatnonzero(stays).tolist()),
        rejected=sum(int(cycle.rejected.sum()) for cycle in cycles),
        repairs=tuple(cycles),
    )


@dataclass(frozen=True, slots=True)
class _EnlargedPreview:
    """A `RowDrafter` that drafts the whole image from its enlarged preview."""

    tokens: IntArray

    def propose(self, tokens: IntArray, rows: range, chance: Chance) -> RowDraft:
        return RowDraft(self.tokens)


def preview_session(preview: Preview, method: MuloMethod) -> DecodingSession:
    """Open MuLo-SD on a model that draws a preview: enlarge the preview to a draft of the image, verify and repair.

    The preview is part of the model's output. A lossless method draws it in raster order and ignores `draft_window`.
    `ratio` and `resampler` do not apply. The result has the preview's tokens, then the image's; `repairs` cover only
    the image.

    Raises:
        ValueError: `rows` is set, or the settings do not fit the image's grid.
    """
    config, small = method.config, preview.small
    config.check(preview.large)
    if config.rows is not None:
        raise ValueError(f"rows: this model draws its whole preview first, got {config.rows}; set rows=none")
    window = small.width if config.draft_window is None or method.lossless else config.draft_window

    def start(chance: Chance) -> DecodingSteps:
        small_result = zipar(
            preview.small_target(config.greedy), window, chance.cycle(1), adaptive=config.draft_adaptive
        )
        drafter = _EnlargedPreview(preview.enlarge(small_result.tokens))
        target = preview.large_target(small_result.tokens)
        repaired: DecodingResult = yield from _repaired(target, drafter, method, preview.large.height, chance)
        kept_cells = tuple(small.cells + cell for cell in repaired.kept_cells or ())
        return repaired._replace(tokens=np.concatenate([small_result.tokens, repaired.tokens]), kept_cells=kept_cells)

    return DecodingSession(SessionTimers(preview.timer), start)
