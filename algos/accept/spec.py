"""What an acceptance rule is, and what it promises."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal, Protocol, TypeAlias

from underpaint.algos.arrays import FloatArray
from underpaint.algos.chance import Chance
from underpaint.algos.registry import Registry
from underpaint.algos.tree import DraftTree, Drawn, Verdict

Residual: TypeAlias = Literal["paper", "released", "optimal"]
"""Whose residual a relaxed rule draws from: the paper's, the authors' released code's, or
norm([target - draft * accept]_+), the least total variation that the acceptance allows."""

Promise: TypeAlias = Literal["lossless", "bounded", "unbounded"]


class Rule(Protocol):
    """An acceptance rule: which drafted nodes stay, and the one extra token."""

    def __call__(self, tree: DraftTree, probs: FloatArray, chance: Chance) -> Verdict:
        """Decide `tree` by the target distributions `probs` [N, V] (row i: the distribution of the token after node
        i)."""
        ...


@dataclass(frozen=True, slots=True)
class RuleSpec:
    """A rule's entry in the registry.

    make: a frozen dataclass whose fields are the settings and whose instances are the rule.
    promise: "lossless" (the output distribution is the target's), "bounded" (see `bound`), or "unbounded".
    drawn: the kinds of tree it covers; `check_covers` raises on the others.
    greedy: it reads the distributions at temperature 1 and decides by their argmax; for decoding at temperature 0.
    codebook: it takes `neighbours` [V, k], the nearest codes of each code.
    embeddings: it takes `codebook` [V, E], the codes themselves.
    neutral: settings at which a relaxed rule is lossless.
    needs_chain: it covers trees in which no node has two children.
    """

    name: str
    make: Callable[..., Rule]
    promise: Promise
    drawn: frozenset[Drawn]
    source: str
    bound: str = ""
    deviations: str = ""
    greedy: bool = False
    codebook: bool = False
    embeddings: bool = False
    needs_chain: bool = False
    residuals: tuple[Residual, ...] = ()
    neutral: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))

    def check_covers(self, drawn: Drawn) -> None:
        """Raise ValueError unless the rule covers trees drawn this way."""
        if drawn not in self.drawn:
            raise ValueError(
                f"rule '{self.name}' covers {' and '.join(sorted(self.drawn))} trees, not '{drawn}' ones: it would "
                "need another residual; choose a rule or a policy that fit each other"
            )


RULES: Registry[RuleSpec] = Registry("rule")


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
