"""Methods by name: each has a configuration, which takes settings and builds the method. Plug-ins add to `METHODS`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, Self, TypeAlias, cast

from underpaint.algos.accept import RULES
from underpaint.algos.protocols import Rule
from underpaint.algos.registry import Registry, build, check_bounds, settings_fields
from underpaint.algos.rows import SamplingParams
from underpaint.artifacts.model_families import PUBLISHED_FAMILIES
from underpaint.runtime.conditions import Condition
from underpaint.runtime.methods.method import (
    GIVEN_BY_ENGINE,
    DecodingMethod,
    DecodingSession,
    ModelTables,
    PipelineModels,
)
from underpaint.runtime.methods.settings import (
    SettingValue,
    read_setting,
    settings_of,
    settings_to_tune,
    split_settings,
)

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from underpaint.runtime.methods.preset_file import PresetFile
    from underpaint.runtime.models import OpenModels

Family: TypeAlias = Literal["tree", "grid", "jacobi"]
"""How an image is decoded: token by token with draft trees, as cells of a grid in any order, or in windows that the
target itself drafts."""
PresetName: TypeAlias = Literal["tuned", "paper"]
TUNED: Final = "tuned"
"""Settings that `underpaint tune` chose on the shipped models; the default."""
PAPER: Final = "paper"
"""The published settings, from the method's paper or its authors' code."""
PRESETS: Final[tuple[PresetName, ...]] = (TUNED, PAPER)
EAGLE_CODE: Final = "eagle-code"
"""Another preset: the papers' settings, but EAGLE-2's tree as EAGLE's released code grows it. Not in `PRESETS`."""
PUBLISHED_CODES: Final = 16384
"""Codebook size of the models that the papers' settings were chosen on (LlamaGen, arXiv 2406.06525)."""

TUNED_ON: Final = "`underpaint tune` at 128 px (benchmarks/results/tuned-128.json)"
"""The source of settings that tuning chose."""
KEPT: Final = "an earlier choice, kept because tuning found no settings within its quality bound"
"""The source of settings of the preset `tuned` that tuning did not choose."""
TUNED_ABOVE_ZERO: Final = f"above temperature 0: {TUNED_ON}; at 0: {KEPT}"
TUNED_AT_ZERO: Final = f"at temperature 0: {TUNED_ON}; above: {KEPT}"
EARLIER: Final = "measured on earlier models (git show cd40511:docs/results/settings.md)"
"""The source of settings that tuning does not try."""

MOST_PUBLISHED_K: Final = 1000
"""The largest number of near codes that a paper's settings pool on those models (LANTERN, arXiv 2410.03355)."""


class MethodConfig(ABC):
    """The configuration of a method, an immutable value: the names of its parts and all non-default settings.

    Attributes:
        family: How the method decodes an image; see `Family`.
    """

    __slots__ = ()

    family: ClassVar[Family]

    @property
    def device(self) -> str | None:
        """The device form as "module:function", or None; `runtime.device.forms.form_of` imports it on first use."""
        return None

    @property
    @abstractmethod
    def draws_by(self) -> str:
        """A description of the method's parts in words."""

    @property
    def acceptance(self) -> tuple[str, Mapping[str, SettingValue]] | None:
        """The acceptance rule and its given settings; None if the decoding loop itself decides on acceptance."""
        return None

    @property
    def needs_costs(self) -> bool:
        """Whether the method chooses by the measured cost of passes, and no costs are set."""
        return False

    @property
    def device_gap(self) -> str | None:
        """A message that names a setting without a device form and what to set instead; None if all have one."""
        return None

    @property
    def runs_on_device(self) -> bool:
        """Whether the method can run on the device."""
        return self.device is not None and self.device_gap is None

    @abstractmethod
    def to_tune(self) -> dict[str, list[str]]:
        """Return the other values that `underpaint tune` tries, by the setting's name; all as a user types them."""

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """Return the configuration as JSON values, including settings at their defaults."""

    @abstractmethod
    def with_rule(self, rule: str, temperature: float) -> MethodConfig:
        """Return a copy with another acceptance rule at its defaults; raise ValueError if the rule does not fit."""

    @abstractmethod
    def with_settings(self, method: str, settings: Sequence[str]) -> MethodConfig:
        """Return a copy with `name=value` settings; raise ValueError, naming `method`, on an unknown or invalid one."""

    def target_sampling(self, sampling: SamplingParams) -> SamplingParams:
        """Return the sampling parameters for the target's distributions, given the user's `sampling`.

        By default these are the user's: at temperature 0 the distributions are one-hot. Families may override this.
        """
        return sampling

    @abstractmethod
    def build(self, method: str, tables: ModelTables) -> DecodingMethod:
        """Build the method under the name `method`; raise ValueError if a setting is out of range."""


