"""Jacobi methods of `underpaint simulate sweep`, by name and at the settings to try."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from underpaint.algos.numbers import real_number

if TYPE_CHECKING:
    from underpaint.sim.synthetic.windows import WindowRecipe

PART: Final = "window"
"""The prefix of window settings in --vary."""
TEMPERATURE: Final = "temperature"


def windows_apart(vary: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split the texts of --vary into those about windows and the others."""
    window_texts = [text for text in vary if text.startswith(f"{PART}.")]
    return window_texts, [text for text in vary if text not in window_texts]


def window_recipes(methods: Sequence[str], vary: Sequence[str]) -> tuple[WindowRecipe, ...]:
    """Return each method with its tuned settings, at every combination of the varied settings that it has.

    Args:
        methods: Names of the methods.
        vary: `window.name=value,value`; also `window.temperature=0,1` for every method.

    Raises:
        ValueError: A method is of another family, no method has a setting, or values are unreadable or given twice.
    """
    from underpaint.runtime.methods.registry import resolve
    from underpaint.sim.synthetic.windows import WindowRecipe

    axes, temperatures = _axes(vary)
    if vary and not methods:
        raise ValueError(f"--vary {vary[0]}: expected --windows METHODS as well, got none; add it")
    recipes: list[WindowRecipe] = []
    used: set[str] = set()
    for method in methods:
        plain = WindowRecipe.of(method, resolve(method, 1.0).to_dict())
        spellings = {name: spelling for name in axes if (spelling := _spelled(plain, name)) is not None}
        used |= spellings.keys()
        for values in itertools.product(*(axes[name] for name in spellings)):
            settings = [f"{name}={value}" for name, value in zip(spellings.values(), values, strict=True)]
            recorded = resolve(method, 1.0, settings=settings).to_dict()
            recipes += [WindowRecipe.of(method, recorded, temperature) for temperature in temperatures]
    for name in axes.keys() - used:
        raise ValueError(f"--vary {PART}.{name}: none of {', '.join(methods)} has this setting")
    if len(set(recipes)) < len(recipes):
        raise ValueError(f"--vary {PART}: expected each value once, got two spellings of one value; leave one out")
    return tuple(recipes)


def _axes(vary: Sequence[str]) -> tuple[dict[str, list[str]], list[float]]:
    """Return the values of each setting, and the temperatures."""
    axes: dict[str, list[str]] = {}
    for text in vary:
        key, equals, values = text.partition("=")
        name, texts = key.removeprefix(f"{PART}."), [value.strip() for value in values.split(",") if value.strip()]
        if not equals or not texts or name in axes or len(set(texts)) != len(texts):
            raise ValueError(f"--vary {text}: expected {PART}.setting=value,value, each setting and value once")
        axes[name] = texts
    try:
        return axes, [real_number(text) for text in axes.pop(TEMPERATURE, ["1"])]
    except ValueError as error:
        raise ValueError(f"--vary {PART}.{TEMPERATURE}: expected 0, 1 or both") from error


def _spelled(recipe: WindowRecipe, name: str) -> str | None:
    """Return a setting's full name in the method, preferring the window's to the rule's; None if it has none."""
    part, dot, bare = name.partition(".")
    if dot:
        owner = {PART: recipe.settings, "rule": recipe.rule_settings}.get(part, "{}")
        return name if bare in json.loads(owner) else None
    if name in json.loads(recipe.settings):
        return f"{PART}.{name}" if recipe.rule else name
    return name if name in json.loads(recipe.rule_settings) or (name == "rule" and recipe.rule) else None
