"""Acceptance rules, one module each; `RULES` is their registry, which imports a rule when it is asked for."""

from underpaint.algos.accept.spec import RULES, Residual, RuleSpec

__all__ = ["RULES", "Residual", "RuleSpec"]