class LoopConfig(MethodConfig):
    """A decoding loop with its own acceptance, whose settings are the fields of a dataclass: row fronts, MuLo-SD."""

    __slots__ = ()

    loop: ClassVar[str]
    """The name of the loop in records."""
    accepts_by: ClassVar[str]
    """Why the loop takes no rule, for error messages, as in "row fronts draft nothing, so no rule applies"."""
    fixed: ClassVar[tuple[str, ...]] = ()
    """Fields that users cannot set."""

    def to_dict(self) -> dict[str, Any]:
        return {"loop": self.loop, "settings": asdict(cast("DataclassInstance", self))}

    def to_tune(self) -> dict[str, list[str]]:
        grid = settings_to_tune(type(self), asdict(cast("DataclassInstance", self)))
        return {name: values for name, values in grid.items() if name not in self.fixed}

    def with_rule(self, rule: str, temperature: float) -> MethodConfig:
        """See `MethodConfig`; a loop takes no rule unless a subclass overrides this."""
        raise ValueError(f"--rule {rule}: {self.accepts_by}; leave it out")

    def with_settings(self, method: str, settings: Sequence[str]) -> Self:
        types = settings_of(type(self), self.fixed)
        texts = split_settings(settings)
        values = {name: read_setting(f"method '{method}'", name, value, types) for name, value in texts}
        return cast(Self, replace(cast("DataclassInstance", self), **values))


@dataclass(frozen=True, slots=True)
class LoopMethod(DecodingMethod):
    """A loop that is ready to draw.

    Attributes:
        config: The configuration of the loop.
        opener: Implements `open` with the loop's settings.
    """

    config: LoopConfig
    opener: Callable[[PipelineModels, Condition, SamplingParams], DecodingSession]

    def open(self, models: PipelineModels, condition: Condition, sampling: SamplingParams) -> DecodingSession:
        return self.opener(models, condition, sampling)


@dataclass(frozen=True, slots=True)
class Preset:
    """A method's settings and their sources.

    Attributes:
        sampled: The settings above temperature 0.
        greedy: The settings at temperature 0.
        sources: The source of each setting, by its name: a measured result, a paper, its code, or "our guess: ...".
    """

    sampled: MethodConfig
    greedy: MethodConfig
    sources: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    def at(self, temperature: float) -> MethodConfig:
        """Return the configuration for a temperature."""
        return self.greedy if temperature == 0 else self.sampled


@dataclass(frozen=True, slots=True)
class MethodSpec:
    """The specification of a registered method: its name, a summary, and its settings by preset.

    Plug-ins add theirs with `underpaint.runtime.methods.registry.METHODS.register`.
    """

    name: str
    summary: str
    tuned: Preset
    paper: Preset
    eagle_code: Preset | None = None

    def preset(self, name: str) -> Preset:
        """Return the preset of a name; raise ValueError for an unknown name."""
        if name == EAGLE_CODE:
            return self.eagle_code or self.paper
        if name not in PRESETS:
            raise ValueError(f"preset: expected one of {', '.join(PRESETS)} or {EAGLE_CODE}, got {name!r}")
        return self.paper if name == PAPER else self.tuned


def usual_preset(models: OpenModels) -> PresetName:
    """Return the default preset: "paper" for live and published models, "tuned" for the family of the shipped ones."""
    folder_models = models.folder_models()
    return PAPER if folder_models is None or folder_models.index.family in PUBLISHED_FAMILIES else TUNED


def no_settings() -> Mapping[str, SettingValue]:
    """Return an empty mapping, which leaves every setting at its default."""
    return MappingProxyType({})


