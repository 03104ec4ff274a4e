"""Tree policies, one module each; `POLICIES` is their registry."""

from underpaint.algos.draft import adt, chain, eagle1, eagle2, opt, roofline, scheduled, sequoia
from underpaint.algos.draft.spec import POLICIES, PolicySpec

__all__ = [
    "POLICIES",
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
