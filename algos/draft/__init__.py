"""Tree policies, one module each. `POLICIES` is their registry; it imports a policy's module on first use."""

from underpaint.algos.draft.spec import POLICIES, PolicySpec

__all__ = ["POLICIES", "PolicySpec"]
