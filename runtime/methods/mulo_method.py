"""MuLo-SD on a pipeline's models (arXiv 2601.05149): draft small, verify large, repair locally."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any, Literal

import numpy as np

from underpaint.algos.bounds import Cells, CellsOrNone, Codes, Share, Within
from underpaint.algos.chance import Chance
from underpaint.algos.numbers import MOST_FACTOR
from underpaint.algos.rows import SamplingParams
from underpaint.algos.spatial.cell_rule import CellRule, Kind, cell_rule, pooled_codes
from underpaint.algos.spatial.mulo import Keys, Order, Reject, Repair, RepairCycle, draft_and_repair
from underpaint.algos.spatial.target import GridTarget
from underpaint.algos.tree import NO_TOKEN
from underpaint.runtime.conditions import Condition
from underpaint.runtime.methods.method import (
    DecodingResult,
    ModelTables,
    PipelineModels,
    SessionTimers,
    Timed,
)
from underpaint.runtime.methods.method_config import with_fields
from underpaint.runtime.methods.multi_scale import LowRows, TimedResampler


@dataclass(frozen=True, slots=True)
class MuloConfig:
    """Implements `runtime.methods.method_config.MethodConfig`.

    The defaults are the best settings measured on the shipped models (docs/explanation/scenes.md): serial repair, each
    row two cells behind the one above.

    tau: the pooled rule keeps a cell whose token and `k` nearest codes hold this much of the target; 0 keeps all,
    above 1 nothing. k: codes pooled with a token; 0 pools all that the table of near codes has, as in every rule, None
    none.
    rule: "pooled" is MuLo-SD's own; "lantern" keeps a token with its probability and that of near codes up to `delta`;
    "exact" with its probability alone.
    rows: low rows drafted a cycle; None drafts the whole image at once.
    reject, radius, order, window, adaptive, keys: see `algos.spatial.mulo.Repair`.
    resampler: between the resolutions, see `runtime.resampling.registry.RESAMPLERS`. ratio: of the two sides.
    draft_window, draft_adaptive: row fronts of the low target; None is raster order. draft_int8: whether the low target
    multiplies in 8 bits, as what it draws is verified in float32 anyway; None for where the folder has one that does.
    greedy: decoding at temperature 0. Rules then read the distributions at temperature 1, where a threshold means
    something.
    """

    tau: Annotated[float, Within(0.0, MOST_FACTOR)] = 0.1
    k: Codes | None = 0
    rows: Cells | None = None
    reject: Reject = "local"
    radius: CellsOrNone = 1
    order: Order = "serial"
    window: Cells | None = 2
    adaptive: bool = False
    keys: Keys = "stale"
    rule: Kind = "pooled"
    delta: Share = 0.3
    resampler: str = "latent"
    ratio: Cells = 2
    draft_window: Cells | None = None
    draft_adaptive: bool = False
    draft_int8: bool | None = None
    greedy: bool = False

    @property
    def family(self) -> Literal["grid"]:
        return "grid"

    @property
    def draws_by(self) -> str:
        return f"rows from 1 / {self.ratio} of the side + {self.rule}, {self.reject} repair, {self.order}"

    @property
    def acceptance(self) -> None:
        """The rule of rows is a setting of the loop: `rule`."""

    @property
    def needs_costs(self) -> bool:
        """See `MethodConfig`."""
        return False

    def to_dict(self) -> dict[str, Any]:
        return {"loop": "mulo", "settings": asdict(self)}

    def at_zero(self) -> MuloConfig:
        """It for temperature 0."""
        return replace(self, greedy=True)

    def with_rule(self, rule: str, temperature: float) -> MuloConfig:
        return self.with_settings("mulo", [f"rule={rule}"])

    def with_settings(self, method: str, settings: Sequence[str]) -> MuloConfig:
        return with_fields(self, method, settings, fixed=("greedy",))

    def target_sampling(self, asked: SamplingParams) -> SamplingParams:
        return replace(asked, temperature=1.0) if self.greedy else asked

    def build(self, method: str, tables: ModelTables) -> MuloMethod:
        """See `MethodConfig`; what depends on the grid is checked by `MuloMethod.open`."""
        most = tables.neighbours.shape[1]
        if self.k is not None and not 0 <= self.k <= most:
            raise ValueError(f"method '{method}': expected k in 0..{most} (0 takes all) or none, got {self.k}")
        if self.k is None and self.rule == "lantern":
            raise ValueError(f"method '{method}': rule lantern pools near codes, got k=none; take rule=exact")
        if self.draft_adaptive and self.draft_window is None:
            raise ValueError(f"method '{method}': an adaptive draft window needs draft_window to start from")
        near = pooled_codes(tables.neighbours, self.k)
        try:
            return MuloMethod(method, self, cell_rule(self.rule, near, self.tau, self.delta, self.greedy))
        except ValueError as error:
            raise ValueError(f"method '{method}': {error}") from error


@dataclass(frozen=True, slots=True)
class MuloMethod:
    """Implements `method.DecodingMethod`."""

    name: str
    config: MuloConfig
    rule: CellRule

    @property
    def lossless(self) -> bool:
        """In raster order: by the exact rule with raster rejection, or where nothing drafted stays."""
        config = self.config
        exact = config.rule == "exact" and config.reject == "raster"
        return config.window is None and (exact or (config.rule == "pooled" and config.tau > 1.0))

    @property
    def drafts(self) -> bool:
        """It drafts every cell."""
        return True

    def open(self, models: PipelineModels, condition: Condition, sampling: SamplingParams) -> MuloSession:
        """Take both targets and what lies between them; see `DecodingMethod`."""
        config, grid = self.config, models.grid
        repair = Repair(
            *(config.reject, config.radius, config.order, config.window, config.adaptive, config.keys, config.greedy)
        )
        repair.check(grid)
        low = models.low_target(condition, sampling, config.ratio, int8=config.draft_int8)
        resampler = TimedResampler(models.resampler(config.resampler, config.ratio))
        height, width = low.model.grid
        rows = height if config.rows is None else config.rows
        if not 1 <= rows <= height:
            raise ValueError(f"rows: expected 1..{height} low rows a cycle, got {rows}")
        if rows < height:  # the last cycle's first pass takes in all rows before
            fed = (height - 1) // rows * rows * width
            low = models.low_target(condition, sampling, config.ratio, fed, config.draft_int8)
        window = width if config.draft_window is None else config.draft_window
        drafter = LowRows(low.model, resampler, window, config.draft_adaptive)
        target = models.grid_target(
            condition, config.target_sampling(sampling), min(rows * config.ratio, grid.height) * grid.width
        )
        timers = SessionTimers(target.timer, low.timer, resampler.timer)
        return MuloSession(target, drafter, self.rule, repair, rows * config.ratio, timers)


@dataclass(frozen=True, slots=True)
class MuloSession:
    """Implements `method.DecodingSession`."""

    target: Timed[GridTarget]
    drafter: LowRows
    rule: CellRule
    repair: Repair
    rows_per_cycle: int
    timers: SessionTimers

    def cycles(self, chance: Chance) -> tuple[RepairCycle, ...]:
        """Draw one image, cycle by cycle."""
        return draft_and_repair(
            self.target.model, self.drafter, self.rule, self.repair, self.rows_per_cycle, chance
        ).cycles

    def decode(self, chance: Chance) -> DecodingResult:
        """Draw one image by `algos.spatial.mulo.draft_and_repair`."""
        cycles = self.cycles(chance)
        stays = np.any([(cycle.draft != NO_TOKEN) & ~cycle.region for cycle in cycles], axis=0)
        return DecodingResult(
            cycles[-1].tokens.reshape(-1),
            kept_cells=tuple(np.flatnonzero(stays).tolist()),
            rejected=sum(int(cycle.rejected.sum()) for cycle in cycles),
            repairs=cycles,
        )
