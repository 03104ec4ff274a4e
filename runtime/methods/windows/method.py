"""Methods that decode with Jacobi windows in raster order, where the target's last guess is the draft."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, ClassVar, Final, Literal, cast

from underpaint.algos.accept import RULES
from underpaint.algos.chance import Chance
from underpaint.algos.coupling import noise_of
from underpaint.algos.protocols import Rule
from underpaint.algos.rows import SamplingParams
from underpaint.algos.spatial.jacobi import jacobi_cycles
from underpaint.algos.spatial.jacobi_window import Coupling, JacobiWindow, drawn_for
from underpaint.runtime.conditions import Condition
from underpaint.runtime.methods.method import (
    GIVEN_BY_ENGINE,
    DecodingMethod,
    DecodingResult,
    DecodingSession,
    DecodingSteps,
    ModelTables,
    PipelineModels,
    RuleWatcher,
    SessionTimers,
)
from underpaint.runtime.methods.registry import (
    EARLIER,
    METHODS,
    TUNED_ABOVE_ZERO,
    TUNED_ON,
    MethodConfig,
    MethodSpec,
    Preset,
    build_rule,
    no_settings,
)
from underpaint.runtime.methods.settings import (
    SettingValue,
    read_parts,
    settings_by_default,
    settings_of,
    settings_to_tune,
    split_settings,
)

_LENGTH: Final = "window"
"""The name of `JacobiWindow.length` in user settings and records."""


@dataclass(frozen=True, slots=True)
class JacobiConfig(MethodConfig):
    """A Jacobi window, and the name and settings of any rule that covers chains of drawn tokens.

    The window's settings are those of `JacobiWindow`, but its length is called `window`.
    """

    window: JacobiWindow = field(default_factory=JacobiWindow)
    rule: str = "chain"
    rule_settings: Mapping[str, SettingValue] = field(default_factory=no_settings)

    family: ClassVar[Literal["jacobi"]] = "jacobi"

    @property
    def device(self) -> str:
        return "underpaint.runtime.methods.windows.device:form"

    @property
    def runs_on_device(self) -> bool:
        return RULES[self.rule].device is not None

    @property
    def draws_by(self) -> str:
        window = self.window
        tree = f" of {window.candidates} candidates" if window.candidates > 1 else ""
        return f"{window.coupling} window{tree} + {self.rule}"

    @property
    def acceptance(self) -> tuple[str, Mapping[str, SettingValue]]:
        return self.rule, self.rule_settings

    def to_dict(self) -> dict[str, Any]:
        rule = settings_by_default(RULES[self.rule].make, GIVEN_BY_ENGINE)
        idle = {"confidence"} if self.window.is_exact else set()
        window = {name: value for name, value in asdict(self.window).items() if name not in idle}
        return {
            "loop": "jacobi",
            "settings": _named(window),
            "rule": self.rule,
            "rule_settings": {**rule, **self.rule_settings},
        }

    def to_tune(self) -> dict[str, list[str]]:
        rule = RULES[self.rule].make
        values = {**settings_by_default(rule, GIVEN_BY_ENGINE), **self.rule_settings}
        window = settings_to_tune(JacobiWindow, asdict(self.window))
        if self.window.candidates == 1:  # a chain; windows with candidates need other rules
            window.pop("candidates")
        named_window = {f"window.{name}": tried for name, tried in _named(window).items()}
        return named_window | settings_to_tune(rule, values, "rule")

    def with_rule(self, rule: str, temperature: float) -> JacobiConfig:
        """See `MethodConfig`. Temperature 0 uses the same rule, as the distributions are one-hot."""
        changed = replace(self, rule=RULES[rule].name, rule_settings=no_settings())
        changed.check()
        return changed

    def with_settings(self, method: str, settings: Sequence[str]) -> JacobiConfig:
        """See `MethodConfig`; a prefix `window.` or `rule.` resolves ambiguous names.

        `rule=NAME`, at any position, changes the rule as `with_rule` does; the other settings are for the new rule.
        """
        pairs, start = split_settings(settings), self
        for key, value in pairs:
            if key == "rule":
                start = replace(start, rule=RULES[value].name, rule_settings=no_settings())
        rule = settings_of(RULES[start.rule].make, GIVEN_BY_ENGINE)
        part_types = {"window": _named(settings_of(JacobiWindow)), "rule": rule}
        values = read_parts(method, [pair for pair in pairs if pair[0] != "rule"], part_types, f"method '{method}'")
        window = {"length" if name == _LENGTH else name: value for name, value in values["window"].items()}
        try:
            new_window = replace(start.window, **cast("Mapping[str, Any]", window))
        except ValueError as error:
            raise ValueError(f"method '{method}': {error}") from error
        changed = replace(start, window=new_window, rule_settings={**start.rule_settings, **values["rule"]})
        changed.check()
        return changed

    def check(self) -> None:
        """Raise ValueError unless the rule can verify these windows."""
        drawn_for(RULES[self.rule], self.window.coupling, self.window.candidates)

    def build(self, method: str, tables: ModelTables) -> JacobiMethod:
        self.check()
        lossless = RULES[self.rule].is_lossless(self.rule_settings) and self.window.is_exact
        rule = build_rule(self.rule, self.rule_settings, tables)
        return JacobiMethod(method, self, lossless, drafts=True, rule=rule)


def _named(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings of `JacobiWindow` under the names that users type."""
    return {_LENGTH if name == "length" else name: value for name, value in settings.items()}


