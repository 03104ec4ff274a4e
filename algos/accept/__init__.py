"""Acceptance rules, one module each; `RULES` is their registry."""

from underpaint.algos.accept import (
    block,
    chain,
    cool,
    greedy,
    gsd,
    lantern,
    lantern_greedy,
    mulo,
    multi_round,
    neighbour_budget,
    point,
    traversal,
    typical,
    without_replacement,
)
from underpaint.algos.accept.spec import RULES, Residual, Rule, RuleSpec

__all__ = [
    "RULES",
    "Residual",
    "Rule",
    "RuleSpec",
    "block",
    "chain",
    "cool",
    "greedy",
    "gsd",
    "lantern",
    "lantern_greedy",
    "mulo",
    "multi_round",
    "neighbour_budget",
    "point",
    "traversal",
    "typical",
    "without_replacement",
]
