"""Acceptance rules, one module each. `RULES` is their registry; it imports a rule's module on first use."""

from underpaint.algos.accept.spec import RULES, Residual, RuleSpec

__all__ = ["RULES", "Residual", "RuleSpec"]
