"""The Jacobi family of methods: the target's own last guess is the draft, so no drafter is needed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final, Literal

from underpaint.algos.accept import RULES, Rule
from underpaint.algos.chance import Chance
from underpaint.algos.coupling import noise_of
from underpaint.algos.rows import SamplingParams
from underpaint.algos.spatial.jacobi import jacobi_decode
from underpaint.algos.spatial.jacobi_front import JacobiFronts, Redraw, jacobi_fronts
from underpaint.algos.spatial.jacobi_front import Refill as FrontRefill
from underpaint.algos.spatial.jacobi_window import Coupling, JacobiWindow, Refill, drawn_for
from underpaint.algos.spatial.lookup import Lookup
from underpaint.algos.spatial.target import GridTarget
from underpaint.algos.step import Target
from underpaint.runtime.conditions import Condition
from underpaint.runtime.methods.method import (
    GIVEN_BY_ENGINE,
    DecodingResult,
    ModelTables,
    PipelineModels,
    SessionTimers,
    Timed,
)
from underpaint.runtime.methods.method_config import MethodSpec, Preset, build_rule, no_settings, with_fields
from underpaint.runtime.methods.settings import (
    Shown,
    owner_of,
    read_setting,
    settings_by_default,
    settings_of,
    split_setting,
)

_CHAIN: Final = "chain"
_RULE_FIELDS: Final = ("rule", "rule_settings")


@dataclass(frozen=True, slots=True)
class JacobiConfig:
    """Implements `method_config.MethodConfig`: windows along the raster; see `algos.spatial.jacobi`.

    window: drafts along the raster in a pass, >= 1. rule: any that covers chains of drawn tokens, with its settings.
    candidates: tokens proposed for each of the first `levels` cells, which makes the window a tree; 1 is a chain.
    passes, beside, last_row: see `algos.spatial.lookup.Lookup`.
    """

    window: int = 16
    coupling: Coupling = "independent"
    refill: Refill = "uniform"
    rule: str = _CHAIN
    rule_settings: Mapping[str, Shown] = field(default_factory=no_settings)
    candidates: int = 1
    levels: int = 1
    passes: bool = False
    beside: float = 0.0
    last_row: bool = False

    @property
    def family(self) -> Literal["jacobi"]:
        return "jacobi"

    @property
    def draws_by(self) -> str:
        tree = f" of {self.candidates} candidates" if self.candidates > 1 else ""
        return f"{self.coupling} window{tree} + {self.rule}"

    @property
    def acceptance(self) -> tuple[str, Mapping[str, Shown]]:
        return self.rule, self.rule_settings

    @property
    def needs_costs(self) -> bool:
        return False

    def to_dict(self) -> dict[str, Any]:
        settings = {name: getattr(self, name) for name in _window_settings()}
        rule = settings_by_default(RULES[self.rule].make, GIVEN_BY_ENGINE)
        return {
            "loop": "jacobi",
            "settings": settings,
            "rule": self.rule,
            "rule_settings": {**rule, **self.rule_settings},
        }

    def with_rule(self, rule: str, temperature: float) -> JacobiConfig:
        """See `MethodConfig`. The rule is the same at temperature 0, where distributions are one-hot."""
        spec = RULES[rule]
        drawn_for(spec, self.coupling, self.candidates)
        return replace(self, rule=spec.name, rule_settings=no_settings())

    def with_settings(self, method: str, settings: Sequence[str]) -> JacobiConfig:
        """See `MethodConfig`; `window.` or `rule.` before a name tells two of one name apart.

        `rule=NAME` takes another rule, as `with_rule` does, wherever it stands; other settings are of that one then.
        """
        pairs = [split_setting(setting) for setting in settings]
        start = self
        for key, value in pairs:
            start = replace(start, rule=RULES[value].name, rule_settings=no_settings()) if key == "rule" else start
        known = {"window": _window_settings(), "rule": settings_of(RULES[start.rule].make, GIVEN_BY_ENGINE)}
        found: dict[str, dict[str, Any]] = {"window": {}, "rule": dict(start.rule_settings)}
        for key, value in pairs:
            if key != "rule":
                owner, name = owner_of(method, key, known)
                found[owner][name] = read_setting(f"method '{method}'", name, value, known[owner])
        asked = replace(start, rule_settings=found["rule"], **found["window"])
        drawn_for(RULES[asked.rule], asked.coupling, asked.candidates)
        return asked

    def target_sampling(self, asked: SamplingParams) -> SamplingParams:
        """As asked: at temperature 0 the distributions are one-hot, and every draw the likeliest token."""
        return asked

    def build(self, method: str, tables: ModelTables) -> JacobiMethod:
        lookup = Lookup(self.passes, self.beside, self.last_row)
        window = JacobiWindow(self.window, self.coupling, self.refill, self.candidates, self.levels, lookup)
        drawn_for(RULES[self.rule], self.coupling, self.candidates)
        lossless = RULES[self.rule].is_lossless(self.rule_settings)
        return JacobiMethod(method, self, window, build_rule(self.rule, self.rule_settings, tables), lossless)


def _window_settings() -> dict[str, Any]:
    return settings_of(JacobiConfig, _RULE_FIELDS)


@dataclass(frozen=True, slots=True)
class JacobiMethod:
    """Implements `method.DecodingMethod`."""

    name: str
    config: JacobiConfig
    window: JacobiWindow
    rule: Rule
    lossless: bool

    @property
    def drafts(self) -> bool:
        return True

    def open(self, models: PipelineModels, condition: Condition, sampling: SamplingParams) -> JacobiSession:
        """Take the target; ValueError where its passes are too small for the window."""
        window = self.window
        if window.nodes > models.max_nodes:
            beside = window.nodes - window.length
            fewer = f"window={models.max_nodes - beside} or less" if models.max_nodes > beside else "fewer candidates"
            of = f" of {window.candidates} candidates in {window.levels} cells" if window.candidates > 1 else ""
            raise ValueError(
                f"method '{self.name}': window {window.length}{of} needs passes of {window.nodes} positions, these "
                f"models take {models.max_nodes}; set {fewer}"
            )
        return JacobiSession(self, models.target(condition, sampling))


@dataclass(frozen=True, slots=True)
class JacobiSession:
    """Implements `method.DecodingSession`."""

    method: JacobiMethod
    target: Timed[Target]

    @property
    def timers(self) -> SessionTimers:
        return SessionTimers(self.target.timer)

    def decode(self, chance: Chance) -> DecodingResult:
        """Draw one image by `algos.spatial.jacobi.jacobi_decode`."""
        noise = noise_of(chance) if self.method.window.coupling == "gumbel" else None
        decoded = jacobi_decode(self.target.model, self.method.rule, chance, self.method.window, noise)
        return DecodingResult.of_cycles(decoded)


@dataclass(frozen=True, slots=True)
class JacobiFrontsConfig:
    """Implements `method_config.MethodConfig`: PJD's row fronts; see `algos.spatial.jacobi_front.JacobiFronts`."""

    lead: int
    window: int
    refill: FrontRefill = "uniform"
    redraw: Redraw = "top"

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
        fronts = JacobiFronts(**asdict(self.config))
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


