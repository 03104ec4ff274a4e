"""Acceptance rules, one module each; `RULES` is their registry."""

from algos.accept import point
from algos.accept.spec import RULES, Residual, Rule, RuleSpec

__all__ = ["RULES", "Residual", "Rule", "RuleSpec", "point"]
