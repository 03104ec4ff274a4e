"""Tree policies, one module each; `POLICIES` is their registry, which imports a policy when it is asked for."""

from underpaint.algos.draft.spec import POLICIES, Budget, Expander, Grid, Policy, PolicySpec

__all__ = ["POLICIES", "Budget", "Expander", "Grid", "Policy", "PolicySpec"]
