"""Methods: what a user asks for by one name, of every family."""

from collections.abc import Sequence
from typing import Final

from underpaint.algos.accept import RULES
from underpaint.algos.accept.spec import at_temperature
from underpaint.algos.draft import POLICIES
from underpaint.algos.registry import Registry
from underpaint.runtime.codes import Codes
from underpaint.runtime.methods.grid_methods import GRID_METHODS
from underpaint.runtime.methods.method_config import Method, Recipe
from underpaint.runtime.methods.tree_config import TreeRecipe
from underpaint.runtime.methods.tree_methods import TREE_METHODS
from underpaint.runtime.studio import Built

METHODS: Final[Registry[Method]] = Registry("method", "underpaint.methods")
for _method in (*TREE_METHODS, *GRID_METHODS):
    METHODS.register(_method)


def resolve(name: str, temperature: float, rule: str | None = None, settings: Sequence[str] = ()) -> Recipe:
    """The recipe of method `name` at a temperature, with a user's own rule and `name=value` settings.

    `name` is a registered method, or "policy:rule" for any tree policy and rule. A rule of one's own starts from its
    default settings; at temperature 0 it is replaced by its greedy variant.
    Raises ValueError, saying what to write instead: an unknown method, rule or setting, a value of the wrong type, or
    a rule that does not fit the method.
    """
    recipe = _asked(name, temperature)
    if rule is not None:
        recipe = recipe.with_rule(rule, temperature)
    return recipe.with_settings(name, settings)


def _asked(name: str, temperature: float) -> Recipe:
    """The recipe of a method by name, or of "policy:rule", which is a method of its own with default settings."""
    policy, colon, rule = name.partition(":")
    if not colon:
        return METHODS[name].at(temperature)
    found = TreeRecipe(POLICIES[policy].name, at_temperature(RULES[rule], temperature).name)
    found.check()
    return found


def build_method(name: str, recipe: Recipe, codes: Codes) -> Built:
    """A recipe ready to draw, under a name; `codes` for the rules that pool over the codebook.

    Raises ValueError where a setting is out of its range.
    """
    return recipe.build(name, codes)
