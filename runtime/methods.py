"""Methods: what a user asks for by one name. A tree policy and an acceptance rule, with settings, per temperature."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from algos.accept import RULES, Rule, RuleSpec
from algos.arrays import FloatArray, IntArray
from algos.chance import Chance
from algos.draft import POLICIES, Budget, Expander, Grid, Policy
from algos.fit import check_fits
from algos.registry import Registry, build, suggest
from algos.rows import Sampler
from algos.tree import DraftTree, Verdict, root_only
from runtime.settings import Shown, read_setting, settings_by_default, settings_of, split_setting

NO_POLICY: Final = "none"
"""The policy of plain autoregression: nothing is drafted."""


def _nothing() -> Mapping[str, Shown]:
    return MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Recipe:
    """A tree policy and an acceptance rule by name, with the settings that differ from their defaults."""

    policy: str
    rule: str
    policy_settings: Mapping[str, Shown] = field(default_factory=_nothing)
    rule_settings: Mapping[str, Shown] = field(default_factory=_nothing)

    def as_plain(self) -> dict[str, Any]:
        """The recipe as JSON holds it, every setting spelled out."""
        policy = settings_by_default(POLICIES[self.policy].make, FROM_ENGINE) if self.policy != NO_POLICY else {}
        rule = settings_by_default(RULES[self.rule].make, FROM_ENGINE)
        return {
            "policy": self.policy,
            "policy_settings": {**policy, **self.policy_settings},
            "rule": self.rule,
            "rule_settings": {**rule, **self.rule_settings},
        }


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


@dataclass(frozen=True, slots=True)
class NoDraft:
    """Proposes nothing: one token per target pass."""

    def begin(self, grid: Grid) -> None:
        """See `Policy`."""

    def grow(self, drafter: Expander, root: int, budget: Budget, chance: Chance) -> DraftTree:
        """See `Policy`."""
        return root_only(root, drafter.vocab_size)

    def observe(self, tree: DraftTree, verdict: Verdict, cell: int) -> None:
        """See `Policy`."""


class Codes(NamedTuple):
    """What rules and policies may ask of a model's codebook: settings of these names never come from a user."""

    neighbours: IntArray
    """[V, k] the nearest codes of each code, see `algos.accept.neighbours`."""
    codebook: FloatArray
    """[V, E]."""


FROM_ENGINE: Final = Codes._fields


class Built(NamedTuple):
    """A method ready to decode. `drafts` is False for plain autoregression, which needs no drafter."""

    name: str
    recipe: Recipe
    policy: Policy
    rule: Rule
    lossless: bool
    drafts: bool


def rule_sampler(recipe: Recipe, sampler: Sampler) -> Sampler:
    """The sampler that a recipe's laws are made with.

    A greedy rule takes the argmax of the laws at temperature 1, so a drafter's laws keep their shape there; top-k
    and top-p do not move an argmax and are left out.
    """
    if RULES[recipe.rule].greedy:
        return Sampler(guidance=sampler.guidance)
    return sampler


def resolve(name: str, temperature: float, rule: str | None = None, settings: Sequence[str] = ()) -> Recipe:
    """The recipe of method `name` at a temperature, with a user's own rule and `name=value` settings.

    `name` is a registered method, or "policy:rule" for any policy and rule. A rule of one's own starts from its
    default settings; at temperature 0 it is replaced by its greedy twin.
    Raises ValueError, saying what to write instead: an unknown method, rule or setting, a value of the wrong type, or
    a rule that does not cover the policy's trees.
    """
    recipe = _asked(name, temperature)
    if rule is not None:
        recipe = dataclasses.replace(recipe, rule=_twin(RULES[rule], temperature).name, rule_settings=_nothing())
    recipe = _with_settings(name, recipe, settings)
    if recipe.policy != NO_POLICY:
        check_fits(RULES[recipe.rule], POLICIES[recipe.policy])
    return recipe


