"""Acceptance rules, one module each; `RULES` is their registry."""

from algos.accept import (
    block,
    chain,
    greedy,
    lantern,
    lantern_greedy,
    multi_round,
    point,
    traversal,
    without_replacement,
)
from algos.accept.spec import RULES, Residual, Rule, RuleSpec

__all__ = [
    "RULES",
    "Residual",
    "Rule",
    "RuleSpec",
    "block",
    "chain",
    "greedy",
    "lantern",
    "lantern_greedy",
    "multi_round",
    "point",
    "traversal",
    "without_replacement",
]
