"""Parallel Jacobi row fronts (PJD, arXiv 2606.05703), from settings to a drawn image."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from underpaint.algos.bounds import Cells
from underpaint.algos.chance import Chance
from underpaint.algos.rows import SamplingParams
from underpaint.algos.spatial.jacobi_front import JacobiFronts, Redraw, jacobi_fronts
from underpaint.algos.spatial.jacobi_front import Refill as FrontRefill
from underpaint.algos.spatial.target import GridTarget
from underpaint.runtime.conditions import Condition
from underpaint.runtime.methods.method import (
    DecodingResult,
    ModelTables,
    PipelineModels,
    SessionTimers,
    Timed,
)
from underpaint.runtime.methods.method_config import with_fields


@dataclass(frozen=True, slots=True)
class JacobiFrontsConfig:
    """Implements `method_config.MethodConfig`: PJD's row fronts; see `algos.spatial.jacobi_front.JacobiFronts`."""

    lead: Cells
    window: Cells
    refill: FrontRefill = "uniform"
    redraw: Redraw = "top"

    @property
    def fronts(self) -> JacobiFronts:
        """The loop's settings."""
        return JacobiFronts(**asdict(self))

    @property
    def family(self) -> Literal["jacobi"]:
        return "jacobi"

    @property
    def draws_by(self) -> str:
        return "parallel row windows"

    @property
    def acceptance(self) -> None:
        """It accepts by min(1, p / q), as a part of the loop."""

    @property
    def needs_costs(self) -> bool:
        return False

    def to_dict(self) -> dict[str, Any]:
        return {"loop": "jacobi fronts", "settings": asdict(self)}

    def with_rule(self, rule: str, temperature: float) -> JacobiFrontsConfig:
        """ValueError: acceptance is a part of the published loop."""
        raise ValueError(f"--rule {rule}: parallel Jacobi row fronts accept by min(1, p / q) alone; leave it out")

    def with_settings(self, method: str, settings: Sequence[str]) -> JacobiFrontsConfig:
        return with_fields(self, method, settings)

    def target_sampling(self, asked: SamplingParams) -> SamplingParams:
        """As asked: at temperature 0 the distributions are one-hot, and every draw the likeliest token."""
        return asked

    def build(self, method: str, tables: ModelTables) -> JacobiFrontsMethod:
        return JacobiFrontsMethod(method, self)


@dataclass(frozen=True, slots=True)
class JacobiFrontsMethod:
    """Implements `method.DecodingMethod`. Never lossless on more than one row: a row sees less than the raster has."""

    name: str
    config: JacobiFrontsConfig
    lossless: bool = False
    drafts: bool = True

    def open(self, models: PipelineModels, condition: Condition, sampling: SamplingParams) -> JacobiFrontsSession:
        """Take the target; ValueError where the settings do not fit its grid or its passes."""
        fronts = self.config.fronts
        fronts.check(models.grid)
        cells = models.grid.height * fronts.window
        return JacobiFrontsSession(models.grid_target(condition, sampling, cells), fronts)


@dataclass(frozen=True, slots=True)
class JacobiFrontsSession:
    """Implements `method.DecodingSession`."""

    target: Timed[GridTarget]
    fronts: JacobiFronts

    @property
    def timers(self) -> SessionTimers:
        return SessionTimers(self.target.timer)

    def decode(self, chance: Chance) -> DecodingResult:
        """Draw one image by `algos.spatial.jacobi_front.jacobi_fronts`."""
        decoded = jacobi_fronts(self.target.model, self.fronts, chance)
        return DecodingResult(decoded.tokens, steps=decoded.steps)
