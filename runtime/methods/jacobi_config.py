"""Jacobi windows along the raster, from settings to a drawn image: the target's own last guess is the draft."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

from underpaint.algos.accept import RULES
from underpaint.algos.chance import Chance
from underpaint.algos.coupling import noise_of
from underpaint.algos.protocols import Rule
from underpaint.algos.rows import SamplingParams
from underpaint.algos.spatial.jacobi import jacobi_decode
from underpaint.algos.spatial.jacobi_window import Coupling, JacobiWindow, Refill, drawn_for
from underpaint.algos.spatial.lookup import Lookup
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
from underpaint.runtime.methods.method_config import build_rule, no_settings
from underpaint.runtime.methods.settings import (
    Shown,
    check_new,
    owner_of,
    read_setting,
    settings_by_default,
    settings_of,
    split_settings,
)

_CHAIN: Final = "chain"
_RULE_FIELDS: Final = ("rule", "rule_settings")


@dataclass(frozen=True, slots=True)
class JacobiConfig:
    """Implements `method_config.MethodConfig`: windows along the raster; see `algos.spatial.jacobi`.

    window: drafts along the raster in a pass, >= 1. rule: any that covers chains of drawn tokens, with its settings.
    candidates: tokens proposed for each of the first `levels` cells, which makes the window a tree; 1 is a chain.
    passes, beside: see `algos.spatial.lookup.Lookup`; last_row: see `algos.spatial.jacobi_window.JacobiWindow`.
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
        pairs = split_settings(settings)
        start = self
        for key, value in pairs:
            start = replace(start, rule=RULES[value].name, rule_settings=no_settings()) if key == "rule" else start
        known = {"window": _window_settings(), "rule": settings_of(RULES[start.rule].make, GIVEN_BY_ENGINE)}
        found: dict[str, dict[str, Any]] = {"window": {}, "rule": dict(start.rule_settings)}
        taken: set[tuple[str, str]] = set()
        for key, value in pairs:
            if key != "rule":
                owner, name = owner_of(method, key, known)
                check_new(name, owner, taken)
                taken.add((owner, name))
                found[owner][name] = read_setting(f"method '{method}'", name, value, known[owner])
        asked = replace(start, rule_settings=found["rule"], **found["window"])
        drawn_for(RULES[asked.rule], asked.coupling, asked.candidates)
        return asked

    def target_sampling(self, asked: SamplingParams) -> SamplingParams:
        """As asked: at temperature 0 the distributions are one-hot, and every draw the likeliest token."""
        return asked

    @property
    def shape(self) -> JacobiWindow:
        """The window; ValueError where a setting is out of its range."""
        lookup = Lookup(self.passes, self.beside)
        return JacobiWindow(
            self.window, self.coupling, self.refill, self.candidates, self.levels, lookup, self.last_row
        )

    def build(self, method: str, tables: ModelTables) -> JacobiMethod:
        window = self.shape
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
