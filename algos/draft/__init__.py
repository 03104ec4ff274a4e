"""Tree policies, one module each; `POLICIES` is their registry, which imports a policy when it is asked for."""

from underpaint.algos.draft.spec import POLICIES, PolicySpec

__all__ = ["POLICIES", "PolicySpec"]
