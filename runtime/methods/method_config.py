"""What every family of methods offers: a configuration that takes settings, and builds something that draws."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeAlias, TypeVar

from underpaint.algos.accept import RULES
from underpaint.algos.protocols import Rule
from underpaint.algos.registry import build
from underpaint.algos.rows import SamplingParams
from underpaint.runtime.methods.method import DecodingMethod, ModelTables
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


class MethodConfig(Protocol):
    """Names of parts and the settings that differ from their defaults; a value."""

    @property
    def family(self) -> Family:
        """The decoding loops that it belongs to."""
        ...

    @property
    def draws_by(self) -> str:
        """Its parts, in words."""
        ...

    @property
    def acceptance(self) -> tuple[str, Mapping[str, Shown]] | None:
        """The acceptance rule with the settings given to it; None where the loop accepts by itself."""
        ...

    @property
    def needs_costs(self) -> bool:
        """Whether it chooses by what passes cost on the engine, and was not told."""
        ...

    def to_dict(self) -> dict[str, Any]:
        """The configuration as JSON holds it, every setting spelled out."""
        ...

    def with_rule(self, rule: str, temperature: float) -> MethodConfig:
        """It under another acceptance rule with default settings; ValueError where it takes none such."""
        ...

    def with_settings(self, method: str, settings: Sequence[str]) -> MethodConfig:
        """It with a user's `name=value` settings; ValueError, naming `method`, on an unknown or unreadable one."""
        ...

    def target_sampling(self, asked: SamplingParams) -> SamplingParams:
        """How the target's distributions are made, where the user asked for `asked`."""
        ...

    def build(self, method: str, tables: ModelTables) -> DecodingMethod:
        """The method `method`, ready to draw; ValueError where a setting is out of its range."""
        ...


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

    Raises ValueError on a setting out of its range.
    """
    spec = RULES[name]
    asked = settings_of(spec.make)
    supplied = {key: value for key, value in tables._asdict().items() if key in asked}
    return build(spec.make, {**settings, **supplied}, f"rule '{spec.name}'")


def scaled_to(vocab_size: int, codes: int) -> int:
    """How many of `vocab_size` codes stand for `codes` of `PUBLISHED_CODES`: the same share, at least one.

    A count of near codes only means something beside the size of the codebook: 1,000 of 16,384 codes are 6 %, and
    1,000 of 1,024 are nearly all.
    """
    return max(1, round(codes * vocab_size / PUBLISHED_CODES))


Settings = TypeVar("Settings", bound="DataclassInstance")


def with_fields(config: Settings, method: str, settings: Sequence[str], fixed: Sequence[str] = ()) -> Settings:
    """A configuration whose fields are its settings, with some of them read from `name=value` texts.

    fixed: fields that no user sets. ValueError, naming `method`, on an unknown or unreadable setting.
    """
    known = settings_of(type(config), fixed)
    values = {name: read_setting(f"method '{method}'", name, value, known) for name, value in split_settings(settings)}
    return replace(config, **values)
