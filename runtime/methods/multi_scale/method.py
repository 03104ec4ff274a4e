"""MuLo-SD (arXiv 2601.05149): draft at a low resolution, verify at the full resolution, repair locally."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Final, Literal

from underpaint.algos.numbers import MOST_FACTOR
from underpaint.algos.registry import MOST_CELLS, Bounds, Cells, Codes, Share, Tune
from underpaint.algos.rows import SamplingParams
from underpaint.algos.spatial.cell_rule import CellRule, Kind, cell_rule, pooled_codes
from underpaint.algos.spatial.mulo import Order, Repair
from underpaint.runtime.conditions import Condition
from underpaint.runtime.methods.method import (
    DecodingMethod,
    DecodingSession,
    ModelTables,
    PipelineModels,
    SessionTimers,
)
from underpaint.runtime.methods.multi_scale.low_rows import LowRows, TimedResampler
from underpaint.runtime.methods.multi_scale.sessions import MuloSession, preview_session
from underpaint.runtime.methods.registry import METHODS, TUNED_ON, LoopConfig, MethodSpec, Preset


@dataclass(frozen=True, slots=True)
class MuloConfig(Repair, LoopConfig):
    """The settings of MuLo-SD: of the repair (see `algos.spatial.mulo.Repair`), the rule and the drafts.

    The defaults repair serially, with each row two cells behind the row above.

    Attributes:
        order: See `Repair`.
        window: See `Repair`.
        tau: The pooled rule keeps a draft token if the target gives it and its `k` nearest codes at least this
            probability; 0 keeps all, above 1 none.
        k: Number of codes pooled with a token; 0 pools all codes of the table, None pools none.
        rows: Low rows drafted per cycle; None drafts the whole image at once.
        rule: "pooled" is MuLo-SD's own rule; "lantern" accepts with the token's probability plus that of near codes up
            to `delta`; "exact" accepts with the token's probability.
        delta: The largest probability of near codes that "lantern" adds.
        resampler: A name in `runtime.resampling.registry.RESAMPLERS`.
        ratio: Side of the image over the low image's side.
        draft_window: Window of the low target's row fronts; None is raster order.
        draft_adaptive: Whether the low target's window is adaptive; see `zipar`.
        draft_int8: Whether to use an 8-bit low target, whose drafts are verified in float32 anyway; None uses one if
            the folder has it.
        greedy: Whether to decode at temperature 0. Rules then read the distributions at temperature 1, where thresholds
            are meaningful.
    """

    order: Order = "serial"
    window: Annotated[Cells | None, Tune((1, 2, 4, 8))] = 2
    tau: Annotated[float, Bounds(0.0, MOST_FACTOR), Tune((0.1, 0.2, 0.3, 0.5, 0.6, 0.8))] = 0.1
    k: Annotated[Codes | None, Tune((0, 10, 30, 100))] = 0
    rows: Cells | None = None
    rule: Kind = "pooled"
    delta: Share = 0.3
    resampler: str = "latent"
    ratio: Annotated[int, Bounds(2, MOST_CELLS)] = 2
    draft_window: Annotated[Cells | None, Tune((1, 2, 4, 8))] = None
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
        """Return the same settings for temperature 0."""
        return replace(self, greedy=True)

    def with_rule(self, rule: str, temperature: float) -> MuloConfig:
        return self.with_settings("mulo", [f"rule={rule}"])

    def target_sampling(self, sampling: SamplingParams) -> SamplingParams:
        """See `MethodConfig`. At temperature 0 the rule reads the distributions at temperature 1."""
        return replace(sampling, temperature=1.0) if self.greedy else sampling

    def build(self, method: str, tables: ModelTables) -> MuloMethod:
        """See `MethodConfig`; `MuloMethod.open` checks the settings that depend on the grid.

        The method is lossless in raster order, with the exact rule and raster rejection, or if no draft can stay.
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
    """MuLo-SD, ready to draw; it drafts every cell."""

    config: MuloConfig
    rule: CellRule

    @property
    def drafts_rows(self) -> bool:
        return True

    def open(self, models: PipelineModels, condition: Condition, sampling: SamplingParams) -> DecodingSession:
        """Open both targets and the resampler, or a target that draws a preview; see `DecodingMethod`."""
        config, grid = self.config, models.grid
        preview = models.preview(condition, config.target_sampling(sampling))
        if preview is not None:
            return preview_session(preview, self)
        config.check(grid)
        low = models.low_target(condition, sampling, config.ratio, int8=config.draft_int8)
        resampler = TimedResampler(models.resampler(config.resampler, config.ratio))
        height, width = low.model.grid
        rows = height if config.rows is None else config.rows
        if not 1 <= rows <= height:
            raise ValueError(f"rows: expected 1..{height} low rows a cycle, got {rows}")
        if rows < height:  # the first pass of the last cycle processes all earlier rows
            fed = (height - 1) // rows * rows * width
            low = models.low_target(condition, sampling, config.ratio, fed, config.draft_int8)
        window = width if config.draft_window is None else config.draft_window
        drafter = LowRows(low.model, resampler, window, config.draft_adaptive)
        # A verification also processes what the cycle before it redrew last, which lies in that cycle's rows.
        most = grid.height if rows == height else min(2 * rows * config.ratio, grid.height)
        target = models.grid_target(condition, config.target_sampling(sampling), most * grid.width)
        timers = SessionTimers(target.timer, low.timer, resampler.timer)
        return MuloSession(timers, target.model, drafter, self, rows * config.ratio)


