"""Methods by name: configurations that take settings, and build something that draws. Plug-ins add to `METHODS`."""

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
from underpaint.runtime.methods.settings import Shown, read_setting, settings_of, settings_to_tune, split_settings

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from underpaint.runtime.methods.preset_file import PresetFile
    from underpaint.runtime.models import OpenModels

Family: TypeAlias = Literal["tree", "grid", "jacobi"]
"""How an image is decoded: token by token along draft trees, as cells of a grid in any order, or in windows that the
target drafts for itself."""
PresetName: TypeAlias = Literal["tuned", "paper"]
TUNED: Final = "tuned"
"""The best settings measured on the shipped models: the default."""
PAPER: Final = "paper"
"""The settings that the method's paper or its authors' code give, as far as they are published."""
PRESETS: Final[tuple[PresetName, ...]] = (TUNED, PAPER)
EAGLE_CODE: Final = "eagle-code"
"""The papers' settings, with EAGLE-2's tree as EAGLE's released code grows it. `PRESETS` are those of every method."""
PUBLISHED_CODES: Final = 16384
"""Codes of the models that the papers' settings were chosen on (LlamaGen, arXiv 2406.06525)."""

MOST_PUBLISHED_K: Final = 1000
"""The most near codes of those models that a paper's settings pool (LANTERN, arXiv 2410.03355)."""


class MethodConfig(ABC):
    """The settings of a method: names of parts, and settings that differ from their defaults; a value.

    family: the decoding loops that it belongs to.
    """

    __slots__ = ()

    family: ClassVar[Family]

    @property
    def device(self) -> str | None:
        """ "module:function" of the method's form on the device, imported when it is asked for; None: it has none.

        See `runtime.device.forms.form_of`.
        """
        return None

    @property
    @abstractmethod
    def draws_by(self) -> str:
        """Its parts, in words."""

    @property
    def acceptance(self) -> tuple[str, Mapping[str, Shown]] | None:
        """The acceptance rule with the settings given to it; None where the loop accepts by itself."""
        return None

    @property
    def needs_costs(self) -> bool:
        """Whether it chooses by what passes cost on the engine, and was not told."""
        return False

    @property
    def device_gap(self) -> str | None:
        """What of these settings has no form on the device, and what to set instead; None where all have one."""
        return None

    @property
    def runs_on_device(self) -> bool:
        """Whether it can be drawn on the device."""
        return self.device is not None and self.device_gap is None

    @abstractmethod
    def to_tune(self) -> dict[str, list[str]]:
        """By setting, as a user types it, the other values that `underpaint tune` tries."""

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """The configuration as JSON holds it, every setting spelled out."""

    @abstractmethod
    def with_rule(self, rule: str, temperature: float) -> MethodConfig:
        """It under another acceptance rule with default settings; ValueError where it takes none such."""

    @abstractmethod
    def with_settings(self, method: str, settings: Sequence[str]) -> MethodConfig:
        """It with a user's `name=value` settings; ValueError, naming `method`, on an unknown or unreadable one."""

    def target_sampling(self, sampling: SamplingParams) -> SamplingParams:
        """How the target's distributions are made, where the user asked for `sampling`.

        As asked, unless a family says otherwise: at temperature 0 the distributions are one-hot.
        """
        return sampling

    @abstractmethod
    def build(self, method: str, tables: ModelTables) -> DecodingMethod:
        """The method `method`, ready to draw; ValueError where a setting is out of its range."""


class LoopConfig(MethodConfig):
    """A loop whose settings are the fields of a dataclass, and which accepts by itself: row fronts, MuLo-SD."""

    __slots__ = ()

    loop: ClassVar[str]
    """Its name in records."""
    accepts_by: ClassVar[str]
    """How it accepts, for the message where a user asks for a rule: "row fronts draft nothing, so no rule applies"."""
    fixed: ClassVar[tuple[str, ...]] = ()
    """Fields that no user sets."""

    def to_dict(self) -> dict[str, Any]:
        return {"loop": self.loop, "settings": asdict(cast("DataclassInstance", self))}

    def to_tune(self) -> dict[str, list[str]]:
        grid = settings_to_tune(type(self), asdict(cast("DataclassInstance", self)))
        return {name: values for name, values in grid.items() if name not in self.fixed}

    def with_rule(self, rule: str, temperature: float) -> MethodConfig:
        """See `MethodConfig`; a loop takes no rule, unless its class says how."""
        raise ValueError(f"--rule {rule}: {self.accepts_by}; leave it out")

    def with_settings(self, method: str, settings: Sequence[str]) -> Self:
        known = settings_of(type(self), self.fixed)
        texts = split_settings(settings)
        values = {name: read_setting(f"method '{method}'", name, value, known) for name, value in texts}
        return cast(Self, replace(cast("DataclassInstance", self), **values))