def _asked(name: str, temperature: float) -> Recipe:
    """The recipe of a method by name, or of "policy:rule", which is a method of its own with default settings."""
    policy, colon, rule = name.partition(":")
    if not colon:
        return METHODS[name].at(temperature)
    return Recipe(POLICIES[policy].name, _twin(RULES[rule], temperature).name)


def build_method(name: str, recipe: Recipe, codes: Codes) -> Built:
    """The policy and the rule of a recipe; `codes` for the rules that pool over the codebook.

    Raises ValueError where a setting is out of its range.
    """
    spec = RULES[recipe.rule]
    asked = {field.name for field in dataclasses.fields(spec.make)}  # type: ignore[arg-type]
    supplied = {key: value for key, value in codes._asdict().items() if key in asked}
    rule = build(spec.make, {**recipe.rule_settings, **supplied}, f"rule '{spec.name}'")
    lossless = spec.promise == "lossless" or _is_neutral(spec, recipe)
    if recipe.policy == NO_POLICY:
        return Built(name, recipe, NoDraft(), rule, lossless, drafts=False)
    what = f"policy '{recipe.policy}'"
    policy = build(POLICIES[recipe.policy].make, dict(recipe.policy_settings), what)
    return Built(name, recipe, policy, rule, lossless, drafts=True)


def _is_neutral(spec: RuleSpec, recipe: Recipe) -> bool:
    return bool(spec.neutral) and all(recipe.rule_settings.get(key) == value for key, value in spec.neutral.items())


def _twin(spec: RuleSpec, temperature: float) -> RuleSpec:
    """The rule that decides as `spec` does at this temperature."""
    if temperature > 0:
        if spec.greedy:
            raise ValueError(
                f"rule '{spec.name}' decides by the likeliest token, which is temperature 0; pass --temperature 0 or a "
                f"rule for sampling: {', '.join(rule.name for rule in RULES if not rule.greedy)}"
            )
        return spec
    if spec.greedy:
        return spec
    twin = "greedy" if spec.promise == "lossless" else f"{spec.name}_greedy"
    if twin not in RULES:
        raise ValueError(
            f"rule '{spec.name}' has no form at temperature 0; choose one of "
            f"{', '.join(rule.name for rule in RULES if rule.greedy)}"
        )
    return RULES[twin]


def _with_settings(name: str, recipe: Recipe, settings: Sequence[str]) -> Recipe:
    """The recipe with `name=value` settings; `policy.` or `rule.` before a name tells two of one name apart."""
    known = {
        "policy": settings_of(POLICIES[recipe.policy].make) if recipe.policy != NO_POLICY else {},
        "rule": settings_of(RULES[recipe.rule].make, FROM_ENGINE),
    }
    found: dict[str, dict[str, Shown]] = {
        "policy": dict(recipe.policy_settings),
        "rule": dict(recipe.rule_settings),
    }
    for setting in settings:
        key, value = split_setting(setting)
        part, dot, bare = key.partition(".")
        owners = [part] if dot and part in known else [owner for owner in known if key in known[owner]]
        if len(owners) > 1:
            raise ValueError(f"setting '{key}' is both the policy's and the rule's; write policy.{key} or rule.{key}")
        if not owners:
            every = [*known["policy"], *known["rule"]]
            hint = suggest(key, every) if every else "it takes none"
            raise ValueError(f"method '{name}': unknown setting '{key}'; {hint}")
        owner = owners[0]
        chosen = bare if dot and part in known else key
        found[owner][chosen] = read_setting(f"{owner} of '{name}'", chosen, value, known[owner])
    return dataclasses.replace(recipe, policy_settings=found["policy"], rule_settings=found["rule"])


METHODS: Registry[Method] = Registry("method")

