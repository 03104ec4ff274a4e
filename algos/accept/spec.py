"""The registry of acceptance rules, and the entry (`RuleSpec`) of a rule."""

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
"""The residual that a relaxed rule draws from: that of the paper, of the authors' released code, or plain speculative
sampling's norm([target - draft * accept]_+). "standard" gives the least total variation that the acceptance allows for
one proposal, so on chains; with two or more siblings another residual can be closer."""

Promise: TypeAlias = Literal["lossless", "bounded", "unbounded"]
Settings: TypeAlias = Mapping[str, Any]


class DraftedNode(NamedTuple):
    """A node with drafted children, as the input of `RuleSpec.bound_at`.

    Attributes:
        target: [V], the distribution of the target after the node.
        draft: [V], the distribution of the drafter after the node.
        drawn: How the children were drawn from `draft`.
        siblings: The number of children.
        level: The level of the node; the root has level 0.
        depth: The number of levels of the tree.
    """

    target: FloatArray
    draft: FloatArray
    drawn: Drawn
    siblings: int
    level: int = 0
    depth: int = 1


def every_combination(**choices: tuple[Any, ...]) -> tuple[dict[str, Any], ...]:
    """Return settings for `RuleSpec.examples`: all combinations of the given values."""
    return tuple(dict(zip(choices, values, strict=True)) for values in product(*choices.values()))


def never_lossless(settings: Settings) -> bool:
    """The `lossless_when` of a rule whose settings do not decide whether it is lossless."""
    return False


@dataclass(frozen=True, slots=True)
class RuleSpec:
    """The registry entry of an acceptance rule.

    Attributes:
        name: The name that users type.
        make: A frozen dataclass whose fields are the settings and whose instances are the rule.
        promise: "lossless" (the output distribution is the target's), "bounded" (see `bound_at`), or "unbounded".
        drawn: The kinds of tree that the rule supports; `check_covers` raises ValueError for the others.
        bound, bound_at: The promise of a bounded rule, in words and as a function (all settings, node) -> the largest
            total variation between the next token's distribution and the target's, including the drawing of the
            siblings. For a greedy rule: the most by which a kept token's probability may be below the largest one.
        lossless_when: A function of all settings: whether a relaxed rule is lossless then. Callers use `is_lossless`.
        examples: Settings for the property tests, of any strength, without the residual. If the rule can be lossless,
            one example must be. No example may be decided by rounding.
        residuals: The allowed values of the setting `residual`, each with the kinds of tree for which it is defined.
        greedy: The rule reads the distributions at temperature 1 and decides by their argmax; for temperature 0.
        greedy_variant: The name of the greedy rule to use instead at temperature 0; see `at_temperature`.
        codebook: The rule takes `neighbours` [V, k], the nearest codes of each code.
        embeddings: The rule takes `codebook` [V, E], the codes themselves.
        needs_chain: The rule supports only trees in which no node has two children.
        looks_ahead: Whether a token is kept depends on the tokens drafted after it, also on chains.
        batched: The rule's form for many trees at once; a test compares the two.
        device: The rule's form on the GPU, which takes the same uniforms: "module:name" or "path/of/file.py:name" of a
            function (rule, Shape, torch device) -> Decide, loaded on first use (`runtime.device.rules`); None if none.
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
        """Raise ValueError if a plug-in registers an invalid rule, such as an unknown promise or kind of tree."""
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
        """Raise ValueError unless the rule supports trees drawn this way."""
        if drawn not in self.drawn:
            raise ValueError(
                f"rule '{self.name}' covers {' and '.join(sorted(self.drawn))} trees, not '{drawn}' ones: it would "
                "need another residual; choose a rule or a policy that fit each other"
            )

    def all_settings(self, settings: Settings) -> dict[str, Any]:
        """Return `settings`, completed with the defaults of the other settings."""
        return {**default_settings(self.make), **settings}

    def is_lossless(self, settings: Settings) -> bool:
        """Return whether the output distribution equals the target's at these settings (missing ones: the defaults).
        For a greedy rule: whether the output is the target's argmax image."""
        return self.promise == "lossless" or self.lossless_when(self.all_settings(settings))


def _not_a_verdict(answer: object, tree: DraftTree, probs: FloatArray, *_: object) -> str | None:
    """Return what the rule should have returned; None if `answer` is a valid verdict on the tree."""
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
"""To add a rule, add one line here and a module that registers its `RuleSpec`; it is imported on first use."""


def at_temperature(spec: RuleSpec, temperature: float) -> RuleSpec:
    """Return the rule to use instead of `spec` at this temperature: at 0, its greedy variant.

    Raises ValueError if there is none: at 0 for a relaxed rule without greedy variant, above 0 for a greedy rule.
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
    """Return the registered spec that made `rule`; None if no registered spec did."""
    return next((spec for spec in RULES.loaded() if spec.make is type(rule)), None)


def require_drawn(tree: DraftTree, *kinds: Drawn) -> None:
    """Raise ValueError unless `tree` was drawn in one of the ways in `kinds`."""
    if tree.drawn not in kinds and tree.size > 1:
        raise ValueError(f"this rule covers {' and '.join(kinds)} trees, got a '{tree.drawn}' one")


def require_chain(tree: DraftTree) -> None:
    """Raise ValueError unless `tree` is a chain: node i + 1 is the only child of node i."""
    if any(parent != node for node, parent in enumerate(tree.parents.tolist()[1:])):
        raise ValueError(
            f"this rule covers chains, got a tree with parents {tree.parents.tolist()}; choose a chain policy, or a "
            "rule for trees"
        )