_TUNED_SOURCES: Final[Mapping[str, str]] = {
    "tau, k, radius": TUNED_ON,
    "window, draft_window": f"{TUNED_ON}; None, raster order, was not tuned",
    "draft_int8": "measured: on 48 prompts apart (docs/explanation/mulo-sd.md); not in the papers",
}
_GUESS: Final = "our guess: the paper does not publish it"
_MULO: Final = "arXiv 2601.05149"


def _mulo(
    name: str,
    summary: str,
    sampled: MuloConfig,
    greedy: MuloConfig,
    paper: MuloConfig,
    sources: Mapping[str, str],
) -> MethodSpec:
    """Make a method; `sampled` and `greedy` are its tuned settings above temperature 0 and at 0."""
    guessed = {
        "tau": f"{_GUESS} (it was chosen to equal LANTERN's GenEval score)",
        "k, rows": _GUESS,
        "draft_int8": f"{_MULO}: nothing is said of a low target in another precision",
    }
    return MethodSpec(
        name,
        summary,
        Preset(sampled, greedy.at_zero(), _TUNED_SOURCES),
        Preset(paper, paper.at_zero(), {**guessed, **sources}),
    )


_V1: Final = {
    "order, window": f"{_MULO}v1: the rejected cells and those around them, redrawn serially in raster order",
    "radius": f"{_MULO}v1: l = 1, a neighbourhood of 3 x 3",
    "resampler": f"{_MULO}v1: row-causal networks between the resolutions",
}
_ISLANDS: Final = {
    "order": f"{_MULO} (CVPR 2026): 8-connected islands, redrawn side by side",
    "window, draft_window": f"{_MULO} (CVPR 2026): ZipAR's order in islands and in drafting; the width is our guess",
    "radius": f"{_MULO}: l = 1",
    "resampler": f"{_MULO} (CVPR 2026): super-resolution through pictures, the default there",
}
_PAPER_V1: Final = MuloConfig(tau=0.3, k=30, radius=1, order="serial", window=None, draft_int8=False)

for _spec in (
    _mulo(
        "mulo",
        "MuLo-SD: drafted at half the resolution; rejected cells and those within a radius are redrawn as one region",
        MuloConfig(radius=0),
        MuloConfig(tau=0.2),
        _PAPER_V1,
        _V1,
    ),
    _mulo(
        "mulo-islands",
        "MuLo-SD with rows in parallel: in drafting, and in the repair of separate islands",
        MuloConfig(tau=0.1, radius=0, order="islands", window=1, draft_window=4),
        MuloConfig(tau=0.5, radius=0, order="islands", window=1, draft_window=4),
        MuloConfig(tau=0.3, k=30, order="islands", window=8, draft_window=8, resampler="superres", draft_int8=False),
        _ISLANDS,
    ),
    _mulo(
        "mulo-raster",
        "MuLo-SD's ablation: everything after the first rejected cell is redrawn",
        MuloConfig(reject="raster", window=None),
        MuloConfig(tau=0.2, reject="raster", window=None),
        MuloConfig(tau=0.3, k=30, reject="raster", window=None, draft_int8=False),
        {**_V1, "reject": f"{_MULO}: the ablation of local repair"},
    ),
):
    METHODS.register(_spec)
