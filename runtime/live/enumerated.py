"""Checks methods against a live model's own distributions: the exact probability of every picture of a small grid."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import torch

from underpaint.algos.chance import Chance, enumerate_outcomes
from underpaint.algos.protocols import Grid
from underpaint.algos.rows import SamplingParams
from underpaint.artifacts.decoder_config import DecoderConfig
from underpaint.runtime.conditions import Condition
from underpaint.runtime.live.drafter import LiveDrafter, new_drafter
from underpaint.runtime.live.model import LiveModelError
from underpaint.runtime.live.pipeline import LivePipeline
from underpaint.runtime.methods.method import DecodingMethod

MOST_PICTURES: Final = 4096
"""Maximum number of pictures that are enumerated."""
MOST_RUNS: Final = 20_000
"""Maximum number of runs of one method: one for each sequence of outcomes that its draws can take."""
ROUNDING: Final = 1e-4
"""Total variation explained by float32 passes of unequal width: about 1e-6 per row, over the cells of a picture."""

Distribution = dict[tuple[int, ...], float]
"""Pictures as tuples of codes, and their probabilities."""


@dataclass(frozen=True, slots=True)
class EnumeratedMethod:
    """Result of enumerating one method on a live model.

    Attributes:
        method: Name of the method.
        promises: Whether it claims to keep the model's own distribution.
        pictures: Number of pictures that it can draw.
        runs: Number of outcome sequences that its draws can take.
        bias: Total variation between its picture distribution and that of plain decoding.
    """

    method: str
    promises: bool
    pictures: int
    runs: int
    bias: float

    @property
    def lossless(self) -> bool:
        """Whether rounding explains the bias."""
        return self.bias <= ROUNDING


class SmallPictures:
    """Enumerates the pictures of a live model on a small grid, from the most likely codes of each cell."""

    def __init__(self, pipeline: LivePipeline, grid: Grid, top_k: int) -> None:
        """Prepare the enumeration; nothing is drawn yet.

        Args:
            pipeline: The model in float32, with an optional drafter; without one, a random drafter is used.
            grid: The small grid, used instead of the model's own grid.
            top_k: Number of codes kept in each distribution.

        Raises:
            LiveModelError: There are too many pictures to enumerate, the model does not compute in float32, or its
                grid cannot be changed.
        """
        live = pipeline.live
        if isinstance(live.config, DecoderConfig):
            raise LiveModelError(
                f"certify: expected a model of transformers, whose grid can be made small, got {live.family}; judge "
                "the methods on another model"
            )
        pictures = top_k**grid.cells
        if not 1 < top_k <= live.codes:
            raise LiveModelError(f"--top-k: expected 2 to {live.codes:,} codes to choose from, got {top_k}")
        if pictures > MOST_PICTURES:
            raise LiveModelError(
                f"--grid {grid.height}x{grid.width} and --top-k {top_k}: expected at most {MOST_PICTURES:,} pictures "
                f"to enumerate, got {top_k}^{grid.cells} = {pictures:,}; choose a smaller grid or fewer codes"
            )
        if next(live.body.parameters()).dtype != torch.float32:
            raise LiveModelError(
                "--dtype: expected float32, as passes of unequal width differ too much in others to judge by; leave it "
                "out"
            )
        self.drafter_is_random = pipeline.loaded_drafter is None
        small = replace(live, grid=grid, parts=None)
        if pipeline.loaded_drafter is None:
            torch.manual_seed(0)
            drafter = LiveDrafter(new_drafter(small), live.sampling)
        else:
            drafter = LiveDrafter(pipeline.loaded_drafter.module, live.sampling)
        self._pipeline = LivePipeline(small, drafter, compiled=pipeline.compiled)
        temperature = live.sampling.temperature or 1.0
        self.sampling: SamplingParams = replace(live.sampling, top_k=top_k, top_p=1.0, temperature=temperature)
        count = min(4, live.longest_prompt - len(live.image_start) - len(live.appended))
        self.condition = Condition("", (*(0,) * count, *live.image_start))
        """An arbitrary prompt."""

    @property
    def pipeline(self) -> LivePipeline:
        """The pipeline of the model on the small grid."""
        return self._pipeline

    def judge(self, plain: DecodingMethod, methods: Sequence[DecodingMethod]) -> list[EnumeratedMethod]:
        """Enumerate methods and compare each with plain decoding.

        Raises:
            LiveModelError: The draws of a method can take too many outcome sequences.
            ValueError: The settings of a method do not fit the grid.
        """
        expected, _ = self._pictures(plain)
        rows = []
        for method in methods:
            actual, runs = self._pictures(method)
            apart = [abs(expected.get(each, 0.0) - actual.get(each, 0.0)) for each in expected.keys() | actual.keys()]
            rows.append(EnumeratedMethod(method.name, method.lossless, len(actual), runs, sum(apart) / 2))
        return rows

    def _pictures(self, method: DecodingMethod) -> tuple[Distribution, int]:
        """Return the distribution of a method's pictures, and the number of runs that it took."""
        session = method.open(self._pipeline, self.condition, self.sampling)
        runs = 0

        def program(chance: Chance) -> tuple[int, ...]:
            nonlocal runs
            runs += 1
            if runs > MOST_RUNS:
                raise LiveModelError(
                    f"{method.name}: expected at most {MOST_RUNS:,} courses that its draws can take, got more; choose "
                    "a smaller grid, fewer codes, or shorter drafts with --set"
                )
            return tuple(session.decode(chance).tokens.tolist())

        return enumerate_outcomes(program), runs
