"""A live model, and perhaps a drafter, as methods take them."""

from __future__ import annotations

import numpy as np

from underpaint.algos.accept.neighbours import nearest_codes
from underpaint.algos.draft.spec import Grid
from underpaint.algos.rows import SamplingParams
from underpaint.algos.spatial.target import GridTarget
from underpaint.algos.step import Drafter, Target
from underpaint.runtime.conditions import Condition
from underpaint.runtime.engines.drafter import EngineDrafter
from underpaint.runtime.engines.grid_target import EngineGridTarget
from underpaint.runtime.engines.target import EngineTarget
from underpaint.runtime.live.engine import LiveDecoder, LiveEncoder
from underpaint.runtime.live.model import LiveModel, LiveModelError
from underpaint.runtime.methods.method import ModelTables, Timed
from underpaint.runtime.resampling.resampler import Resampler

MAX_NODES = 64
"""Nodes of the largest tree, its root included."""
_NEIGHBOURS = 100
"""Columns of the table of nearest codes."""


class LivePipeline:
    """Implements `methods.method.PipelineModels` on a live model."""

    max_nodes = MAX_NODES

    def __init__(self, live: LiveModel, drafter: EngineDrafter | None = None) -> None:
        """Open a pipeline.

        Args:
            live: The model.
            drafter: A drafter that was trained for it; methods that need none run without.
        """
        self.live, self._drafter = live, drafter
        self.high = EngineTarget(LiveDecoder(live, features=drafter is not None), live.sampling, LiveEncoder(live))
        self._tables: ModelTables | None = None

    @property
    def grid(self) -> Grid:
        """The image as cells."""
        return self.live.grid

    @property
    def tables(self) -> ModelTables:
        """The codebook and its nearest codes; found when first asked for."""
        if self._tables is None:
            codebook = self.live.codebook
            if codebook is None:
                empty = np.empty((self.live.codes, 0))
                self._tables = ModelTables(empty.astype(np.int64), empty)
            else:
                codes = np.asarray(codebook, dtype=np.float32)
                self._tables = ModelTables(nearest_codes(codes, min(_NEIGHBOURS, len(codes) - 1)), codes)
        return self._tables

    def target(self, condition: Condition, sampling: SamplingParams) -> Timed[Target]:
        self.high.sample_by(sampling)
        self.high.condition(condition)
        return Timed(self.high, self.high.engine.cost)

    def drafter(self, sampling: SamplingParams) -> Timed[Drafter]:
        if self._drafter is None:
            raise LiveModelError(
                "drafter: this method drafts with one, and none was given; pass drafter=..., or use a method that "
                "needs none: jacobi-lookup, sjd, scd-maximal"
            )
        self._drafter.sample_by(sampling)
        return Timed(self._drafter, self._drafter.engine.cost)

    def grid_target(self, condition: Condition, sampling: SamplingParams, cells: int = 1) -> Timed[GridTarget]:
        self.target(condition, sampling)
        return Timed(EngineGridTarget(self.high), self.high.engine.cost)

    def low_target(
        self, condition: Condition, sampling: SamplingParams, ratio: int, cells: int = 1, int8: bool | None = None
    ) -> Timed[GridTarget]:
        raise LiveModelError("MuLo-SD: a live model has no target of a lower resolution; use another method")

    def resampler(self, kind: str, ratio: int) -> Resampler:
        raise LiveModelError("MuLo-SD: a live model has no target of a lower resolution; use another method")

    def close(self) -> None:
        """Give the cache's memory back."""
        self.high.close()