_SJD: Final = "arXiv 2410.01699 (SJD)"
_SCD: Final = "arXiv 2510.24211 (SCD)"
_GSD: Final = "arXiv 2508.07747 (GSD)"
_PAC: Final = "arXiv 2603.18599 (SJD-PAC)"
_PJD: Final = "arXiv 2606.05703 (PJD)"
_MEASURED: Final = "measured: on 8 prompts apart from those reported (docs/results/settings.md)"
_GUESS: Final = "our guess: the paper leaves it open"


def _windows(
    name: str, summary: str, tuned: JacobiConfig, paper: JacobiConfig, sources: Mapping[str, str]
) -> MethodSpec:
    tree = ("candidates", "levels") if tuned.candidates > 1 else ()
    measured = dict.fromkeys(("window", "refill", *tree, *tuned.rule_settings), _MEASURED)
    return MethodSpec(name, summary, Preset(tuned, tuned, measured), Preset(paper, paper, sources))


def _coupled(coupling: Coupling, words: str) -> MethodSpec:
    return _windows(
        f"scd-{coupling}",
        f"SCD: a Jacobi window whose drafts are {words} with those that stood there",
        JacobiConfig(12, coupling, "left"),
        JacobiConfig(32, coupling, "uniform"),
        {
            "window": f"{_SCD}, released code's test default; the paper's runs have 64",
            "refill": f"{_SCD}, released code",
        },
    )


