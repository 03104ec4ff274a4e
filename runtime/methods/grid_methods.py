"""The grid family of methods: cells decided in any order, by a target that scores any cells given any others."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from underpaint.algos.chance import Chance
from underpaint.algos.rows import SamplingParams
from underpaint.algos.spatial.row_front import check_window
from underpaint.algos.spatial.target import GridTarget
from underpaint.algos.spatial.zipar import zipar
from underpaint.runtime.methods.method_config import Method, with_fields
from underpaint.runtime.methods.mulo_method import MuloRecipe
from underpaint.runtime.studio import Clocked, Clocks, Outcome, Studio
from underpaint.zoo.prompts import Prompt

if TYPE_CHECKING:
    from collections.abc import Sequence

    from underpaint.runtime.codes import Codes


@dataclass(frozen=True, slots=True)
class ZiparRecipe:
    """Implements `method_config.Recipe`: row fronts with the target alone; see `algos.spatial.zipar.zipar`.

    window: None is raster order, plain autoregression.
    """

    window: int | None = 4
    adaptive: bool = False

    @property
    def family(self) -> Literal["grid"]:
        """See `Recipe`."""
        return "grid"

    @property
    def draws_by(self) -> str:
        """See `Recipe`."""
        return "row fronts"

    def to_dict(self) -> dict[str, Any]:
        """See `Recipe`."""
        return {"loop": "zipar", "settings": asdict(self)}

    def with_rule(self, rule: str, temperature: float) -> ZiparRecipe:
        """See `Recipe`. Nothing is drafted, so there is nothing to accept."""
        raise ValueError(f"--rule {rule}: row fronts draft nothing, so no rule applies; leave it out")

    def with_settings(self, method: str, settings: Sequence[str]) -> ZiparRecipe:
        """See `Recipe`."""
        return with_fields(self, method, settings)

    def target_sampler(self, asked: SamplingParams) -> SamplingParams:
        """See `Recipe`. At temperature 0 the distributions are one-hot, and every draw the likeliest token."""
        return asked

    def build(self, method: str, codes: Codes) -> BuiltZipar:
        """See `Recipe`."""
        if self.adaptive and self.window is None:
            raise ValueError(f"method '{method}': an adaptive window needs one to start from; set window too")
        return BuiltZipar(method, self)


@dataclass(frozen=True, slots=True)
class BuiltZipar:
    """Implements `runtime.studio.Built`."""

    name: str
    recipe: ZiparRecipe

    @property
    def lossless(self) -> bool:
        """See `Built`: in raster order."""
        return self.recipe.window is None

    @property
    def drafts(self) -> bool:
        """See `Built`."""
        return False

    def open(self, studio: Studio, prompt: Prompt, sampler: SamplingParams) -> ZiparSession:
        """See `Built`."""
        window = studio.grid.width if self.recipe.window is None else self.recipe.window
        check_window(window, studio.grid)
        return ZiparSession(studio.grid_target(prompt, sampler), window, self.recipe.adaptive)


@dataclass(frozen=True, slots=True)
class ZiparSession:
    """Implements `runtime.studio.Session`."""

    target: Clocked[GridTarget]
    window: int
    adaptive: bool

    @property
    def clocks(self) -> Clocks:
        """See `Session`."""
        return Clocks(self.target.spent)

    def decode(self, chance: Chance) -> Outcome:
        """See `Session`."""
        return Outcome(zipar(self.target.model, self.window, chance, adaptive=self.adaptive).tokens)


def _mulo(name: str, summary: str, recipe: MuloRecipe) -> Method:
    return Method(name, summary, recipe, recipe.at_zero())


GRID_METHODS: Final = (
    Method(
        "zipar",
        "ZipAR: row fronts with the target alone, nothing drafted; the control for mulo",
        ZiparRecipe(),
        ZiparRecipe(),
    ),
    _mulo(
        "mulo",
        "MuLo-SD, first version: drafted at half the resolution, rejected cells and those around them redrawn serially",
        MuloRecipe(),
    ),
    _mulo(
        "mulo-islands",
        "MuLo-SD with row fronts: in drafting, and in repair of islands side by side",
        MuloRecipe(order="islands", window=2, draft_window=2),
    ),
    _mulo(
        "mulo-raster",
        "MuLo-SD's ablation: everything after the first rejected cell is redrawn",
        MuloRecipe(reject="raster"),
    ),
)
