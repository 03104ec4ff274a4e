"""Tree policies, one module each; `POLICIES` is their registry."""

from underpaint.algos.draft import adt, chain, eagle1, eagle2, opt, roofline, scheduled, sequoia
from underpaint.algos.draft.spec import POLICIES, Budget, Expander, Grid, Policy, PolicySpec

__all__ = [
    "POLICIES",
    "Budget",
    "Expander",
    "Grid",
    "Policy",
    "PolicySpec",
    "adt",
    "chain",
    "eagle1",
    "eagle2",
    "opt",
    "roofline",
    "scheduled",
    "sequoia",
]
