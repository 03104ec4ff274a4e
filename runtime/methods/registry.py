"""Methods: what a user asks for by one name, of every family. Plug-ins add theirs to `METHODS`."""

from collections.abc import Sequence
from typing import Final

from underpaint.algos.accept import RULES
from underpaint.algos.accept.spec import at_temperature
from underpaint.algos.bounds import check_bounds
from underpaint.algos.draft import POLICIES
from underpaint.algos.registry import Registry
from underpaint.runtime.methods.grid_methods import GRID_METHODS
from underpaint.runtime.methods.jacobi_methods import JACOBI_METHODS
from underpaint.runtime.methods.method import DecodingMethod, ModelTables
from underpaint.runtime.methods.method_config import TUNED, MethodConfig, MethodSpec
from underpaint.runtime.methods.tree_config import TreeConfig
from underpaint.runtime.methods.tree_methods import TREE_METHODS

METHODS: Final[Registry[MethodSpec]] = Registry("method", "underpaint.methods")
for _spec in (*TREE_METHODS, *GRID_METHODS, *JACOBI_METHODS):
    METHODS.register(_spec)


def resolve(
    name: str, temperature: float, rule: str | None = None, settings: Sequence[str] = (), preset: str = TUNED
) -> MethodConfig:
    """The configuration of method `name` at a temperature, with a user's own rule and `name=value` settings.

    `name` is a registered method, or "policy:rule" for any tree policy and rule: it starts from the settings of the
    method of that pair, or else from those that the policy has in the first method that uses it. preset: "tuned" or
    "paper". A rule of one's own starts from its default settings; at temperature 0 its greedy variant replaces it.
    Raises ValueError, saying what to write instead: an unknown method, rule, preset or setting, a value of the wrong
    type or beyond its bounds, or a rule that does not fit the method.
    """
    config = _asked(name, temperature, preset)
    if rule is not None:
        config = config.with_rule(rule, temperature)
    config = config.with_settings(name, settings)
    check_bounds(f"method '{name}'", config)
    return config


def _asked(name: str, temperature: float, preset: str) -> MethodConfig:
    """The configuration of a method by name, or of "policy:rule"."""
    policy, colon, rule = name.partition(":")
    if not colon:
        return METHODS[name].preset(preset).at(temperature)
    pair = POLICIES[policy].name, RULES[rule].name
    settled = at_temperature(RULES[rule], temperature)
    found = TreeConfig(pair[0], settled.name)
    found.check()
    tuned = [spec.preset(preset) for spec in METHODS if isinstance(spec.tuned.sampled, TreeConfig)]
    for one in tuned:
        for config in (one.sampled, one.greedy):
            if isinstance(config, TreeConfig) and (config.policy, config.rule) == pair:
                return one.at(temperature)
    for one in tuned:
        config = one.at(temperature)
        if isinstance(config, TreeConfig) and config.policy == pair[0]:
            return TreeConfig(pair[0], settled.name, config.policy_settings)
    return found


def build_method(name: str, config: MethodConfig, tables: ModelTables) -> DecodingMethod:
    """A configuration ready to draw, under a name; `tables` for the rules that pool over the codebook.

    Raises ValueError where a setting is out of its range.
    """
    return config.build(name, tables)