@dataclass(frozen=True, slots=True)
class JacobiMethod(DecodingMethod):
    """A Jacobi window and its rule, ready to draw."""

    config: JacobiConfig
    rule: Rule

    def open(self, models: PipelineModels, condition: Condition, sampling: SamplingParams) -> DecodingSession:
        """Open the target; raise ValueError if its passes are too small for the window."""
        window = self.config.window
        window.check_pass(models.max_nodes, f"method '{self.name}'", "these models take")
        target = models.target(condition, sampling)

        def start(chance: Chance) -> DecodingSteps:
            noise = noise_of(chance) if window.coupling == "gumbel" else None
            return DecodingResult.of_cycles(jacobi_cycles(target.model, self.rule, chance, window, noise))

        return DecodingSession(SessionTimers(target.timer), start)

    def watched(self, watch: Callable[[Rule], RuleWatcher]) -> JacobiMethod:
        return replace(self, rule=watch(self.rule))


_SJD: Final = "arXiv 2410.01699 (SJD)"
_SCD: Final = "arXiv 2510.24211 (SCD)"
_GSD: Final = "arXiv 2508.07747 (GSD)"
_SV: Final = "arXiv 2609.13245 (SJD-SV)"
_PLUS: Final = "arXiv 2512.07503 (SJD++)"
_PAC: Final = "arXiv 2603.18599 (SJD-PAC)"


def _windows(
    name: str,
    summary: str,
    tuned: tuple[JacobiConfig, JacobiConfig],
    paper: JacobiConfig,
    sources: Mapping[str, str],
    source: str = TUNED_ON,
) -> MethodSpec:
    """Make a method; `tuned` are its settings above temperature 0 and at 0, with their source."""
    tree = ("candidates",) if tuned[0].window.candidates > 1 else ()
    tuned_sources = dict.fromkeys(("window", "refill", "last_row", *tree, *tuned[0].rule_settings), source)
    tuned_sources |= dict.fromkeys(("levels",) if tree else (), EARLIER)
    return MethodSpec(name, summary, Preset(*tuned, tuned_sources), Preset(paper, paper, sources))


def _coupled(coupling: Coupling, words: str, sampled: JacobiWindow, greedy: JacobiWindow) -> MethodSpec:
    return _windows(
        f"scd-{coupling}",
        f"SCD: a Jacobi window; new drafts {words} the old ones",
        (JacobiConfig(sampled), JacobiConfig(greedy)),
        JacobiConfig(JacobiWindow(31, coupling, "random", last_row=True)),
        {
            "window": f"{_SCD}, released code's test default: 32 with the committed token; the paper's runs have 64",
            "refill, last_row": f"{_SCD}, released code",
        },
    )


