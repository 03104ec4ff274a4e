"""MuLo-SD on a studio's models (arXiv 2601.05149): draft small, verify large, repair locally."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np

from underpaint.algos.chance import Chance
from underpaint.algos.rows import SamplingParams
from underpaint.algos.spatial.cell_rule import CellRule, Kind, cell_rule
from underpaint.algos.spatial.mulo import Keys, Order, Reject, Repair, RepairCycle, draft_and_repair
from underpaint.algos.spatial.target import GridTarget
from underpaint.algos.tree import NO_TOKEN
from underpaint.runtime.codes import Codes
from underpaint.runtime.methods.method_config import with_fields
from underpaint.runtime.methods.multi_scale import LowRows, Metered
from underpaint.runtime.studio import Clocked, Clocks, Outcome, Studio
from underpaint.zoo.prompts import Prompt


@dataclass(frozen=True, slots=True)
class MuloRecipe:
    """Implements `runtime.methods.method_config.Recipe`.

    tau: the pooled rule keeps a cell whose token and `k` nearest codes hold this much of the target; 0 keeps all,
    above 1 nothing. k: codes pooled with a token; 0 pools none, None all that the table of near codes has.
    rule: "pooled" is MuLo-SD's own; "lantern" keeps a token with its probability and that of near codes up to `delta`;
    "exact" with its probability alone.
    rows: low rows drafted a cycle; None drafts the whole image at once.
    reject, radius, order, window, adaptive, keys: see `algos.spatial.mulo.Repair`.
    sampler: between the resolutions, see `runtime.resampling.registry.RESAMPLERS`. ratio: of the two sides.
    draft_window, draft_adaptive: row fronts of the low target; None is raster order.
    greedy: decoding at temperature 0. Rules then read the distributions at temperature 1, where a threshold means
    something.
    """

    tau: float = 0.3
    k: int | None = 30
    rows: int | None = None
    reject: Reject = "local"
    radius: int = 1
    order: Order = "serial"
    window: int | None = None
    adaptive: bool = False
    keys: Keys = "stale"
    rule: Kind = "pooled"
    delta: float = 0.3
    sampler: str = "latent"
    ratio: int = 2
    draft_window: int | None = None
    draft_adaptive: bool = False
    greedy: bool = False

    @property
    def family(self) -> Literal["grid"]:
        """See `Recipe`."""
        return "grid"

    @property
    def draws_by(self) -> str:
        """See `Recipe`."""
        return f"rows from 1 / {self.ratio} of the side + {self.rule}, {self.reject} repair, {self.order}"

    def to_dict(self) -> dict[str, Any]:
        """See `Recipe`."""
        return {"loop": "mulo", "settings": asdict(self)}

    def at_zero(self) -> MuloRecipe:
        """The recipe for temperature 0."""
        return replace(self, greedy=True)

    def with_rule(self, rule: str, temperature: float) -> MuloRecipe:
        """See `Recipe`."""
        return self.with_settings("mulo", [f"rule={rule}"])

    def with_settings(self, method: str, settings: Sequence[str]) -> MuloRecipe:
        """See `Recipe`."""
        return with_fields(self, method, settings, fixed=("greedy",))

    def target_sampler(self, asked: SamplingParams) -> SamplingParams:
        """See `Recipe`."""
        return replace(asked, temperature=1.0) if self.greedy else asked

    def build(self, method: str, codes: Codes) -> BuiltMulo:
        """See `Recipe`; what depends on the grid is checked by `BuiltMulo.open`."""
        most = codes.neighbours.shape[1]
        least = 1 if self.rule == "lantern" else 0
        if self.k is not None and not least <= self.k <= most:
            raise ValueError(f"method '{method}': expected k in {least}..{most} under rule {self.rule}, got {self.k}")
        if self.draft_adaptive and self.draft_window is None:
            raise ValueError(f"method '{method}': an adaptive draft window needs draft_window to start from")
        near = codes.neighbours[:, : self.k]
        try:
            return BuiltMulo(method, self, cell_rule(self.rule, near, self.tau, self.delta, self.greedy))
        except ValueError as error:
            raise ValueError(f"method '{method}': {error}") from error


@dataclass(frozen=True, slots=True)
class BuiltMulo:
    """Implements `runtime.studio.Built`."""

    name: str
    recipe: MuloRecipe
    rule: CellRule

    @property
    def lossless(self) -> bool:
        """See `Built`: in raster order, by the exact rule with raster rejection, or where nothing drafted is kept."""
        recipe = self.recipe
        exact = recipe.rule == "exact" and recipe.reject == "raster"
        return recipe.window is None and (exact or (recipe.rule == "pooled" and recipe.tau > 1.0))

    @property
    def drafts(self) -> bool:
        """See `Built`."""
        return True

    def open(self, studio: Studio, prompt: Prompt, sampler: SamplingParams) -> MuloSession:
        """See `Built`."""
        recipe, grid = self.recipe, studio.grid
        repair = Repair(
            *(recipe.reject, recipe.radius, recipe.order, recipe.window, recipe.adaptive, recipe.keys, recipe.greedy)
        )
        repair.check(grid)
        low = studio.low_target(prompt, sampler, recipe.ratio)
        resampler = Metered(studio.resampler(recipe.sampler, recipe.ratio))
        height, width = low.model.grid
        rows = height if recipe.rows is None else recipe.rows
        if not 1 <= rows <= height:
            raise ValueError(f"rows: expected 1..{height} low rows a cycle, got {rows}")
        if rows < height:  # the last cycle's first pass takes in all rows before
            low = studio.low_target(prompt, sampler, recipe.ratio, (height - 1) // rows * rows * width)
        window = width if recipe.draft_window is None else recipe.draft_window
        drafter = LowRows(low.model, resampler, window, recipe.draft_adaptive)
        target = studio.grid_target(
            prompt, recipe.target_sampler(sampler), min(rows * recipe.ratio, grid.height) * grid.width
        )
        clocks = Clocks(target.spent, low.spent, resampler)
        return MuloSession(target, drafter, self.rule, repair, rows * recipe.ratio, clocks)


@dataclass(frozen=True, slots=True)
class MuloSession:
    """Implements `runtime.studio.Session`."""

    target: Clocked[GridTarget]
    drafter: LowRows
    rule: CellRule
    repair: Repair
    rows_per_cycle: int
    clocks: Clocks

    def cycles(self, chance: Chance) -> tuple[RepairCycle, ...]:
        """Draw one image, cycle by cycle."""
        return draft_and_repair(
            self.target.model, self.drafter, self.rule, self.repair, self.rows_per_cycle, chance
        ).cycles

    def decode(self, chance: Chance) -> Outcome:
        """See `Session`."""
        cycles = self.cycles(chance)
        kept = np.any([(cycle.draft != NO_TOKEN) & ~cycle.region for cycle in cycles], axis=0)
        return Outcome(
            cycles[-1].tokens.reshape(-1),
            kept=tuple(np.flatnonzero(kept).tolist()),
            rejected=sum(int(cycle.rejected.sum()) for cycle in cycles),
        )