@dataclass(frozen=True, slots=True)
class LoopMethod(DecodingMethod):
    """A loop ready to draw. opener: `open`, by the loop's settings."""

    config: LoopConfig
    opener: Callable[[PipelineModels, Condition, SamplingParams], DecodingSession]

    def open(self, models: PipelineModels, condition: Condition, sampling: SamplingParams) -> DecodingSession:
        return self.opener(models, condition, sampling)


@dataclass(frozen=True, slots=True)
class Preset:
    """A method's settings above temperature 0, and at 0.

    sources: where each setting is from, by its name: a measured result, a paper, its code, or "our guess: ...".
    """

    sampled: MethodConfig
    greedy: MethodConfig
    sources: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    def at(self, temperature: float) -> MethodConfig:
        """The configuration for a temperature."""
        return self.greedy if temperature == 0 else self.sampled


@dataclass(frozen=True, slots=True)
class MethodSpec:
    """A method as it is registered: what it is, and its settings by preset.

    Plug-ins register one with `underpaint.runtime.methods.registry.METHODS`.
    """

    name: str
    summary: str
    tuned: Preset
    paper: Preset
    eagle_code: Preset | None = None

    def preset(self, name: str) -> Preset:
        """The preset of a name; ValueError for a name that is none."""
        if name == EAGLE_CODE:
            return self.eagle_code or self.paper
        if name not in PRESETS:
            raise ValueError(f"preset: expected one of {', '.join(PRESETS)} or {EAGLE_CODE}, got {name!r}")
        return self.paper if name == PAPER else self.tuned


def usual_preset(models: OpenModels) -> PresetName:
    """The settings that methods start from: the papers' for live and published models, else the tuned ones.

    Settings were tuned on the models that ship.
    """
    own = models.folder_models()
    return PAPER if own is None or own.index.family in PUBLISHED_FAMILIES else TUNED


def no_settings() -> Mapping[str, Shown]:
    """Every setting at its default."""
    return MappingProxyType({})


def build_rule(name: str, settings: Mapping[str, Shown], tables: ModelTables) -> Rule:
    """The acceptance rule `name` with its settings, and with what it asks for of the model's tables.

    Raises ValueError on a setting out of its range, and where it pools near codes of a model that has no codebook.
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
    """How many of `vocab_size` codes stand for `codes` of `PUBLISHED_CODES`: the same share, at least one.

    A count of near codes only means something beside the size of the codebook: 1,000 of 16,384 codes are 6 %, and
    1,000 of 1,024 are nearly all.
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
"""A method is one line here, and one module that registers its `MethodSpec`, imported when the name is asked for."""


def resolve(
    name: str,
    temperature: float,
    rule: str | None = None,
    settings: Sequence[str] = (),
    preset: str | PresetFile = TUNED,
) -> MethodConfig:
    """The configuration of method `name` at a temperature, with a user's own rule and `name=value` settings.

    `name` is a registered method, or "policy:rule" for any tree policy and rule: it starts from the settings of the
    method of that pair, or else from those that the policy has in the first method that uses it. preset: "tuned",
    "paper", "eagle-code", or a file that `underpaint tune` wrote. A rule of one's own starts from its default settings;
    at temperature 0 its greedy variant replaces it. Raises ValueError, saying what to write instead: an unknown method,
    rule, preset or setting, a value of the wrong type or beyond its bounds, or a rule that does not fit the method.
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
    """A configuration ready to draw, under a name; `tables` for the rules that pool over the codebook.

    Raises ValueError where a setting is out of its range.
    """
    return config.build(name, tables)
