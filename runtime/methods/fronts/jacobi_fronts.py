"""Parallel Jacobi row fronts (PJD, arXiv 2606.05703), from settings to a drawn image."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final, Literal

from underpaint.algos.rows import SamplingParams
from underpaint.algos.spatial.jacobi_front import JacobiFronts, jacobi_front_steps
from underpaint.runtime.conditions import Condition
from underpaint.runtime.methods.method import (
    DecodingMethod,
    DecodingResult,
    DecodingSession,
    ModelTables,
    PipelineModels,
    SessionTimers,
)
from underpaint.runtime.methods.method_config import LoopConfig, LoopMethod, MethodSpec, Preset
from underpaint.runtime.methods.registry import METHODS


@dataclass(frozen=True, slots=True)
class JacobiFrontsConfig(JacobiFronts, LoopConfig):
    """PJD's row fronts, whose settings are the loop's own."""

    family: ClassVar[Literal["jacobi"]] = "jacobi"
    loop: ClassVar[str] = "jacobi fronts"

    @property
    def device(self) -> str:
        return "underpaint.runtime.methods.fronts.device:jacobi_form"

    @property
    def draws_by(self) -> str:
        return "parallel row windows"

    def with_rule(self, rule: str, temperature: float) -> JacobiFrontsConfig:
        """ValueError: acceptance by min(1, p / q) is a part of the published loop."""
        raise ValueError(f"--rule {rule}: parallel Jacobi row fronts accept by min(1, p / q) alone; leave it out")

    def build(self, method: str, tables: ModelTables) -> DecodingMethod:
        """See `MethodConfig`. Never lossless on more than one row: a row sees less than the raster has."""
        return LoopMethod(method, self, lossless=False, drafts=True, opener=self.open)

    def open(self, models: PipelineModels, condition: Condition, sampling: SamplingParams) -> DecodingSession:
        """Take the target; ValueError where the settings do not fit its grid or its passes."""
        self.check(models.grid)
        target = models.grid_target(condition, sampling, models.grid.height * self.window)
        return DecodingSession(
            SessionTimers(target.timer),
            lambda chance: DecodingResult.of_steps(jacobi_front_steps(target.model, self, chance)),
        )


_PJD: Final = "arXiv 2606.05703 (PJD)"
_TUNED: Final = JacobiFrontsConfig(4, 2, "left", "all")
_PAPER: Final = JacobiFrontsConfig(6, 6, "uniform", "top")

METHODS.register(
    MethodSpec(
        "pjd",
        "PJD: parallel row fronts, each with a Jacobi window of its own",
        Preset(
            _TUNED,
            _TUNED,
            {
                "lead, window, refill, redraw": (
                    "measured on earlier models (git show cd40511:docs/results/settings.md)"
                )
            },
        ),
        Preset(
            _PAPER,
            _PAPER,
            {
                "lead": f"{_PJD}: c = 6 on LlamaGen (rows of 24 or 32 codes)",
                "window, refill": "our guess: the paper leaves it open",
                "redraw": f"{_PJD}: the uppermost open row's first token alone",
            },
        ),
    )
)
