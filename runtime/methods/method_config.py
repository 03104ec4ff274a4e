"""What every family of methods offers: a recipe that takes settings, and builds something that draws."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, TypeVar

from underpaint.algos.rows import SamplingParams
from underpaint.runtime.codes import Codes
from underpaint.runtime.methods.settings import Shown, read_setting, settings_of, split_setting
from underpaint.runtime.studio import Built

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Family: TypeAlias = Literal["tree", "grid"]
"""How an image is decoded: token by token along draft trees, or as cells of a grid in any order."""


class Recipe(Protocol):
    """Names of parts and the settings that differ from their defaults; a value."""

    @property
    def family(self) -> Family:
        """The decoding loops that it belongs to."""
        ...

    @property
    def draws_by(self) -> str:
        """Its parts, in words."""
        ...

    def to_dict(self) -> dict[str, Any]:
        """The recipe as JSON holds it, every setting spelled out."""
        ...

    def with_rule(self, rule: str, temperature: float) -> Recipe:
        """The recipe under another acceptance rule with default settings; ValueError where it takes none such."""
        ...

    def with_settings(self, method: str, settings: Sequence[str]) -> Recipe:
        """The recipe with a user's `name=value` settings; ValueError, naming `method`, on an unknown or unreadable."""
        ...

    def target_sampler(self, asked: SamplingParams) -> SamplingParams:
        """The sampler that the target's distributions are made with, where the user asked for `asked`."""
        ...

    def build(self, method: str, codes: Codes) -> Built:
        """The method `method`, ready to draw; ValueError where a setting is out of its range."""
        ...


@dataclass(frozen=True, slots=True)
class Method:
    """A method: its recipe above temperature 0, and at 0."""

    name: str
    summary: str
    sampled: Recipe
    greedy: Recipe

    def at(self, temperature: float) -> Recipe:
        """The recipe for a temperature."""
        return self.greedy if temperature == 0 else self.sampled


def no_settings() -> Mapping[str, Shown]:
    """Every setting at its default."""
    return MappingProxyType({})


Settings = TypeVar("Settings", bound="DataclassInstance")


def with_fields(recipe: Settings, method: str, settings: Sequence[str], fixed: Sequence[str] = ()) -> Settings:
    """A recipe whose fields are its settings, with some of them read from `name=value` texts.

    fixed: fields that no user sets. ValueError, naming `method`, on an unknown or unreadable setting.
    """
    known = settings_of(type(recipe), fixed)
    pairs = [split_setting(text) for text in settings]
    values = {name: read_setting(f"method '{method}'", name, value, known) for name, value in pairs}
    return replace(recipe, **values)
