"""What every family of methods offers: a configuration that takes settings, and builds something that draws."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, Self, TypeAlias, cast

from underpaint.algos.accept import RULES
from underpaint.algos.protocols import Rule
from underpaint.algos.registry import build
from underpaint.algos.rows import SamplingParams
from underpaint.runtime.conditions import Condition
from underpaint.runtime.methods.method import DecodingMethod, DecodingSession, ModelTables, PipelineModels
from underpaint.runtime.methods.settings import Shown, read_setting, settings_of, split_settings

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Family: TypeAlias = Literal["tree", "grid", "jacobi"]
"""How an image is decoded: token by token along draft trees, as cells of a grid in any order, or in windows that the
target drafts for itself."""
PresetName: TypeAlias = Literal["tuned", "paper"]
TUNED: Final = "tuned"
"""The best settings measured on the shipped models: the default."""
PAPER: Final = "paper"
"""The settings that the method's paper or its authors' code give, as far as they are published."""
PRESETS: Final[tuple[PresetName, ...]] = (TUNED, PAPER)
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
    def to_dict(self) -> dict[str, Any]:
        """The configuration as JSON holds it, every setting spelled out."""

    @abstractmethod
    def with_rule(self, rule: str, temperature: float) -> MethodConfig:
        """It under another acceptance rule with default settings; ValueError where it takes none such."""

    @abstractmethod
    def with_settings(self, method: str, settings: Sequence[str]) -> MethodConfig:
        """It with a user's `name=value` settings; ValueError, naming `method`, on an unknown or unreadable one."""

    def target_sampling(self, asked: SamplingParams) -> SamplingParams:
        """How the target's distributions are made, where the user asked for `asked`.

        As asked, unless a family says otherwise: at temperature 0 the distributions are one-hot.
        """
        return asked

    @abstractmethod
    def build(self, method: str, tables: ModelTables) -> DecodingMethod:
        """The method `method`, ready to draw; ValueError where a setting is out of its range."""


class LoopConfig(MethodConfig):
    """A loop whose settings are the fields of a dataclass, and which accepts by itself: row fronts, MuLo-SD."""

    __slots__ = ()

    loop: ClassVar[str]
    """Its name in records."""
    fixed: ClassVar[tuple[str, ...]] = ()
    """Fields that no user sets."""

    def to_dict(self) -> dict[str, Any]:
        return {"loop": self.loop, "settings": asdict(cast("DataclassInstance", self))}

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

    def preset(self, name: str) -> Preset:
        """The preset of a name; ValueError for a name that is none."""
        if name not in PRESETS:
            raise ValueError(f"preset: expected one of {', '.join(PRESETS)}, got {name!r}")
        return self.paper if name == PAPER else self.tuned


def no_settings() -> Mapping[str, Shown]:
    """Every setting at its default."""
    return MappingProxyType({})


def build_rule(name: str, settings: Mapping[str, Shown], tables: ModelTables) -> Rule:
    """The acceptance rule `name` with its settings, and with what it asks for of the model's tables.

    Raises ValueError on a setting out of its range, and where it pools near codes of a model that has no codebook.
    """
    spec = RULES[name]
    asked = settings_of(spec.make)
    if not tables.codebook.shape[1] and {"neighbours", "codebook"} & asked.keys():
        raise ValueError(
            f"rule '{spec.name}': expected the model's codebook, which says which codes are near each other, got none; "
            "use a rule that pools no codes, such as chain or typical"
        )
    supplied = {key: value for key, value in tables._asdict().items() if key in asked}
    return build(spec.make, {**settings, **supplied}, f"rule '{spec.name}'")


def scaled_to(vocab_size: int, codes: int) -> int:
    """How many of `vocab_size` codes stand for `codes` of `PUBLISHED_CODES`: the same share, at least one.

    A count of near codes only means something beside the size of the codebook: 1,000 of 16,384 codes are 6 %, and
    1,000 of 1,024 are nearly all.
    """
    return max(1, round(codes * vocab_size / PUBLISHED_CODES))
