"""Acceptance rules, one module each; `RULES` is their registry."""

from underpaint.algos.accept import (
    block,
    cool,
    greedy,
    gsd,
    lantern,
    lantern_greedy,
    mulo,
    neighbour_budget,
    point,
    speculative,
    traversal,
    typical,
)
from underpaint.algos.accept.spec import RULES, Residual, RuleSpec

__all__ = [
    "RULES",
    "Residual",
    "RuleSpec",
    "block",
    "cool",
    "greedy",
    "gsd",
    "lantern",
    "lantern_greedy",
    "mulo",
    "neighbour_budget",
    "point",
    "speculative",
    "traversal",
    "typical",
]
