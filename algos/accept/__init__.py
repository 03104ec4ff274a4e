"""Acceptance rules, one module each; `RULES` is their registry, which imports a rule when it is asked for."""

from underpaint.algos.accept.spec import RULES, Residual, Rule, RuleSpec

__all__ = ["RULES", "Residual", "Rule", "RuleSpec"]
