"""Methods: what a user asks for by one name, of every family. Plug-ins add theirs to `METHODS`."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from underpaint.algos.bounds import check_bounds
from underpaint.algos.registry import Registry
from underpaint.runtime.methods.method import DecodingMethod, ModelTables
from underpaint.runtime.methods.method_config import TUNED, MethodConfig, MethodSpec

if TYPE_CHECKING:
    from underpaint.runtime.methods.preset_file import PresetFile

_TREES: Final = (
    *("ar", "speculative", "block", "eagle1", "traversal", "sequoia", "eagle2", "opt-tree"),
    *("adt-control-chain", "adt-control-tree", "adt", "lantern", "lantern++", "adt+lantern", "adt+lantern++"),
    *("vvs", "roofline", "roofline+lantern"),
)
_HERE: Final = "underpaint.runtime.methods"
METHODS: Final[Registry[MethodSpec]] = Registry(
    "method",
    "underpaint.methods",
    {
        **dict.fromkeys(_TREES, f"{_HERE}.trees.presets"),
        "zipar": f"{_HERE}.fronts.zipar",
        "zipar-adaptive": f"{_HERE}.fronts.zipar",
        "mulo": f"{_HERE}.multi_scale.presets",
        "mulo-islands": f"{_HERE}.multi_scale.presets",
        "mulo-raster": f"{_HERE}.multi_scale.presets",
        "sjd": f"{_HERE}.windows.presets",
        "scd-maximal": f"{_HERE}.windows.presets",
        "scd-gumbel": f"{_HERE}.windows.presets",
        "sjd-pac": f"{_HERE}.windows.presets",
        "jacobi-lookup": f"{_HERE}.windows.presets",
        "gsd": f"{_HERE}.windows.presets",
        "pjd": f"{_HERE}.fronts.jacobi_fronts",
    },
)
"""A method is one line here, and one module that registers its `MethodSpec`, imported when the name is asked for."""


def resolve(
    name: str,
    temperature: float,
    rule: str | None = None,
    settings: Sequence[str] = (),
    preset: "str | PresetFile" = TUNED,
) -> MethodConfig:
    """The configuration of method `name` at a temperature, with a user's own rule and `name=value` settings.

    `name` is a registered method, or "policy:rule" for any tree policy and rule: it starts from the settings of the
    method of that pair, or else from those that the policy has in the first method that uses it. preset: "tuned",
    "paper", or a file that `underpaint tune` wrote. A rule of one's own starts from its default settings; at
    temperature 0 its greedy variant replaces it. Raises ValueError, saying what to write instead: an unknown method,
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
    config = config.with_settings(name, settings)
    check_bounds(f"method '{name}'", config)
    return config


def build_method(name: str, config: MethodConfig, tables: ModelTables) -> DecodingMethod:
    """A configuration ready to draw, under a name; `tables` for the rules that pool over the codebook.

    Raises ValueError where a setting is out of its range.
    """
    return config.build(name, tables)