_LOOKUP: Final = JacobiConfig(14, "maximal", "lookup", passes=True, beside=0.85, last_row=True)
_LOOKUP_SOURCES: Final = {
    "window, beside": "measured: on 24 prompts apart from those reported (docs/results/settings.md)",
    "all": "our own method: there is no paper, both presets are the same",
}

JACOBI_METHODS: Final = (
    _windows(
        "sjd",
        "SJD: a Jacobi window, judged by the distributions of the pass before and drafted anew behind a rejection",
        JacobiConfig(12, "independent", "above"),
        JacobiConfig(16, "independent", "uniform"),
        {
            "window": f"{_SJD}, released code",
            "refill": f"{_SJD}: a random start; copies of the left cell are an option",
        },
    ),
    _coupled("maximal", "coupled maximally"),
    _coupled("gumbel", "raced by the same noise"),
    _windows(
        "sjd-pac",
        "SJD-PAC: a maximally coupled Jacobi window, with candidates beside the drafts of its first cells",
        JacobiConfig(16, "maximal", "left", "without_replacement", candidates=2, levels=1),
        JacobiConfig(45, "maximal", "uniform", "without_replacement", candidates=4, levels=2),
        {
            "coupling": f"{_PAC}: adaptive continuation keeps what a maximal coupling keeps",
            "candidates, levels": f"{_PAC}: K x D = 4 x 3, the root's level counted; the released code has 3 x 3",
            "window": f"{_PAC}: L = 64 positions a pass, of which the tree of candidates takes 21",
            "refill": f"{_PAC}, released code: a random token",
            "rule": f"{_PAC}: candidates without replacement; its code takes the longest path, which is not lossless",
        },
    ),
    MethodSpec(
        "jacobi-lookup",
        "a coupled Jacobi window whose drafts are drawn from what the target said beside the same tokens before",
        *(Preset(_LOOKUP, _LOOKUP, sources) for sources in (_LOOKUP_SOURCES, _LOOKUP_SOURCES)),
    ),
    _windows(
        "gsd",
        "GSD: a Jacobi window, a token judged together with codes of like probability and like look",
        JacobiConfig(12, "independent", "left", "gsd", {"group": 14}),
        JacobiConfig(16, "independent", "uniform", "gsd", {"group": 25}),
        {
            "window": f"{_SJD}, whose code it changes",
            "refill": f"{_SJD}: a random start",
            "group": f"{_GSD}: G = 25 on COCO",
            "gap, distance": f"{_GSD}, released code; it measures in the language model's embeddings",
        },
    ),
    MethodSpec(
        "pjd",
        "PJD: parallel row fronts, each with a Jacobi window of its own",
        Preset(
            JacobiFrontsConfig(4, 2, "left", "all"),
            JacobiFrontsConfig(4, 2, "left", "all"),
            {"lead, window, refill, redraw": _MEASURED},
        ),
        Preset(
            JacobiFrontsConfig(6, 6, "uniform", "top"),
            JacobiFrontsConfig(6, 6, "uniform", "top"),
            {
                "lead": f"{_PJD}: c = 6 on LlamaGen (rows of 24 or 32 codes)",
                "window, refill": _GUESS,
                "redraw": f"{_PJD}: the uppermost open row's first token alone",
            },
        ),
    ),
)
