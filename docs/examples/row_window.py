"""A Jacobi-type method of one's own: a window of one row of the grid, drafted by the target itself."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from underpaint.algos.accept import RULES
from underpaint.algos.chance import Chance
from underpaint.algos.protocols import Grid
from underpaint.algos.registry import Cells
from underpaint.algos.rows import SamplingParams
from underpaint.algos.spatial.jacobi import jacobi_cycles
from underpaint.algos.spatial.jacobi_window import JacobiWindow
from underpaint.algos.step import Cycle, Target
from underpaint.runtime.conditions import Condition
from underpaint.runtime.methods.method import (
    DecodingMethod,
    DecodingResult,
    DecodingSession,
    ModelTables,
    PipelineModels,
    SessionTimers,
)
from underpaint.runtime.methods.registry import METHODS, LoopConfig, LoopMethod, MethodSpec, Preset


def row_cycles(target: Target, window: JacobiWindow, chance: Chance) -> Iterator[Cycle]:
    """The loop: yield every cycle of an image. This one is the shipped loop under the rule 'chain'."""
    return jacobi_cycles(target, RULES["chain"].make(), chance, window)


@dataclass(frozen=True, slots=True)
class RowWindow(LoopConfig):
    """The settings. rows: how many rows of the grid the window covers; most: drafts of a window at most."""

    rows: Cells = 1
    most: Cells = 8

    family: ClassVar[Literal["jacobi"]] = "jacobi"
    loop: ClassVar[str] = "row window"
    accepts_by: ClassVar[str] = "row windows accept by 'chain' alone"

    @property
    def draws_by(self) -> str:
        return "row window + chain"

    @property
    def device(self) -> str:
        return f"{Path(__file__).with_name('row_window_device.py')}:row_form"

    def window(self, grid: Grid) -> JacobiWindow:
        return JacobiWindow(min(self.rows * grid.width, self.most), "maximal", "left")

    def build(self, method: str, tables: ModelTables) -> DecodingMethod:
        return LoopMethod(method, self, lossless=True, drafts=True, opener=self.open)

    def open(self, models: PipelineModels, condition: Condition, sampling: SamplingParams) -> DecodingSession:
        window = self.window(models.grid)
        window.check_pass(models.max_nodes, "row window", "these models take")
        target = models.target(condition, sampling)
        return DecodingSession(
            SessionTimers(target.timer),
            lambda chance: DecodingResult.of_cycles(row_cycles(target.model, window, chance)),
        )


_TUNED = Preset(RowWindow(), RowWindow(most=6), {"rows, most": "our guess"})
_PAPER = Preset(RowWindow(rows=2, most=15), RowWindow(rows=2, most=15), {"rows, most": "this example"})
METHODS.register(MethodSpec("row-window", "a Jacobi window as long as a row of the grid", _TUNED, _PAPER))