_TREE: Final[Mapping[str, Shown]] = {"depth": 4, "top_k": 2, "total_tokens": 6}
_CONTROL: Final[Mapping[str, Shown]] = {"depth": 3, "top_k": 2, "total_tokens": 6}
_ADAPTIVE: Final[Mapping[str, Shown]] = {
    "start_depth": 4,
    "max_depth": 8,
    "start_width": 2,
    "max_width": 3,
    "total_tokens": 6,
}
_STATIC: Final[Mapping[str, Shown]] = {"widths": (2, 2, 1, 1)}
_CHAIN: Final[Mapping[str, Shown]] = {"length": 3}
_POOLED: Final[Mapping[str, Shown]] = {"k": 0, "delta": 0.3, "residual": "optimal"}
_POOLED_GREEDY: Final[Mapping[str, Shown]] = {"k": 0, "delta": 0.3}
_RELATIVE: Final[Mapping[str, Shown]] = {"k": 10, "factor": 5.0, "residual": "optimal"}
_RELATIVE_GREEDY: Final[Mapping[str, Shown]] = {"k": 10, "factor": 5.0}

for _method in (
    Method(
        "ar",
        "plain autoregression: one target pass per token, the baseline",
        Recipe(NO_POLICY, "point"),
        Recipe(NO_POLICY, "greedy"),
    ),
    Method(
        "speculative",
        "speculative sampling on a chain",
        Recipe("chain", "chain", _CHAIN),
        Recipe("chain_top1", "greedy", _CHAIN),
    ),
    Method(
        "block",
        "block verification of a chain",
        Recipe("chain", "block", _CHAIN),
        Recipe("chain_top1", "greedy", _CHAIN),
    ),
    Method(
        "eagle1",
        "EAGLE-1: a static tree, siblings drawn without replacement",
        Recipe("eagle1", "without_replacement", _STATIC),
        Recipe("static_top_k", "greedy", _STATIC),
    ),
    Method(
        "eagle2",
        "EAGLE-2: a dynamic tree of the likeliest tokens",
        Recipe("eagle2", "point", _TREE),
        Recipe("eagle2", "greedy", _TREE),
    ),
    Method(
        "eagle2-static",
        "the control for ADT-Tree: EAGLE-2 at ADT-Tree's mean depth, never adapted",
        Recipe("eagle2", "point", _CONTROL),
        Recipe("eagle2", "greedy", _CONTROL),
    ),
    Method(
        "adt",
        "ADT-Tree: EAGLE-2 whose depth and width follow the acceptance so far",
        Recipe("adt", "point", _ADAPTIVE),
        Recipe("adt", "greedy", _ADAPTIVE),
    ),
    Method(
        "lantern",
        "LANTERN: EAGLE-2's tree, near codes pooled up to a bound",
        Recipe("eagle2", "lantern", _TREE, _POOLED),
        Recipe("eagle2", "lantern_greedy", _TREE, _POOLED_GREEDY),
    ),
    Method(
        "lantern++",
        "LANTERN++: EAGLE-1's static tree, near codes pooled in proportion to p",
        Recipe("eagle1", "lantern_pp", _STATIC, _RELATIVE),
        Recipe("static_top_k", "lantern_pp_greedy", _STATIC, _RELATIVE_GREEDY),
    ),
    Method(
        "adt+lantern",
        "ADT-Tree's tree with LANTERN's acceptance",
        Recipe("adt", "lantern", _ADAPTIVE, _POOLED),
        Recipe("adt", "lantern_greedy", _ADAPTIVE, _POOLED_GREEDY),
    ),
    Method(
        "roofline",
        "trees that maximise the expected tokens per millisecond on the engine's cost curve",
        Recipe("roofline", "point"),
        Recipe("roofline", "greedy"),
    ),
    Method(
        "roofline+lantern",
        "roofline's trees with LANTERN's acceptance",
        Recipe("roofline", "lantern", {}, _POOLED),
        Recipe("roofline", "lantern_greedy", {}, _POOLED_GREEDY),
    ),
):
    METHODS.register(_method)