def build_rule(name: str, settings: Mapping[str, SettingValue], tables: ModelTables) -> Rule:
    """Build the acceptance rule `name` from its settings and the model tables that it needs.

    Raises ValueError if a setting is out of range, or if the rule pools near codes and the model has no codebook.
    """
    spec = RULES[name]
    declared = settings_fields(spec.make)
    if not tables.codebook.shape[1] and {"neighbours", "codebook"} & declared.keys():
        raise ValueError(
            f"rule '{spec.name}': expected the model's codebook, which says which codes are near each other, got none; "
            "use a rule that pools no codes, such as chain or typical"
        )
    supplied: dict[str, Any] = {name: getattr(tables, name) for name in GIVEN_BY_ENGINE if name in declared}
    return build(spec.make, {**settings, **supplied}, f"rule '{spec.name}'")


def scaled_to(vocab_size: int, codes: int) -> int:
    """Scale a number of codes from a codebook of `PUBLISHED_CODES` to one of `vocab_size`; return at least 1.

    A number of near codes has a meaning only relative to the codebook: 1,000 of 16,384 codes are 6 %, and 1,000 of
    1,024 are nearly all.
    """
    return max(1, round(codes * vocab_size / PUBLISHED_CODES))


_TREES: Final = (
    *("ar", "speculative", "block", "eagle1", "traversal", "sequoia", "eagle2", "opt-tree"),
    *("adt-control-chain", "adt-control-tree", "adt", "lantern", "lantern++", "adt+lantern", "adt+lantern++"),
    *("delayed", "gbv", "ensemble", "fly", "hsd", "vvs", "roofline", "roofline+lantern"),
)
_HERE: Final = "underpaint.runtime.methods"
METHODS: Final[Registry[MethodSpec]] = Registry(
    "method",
    "underpaint.methods",
    {
        **dict.fromkeys(_TREES, f"{_HERE}.trees.presets"),
        "zipar": f"{_HERE}.fronts.method",
        "zipar-adaptive": f"{_HERE}.fronts.method",
        "mulo": f"{_HERE}.multi_scale.method",
        "mulo-islands": f"{_HERE}.multi_scale.method",
        "mulo-raster": f"{_HERE}.multi_scale.method",
        "sjd": f"{_HERE}.windows.method",
        "scd-maximal": f"{_HERE}.windows.method",
        "scd-gumbel": f"{_HERE}.windows.method",
        "sjd-pac": f"{_HERE}.windows.method",
        "jacobi-lookup": f"{_HERE}.windows.method",
        "gsd": f"{_HERE}.windows.method",
        "sjd-sv": f"{_HERE}.windows.method",
        "sjd++": f"{_HERE}.windows.method",
        "pjd": f"{_HERE}.fronts.method",
    },
)
"""All methods: a name, and the module that registers its `MethodSpec`, imported on first use of the name."""


def resolve(
    name: str,
    temperature: float,
    rule: str | None = None,
    settings: Sequence[str] = (),
    preset: str | PresetFile = TUNED,
) -> MethodConfig:
    """Return the configuration of a method at a temperature.

    Args:
        name: A registered method, or "policy:rule" for any tree policy and rule. A pair starts from the settings of
            the method with that pair, or else from the policy's settings in the first method that uses it.
        temperature: The temperature; at 0 the rule of a tree method is replaced by its greedy variant.
        rule: An acceptance rule to use instead of the method's, with its default settings.
        settings: `name=value` settings of the user.
        preset: "tuned", "paper", "eagle-code", or a file that `underpaint tune` wrote.

    Raises:
        ValueError: The method, rule, preset or a setting is unknown, a value has the wrong type or is out of bounds, or
            the rule does not fit the method. The message says what to write instead.
    """
    config: MethodConfig
    policy, colon, pair_rule = name.partition(":")
    if not isinstance(preset, str):
        config = preset.config(name, temperature)
    elif colon:
        from underpaint.runtime.methods.trees.method import of_pair

        config = of_pair(policy, pair_rule, temperature, [spec.preset(preset) for spec in METHODS])
    else:
        config = METHODS[name].preset(preset).at(temperature)
    if rule is not None:
        config = config.with_rule(rule, temperature)
    if settings:
        config = config.with_settings(name, settings)
    check_bounds(f"method '{name}'", config)
    return config


def build_method(name: str, config: MethodConfig, tables: ModelTables) -> DecodingMethod:
    """Build the method of a configuration with the model's tables; raise ValueError if a setting is out of range."""
    return config.build(name, tables)
