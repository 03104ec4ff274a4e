"""MuLo-SD on a pipeline's models (arXiv 2601.05149): draft small, verify large, repair locally."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import numpy as np

from underpaint.algos.arrays import IntArray
from underpaint.algos.bounds import MOST_CELLS, Bounds, Cells, Codes, Share
from underpaint.algos.chance import Chance
from underpaint.algos.numbers import MOST_FACTOR
from underpaint.algos.rows import SamplingParams
from underpaint.algos.spatial.cell_rule import CellRule, Kind, cell_rule, pooled_codes
from underpaint.algos.spatial.mulo import Order, Repair, RepairCycle, RowDraft, RowDrafter, repair_cycles
from underpaint.algos.spatial.target import GridTarget
from underpaint.algos.spatial.zipar import zipar
from underpaint.algos.tree import NO_TOKEN
from underpaint.runtime.conditions import Condition
from underpaint.runtime.methods.method import (
    DecodingMethod,
    DecodingResult,
    DecodingSession,
    DecodingSteps,
    ModelTables,
    PipelineModels,
    Preview,
    SessionTimers,
)
from underpaint.runtime.methods.method_config import LoopConfig
from underpaint.runtime.methods.multi_scale.low_rows import LowRows, TimedResampler


@dataclass(frozen=True, slots=True)
class MuloConfig(Repair, LoopConfig):
    """MuLo-SD's settings: those of a repair (see `algos.spatial.mulo.Repair`), of its rule, and of its drafts.

    The defaults are the best settings measured on the shipped models (docs/explanation/scenes.md): serial repair, each
    row two cells behind the one above.

    tau: the pooled rule keeps a cell whose token and `k` nearest codes hold this much of the target; 0 keeps all,
    above 1 nothing. k: codes pooled with a token; 0 pools all that the table of near codes has, as in every rule, None
    none.
    rule: "pooled" is MuLo-SD's own; "lantern" keeps a token with its probability and that of near codes up to `delta`;
    "exact" with its probability alone.
    rows: low rows drafted a cycle; None drafts the whole image at once.
    resampler: between the resolutions, see `runtime.resampling.registry.RESAMPLERS`. ratio: of the two sides.
    draft_window, draft_adaptive: row fronts of the low target; None is raster order. draft_int8: whether the low target
    multiplies in 8 bits, as what it draws is verified in float32 anyway; None for where the folder has one that does.
    greedy: decoding at temperature 0. Rules then read the distributions at temperature 1, where a threshold means
    something.
    """

    order: Order = "serial"
    window: Cells | None = 2
    tau: Annotated[float, Bounds(0.0, MOST_FACTOR)] = 0.1
    k: Codes | None = 0
    rows: Cells | None = None
    rule: Kind = "pooled"
    delta: Share = 0.3
    resampler: str = "latent"
    ratio: Annotated[int, Bounds(2, MOST_CELLS)] = 2
    draft_window: Cells | None = None
    draft_adaptive: bool = False
    draft_int8: bool | None = None

    family: ClassVar[Literal["grid"]] = "grid"
    loop: ClassVar[str] = "mulo"
    fixed: ClassVar[tuple[str, ...]] = ("greedy",)

    @property
    def device(self) -> str:
        return "underpaint.runtime.methods.multi_scale.device:mulo_form"

    @property
    def draws_by(self) -> str:
        return f"rows from 1 / {self.ratio} of the side + {self.rule}, {self.reject} repair, {self.order}"

    @property
    def device_gap(self) -> str | None:
        from underpaint.runtime.resampling.registry import LATENT

        none = "no form on the device"
        if self.resampler not in LATENT:
            return f"a resampler through pictures ('{self.resampler}') has {none}; set resampler={next(iter(LATENT))}"
        if self.rule != "pooled":
            return f"rule '{self.rule}' of cells has {none}; set rule=pooled"
        if self.rows is not None:
            return f"drafts of some rows at a time have {none}; set rows=none"
        if self.draft_int8:
            return f"a low target that multiplies in 8 bits has {none}; set draft_int8=none"
        for name in ("adaptive", "draft_adaptive"):
            if getattr(self, name):
                return f"MuLo-SD's row fronts in an adaptive window have {none}; set {name}=false"
        return None

    def at_zero(self) -> MuloConfig:
        """It for temperature 0."""
        return replace(self, greedy=True)

    def with_rule(self, rule: str, temperature: float) -> MuloConfig:
        return self.with_settings("mulo", [f"rule={rule}"])

    def target_sampling(self, asked: SamplingParams) -> SamplingParams:
        """See `MethodConfig`. At temperature 0 the rule reads the distributions at temperature 1."""
        return replace(asked, temperature=1.0) if self.greedy else asked

    def build(self, method: str, tables: ModelTables) -> MuloMethod:
        """See `MethodConfig`; what depends on the grid is checked by `MuloMethod.open`.

        It is lossless in raster order: by the exact rule with raster rejection, or where nothing drafted stays.
        """
        most = tables.neighbours.shape[1]
        if self.k is not None and not 0 <= self.k <= most:
            raise ValueError(f"method '{method}': expected k in 0..{most} (0 takes all) or none, got {self.k}")
        if self.k is None and self.rule == "lantern":
            raise ValueError(f"method '{method}': rule lantern pools near codes, got k=none; take rule=exact")
        if self.draft_adaptive and self.draft_window is None:
            raise ValueError(f"method '{method}': an adaptive draft window needs draft_window to start from")
        near = pooled_codes(tables.neighbours, self.k)
        exact = self.rule == "exact" and self.reject == "raster"
        lossless = self.window is None and (exact or (self.rule == "pooled" and self.tau > 1.0))
        try:
            rule = cell_rule(self.rule, near, self.tau, self.delta, self.greedy)
        except ValueError as error:
            raise ValueError(f"method '{method}': {error}") from error
        return MuloMethod(method, self, lossless=lossless, drafts=True, rule=rule)


@dataclass(frozen=True, slots=True)
class MuloMethod(DecodingMethod):
    """MuLo-SD ready to draw; it drafts every cell."""

    config: MuloConfig
    rule: CellRule

    @property
    def drafts_rows(self) -> bool:
        return True

    def open(self, models: PipelineModels, condition: Condition, sampling: SamplingParams) -> DecodingSession:
        """Take both targets and what lies between them, or a target that draws a preview; see `DecodingMethod`."""
        config, grid = self.config, models.grid
        preview = models.preview(condition, config.target_sampling(sampling))
        if preview is not None:
            return _preview_session(preview, self)
        config.check(grid)
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
        return MuloSession(timers, target.model, drafter, self, rows * config.ratio)


class MuloSession(DecodingSession):
    """A session that tells its models: what draws rows, and what verifies them."""

    def __init__(
        self, timers: SessionTimers, target: GridTarget, drafter: LowRows, method: MuloMethod, rows_per_cycle: int
    ) -> None:
        """Args are those of `repair_cycles`; `method` holds its rule and its repair."""

        def start(chance: Chance) -> DecodingSteps:
            return _repaired(target, drafter, method, rows_per_cycle, chance)

        super().__init__(timers, start)
        self.target, self.drafter, self.rows_per_cycle = target, drafter, rows_per_cycle


def _repaired(
    target: GridTarget, drafter: RowDrafter, method: MuloMethod, rows_per_cycle: int, chance: Chance
) -> DecodingSteps:
    """Yield the cycles of an image, then return what they came to."""
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
    """Implements `algos.spatial.mulo.RowDrafter`: proposes the whole picture, from its preview."""

    tokens: IntArray

    def propose(self, tokens: IntArray, rows: range, chance: Chance) -> RowDraft:
        return RowDraft(self.tokens)


def _preview_session(preview: Preview, method: MuloMethod) -> DecodingSession:
    """MuLo-SD on a model that draws a preview: draw that, enlarge it, verify all of the picture by it, and repair.

    The preview is part of what the model draws. A lossless method draws it in raster order, whatever `draft_window`.
    `ratio` and `resampler` are of other models. Tokens are the preview's, then the picture's; `repairs` are of the
    picture.

    Raises:
        ValueError: `rows` is set, or the settings do not fit the picture's grid.
    """
    config, small = method.config, preview.small
    config.check(preview.large)
    if config.rows is not None:
        raise ValueError(f"rows: this model draws its whole preview first, got {config.rows}; set rows=none")
    window = small.width if config.draft_window is None or method.lossless else config.draft_window

    def start(chance: Chance) -> DecodingSteps:
        drawn = zipar(preview.small_target(config.greedy), window, chance.cycle(1), adaptive=config.draft_adaptive)
        drafter = _EnlargedPreview(preview.enlarge(drawn.tokens))
        target = preview.large_target(drawn.tokens)
        made: DecodingResult = yield from _repaired(target, drafter, method, preview.large.height, chance)
        kept = tuple(small.cells + cell for cell in made.kept_cells or ())
        return made._replace(tokens=np.concatenate([drawn.tokens, made.tokens]), kept_cells=kept)

    return DecodingSession(SessionTimers(preview.timer), start)