_LOOKUP: Final = JacobiConfig(JacobiWindow(8, "maximal", "lookup", passes=True, beside=0.85, last_row=True))
_LOOKUP_SOURCES: Final = {
    "window, last_row": TUNED_ON,
    "beside": EARLIER,
    "all": "our own method: there is no paper, both presets are the same",
}

for _spec in (
    _windows(
        "sjd",
        "SJD: a Jacobi window, verified against the last pass's distributions; drafts after a rejection are redrawn",
        (
            JacobiConfig(JacobiWindow(8, "independent", "above")),
            JacobiConfig(JacobiWindow(6, "independent", "above", last_row=True)),
        ),
        JacobiConfig(JacobiWindow(15, "independent", "random", last_row=True)),
        {
            "window": f"{_SJD}, released code: 16 with the committed token",
            "refill": f"{_SJD}, released code: a random token; copies of the left cell are an option",
            "last_row": f"{_SJD}, released code",
        },
    ),
    _coupled(
        "maximal",
        "are maximally coupled with",
        JacobiWindow(16, "maximal", "above", last_row=True),
        JacobiWindow(12, "maximal", "left"),
    ),
    _coupled(
        "gumbel",
        "share Gumbel noise with",
        JacobiWindow(12, "gumbel", "left"),
        JacobiWindow(12, "gumbel", "left", last_row=True),
    ),
    _windows(
        "sjd-pac",
        "SJD-PAC: a maximally coupled Jacobi window with several candidates for its first cells",
        (JacobiConfig(JacobiWindow(16, "maximal", "left", candidates=2, levels=1), "without_replacement"),) * 2,
        JacobiConfig(JacobiWindow(45, "maximal", "uniform", candidates=4, levels=2), "without_replacement"),
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
        "a coupled Jacobi window; drafts are drawn from what the target predicted earlier next to the same tokens",
        *(Preset(_LOOKUP, _LOOKUP, sources) for sources in (_LOOKUP_SOURCES, _LOOKUP_SOURCES)),
    ),
    _windows(
        "gsd",
        "GSD: a Jacobi window; a token is verified together with codes of similar probability and appearance",
        (
            JacobiConfig(JacobiWindow(4, "independent", "left", last_row=True), "gsd", {"group": 50}),
            JacobiConfig(JacobiWindow(12, "independent", "left"), "gsd", {"group": 14}),
        ),
        JacobiConfig(JacobiWindow(15, "independent", "random", last_row=True), "gsd", {"group": 25}),
        {
            "window, refill, last_row": f"{_GSD}, released code, which changes SJD's acceptance alone",
            "group": f"{_GSD}: G = 25 on COCO",
            "gap, distance": f"{_GSD}, released code (squared distance 0.5), which measures in the language model's "
            "embeddings",
        },
    ),
    _windows(
        "sjd-sv",
        "SJD-SV: a Jacobi window; runs of rising probability are verified together",
        (JacobiConfig(JacobiWindow(12, "independent", "left"), "sjd_sv", {"share": 0.8}),) * 2,
        JacobiConfig(JacobiWindow(15, "independent", "random", last_row=True), "sjd_sv", {"share": 0.8}),
        {
            "window, refill, last_row": f"{_SV}: the settings of GSD, whose released code has these",
            "share": f"{_SV}: alpha = 0.8",
        },
        TUNED_ABOVE_ZERO,
    ),
    _windows(
        "sjd++",
        "SJD++: a Jacobi window; drafts after a rejection stay if their probability does not fall much",
        (JacobiConfig(JacobiWindow(16, "confidence", "above", last_row=True, confidence=0.5)),) * 2,
        JacobiConfig(JacobiWindow(15, "confidence", "random", last_row=True, confidence=0.5)),
        {
            "window, refill, last_row": f"{_SJD}, released code, which {_PLUS} builds on",
            "confidence": "released code of arXiv 2606.10492 (PathRelax), which runs SJD++ beside it: sjd_pp_threshold",
        },
    ),
):
    METHODS.register(_spec)
