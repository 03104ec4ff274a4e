"""Methods that decode with row fronts: ZipAR (arXiv 2412.04062) and PJD (arXiv 2606.05703)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Final, Literal

from underpaint.algos.registry import Cells, Tune
from underpaint.algos.rows import SamplingParams
from underpaint.algos.spatial.jacobi_front import JacobiFronts, jacobi_front_steps
from underpaint.algos.spatial.row_front import check_window
from underpaint.algos.spatial.zipar import zipar_steps
from underpaint.runtime.conditions import Condition
from underpaint.runtime.methods.method import (
    DecodingMethod,
    DecodingResult,
    DecodingSession,
    ModelTables,
    PipelineModels,
    SessionTimers,
)
from underpaint.runtime.methods.registry import METHODS, TUNED_AT_ZERO, LoopConfig, LoopMethod, MethodSpec, Preset


@dataclass(frozen=True, slots=True)
class ZiparConfig(LoopConfig):
    """ZipAR's row fronts, which use only the target; see `algos.spatial.zipar.zipar`.

    Attributes:
        window: Tokens by which a row opens behind the row above; None decodes in raster order, which is plain
            autoregression.
        adaptive: Whether the first token of a row is held back, and tested again as the window grows.
    """

    window: Annotated[Cells | None, Tune((1, 2, 3, 4, 6, 8))] = 4
    adaptive: bool = False

    family: ClassVar[Literal["grid"]] = "grid"
    loop: ClassVar[str] = "zipar"
    accepts_by: ClassVar[str] = "row fronts draft nothing, so no rule applies"

    @property
    def device(self) -> str:
        return "underpaint.runtime.methods.fronts.device:zipar_form"

    @property
    def draws_by(self) -> str:
        return "row fronts"

    def build(self, method: str, tables: ModelTables) -> DecodingMethod:
        """See `MethodConfig`. The method is lossless only without a window, in raster order."""
        if self.adaptive and self.window is None:
            raise ValueError(f"method '{method}': an adaptive window needs one to start from; set window too")
        return LoopMethod(method, self, lossless=self.window is None, drafts=False, opener=self.open)

    def open(self, models: PipelineModels, condition: Condition, sampling: SamplingParams) -> DecodingSession:
        """Open the target; see `DecodingMethod`."""
        window = models.grid.width if self.window is None else self.window
        check_window(window, models.grid)
        # The open rows, and the proxy of the next one; the last token of the first row may still be uncached.
        most = 1 if window == models.grid.width else min(models.grid.height, models.grid.width // window + 1)
        target = models.grid_target(condition, sampling, most)
        return DecodingSession(
            SessionTimers(target.timer),
            lambda chance: DecodingResult.of_steps(zipar_steps(target.model, window, chance, adaptive=self.adaptive)),
        )


METHODS.register(
    MethodSpec(
        "zipar",
        "ZipAR: the target alone draws several rows in parallel, without drafts; the control for MuLo-SD",
        Preset(ZiparConfig(), ZiparConfig(6), {"window": TUNED_AT_ZERO}),
        Preset(
            ZiparConfig(window=8),
            ZiparConfig(window=8),
            {"window": "arXiv 2412.04062, released code for LlamaGen (rows of 32 codes)"},
        ),
    )
)
METHODS.register(
    MethodSpec(
        "zipar-adaptive",
        "ZipAR with adaptive windows: a row starts once its first token no longer changes as the row above grows",
        Preset(ZiparConfig(2, adaptive=True), ZiparConfig(6, adaptive=True), {"window": TUNED_AT_ZERO}),
        Preset(
            ZiparConfig(window=8, adaptive=True),
            ZiparConfig(window=8, adaptive=True),
            {
                "window": "arXiv 2412.04062, released code for LlamaGen (rows of 32 codes), where the window is fixed",
                "adaptive": "arXiv 2412.04062; its code does not have it",
            },
        ),
    )
)


@dataclass(frozen=True, slots=True)
class JacobiFrontsConfig(JacobiFronts, LoopConfig):
    """PJD's row fronts; the settings are those of `JacobiFronts`."""

    family: ClassVar[Literal["jacobi"]] = "jacobi"
    loop: ClassVar[str] = "jacobi fronts"
    accepts_by: ClassVar[str] = "parallel Jacobi row fronts accept by min(1, p / q) alone"

    @property
    def device(self) -> str:
        return "underpaint.runtime.methods.fronts.device:jacobi_form"

    @property
    def draws_by(self) -> str:
        return "parallel row windows"

    def build(self, method: str, tables: ModelTables) -> DecodingMethod:
        """See `MethodConfig`. PJD is not lossless, because a row is decoded before the row above is complete."""
        return LoopMethod(method, self, lossless=False, drafts=True, opener=self.open)

    def open(self, models: PipelineModels, condition: Condition, sampling: SamplingParams) -> DecodingSession:
        """Open the target; raise ValueError if the settings do not fit its grid or its passes."""
        self.check(models.grid)
        target = models.grid_target(condition, sampling, models.grid.height * self.window)
        return DecodingSession(
            SessionTimers(target.timer),
            lambda chance: DecodingResult.of_steps(jacobi_front_steps(target.model, self, chance)),
        )


_PJD: Final = "arXiv 2606.05703 (PJD)"
_PAPER: Final = JacobiFrontsConfig(6, 6, "uniform", "top")

METHODS.register(
    MethodSpec(
        "pjd",
        "PJD: several rows in parallel, each with a Jacobi window",
        Preset(
            JacobiFrontsConfig(4, 2, "left", "all"),
            JacobiFrontsConfig(3, 4, "left", "all"),
            {"lead, window, refill, redraw": TUNED_AT_ZERO},
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
