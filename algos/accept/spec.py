"""An acceptance rule's entry in the registry, and what it promises."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import product
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple, TypeAlias, cast, get_args

import numpy as np

from underpaint.algos.arrays import FloatArray
from underpaint.algos.batched.spec import BatchedRuleOf, no_batched_rule
from underpaint.algos.plugin_guard import check_answers
from underpaint.algos.protocols import Rule
from underpaint.algos.registry import Registry, check_dataclass, check_reference, default_settings
from underpaint.algos.tree import DRAWN, DraftTree, Drawn, Verdict

Residual: TypeAlias = Literal["paper", "released", "standard"]
"""Whose residual a relaxed rule draws from: the paper's, the authors' released code's, or that of plain speculative
sampling, norm([target - draft * accept]_+). "standard" is the least total variation that the acceptance allows for one
proposal, so on chains; with two siblings or more another residual can miss by less."""

Promise: TypeAlias = Literal["lossless", "bounded", "unbounded"]
Settings: TypeAlias = Mapping[str, Any]


class DraftedNode(NamedTuple):
    """A node with drafted children, as a bound sees it.

    target: [V], the target's distribution after the node. draft: [V], the drafter's. drawn: how the children were drawn
    from `draft`. siblings: how many there are. level: nodes above it, the root excluded; depth: levels of the tree.
    """

    target: FloatArray
    draft: FloatArray
    drawn: Drawn
    siblings: int
    level: int = 0
    depth: int = 1


def every_combination(**choices: tuple[Any, ...]) -> tuple[dict[str, Any], ...]:
    """Settings for `RuleSpec.examples`: every combination of the given values."""
    return tuple(dict(zip(choices, values, strict=True)) for values in product(*choices.values()))


def never_lossless(settings: Settings) -> bool:
    """The `lossless_when` of a rule that is lossless by its promise or not at all."""
    return False


@dataclass(frozen=True, slots=True)
class RuleSpec:
    """A rule's entry in the registry.

    make: a frozen dataclass whose fields are the settings and whose instances are the rule.
    promise: "lossless" (the output distribution is the target's), "bounded" (see `bound_at`), or "unbounded".
    drawn: the kinds of tree it covers; `check_covers` raises on the others.
    bound, bound_at: what a bounded rule promises, in words and as a number. (all settings, node) -> the most total
        variation between the next token's distribution and the target's, the drawing of the siblings included; of a
        greedy rule, the most by which the probability of a kept token may fall short of the likeliest one's.
    lossless_when: all settings -> whether a relaxed rule is lossless there; ask `is_lossless`.
    examples: settings that the property tests try, of any strength, the residual aside; where the rule can be
        lossless, one example is. None may lie where rounding decides.
    residuals: the residuals that the setting `residual` takes, each with the kinds of tree it is defined for.
    greedy: it reads the distributions at temperature 1 and decides by their argmax; for decoding at temperature 0.
    greedy_variant: the name of the greedy rule that stands for this one at temperature 0; see `at_temperature`.
    codebook: it takes `neighbours` [V, k], the nearest codes of each code.
    embeddings: it takes `codebook` [V, E], the codes themselves.
    needs_chain: it covers trees in which no node has two children.
    looks_ahead: whether a token stays depends on the tokens drafted behind it, on chains too.
    batched: its form over many trees at once; a test holds the two together.
    device: its form on the GPU, which takes the same uniforms: "module:name" or "path/of/file.py:name" of a function
        (rule, Shape, torch device) -> Decide, loaded on first use (see `runtime.device.rules`). None where it has none.
    """

    name: str
    make: Callable[..., Rule]
    promise: Promise
    drawn: frozenset[Drawn]
    source: str
    bound: str = ""
    bound_at: Callable[[Settings, DraftedNode], float] | None = None
    lossless_when: Callable[[Settings], bool] = never_lossless
    examples: tuple[Settings, ...] = ()
    deviations: str = ""
    residuals: Mapping[Residual, frozenset[Drawn]] = field(default_factory=lambda: MappingProxyType({}))
    greedy: bool = False
    greedy_variant: str | None = None
    codebook: bool = False
    embeddings: bool = False
    needs_chain: bool = False
    looks_ahead: bool = False
    batched: BatchedRuleOf = no_batched_rule
    device: str | None = None

    def __post_init__(self) -> None:
        """Raise ValueError where what a plug-in registers is no rule: a promise or a kind of tree that there is not."""
        check_dataclass(f"rule '{self.name}'", self.make)
        check_answers(f"rule '{self.name}'", cast("type[Rule]", self.make), "__call__", _not_a_verdict)
        if self.promise not in get_args(Promise):
            raise ValueError(
                f"rule '{self.name}': expected a promise of {', '.join(get_args(Promise))}, got {self.promise!r}"
            )
        if not self.drawn or not self.drawn <= {*DRAWN}:
            raise ValueError(
                f"rule '{self.name}': expected drawn to name some of {', '.join(DRAWN)}, got {sorted(self.drawn)}"
            )
        check_reference(f"rule '{self.name}'", self.device)

    def check_covers(self, drawn: Drawn) -> None:
        """Raise ValueError unless the rule covers trees drawn this way."""
        if drawn not in self.drawn:
            raise ValueError(
                f"rule '{self.name}' covers {' and '.join(sorted(self.drawn))} trees, not '{drawn}' ones: it would "
                "need another residual; choose a rule or a policy that fit each other"
            )

    def all_settings(self, settings: Settings) -> dict[str, Any]:
        """`settings` over the defaults of the others."""
        return {**default_settings(self.make), **settings}

    def is_lossless(self, settings: Settings) -> bool:
        """Whether the output distribution is exactly the target's at these settings (its argmax image, of a greedy
        rule). Settings that are not given count at their defaults."""
        return self.promise == "lossless" or self.lossless_when(self.all_settings(settings))


def _not_a_verdict(answer: object, tree: DraftTree, probs: FloatArray, *_: object) -> str | None:
    """What a rule should have answered; None where it is a verdict on the tree."""
    nodes, codes = tree.size, probs.shape[-1]
    if (
        isinstance(answer, Verdict)
        and isinstance(answer.path, tuple)
        and all(isinstance(node, int | np.integer) and 0 < node < nodes for node in answer.path)
        and isinstance(answer.token, int | np.integer)
        and 0 <= answer.token < codes
    ):
        return None
    path = f"nodes from 1 to {nodes - 1}" if nodes > 1 else "no nodes"
    return f"a Verdict with {path} and a token from 0 to {codes - 1}"


_HERE: Final = "underpaint.algos.accept"
RULES: Registry[RuleSpec] = Registry(
    "rule",
    "underpaint.rules",
    {
        "block": f"{_HERE}.block",
        "chain": f"{_HERE}.walk",
        "cool": f"{_HERE}.cool",
        "ensemble": f"{_HERE}.ensemble",
        "fly": f"{_HERE}.fly",
        "fly_greedy": f"{_HERE}.fly",
        "gbv": f"{_HERE}.gbv",
        "greedy": f"{_HERE}.greedy",
        "gsd": f"{_HERE}.gsd",
        "hsd": f"{_HERE}.hsd",
        "lantern": f"{_HERE}.lantern",
        "lantern_pp": f"{_HERE}.lantern",
        "lantern_greedy": f"{_HERE}.lantern_greedy",
        "lantern_pp_greedy": f"{_HERE}.lantern_greedy",
        "mulo": f"{_HERE}.mulo",
        "multi_round": f"{_HERE}.walk",
        "point": f"{_HERE}.point",
        "neighbour_budget": f"{_HERE}.neighbour_budget",
        "sjd_sv": f"{_HERE}.sjd_sv",
        "traversal": f"{_HERE}.traversal",
        "typical": f"{_HERE}.typical",
        "without_replacement": f"{_HERE}.walk",
    },
)
"""A rule is one line here, and one module that registers its `RuleSpec`, imported when the name is asked for."""


def at_temperature(spec: RuleSpec, temperature: float) -> RuleSpec:
    """The rule that decides as `spec` does at this temperature: at 0, its greedy variant.

    Raises ValueError where there is none: at 0 for a relaxed rule without a greedy variant, above 0 for a greedy rule.
    """
    if temperature > 0:
        if spec.greedy:
            raise ValueError(
                f"rule '{spec.name}' decides by the likeliest token, which is temperature 0; pass --temperature 0 or a "
                f"rule for sampling: {', '.join(rule.name for rule in RULES if not rule.greedy)}"
            )
        return spec
    if spec.greedy:
        return spec
    variant = spec.greedy_variant or ("greedy" if spec.promise == "lossless" else None)
    if variant is None:
        raise ValueError(
            f"rule '{spec.name}' has no form at temperature 0; choose one of "
            f"{', '.join(rule.name for rule in RULES if rule.greedy)}"
        )
    return RULES[variant]


def spec_of(rule: Rule) -> RuleSpec | None:
    """The registered spec that made `rule`; None for a rule that no spec makes."""
    return next((spec for spec in RULES.loaded() if spec.make is type(rule)), None)


def require_drawn(tree: DraftTree, *kinds: Drawn) -> None:
    """Raise ValueError unless `tree` was drawn in one of `kinds`."""
    if tree.drawn not in kinds and tree.size > 1:
        raise ValueError(f"this rule covers {' and '.join(kinds)} trees, got a '{tree.drawn}' one")


def require_chain(tree: DraftTree) -> None:
    """Raise ValueError unless no node of `tree` has two children, and node i + 1 is the child of node i."""
    if any(parent != node for node, parent in enumerate(tree.parents.tolist()[1:])):
        raise ValueError(
            f"this rule covers chains, got a tree with parents {tree.parents.tolist()}; choose a chain policy, or a "
            "rule for trees"
        )
